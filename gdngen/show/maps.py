"""The storage map of a plan as data: statements along one axis, bytes of shared memory along the other.

`before` has every tile in storage of its own, in the author's order; `after` is the plan. Text, SVG and
HTML are all made of this (`maptext.py`, `drawing.py`), so they can't tell different stories.
"""

import ast
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gdngen.devices import Device, devices
from gdngen.driver import Checked
from gdngen.model import model
from gdngen.model.analysis import Analysis
from gdngen.model.model import (
    Branch,
    Kernel,
    Leaf,
    Loop,
    Region,
    Statement,
    children,
    leaves,
)
from gdngen.plan import plan as planning
from gdngen.plan import storage
from gdngen.plan.plan import Planned, Wish
from gdngen.plan.registers import registers
from gdngen.plan.rewrite import Change
from gdngen.plan.savings import savings
from gdngen.plan.slots import apart
from gdngen.plan.storage import Layout, Slot

BARRIERS = "barriers"


@dataclass(frozen=True)
class Step:
    """A statement: its line in the spec, its stage, what it does in a few words, and the bytes of
    shared memory that hold a value while it runs."""

    line: int
    stage: str
    text: str
    live: int


@dataclass(frozen=True)
class Bar:
    """A tile where it lies, and when.

    first, bytes    in shared memory; of a tile with several versions or rounds, all of them
    runs            (from, to) along the statements: statement i is i .. i + 1, and a tile that is
                    computed in place of another takes over in the middle of a statement
    writes, reads   positions of the statements that do
    kind            author, or what put it there: staged, reload; barriers, which are no tile
    hue             the tile's number among the author's, the same before and after
    """

    name: str
    slot: str
    dtype: str
    shape: tuple[int, ...]
    first: int
    bytes: int
    rounds: int
    runs: tuple[tuple[float, float], ...]
    writes: tuple[int, ...]
    reads: tuple[int, ...]
    kind: str
    hue: int
    line: int

    @property
    def end(self) -> int:
        return self.first + self.bytes

    @property
    def start(self) -> int:
        """The first statement of its life."""
        return int(self.runs[0][0])

    @property
    def last(self) -> int:
        """The last statement of its life."""
        return math.ceil(self.runs[-1][1]) - 1


@dataclass(frozen=True)
class Bracket:
    """What holds the statements first .. last: a stage, role, loop or branch, at a depth of nesting.

    `texts` say so, the longest first: what is shown is the longest that there is room for.
    """

    kind: str
    texts: tuple[str, ...]
    first: int
    last: int
    depth: int


@dataclass(frozen=True)
class Side:
    """One program with its storage; `asked` in bytes, the end of the last bar, barriers included."""

    title: str
    asked: int
    steps: tuple[Step, ...]
    bars: tuple[Bar, ...]
    brackets: tuple[Bracket, ...]
    marks: tuple[tuple[int, int], ...]  # (statement, number of a change), both from 0
    notes: tuple[str, ...] = ()

    @property
    def peak(self) -> int:
        """The first of the statements at which the most bytes are live."""
        return max(range(len(self.steps)), key=lambda i: (self.steps[i].live, -i))


@dataclass(frozen=True)
class Worth:
    """A change of the plan, and what it saves and costs, in bytes."""

    change: Change
    saves: int

    @property
    def text(self) -> str:
        if self.change.costs:
            return f"{self.change.text} ({self.change.costs:,} bytes more, of alignment)"
        gain = f"{self.saves:,} bytes less" if self.saves else "at no cost in bytes"
        return f"{self.change.text} ({gain})"


@dataclass(frozen=True)
class StorageMap:
    """A variant's map for one target. `before` is None where tiles can't be shared: with roles.

    `limits` are the bytes that devices give a block, with the devices' names, in order of bytes.
    """

    variant: str
    spec: str
    target: str
    device: Device
    before: Side | None
    after: Side
    changes: tuple[Worth, ...]
    blocks: tuple[int, int]  # per SM, before and after
    limits: tuple[tuple[int, tuple[str, ...]], ...]

    @property
    def fits(self) -> bool:
        return self.after.asked <= self.device.limit

    @property
    def sides(self) -> tuple[Side, ...]:
        return (self.before, self.after) if self.before else (self.after,)


