"""Roles' programs with all that orders them put in: `Kernel` -> `Parted`.

    barriers   before a role's first use of a round it waits, behind the last it arrives
    products   run on by themselves; a wait stands before what needs one to be over
    stores     run on too, until their tile goes back or is written again
    fences     between what threads write and what copies and products read

Which use of a round is the first and which the last is found by running the programs; where a
statement is the last use in some rounds only, and nothing behind it is in the others, that is a mistake
of the spec. Whether it all holds is for `protocol.py` to say, from the result.
"""

import ast
import functools
from collections.abc import Iterable, Mapping, Sequence
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
from gdngen.roles import unroll
from gdngen.roles.channels import Channel, is_load, is_store
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
    turns = _turns(kernel, found, report)
    if report.errors():
        return None
    programs = []
    for role in kernel.roles:
        writer = _Writer(kernel, role, found, turns[role.name], report)
        programs.append((role, writer.program()))
    return None if report.errors() else Parted(kernel, found, tuple(programs))


# -- first and last uses ---------------------------------------------------------------------------

Site = tuple[int, str, str]  # statement, channel, round as text


@dataclass
class _Turns:
    """Of one role: the uses that may be the first of a round, and what the last ones stand behind."""

    first: set[Site] = field(default_factory=set)
    last: dict[int, list[tuple[Channel, ast.expr, Location]]] = field(default_factory=dict)


@dataclass
class _Seen:
    use: rounds.Use
    leaf: Leaf
    first: int = 0
    last: int = 0  # of a round whose place another one needs
    other: int = 0


def _turns(kernel: Kernel, channels: Sequence[Channel], report: Report) -> dict[str, _Turns]:
    of_tile = {t: c for c in channels for t in c.tiles}
    seen: dict[str, dict[Site, _Seen]] = {r.name: {} for r in kernel.roles}
    for env in unroll.valuations(kernel):
        counts: dict[str, int] = {}
        order = sorted(kernel.roles, key=lambda r: not any(c.writer is r for c in channels))
        traces = [
            (role, own, _trace(kernel, role, own, of_tile))
            for role in order
            for own in unroll.copies(role, env)
        ]
        for role, _, trace in traces:
            for name, uses in trace.items():
                if of_tile_writer(channels, name) is role:
                    counts[name] = max([counts.get(name, 0), *(r + 1 for r, _ in uses)])
        for role, _, trace in traces:
            for c in channels:
                if role is c.writer or role in c.readers:
                    uses = trace.get(c.name, [])
                    _note(
                        role, c, uses, counts.get(c.name, 0), seen[role.name], env, kernel, report
                    )
    return {
        role.name: _placed(kernel, role, seen[role.name], channels, report) for role in kernel.roles
    }


def of_tile_writer(channels: Sequence[Channel], name: str) -> Role:
    return next(c.writer for c in channels if c.name == name)


Trace = dict[str, list[tuple[int, tuple[Leaf, rounds.Use]]]]


def _trace(kernel: Kernel, role: Role, env: unroll.Env, of_tile: Mapping[str, Channel]) -> Trace:
    """Channel -> the rounds that a copy of a role uses, in the order in which it does."""
    out: Trace = {}
    for leaf, here in unroll.run(roles.statements(kernel, role), env):
        for use in rounds.uses(leaf, kernel):
            channel = of_tile[use.buffer.name]
            at = unroll.number(use.round, here)
            if at is not None:
                out.setdefault(channel.name, []).append((at, (leaf, use)))
    return out


def _note(role, c: Channel, uses, count: int, seen, env, kernel: Kernel, report: Report) -> None:
    """Which uses of one run are the first and the last of their rounds; rounds come one by one."""
    taken = -1
    last: dict[int, Site] = {}
    for at, (leaf, use) in uses:
        site = (leaf.id, c.name, use.key)
        here = seen.setdefault(site, _Seen(use, leaf))
        if at > taken + 1 or at < 0:
            _skipped(role, c, use, taken, at, env, kernel, report)
            return
        if at > taken:
            taken = at
            here.first += 1
        last[at] = site
    if taken + 1 < count and uses:
        _skipped(role, c, uses[-1][1][1], taken, count, env, kernel, report)
        return
    if not uses and count:
        leaf = next(
            x
            for x in _leaves(kernel, role)
            for u in rounds.uses(x, kernel)
            if u.buffer.name in c.tiles
        )
        use = next(u for u in rounds.uses(leaf, kernel) if u.buffer.name in c.tiles)
        _skipped(role, c, use, -1, count, env, kernel, report)
        return
    for at, (leaf, use) in uses:
        here = seen[(leaf.id, c.name, use.key)]
        if last[at] != (leaf.id, c.name, use.key):
            here.other += 1
        elif role is c.writer or at + c.full.slots < count:
            here.last += 1


