"""When each tile holds something that is still read, and what that makes of its storage.

A statement is a point; a loop's body is followed by itself. A value lives from the write that made it
to its last read. Only a write that surely covers a tile ends what lay there before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from gdngen.inspect.kernel import (
    Access,
    Box,
    Branch,
    Kernel,
    Leaf,
    Loop,
    Statement,
    meet,
    within,
)


@dataclass(frozen=True)
class Point:
    """A leaf, and what may follow it. `loop`: the number of the innermost loop around it, 0 for none;
    `pipelined`: in such a loop; `guarded`: in a branch."""

    leaf: Leaf
    after: tuple[int, ...]
    loop: int
    pipelined: bool
    guarded: bool


@dataclass(frozen=True)
class Clobbered:
    """A read of a value, by one name, that a write by another name of the same tile destroyed."""

    read: Access
    write: Access
    made: Access


@dataclass(frozen=True)
class Lives:
    """What holds at every point.

    live         tiles that hold something that is read at it or later, and those that it touches
    first, last  of each tile, the lines between which it lives
    """

    points: tuple[Point, ...]
    live: tuple[frozenset[str], ...]
    first: Mapping[str, int]
    last: Mapping[str, int]

    def peak(self, bytes_of: Mapping[str, int]) -> int | None:
        """The point at which most bytes are live; the first of several."""
        totals = [sum(bytes_of.get(t, 0) for t in here) for here in self.live]
        return totals.index(max(totals)) if totals else None


def points(body: tuple[Statement, ...]) -> tuple[Point, ...]:
    """The leaves, in the order written, with what may follow each."""
    return tuple(_Flow(body).made)


class _Flow:
    """Successors of leaves. An exit is a leaf whose successor is still to be known; -1 is the start."""

    def __init__(self, body: tuple[Statement, ...]):
        self.leaves: list[tuple[Leaf, int, bool, bool]] = []
        self.after: list[set[int]] = []
        self.first: set[int] = set()  # what may be the first of all
        self.loops = 0
        self.walk(body, {-1}, 0, False, False)
        self.made = [
            Point(leaf, tuple(sorted(after)), *place)
            for (leaf, *place), after in zip(self.leaves, self.after)
        ]

    def walk(self, body, exits: set[int], loop: int, pipelined: bool, guarded: bool) -> set[int]:
        for s in body:
            if isinstance(s, Leaf):
                index = len(self.leaves)
                self.leaves.append((s, loop, pipelined, guarded))
                self.after.append(set())
                for e in exits:
                    self.successors(e).add(index)
                exits = {index}
            elif isinstance(s, Loop):
                start, before = len(self.leaves), exits
                self.loops += 1
                inside = pipelined or s.kind == "pipelined"
                ends = self.walk(s.body, exits, self.loops, inside, guarded)
                # A round follows a round: with any leaf that may be the first of one.
                firsts = {i for e in before for i in self.successors(e) if i >= start}
                for e in ends:
                    if e >= start:
                        self.after[e] |= firsts
                exits = ends if s.trips else exits | ends
            elif isinstance(s, Branch):
                then = self.walk(s.then, exits, loop, pipelined, True)
                # Without another round the loop is over: a round follows the other way alone.
                exits = (
                    then if s.another else then | self.walk(s.other, exits, loop, pipelined, True)
                )
        return exits

    def successors(self, exit: int) -> set[int]:
        return self.first if exit < 0 else self.after[exit]


def lives(kernel: Kernel, kept: Collection[str] = ()) -> Lives:
    """Live storage of shared tiles at every statement. Tiles that are `kept` hold what a pipelined loop
    has loaded ahead: they live for all of it."""
    pts = points(kernel.body)
    tiles = {t.id: t for t in kernel.shared}
    reads, kills, writes = [], [], []
    for p in pts:
        inside = [a for a in p.leaf.accesses if a.tile in tiles]
        exposed = frozenset(a.tile for a in inside if not a.write and not a.anew)
        whole = frozenset(
            a.tile for a in inside if a.write and a.exact and within(tiles[a.tile].box, a.box)
        )
        reads.append(exposed)
        kills.append(whole)
        writes.append(frozenset(a.tile for a in inside if a.write))
    before, after = _backward(pts, reads, kills)
    written = _forward(pts, writes)
    held_before = [b & w for b, w in zip(before, written)]
    held_after = [a & (w | own) for a, w, own in zip(after, written, writes)]
    touched = [frozenset(a.tile for a in p.leaf.accesses if a.tile in tiles) for p in pts]
    ahead = [frozenset(kept) if p.pipelined else frozenset() for p in pts]
    live = tuple(a | b | c | d for a, b, c, d in zip(held_before, held_after, touched, ahead))
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for p, here in zip(pts, live):
        for t in here:
            line = p.leaf.where.line
            first[t] = min(line, first.get(t, line))
            last[t] = max(line, last.get(t, line))
    return Lives(pts, live, first, last)


def touched(p: Point) -> frozenset[str]:
    return frozenset(a.tile for a in p.leaf.accesses)


def _backward(pts, reads, kills):
    before = [frozenset()] * len(pts)
    after = [frozenset()] * len(pts)
    changed = True
    while changed:
        changed = False
        for i in reversed(range(len(pts))):
            out = frozenset().union(*(before[j] for j in pts[i].after))
            into = reads[i] | (out - kills[i])
            if (out, into) != (after[i], before[i]):
                after[i], before[i], changed = out, into, True
    return before, after


def _forward(pts, writes, back: bool = True):
    """Of each point, tiles that may have been written before it; without `back`, in the first round
    of every loop."""
    into = [frozenset()] * len(pts)
    changed = True
    while changed:
        changed = False
        for i, p in enumerate(pts):
            out = into[i] | writes[i]
            for j in p.after:
                if (back or j > i) and not out <= into[j]:
                    into[j], changed = into[j] | out, True
    return into


def unwritten(kernel: Kernel, pts: tuple[Point, ...]) -> Iterator[Access]:
    """Reads of tiles that hold nothing by then, at least in the first round of a loop: the first read
    of each tile. What is only read in later rounds, as a condition says, is left in peace."""
    scopes = {t.id: t.scope for t in kernel.tiles.values()}
    writes = [frozenset(a.tile for a in p.leaf.accesses if a.write) for p in pts]
    ever, first, seen = _forward(pts, writes), _forward(pts, writes, back=False), set()
    for p, some, now in zip(pts, ever, first):
        done = set(some if p.guarded or p.leaf.kind not in ("gemm", "reduce") else now)
        for a in p.leaf.accesses:
            if a.write:
                done.add(a.tile)
            elif a.tile not in done | seen and scopes[a.tile] in ("shared", "fragment"):
                if p.leaf.kind != "call":
                    seen.add(a.tile)
                    yield a


def clobbered(kernel: Kernel, pts: tuple[Point, ...]) -> Iterator[Clobbered]:
    """Values of a name that a write by another name of the same tile destroys before they are read.

    A state is, per name, the boxes that it wrote and that others have written over since.
    """
    shared = {t.id for t in kernel.shared if len(t.names) > 1}
    if not shared:
        return
    states: list[dict] = [{} for _ in pts]
    found: dict[tuple, Clobbered] = {}
    waiting = list(range(len(pts)))
    while waiting:
        i = waiting.pop(0)
        out = _through(pts[i].leaf, states[i], shared, found)
        for j in pts[i].after:
            merged = states[j] | out
            if merged.keys() != states[j].keys():
                states[j] = merged
                waiting.append(j)
    # A read is shown once, whatever paths lead to it.
    once: dict[tuple, Clobbered] = {}
    for c in found.values():
        once.setdefault((c.read.tile, c.read.name, c.read.where), c)
    yield from sorted(once.values(), key=lambda c: (c.read.where, c.write.where))


# A fact: ("made", tile, name, box) or ("lost", tile, name, box) -> the accesses that made it true.
def _through(leaf: Leaf, state: Mapping, shared: set[str], found: dict) -> dict:
    now = dict(state)
    for a in sorted(leaf.accesses, key=lambda a: a.write):  # what is read, is read first
        if a.tile not in shared:
            continue
        if not a.write:
            for (kind, tile, name, box), (made, write) in now.items():
                if kind == "lost" and (tile, name) == (a.tile, a.name) and meet(box, a.box):
                    if not a.anew:
                        found.setdefault((a, write.where), Clobbered(a, write, made))
            continue
        for fact, (made, write) in list(now.items()):
            kind, tile, name, box = fact
            if tile != a.tile:
                continue
            if name == a.name:
                # Where it is written anew, nothing of it is lost any more. (Not surely, where a write
                # has a condition: what is reported is only what is surely wrong.)
                del now[fact]
                if (left := _without(box, a.box)) is not None:
                    now[(kind, tile, name, left)] = (made, write)
            elif kind == "made" and meet(box, a.box):
                both = tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(box, a.box))
                now.setdefault(("lost", tile, name, both), (made, a))
        now[("made", a.tile, a.name, a.box)] = (a, a)
    return now


def _without(box: Box, taken: Box) -> Box | None:
    """A box less another, where a box is left; the whole box where more than a box would be."""
    if within(box, taken):
        return None
    outside = [i for i, (a, t) in enumerate(zip(box, taken)) if not (t[0] <= a[0] and a[1] <= t[1])]
    if len(outside) == 1:
        (at,) = outside
        (low, high), (start, stop) = box[at], taken[at]
        if start <= low < stop:
            return (*box[:at], (stop, high), *box[at + 1 :])
        if start < high <= stop:
            return (*box[:at], (low, start), *box[at + 1 :])
    return box