def storage_map(v: Checked, wish: Wish, target: str, on: Device) -> StorageMap:
    """The map of a variant's plan for a target, held against a device."""
    return mapped(v, planning.plan(v.kernel, v.found, wish, target), wish, on)


def mapped(v: Checked, p: Planned, wish: Wish, on: Device) -> StorageMap:
    """The map of a plan that is there."""
    target = p.plan.target
    hues = {b.name: i for i, b in enumerate(v.kernel.shared())}
    worth = tuple(map(Worth, p.plan.changes, savings(v.kernel, p, wish)))
    count = registers(v.kernel, target).count

    def held(asked: int) -> int:
        return on.blocks_per_sm(asked, v.kernel.threads, count)

    before = None
    if not v.kernel.roles:
        alone = storage.compiled(v.kernel, apart(v.kernel), target)
        merges = alone.merged.dynamic < alone.own.dynamic
        fewer = alone.merged.dynamic + alone.merged.static
        said = (f"the compiler's own merging would make {fewer:,} bytes of it",) if merges else ()
        moved = tuple(_positions(p, v.kernel, before=True))
        before = replace(
            _side(v.kernel, v.found, apart(v.kernel), alone.own, hues), title="before", notes=said
        )
        before = replace(before, marks=moved)
    found = storage.compiled(p.kernel, p.plan.slots, target)
    notes = ["the compiler's own merging stays on"] if p.plan.merged else []
    notes += ["roles run side by side, and so live their tiles"] if v.kernel.roles else []
    after = _side(
        p.kernel, p.found, p.plan.slots, found.merged if p.plan.merged else found.own, hues
    )
    after = replace(
        after,
        title=f"after: {p.plan.policy}" if before else p.plan.policy,
        marks=tuple(_positions(p, v.kernel, before=False)),
        notes=tuple(notes),
    )
    return StorageMap(
        variant=v.kernel.module + (f" ({v.kernel.policy})" if v.kernel.policy else ""),
        spec=v.kernel.spec,
        target=target,
        device=on,
        before=before,
        after=after,
        changes=worth,
        blocks=(held((before or after).asked), held(after.asked)),
        limits=_limits(),
    )


def _limits() -> tuple[tuple[int, tuple[str, ...]], ...]:
    found: dict[int, list[str]] = {}
    for on in devices().values():
        found.setdefault(on.limit, []).append(on.name)
    return tuple((limit, tuple(found[limit])) for limit in sorted(found))


# -- one side ------------------------------------------------------------------------------------


def _side(
    kernel: Kernel, found: Analysis, slots: tuple[Slot, ...], layout: Layout, hues: dict[str, int]
) -> Side:
    count = len(found.order)
    bars = list(_bars(kernel, found, slots, layout, hues))
    if layout.static:
        whole = ((0.0, float(count)),)
        bars.append(
            Bar(
                BARRIERS, BARRIERS, "", (), layout.dynamic, layout.static, 1, whole, (), (),
                BARRIERS, -1, 0,
            )  # fmt: skip
        )
    steps = tuple(
        Step(leaf.where.line, leaf.stage, said(leaf), live(bars, i))
        for i, leaf in enumerate(found.order)
    )
    brackets = (*_stages(kernel, found), *_nested(kernel))
    return Side("", layout.dynamic + layout.static, steps, tuple(bars), brackets, ())


def _bars(
    kernel: Kernel, found: Analysis, slots: tuple[Slot, ...], layout: Layout, hues: dict[str, int]
) -> Iterator[Bar]:
    places = {name: (first, size) for name, first, size in layout.places}
    for slot in slots:
        first, size = places[slot.tenants[-1]]
        rounds = size // slot.bytes
        lives = {t: _lives(kernel, found, t) for t in slot.tenants}
        for t in slot.tenants:
            b = kernel.buffer(t)
            rows = slot.bytes // (slot.seen(t)[-1] * model.BYTES[b.dtype])
            yield Bar(
                name=t,
                slot=slot.name,
                dtype=b.dtype,
                shape=b.shape,
                first=first + rounds * rows * slot.column(t) * model.BYTES[b.dtype],
                bytes=b.bytes * rounds,
                rounds=max(rounds, b.stages),
                runs=_runs(t, slot, lives, found),
                writes=_touching(found, t, Leaf.writes.__name__),
                reads=_touching(found, t, Leaf.reads.__name__),
                kind=_kind(kernel, t, hues),
                hue=hues.get(t, len(hues)),
                line=b.where.line,
            )


