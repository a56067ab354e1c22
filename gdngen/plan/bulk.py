"""Copies that TMA makes by itself in a kernel without roles: where they start and what waits for them.

A kernel that says `async` has its whole tiles loaded and stored so on devices that can. A load starts
where it stands and is waited for where its tile is first touched; a store goes on until its tile's
storage is written again. TMA reads 0 outside a tensor and writes nothing there: no bounds checks.

In a loop over chunks a tile is loaded so in its own round, or, behind its last use, for the next one:

    - copy: k[b, h, c*BC:(c+1)*BC, :] -> k_s              # before the loop, of its first round
    - loop: {i: n}
      do:
        - ...                                             # k_s is used
        - copy: k[b, h, (c+i+1)*BC:(c+i+2)*BC, :] -> k_s
          when: i + 1 < n
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gdngen.errors import Location
from gdngen.language import expr
from gdngen.model.model import (
    BYTES,
    Branch,
    Copy,
    Kernel,
    Loop,
    Region,
    Span,
    Statement,
    leaves,
    touched,
)
from gdngen.plan import rewrite
from gdngen.plan.emission import Emitted, Home, emitted, homes, members
from gdngen.plan.instructions import has_tma
from gdngen.roles.sync import (
    AsyncLoad,
    AsyncStore,
    Barrier,
    BarrierArrive,
    BarrierWait,
    Drain,
    Fence,
    Together,
)

if TYPE_CHECKING:
    from gdngen.plan.storage import Slot

UNIT = 16  # bytes, of which TMA moves whole ones
SIDE = 256  # elements, the longest side of what one copy moves


def wanted(kernel: Kernel, target: str) -> bool:
    """Whether a kernel's copies are made so on a target."""
    return kernel.asynchronous and has_tma(target) and any(_bulk(kernel))


def loads(kernel: Kernel) -> list[Copy]:
    return [c for c in _bulk(kernel) if kernel.tensor(c.src.name)]


def _bulk(kernel: Kernel) -> Iterator[Copy]:
    """Copies of whole tiles from and to tensors: outside loops and branches, and in loops over rounds."""
    body = kernel.statements()
    for at, s in enumerate(body):
        if isinstance(s, Copy) and _is_bulk(s, kernel):
            yield s
        elif isinstance(s, Loop) and s.kind == "loop" and s.var and kernel.rounds is None:
            for x in s.body:
                copy = x if isinstance(x, Copy) else _of_next_round(x, s)
                if copy is None or not _is_bulk(copy, kernel):
                    continue
                if kernel.tensor(copy.src.name) is None:
                    fits = x is copy  # a store
                else:
                    fits = _in_turn(copy, x, s, kernel)
                if fits:
                    yield copy


def _of_next_round(s: Statement, loop: Loop) -> Copy | None:
    """The copy that a branch makes in every round but the last, if it makes no more."""
    if not isinstance(s, Branch) or s.other or len(s.then) != 1 or not isinstance(s.then[0], Copy):
        return None
    match s.cond:
        case ast.Compare(left=left, ops=[ast.Lt()], comparators=[right]):
            rest = ast.BinOp(ast.BinOp(right, ast.Sub(), left), ast.Sub(), loop.count)
            is_next = expr.linear(rest, {}) == {loop.var: -1, "": -1}
            return s.then[0] if is_next else None
    return None


def _in_turn(load: Copy, s: Statement, loop: Loop, kernel: Kernel) -> bool:
    """Whether a tile is loaded once a round, and used in every one between a load and the next: its own
    round's load stands before all uses, the next one's behind them, and that of the first before the loop.
    """

    def using(part: Sequence[Statement]) -> list[Statement]:
        return [x for x in part if load.dst.name in touched(x)]

    body, here = kernel.statements(), loop.body.index(s)
    at = body.index(loop)
    before, after = using(body[:at]), using(body[at + 1 :])
    ahead, behind = using(loop.body[:here]), using(loop.body[here + 1 :])
    written = {a.name for x in (*ahead, *behind) for c in leaves(x) for a in c.writes()}
    if load.dst.name in written or after:
        return False
    if s is load:
        return bool(behind) and not ahead and not before
    first = isinstance(before[0], Copy) and _is_bulk(before[0], kernel) if before else False
    return first and len(before) == 1 and bool(ahead) and not behind


def _is_bulk(copy: Copy, kernel: Kernel) -> bool:
    for tile, tensor in ((copy.dst, copy.src), (copy.src, copy.dst)):
        buffer = kernel.buffer(tile.name)
        if kernel.tensor(tensor.name) is None or buffer is None or buffer.scope != "shared":
            continue
        whole = tile.whole and len(buffer.shape) > 1 and max(buffer.shape) <= SIDE
        alike = buffer.dtype == kernel.tensor(tensor.name).dtype
        return whole and alike and _is_box(tensor, kernel, BYTES[buffer.dtype])
    return False