def _skipped(role, c: Channel, use, taken: int, at: int, env, kernel: Kernel, report) -> None:
    missing = taken + 1
    tile = use.buffer.name
    if at < 0:
        what = f"'{role.name}' uses round {at} of '{tile}'"
        hint = "rounds are counted from 0"
    elif role is c.writer:
        what = f"'{role.name}' writes round {at} of '{tile}' and never round {missing}"
        hint = "rounds are written one by one, from 0 on"
    else:
        what = f"'{role.name}' never takes round {missing} of '{tile}', which '{c.writer.name}' hands on"
        hint = f"take every round in turn; '- skip: {tile}[i]' lets one go by unread"
    report.error(
        use.access.where,
        f"{what} ({numbers(env, kernel)})",
        hint,
        kind=f"rounds {c.name} {role.name}",
    )


def numbers(env: unroll.Env, kernel: Kernel) -> str:
    """The numbers of a run in words; dims are the variant's."""
    dims = dict(kernel.values)
    return "say " + ", ".join(f"{name} = {v}" for name, v in env.items() if name not in dims)


def _leaves(kernel: Kernel, role: Role) -> list[Leaf]:
    return [leaf for s in roles.statements(kernel, role) for leaf in model.leaves(s)]


# -- where arrivals stand --------------------------------------------------------------------------


def _placed(kernel, role: Role, seen: Mapping[Site, _Seen], channels, report: Report) -> _Turns:
    """The statement behind which each round goes: the last that uses it, or what that stands in."""
    turns = _Turns(first={site for site, s in seen.items() if s.first})
    chains = _chains(roles.statements(kernel, role))
    for c in channels:
        groups: dict[tuple, list[_Seen]] = {}
        for (at, name, _), s in seen.items():
            if name == c.name and s.last:
                loop = tuple(step for step in chains[at] if step[2] == "loop")
                groups.setdefault((loop, s.use.key), []).append(s)
        for found in groups.values():
            at = _behind([chains[s.leaf.id] for s in found])
            lifted = [s for s in found if s.leaf.id == at]
            if lifted and len(found) == 1 and found[0].other:
                _torn(role, c, found, report)
                continue
            s = found[-1]
            turns.last.setdefault(at, []).append((c, s.use.round, s.use.access.where))
    return turns


def _torn(role: Role, c: Channel, found: list[_Seen], report: Report) -> None:
    where, tile = found[0].use.access.where, found[0].use.buffer.name
    report.error(
        where,
        f"'{role.name}' is done with some rounds of '{tile}' here, and with others elsewhere",
        f"say where with 'wait: {tile}[...]': behind it the round goes back",
        kind=f"torn {c.name} {role.name}",
    )


Chain = tuple[
    tuple[int, int, str], ...
]  # (block, position of the statement, its kind), outermost first


def _chains(body: Sequence[Statement]) -> dict[int, Chain]:
    out: dict[int, Chain] = {}
    blocks = [0]

    def walk(body: Sequence[Statement], chain: Chain) -> None:
        blocks[0] += 1
        block = blocks[0]
        for i, s in enumerate(body):
            kind = "loop" if isinstance(s, Loop) else "branch" if isinstance(s, Branch) else "leaf"
            here = (*chain, (block, i, kind))
            out[s.id] = here
            for group in model.children(s):
                walk(group, here)

    walk(body, ())
    _IDS.clear()
    for at, chain in out.items():
        _IDS[chain] = at
    return out


_IDS: dict[Chain, int] = {}


def _behind(chains: list[Chain]) -> int:
    """The statement behind which all of these are over: of the block that they have in common."""
    depth = 0
    while all(len(c) > depth for c in chains) and len({c[depth][0] for c in chains}) == 1:
        depth += 1
    longest = max(chains, key=lambda c: c[depth - 1][1])
    return _IDS[longest[:depth]]


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
    def __init__(self, kernel: Kernel, role: Role, channels, turns: _Turns, report: Report):
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
        return isinstance(s, Copy) and s.src.name in _row_products(self.kernel, self.role)

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


def _row_products(kernel: Kernel, role: Role) -> frozenset[str]:
    """Fragments that products of a warpgroup leave row by row: sixteen rows a warp."""
    return frozenset(
        leaf.c.name
        for leaf in kernel.leaves()
        if isinstance(leaf, Gemm) and role.threads == roles.GROUP and leaf.mnk[0] == ROWS
    )


ROWS = 64  # of a warpgroup's product