def _lives(kernel: Kernel, found: Analysis, name: str) -> frozenset[int]:
    if kernel.roles:  # each at its own pace: no statement is known to come before another role's
        return frozenset(range(len(found.order)))
    return frozenset(i for i, leaf in enumerate(found.order) if name in found.live[leaf.id])


def _touching(found: Analysis, name: str, how: str) -> tuple[int, ...]:
    return tuple(
        i for i, leaf in enumerate(found.order) if any(a.name == name for a in getattr(leaf, how)())
    )


def _kind(kernel: Kernel, name: str, hues: dict[str, int]) -> str:
    """Whether a tile is the author's, or one that the plan has loaded again or stages a store through."""
    if name in hues:
        return "author"
    filled = next(leaf for leaf in kernel.leaves() if any(a.name == name for a in leaf.writes()))
    again = isinstance(filled, model.Copy) and kernel.tensor(filled.src.name) is not None
    return "reload" if again else "staged"


def _runs(
    name: str, slot: Slot, lives: dict[str, frozenset[int]], found: Analysis
) -> tuple[tuple[float, float], ...]:
    """Unbroken stretches of a life. Where a tile is computed in place of another both are live at that
    statement: the first half is the source's, the second the target's."""
    start, stop = {}, {}
    for other in slot.tenants:
        for i in (
            lives[name] & lives[other] if other != name and _overlap(slot, name, other) else ()
        ):
            if any(a.name == name for a in found.order[i].writes()):
                start[i] = i + 0.5
            else:
                stop[i] = i + 0.5
    runs: list[tuple[float, float]] = []
    for i in sorted(lives[name]):
        first, last = start.get(i, float(i)), stop.get(i, float(i + 1))
        if runs and runs[-1][1] == first:
            runs[-1] = (runs[-1][0], last)
        else:
            runs.append((first, last))
    return tuple(runs)


def _overlap(slot: Slot, one: str, other: str) -> bool:
    """Whether two tenants have bytes in common. Tenants of two dtypes never live at once."""
    return slot.dtype_of(one) != slot.dtype_of(other) or slot.column(one) == slot.column(other)


def live(bars: Iterable[Bar], at: int) -> int:
    """Bytes that hold a value at a statement; those of a tile and what is computed in place of it once."""
    spans = sorted((b.first, b.end) for b in bars if any(s < at + 1 and at < e for s, e in b.runs))
    total = top = 0
    for first, end in spans:
        total += max(0, end - max(first, top))
        top = max(top, end)
    return total


# -- what holds statements -----------------------------------------------------------------------


def _stages(kernel: Kernel, found: Analysis) -> Iterator[Bracket]:
    roles = {stage: r for r in kernel.roles for stage in r.stages}
    for kind, of in (("role", roles), ("stage", None)):
        groups: list[list] = []
        for i, leaf in enumerate(found.order):
            role = of.get(leaf.stage) if of is not None else None
            name = leaf.stage if of is None else role.name if role else ""
            if not groups or groups[-1][0] != name:
                groups.append([name, i, i, role])
            groups[-1][2] = i
        for name, first, last, role in groups:
            if not name:
                continue
            each = f"{role.copies} x " if role and role.copies > 1 else ""
            long = (f"role {name}: {each}{role.threads} threads",) if role else ()
            yield Bracket(kind, (*long, name), first, last, 0)


def _nested(kernel: Kernel) -> Iterator[Bracket]:
    at = {leaf.id: i for i, leaf in enumerate(kernel.leaves())}

    def walk(body: Iterable[Statement], depth: int) -> Iterator[Bracket]:
        for s in body:
            for group, (kind, texts) in zip(children(s), _named(s)):
                inside = [at[leaf.id] for x in group for leaf in leaves(x)]
                if inside:
                    yield Bracket(kind, texts, min(inside), max(inside), depth)
                yield from walk(group, depth + 1)

    return walk(kernel.statements(), 0)