def _is_box(region: Region, kernel: Kernel, size: int) -> bool:
    """Whether rows are whole and a multiple of what TMA moves, and no range ends early."""
    spans = [p for p in region.index if isinstance(p, Span)]
    values = dict(kernel.values)
    as_long = all(
        p.full or expr.linear(ast.BinOp(p.stop, ast.Sub(), p.start), values) == {"": p.size}
        for p in spans
    )
    last = region.index[-1] if region.index else None
    rows = isinstance(last, Span) and last.full and last.size * size % UNIT == 0
    return as_long and rows


def barriers(kernel: Kernel) -> tuple[Barrier, ...]:
    """One for each tile that is loaded, which every thread arrives at."""
    tiles = dict.fromkeys(c.dst.name for c in loads(kernel))
    return tuple(
        Barrier(rewrite.fresh(kernel, f"{tile}_full"), 1, kernel.threads) for tile in tiles
    )


@dataclass(frozen=True)
class Timed:
    """Each stage's statements as they are emitted, with what starts copies and what waits for them.

    A kernel whose blocks take several rounds has `loop` around its stages, whose body is theirs; what
    the first round finds under way is started `before`, and what the last one leaves so is waited for
    `behind`. A block's own index is called `first` then.
    """

    stages: tuple[tuple[Emitted, ...], ...]
    before: tuple[Emitted, ...] = ()
    behind: tuple[Emitted, ...] = ()
    loop: Loop | None = None
    first: str = ""


def timed(kernel: Kernel, slots: Iterable[Slot]) -> Timed:
    timing = _Timing(kernel, tuple(slots))
    bodies = [list(stage.body) for stage in kernel.stages]
    if kernel.rounds is None:
        stages, before, loop, first = [timing.body(body) for body in bodies], [], None, ""
    else:
        loop, first = _loop(kernel)
        ahead = _ahead(kernel, bodies, timing.place, loop, first)
        loop = replace(loop, body=tuple(s for body in bodies for s in body))
        before = timing.body(ahead)
        stages = timing.rounds(loop, bodies)
    end = [Drain(-1, kernel.stages[-1].where, kernel.stages[-1].name)] if timing.leaving else []
    if loop is None:
        stages[-1] += end

    def out(body: list[Statement]) -> tuple[Emitted, ...]:
        return tuple(_apart(body, kernel, timing.home))

    return Timed(tuple(map(out, stages)), out(before), out(end if loop else []), loop, first)


def grid(kernel: Kernel, target: str) -> tuple[tuple[str, ast.expr], ...]:
    """The grid on a target: shorter along the index of which a block takes several, and that index by
    another name."""
    if kernel.rounds is None or not wanted(kernel, target):
        return kernel.grid
    (index, each), (_, first) = kernel.rounds, _loop(kernel)
    return tuple(
        (
            (first, ast.Call(ast.Name("ceildiv"), [size, ast.Constant(each)], []))
            if name == index
            else (name, size)
        )
        for name, size in kernel.grid
    )


def _loop(kernel: Kernel) -> tuple[Loop, str]:
    """A block's rounds, which give its index in turn the values that several blocks would have, and what
    the index of such a block is called."""
    index, each = kernel.rounds
    size = dict(kernel.grid)[index]
    var, first = rewrite.fresh(kernel, "n"), rewrite.fresh(kernel, f"{index}_block")
    start = ast.BinOp(ast.Name(first), ast.Mult(), ast.Constant(each))
    count = ast.Call(ast.Name("min"), [ast.Constant(each), ast.BinOp(size, ast.Sub(), start)], [])
    here = ast.BinOp(start, ast.Add(), ast.Name(var))
    where = kernel.stages[0].where
    lets = ((index, here),)
    return (
        Loop(-1, where, kernel.stages[0].name, "loop", var, count, None, True, 1, (), "1", lets),
        first,
    )


def _ahead(
    kernel: Kernel,
    bodies: list[list[Statement]],
    place: Mapping[str, str],
    loop: Loop,
    first: str,
) -> list[Statement]:
    """Takes loads out of the stages that can be made a round ahead, and puts those of the next round
    behind the last use of their storage; those of a block's first round are what it gives back."""
    index, each = kernel.rounds
    found = []
    for load in [c for c in loads(kernel) if c in kernel.statements()]:
        using = [
            (body, s)
            for body in bodies
            for s in body
            if place[load.dst.name] in _storages(s, place)[0]
        ]
        if using[0][1] is not load or len(using) == 1:
            continue  # its storage is another tile's when a round starts
        start = ast.BinOp(ast.Name(first), ast.Mult(), ast.Constant(each))
        found.append(rewrite.at(load, index, start))
        following = ast.BinOp(ast.Name(loop.var), ast.Add(), ast.Constant(1))
        more = ast.Compare(following, [ast.Lt()], [loop.count])
        after = rewrite.at(load, index, ast.BinOp(ast.Name(index), ast.Add(), ast.Constant(1)))
        body, last = using[-1]
        behind = Branch(-1, last.where, last.stage, more, (after,), ())
        body.insert(body.index(last) + 1, behind)
        using[0][0].remove(load)
    return found


