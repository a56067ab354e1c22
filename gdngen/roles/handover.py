"""Roles' programs with all that orders them put in: `Kernel` -> `Parted`.

    barriers   before a role's first use of a round it waits, behind the last it arrives
    products   run on by themselves; a wait stands before what needs one to be over
    stores     run on too, until their tile goes back or is written again
    fences     between what threads write and what copies and products read

Where a role's use of a round begins and ends is for `spans.py` to say, and for `protocol.py`, from the
result, whether it all holds.
"""

import ast
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gdngen.errors import Location, Report
from gdngen.model import model, roles, rounds
from gdngen.model.model import (
    Await,
    Branch,
    Copy,
    Gemm,
    Kernel,
    Leaf,
    Loop,
    Role,
    Skip,
    Statement,
)
from gdngen.roles import channels as channelling
from gdngen.roles import spans
from gdngen.roles.channels import Channel, is_load, is_store
from gdngen.roles.spans import Turns
from gdngen.roles.sync import (
    AsyncLoad,
    AsyncStore,
    Barrier,
    BarrierArrive,
    BarrierWait,
    Drain,
    Fence,
    Meet,
    Settle,
)


@dataclass(frozen=True)
class Parted:
    """A kernel's roles, each with its program as it is rendered, and the barriers between them."""

    kernel: Kernel
    channels: tuple[Channel, ...]
    programs: tuple[tuple[Role, tuple[Statement, ...]], ...]

    @property
    def barriers(self) -> tuple[Barrier, ...]:
        return tuple(b for c in self.channels for b in (c.full, c.free))


@functools.lru_cache(maxsize=8)
def of(kernel: Kernel) -> Parted:
    """The roles of a kernel that passed every check."""
    report = Report()
    found = parted(kernel, report)
    report.stop()
    return found


def parted(kernel: Kernel, report: Report) -> Parted | None:
    """None where a mistake, reported, leaves nothing to put in."""
    found = channelling.channels(kernel, report)
    if report.errors():
        return None
    turns = spans.turns(kernel, found, report)
    if report.errors():
        return None
    programs = []
    for role in kernel.roles:
        writer = _Writer(kernel, role, found, turns[role.name], report)
        programs.append((role, writer.program()))
    return None if report.errors() else Parted(kernel, found, tuple(programs))


# -- writing ---------------------------------------------------------------------------------------

Part = tuple[str, str]  # a tile and, where it is staged, the round as text
BEFORE = "before"  # of a part: some round of an earlier turn of the loop


@dataclass
class _Flight:
    """A product that is under way, and what goes back when it is over."""

    gemm: Gemm
    parts: frozenset[Part]
    releases: list[tuple[Channel, ast.expr, Location]] = field(default_factory=list)