def _named(s: Statement) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Kind and texts of each group of statements inside a statement."""
    if isinstance(s, Branch):
        when = f"when {ast.unparse(s.cond)}"
        return ("branch", (when, "when")), ("branch", ("else",))
    if not isinstance(s, Loop):
        return ()
    trips = s.trips if s.trips is not None else ast.unparse(s.count)
    ahead = f", {s.num_stages} stages" if s.kind == "pipelined" else ""
    texts = (f"{s.kind} x {trips}{ahead}", f"{s.kind} x {trips}", f"{s.kind}", f"x{trips}")
    return (("loop", texts),)


# -- changes -------------------------------------------------------------------------------------


def _positions(p: Planned, author: Kernel, before: bool) -> Iterator[tuple[int, int]]:
    """Where each change shows: (statement, number of the change)."""
    for number, change in enumerate(p.plan.changes):
        spots = _before(change, author) if before else _after(change, author, p)
        if spots:
            yield spots[0], number


def _before(change: Change, author: Kernel) -> list[int]:
    """Statements of the author's program that are no longer there: moved, or left out."""
    order = list(author.leaves())
    if change.kind == "moved":
        inside = next(s for s in author.statements() if s.id == change.at)
        ids = {leaf.id for leaf in leaves(inside)}
        return [i for i, leaf in enumerate(order) if leaf.id in ids]
    if change.kind == "direct":
        return _first(order, lambda leaf: change.names[0] in _names(leaf.writes()))
    return []


def _after(change: Change, author: Kernel, p: Planned) -> list[int]:
    order, own = p.found.order, {leaf.id: leaf for leaf in author.leaves()}
    name = change.names[0]
    match change.kind:
        case "moved":
            inside = next((s for s in p.kernel.statements() if s.id == change.at), None)
            ids = {leaf.id for leaf in leaves(inside)} if inside else set()
            return [i for i, leaf in enumerate(order) if leaf.id in ids]
        case "in place":
            target = change.names[1]
            return _first(
                order,
                lambda leaf: name in _names(leaf.reads()) and target in _names(leaf.writes()),
            )
        case "reload":
            return _first(
                order,
                lambda leaf: leaf.id not in own
                and any(n.startswith(f"{name}_again") for n in _names(leaf.writes())),
            )
        case "direct":
            return _first(
                order,
                lambda leaf: leaf.id in own
                and name in _names(own[leaf.id].reads())
                and name not in _names(leaf.reads()),
            )
    return _first(order, lambda leaf: name in _names(leaf.writes()))


def _first(order: Iterable[Leaf], holds) -> list[int]:
    return [i for i, leaf in enumerate(order) if holds(leaf)][:1]


def _names(accesses: Iterable[model.Access]) -> set[str]:
    return {a.name for a in accesses}


# -- words ---------------------------------------------------------------------------------------


def said(leaf: Leaf) -> str:
    """A statement in a few words, much as its author wrote it."""
    match leaf:
        case model.Copy(src=src, dst=dst):
            return f"copy {src.name} -> {dst.name}"
        case model.Gemm():
            a = _operand(leaf.a, leaf.transpose_a)
            b = _operand(leaf.b, leaf.transpose_b)
            return f"gemm {a} @ {b} {'+>' if leaf.accumulate else '->'} {leaf.c.name}"
        case model.Fill(dst=dst, value=value):
            return f"fill {ast.unparse(value)} -> {dst.name}"
        case model.Assign(name=name):
            return f"map of {name}"
        case model.Reduce(op=op, src=src, dst=dst):
            return f"{op} of {src.name} -> {dst.name}"
        case model.Cumsum(src=src, dst=dst):
            return f"cumsum of {src.name} -> {dst.name}"
        case model.Solve(src=src, dst=dst):
            return f"solve {src.name} -> {dst.name}"
        case model.Skip(tile=tile):
            return f"skip {tile.name}"
        case model.Await(tile=tile):
            return f"wait {tile.name}"
    return type(leaf).__name__.lower()


def _operand(r: Region, transposed: bool) -> str:
    return f"{r.name}.T" if transposed else r.name