class _Timing:
    """What is under way while statements go by.

    coming   storage -> the barrier, and its round, that say that its tile is there
    leaving  storages that stores may still be reading
    used     storages that anything has touched
    """

    def __init__(self, kernel: Kernel, slots: tuple[Slot, ...]):
        self.kernel = kernel
        self.home = homes(slots)
        self.place = {t: s.name for s in slots for t in s.tenants}
        self.bulk = {c.id for c in _bulk(kernel)}
        tiles = dict.fromkeys(c.dst.name for c in loads(kernel))
        self.barrier = dict(zip(tiles, barriers(kernel)))
        self.loaded = dict.fromkeys(tiles, 0)  # rounds, so far
        self.coming: dict[str, tuple[Barrier, ast.expr]] = {}
        self.leaving: frozenset[str] = frozenset()
        self.used: frozenset[str] = frozenset()

    def body(self, body: Sequence[Statement], loop: Loop | None = None) -> list[Statement]:
        return [x for s in body for x in self.statement(s, loop)]

    def statement(self, s: Statement, loop: Loop | None) -> list[Statement]:
        if isinstance(s, Loop) and loop is None and self.bulk & {x.id for x in leaves(s)}:
            (body,) = self.rounds(s, [s.body])
            return [replace(s, body=tuple(body))]
        copy = s if isinstance(s, Copy) else _of_next_round(s, loop) if loop else None
        touches, writes = _storages(s, self.place)
        out: list[Statement] = self.waits(touches, s, loop)
        load = copy is not None and copy.id in self.bulk and copy.dst.name in self.barrier
        # What threads did there is done before TMA writes, and what TMA reads before anyone does.
        settled = [Fence(*_at(s))] if load and touches & self.used else []
        if writes & self.leaving:
            settled.append(Drain(*_at(s)))
            self.leaving = frozenset()
        out += [*settled, Together(*_at(s))] if settled else []
        if load:
            barrier, round_ = self.barrier[copy.dst.name], self.round(copy, s, loop)
            arrive = BarrierArrive(*_at(s), barrier, round_)
            started = (AsyncLoad(*_at(s), copy, barrier, round_), arrive)
            out += [replace(s, then=started)] if isinstance(s, Branch) else started
            self.coming |= {n: (barrier, round_) for n in touches}
        elif copy is not None and copy.id in self.bulk:
            out += [Fence(*_at(s)), Together(*_at(s)), AsyncStore(*_at(s), copy)]
            self.leaving |= touches
        else:
            out.append(s)
        self.used |= touches
        return out

    def waits(self, touches: set[str], s: Statement, loop: Loop | None) -> list[Statement]:
        """For tiles that a statement touches and that are coming; in a loop that loads them, round by
        round."""
        found = []
        for storage in [n for n in self.coming if n in touches]:
            barrier, round_ = self.coming.pop(storage)
            if loop and self.loaded_in(loop, barrier):
                round_ = ast.Name(loop.var)
            found.append(BarrierWait(*_at(s), barrier, round_, 0))
        return found

    def loaded_in(self, loop: Loop, barrier: Barrier) -> bool:
        mine = (c for c in leaves(loop) if isinstance(c, Copy) and c.id in self.bulk)
        return any(self.barrier.get(c.dst.name) == barrier for c in mine)

    def round(self, load: Copy, s: Statement, loop: Loop | None) -> ast.expr:
        """The number of a load among those of its tile."""
        if loop:
            name = ast.Name(loop.var)
            return ast.BinOp(name, ast.Add(), ast.Constant(1)) if isinstance(s, Branch) else name
        self.loaded[load.dst.name] += 1
        return ast.Constant(self.loaded[load.dst.name] - 1)

    def rounds(self, loop: Loop, parts: Sequence[Sequence[Statement]]) -> list[list[Statement]]:
        """A loop's body in parts; rounds may find under way what those before have left so."""
        coming, leaving = dict(self.coming), self.leaving
        self.body(loop.body, loop)  # what a round leaves
        self.coming, self.leaving = coming, self.leaving | leaving
        out = [self.body(part, loop) for part in parts]
        self.coming = {n: on for n, on in self.coming.items() if not self.loaded_in(loop, on[0])}
        return out


def _apart(body: Sequence[Statement], kernel: Kernel, home: Home) -> Iterator[Emitted]:
    """`emitted`, with what TMA copies taken out of the groups of loads: it needs no bounds checks."""
    run: list[Statement] = []
    for s in body:
        if isinstance(s, (AsyncLoad, AsyncStore)):
            yield from emitted(run, kernel, home)
            run = []
            yield s
        else:
            run.append(s)
    yield from emitted(run, kernel, home)


def _at(s: Emitted) -> tuple[int, Location, str]:
    """Id, line and stage of what is put in before a statement."""
    first = next(leaf for x in members(s) for leaf in leaves(x))
    return -1, first.where, first.stage


def _storages(s: Emitted, place: Mapping[str, str]) -> tuple[set[str], set[str]]:
    """Storages that a statement touches, and those of them that it writes."""
    inside = [leaf for x in members(s) for leaf in leaves(x)]
    writes = {place[a.name] for x in inside for a in x.writes() if a.name in place}
    return writes | {place[a.name] for x in inside for a in x.reads() if a.name in place}, writes