class _Writer:
    def __init__(self, kernel: Kernel, role: Role, channels, turns: Turns, report: Report):
        self.kernel, self.role, self.turns, self.report = kernel, role, turns, report
        self.of_tile = {t: c for c in channels for t in c.tiles}
        self.flying: list[_Flight] = []
        self.storing: set[Part] = set()
        self.held: list[tuple[Channel, ast.expr, Location]] = []  # go back at the end of the block
        self.written: set[Part] = set()  # by threads, and not all of them know
        self.read: dict[Part, str] = {}  # since threads last met: 'rows' where each read its own
        self.asked = _asynchronous(kernel)

    def program(self) -> tuple[Statement, ...]:
        out = self.block(roles.statements(self.kernel, self.role))
        if self.storing:
            out.append(Drain(-1, self.role.where, self.role.name))
        return tuple(out)

    def block(self, body: Sequence[Statement]) -> list[Statement]:
        out: list[Statement] = []
        for s in body:
            if isinstance(s, Leaf):
                self.leaf(s, out)
            elif isinstance(s, Branch):
                out.append(self.branch(s, out))
            else:
                out.append(self.loop(s, out))
            for release in self.turns.last.get(s.id, ()):
                self.release(s, *release, out)
        return out

    # -- statements --------------------------------------------------------------------------

    def leaf(self, s: Leaf, out: list[Statement]) -> None:
        self.settle_for(s, s, out)
        self.acquire(s, out)
        if isinstance(s, Await):
            if self.still_stored(self.part(s.tile)):
                self.drain(s, out)
            return
        if isinstance(s, Skip):
            return
        if isinstance(s, Gemm):
            self.visible(s, (s.a, s.b), True, out)
            parts = [self.part(r) for r in (s.a, s.b, s.c)]
            self.note_read(self.part(s.a), "all" if s.transpose_a else "rows")
            self.note_read(self.part(s.b), "all")
            out.append(s)
            self.flying.append(_Flight(s, frozenset(parts)))
            return
        if is_load(s, self.kernel):
            channel = self.of_tile[s.dst.name]
            at = rounds.round_of(s.writes()[0])
            out.append(AsyncLoad(s.id, s.where, s.stage, s, channel.full, at))
            return
        if is_store(s, self.kernel):
            self.visible(s, (s.src,), True, out)
            out.append(AsyncStore(s.id, s.where, s.stage, s))
            self.storing.add(self.part(s.src))
            return
        self.threads(s, out)

    def threads(self, s: Leaf, out: list[Statement]) -> None:
        """A statement that threads do by themselves."""
        reads = [self.of(a) for a in s.reads()]
        writes = [self.of(a) for a in s.writes()]
        shared = [p for p in writes if p and self.is_shared(p)]
        if any(p in self.written for p in reads if p):
            self.meet(s, out)
        for p in shared:
            if p in self.storing:
                self.drain(s, out)
                self.meet(s, out)
            elif p in self.read and not (self.read[p] == "rows" and self.keeps_rows(s)):
                self.meet(s, out)
        out.append(s)
        for p in reads:
            if p and self.is_shared(p):
                self.note_read(p, "all")
        self.written |= set(shared)

    def branch(self, s: Branch, out: list[Statement]) -> Branch:
        inner = [leaf for group in model.children(s) for x in group for leaf in model.leaves(x)]
        for leaf in inner:
            if isinstance(leaf, Gemm):
                self.report.error(
                    leaf.where,
                    "a product inside a branch: a wait for it there makes the compiler do all products "
                    "one by one",
                    "do it in every round: let the last round repeat itself, as with min(i + 1, n - 1)",
                )
            self.settle_for(leaf, s, out)
            for channel, at, _ in self.turns.last.get(leaf.id, ()):
                if busy := self.busy(channel, at):
                    self.settle(s, len(self.flying) - 1 - self.flying.index(busy[-1]), out)
        storing, written, read = set(self.storing), set(self.written), dict(self.read)
        then = self.block(s.then)
        kept = self.storing, self.written, self.read
        self.storing, self.written, self.read = storing, written, read
        other = self.block(s.other)
        self.storing |= kept[0]
        self.written |= kept[1]
        self.read |= kept[2]
        return replace(s, then=tuple(then), other=tuple(other))

    def loop(self, s: Loop, out: list[Statement]) -> Loop:
        if self.flying:
            self.settle(s, 0, out)
        for _ in range(2):  # the second time with what the first leaves behind
            body = self.block(s.body)
            if self.flying:
                self.settle(s.body[-1], 0, body)
            self.give_back(s.body[-1], body)
            self.turned(s)
        return replace(s, body=tuple(body))

    def turned(self, s: Loop) -> None:
        """What was of this round is of one before in the next."""
        own = {s.var, *(name for name, _ in s.lets)}

        def renamed(part: Part) -> Part:
            tile, key = part
            parts = {n.id for n in ast.walk(ast.parse(key)) if isinstance(n, ast.Name)}
            return (tile, BEFORE) if parts & own else part

        self.storing = {renamed(p) for p in self.storing}
        self.written = {p for p in self.written if renamed(p) == p}
        self.read = {p: how for p, how in self.read.items() if renamed(p) == p}

    # -- products ----------------------------------------------------------------------------

    def settle_for(self, leaf: Leaf, at: Statement, out: list[Statement]) -> None:
        """Waits for the last product that a statement must not overtake."""
        for i in range(len(self.flying) - 1, -1, -1):
            if self.meets(leaf, self.flying[i]):
                self.settle(at, len(self.flying) - 1 - i, out)
                return

    def meets(self, leaf: Leaf, flight: _Flight) -> bool:
        target = self.part(flight.gemm.c)
        if isinstance(leaf, Await):
            return self.part(leaf.tile) in flight.parts
        reads = {self.of(a) for a in leaf.reads()}
        writes = {self.of(a) for a in leaf.writes()}
        if isinstance(leaf, Gemm) and leaf.accumulate and self.part(leaf.c) == target:
            reads, writes = {self.part(leaf.a), self.part(leaf.b)}, set()  # sums go on in order
        return target in reads | writes or bool(writes & flight.parts)

    def settle(self, at: Statement, pending: int, out: list[Statement]) -> None:
        out.append(Settle(-1, at.where, at.stage, pending))
        over = self.flying[: len(self.flying) - pending]
        self.flying = self.flying[len(over) :]
        for flight in over:
            for release in flight.releases:
                self.arrive(at, *release, out)

    # -- rounds ------------------------------------------------------------------------------

    def acquire(self, s: Leaf, out: list[Statement]) -> None:
        done = set()
        for use in rounds.uses(s, self.kernel):
            channel = self.of_tile[use.buffer.name]
            site = (s.id, channel.name, use.key)
            if site in self.turns.first and site not in done:
                done.add(site)
                writing = channel.writer is self.role
                barrier = channel.free if writing else channel.full
                out.append(BarrierWait(-1, s.where, s.stage, barrier, use.round, int(writing)))

    def release(self, s: Statement, channel: Channel, at: ast.expr, where: Location, out) -> None:
        """A round goes when the products that read it are over; else now."""
        key = ast.unparse(at)
        if busy := self.busy(channel, at):
            busy[-1].releases.append((channel, at, where))
        elif any((t, key) in self.storing for t in channel.tiles):
            self.held.append((channel, at, where))
        else:
            self.arrive(s, channel, at, where, out)

    def busy(self, channel: Channel, at: ast.expr) -> list[_Flight]:
        """Products under way that read a round; rounds that look different are taken to be so."""
        parts = {(tile, ast.unparse(at)) for tile in channel.tiles}
        return [f for f in self.flying if parts & f.parts]

    def still_stored(self, part: Part) -> bool:
        return part in self.storing or (bool(part[1]) and (part[0], BEFORE) in self.storing)

    def give_back(self, s: Statement, out: list[Statement]) -> None:
        """What a store still reads goes at the end of the round."""
        held, self.held = self.held, []
        if held:
            self.drain(s, out)
        for release in held:
            self.arrive(s, *release, out)

    def arrive(self, s: Statement, channel: Channel, at: ast.expr, where, out) -> None:
        writing = channel.writer is self.role
        if writing and not channel.loaded and self.asked & set(channel.tiles):
            out.append(Fence(-1, where, s.stage))
        for tile in channel.tiles:
            part = (tile, ast.unparse(at))
            self.written.discard(part)
            self.read.pop(part, None)
        barrier = channel.full if writing else channel.free
        out.append(BarrierArrive(-1, where, s.stage, barrier, at))

    # -- threads -----------------------------------------------------------------------------

    def visible(self, s: Leaf, tiles: Iterable[model.Region], asynchronous: bool, out) -> None:
        if any(self.part(r) in self.written for r in tiles):
            out.append(Fence(-1, s.where, s.stage))
            self.meet(s, out)

    def meet(self, s: Leaf, out: list[Statement]) -> None:
        first = 1 + sum(r.copies for r in self.kernel.roles[: self.kernel.roles.index(self.role)])
        out.append(Meet(-1, s.where, s.stage, first, self.role.each, self.role.threads))
        self.written.clear()
        self.read.clear()

    def drain(self, s: Statement, out: list[Statement]) -> None:
        out.append(Drain(-1, s.where, s.stage))
        self.storing.clear()

    def keeps_rows(self, s: Leaf) -> bool:
        """Whether each thread writes just rows of a product that it has in registers."""
        return isinstance(s, Copy) and s.src.name in row_products(self.kernel, self.role)

    def note_read(self, part: Part, how: str) -> None:
        if self.is_shared(part) and self.read.get(part) != "all":
            self.read[part] = how

    def is_shared(self, part: Part) -> bool:
        buffer = self.kernel.buffer(part[0])
        return buffer is not None and buffer.scope == "shared"

    def part(self, r: model.Region) -> Part:
        return self.of(model.Access(r.name, r.where, r.whole, region=r)) or (r.name, "")

    def of(self, a: model.Access) -> Part | None:
        buffer = self.kernel.buffer(a.name)
        if buffer is None:
            return None
        return a.name, ast.unparse(rounds.round_of(a)) if buffer.stages else ""


def _asynchronous(kernel: Kernel) -> frozenset[str]:
    """Tiles that products or stores read."""
    found = set()
    for leaf in kernel.leaves():
        if isinstance(leaf, Gemm):
            found |= {leaf.a.name, leaf.b.name}
        elif is_store(leaf, kernel):
            found.add(leaf.src.name)
    return frozenset(found)


def row_products(kernel: Kernel, role: Role) -> frozenset[str]:
    """Fragments that products of a warpgroup leave row by row: sixteen rows a warp."""
    return frozenset(
        leaf.c.name
        for leaf in kernel.leaves()
        if isinstance(leaf, Gemm) and role.threads == roles.GROUP and leaf.mnk[0] == ROWS
    )


ROWS = 64  # of a warpgroup's product
