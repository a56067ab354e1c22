"""Why a plan is as it is, in sentences: the peak, who shares with whom and why, what each change is worth,
and what the next kilobyte would cost; for one buffer, why it lies where it does and whom it can't meet.
"""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from gdngen.devices import Device
from gdngen.driver import Checked, Loaded
from gdngen.errors import GdngenError, did_you_mean
from gdngen.model.model import Buffer, Kernel, Leaf, Loop, leaves
from gdngen.plan import plan as planning
from gdngen.plan.plan import Planned, Wish
from gdngen.plan.registers import registers
from gdngen.plan.slots import classes_of, laid_out, viewable
from gdngen.show import maps
from gdngen.show.maps import BARRIERS, Bar, StorageMap, said
from gdngen.show.tables import alternatives, named

KILOBYTE = 1024
GONE = "is not there"


@dataclass(frozen=True)
class Living:
    """A tile at the peak: until which line it is needed, and the peak if it were not there, in bytes."""

    name: str
    bytes: int
    until: int
    peak_without: int


@dataclass(frozen=True)
class Peak:
    """The first statement at which the most bytes are live, and how many statements are as bad."""

    line: int
    stage: str
    statement: str
    live: int
    alike: int
    living: tuple[Living, ...]


@dataclass(frozen=True)
class Turn:
    """A tenant of a slot: where it lies, and the stages and lines at which its life starts and ends."""

    name: str
    first: int
    bytes: int
    start: tuple[str, int]
    end: tuple[str, int]


@dataclass(frozen=True)
class Doing:
    """One thing that the plan does, and what it saves or costs, in bytes."""

    kind: str
    what: str
    saves: int
    costs: int


@dataclass(frozen=True)
class Room:
    """What more bytes would take: how many are left before a block per SM is lost, and to the device's
    limit; `idle` are the bytes that hold nothing throughout a stage."""

    blocks: int
    before_a_block: int
    to_limit: int
    idle: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Explanation:
    """A plan explained; bytes everywhere. `frees` are options and what the plan asks for with each."""

    variant: str
    spec: str
    target: str
    device: str
    policy: str
    asked: int
    separate: int | None
    limit: int
    peak: Peak
    slots: tuple[tuple[Turn, ...], ...]
    changes: tuple[Doing, ...]
    room: Room
    frees: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Relation:
    """How a buffer stands to another: `kind` shares, in place, beside, merged, interferes, private,
    roles, class or free; `line` is the statement that decides it, 0 where none does."""

    other: str
    kind: str
    line: int
    why: str


@dataclass(frozen=True)
class Story:
    """One buffer explained. `first` is None for what takes no shared memory."""

    name: str
    spec: str
    line: int
    scope: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    first: int | None
    slot: str | None
    lives: str
    relations: tuple[Relation, ...]
    changes: tuple[Doing, ...]
    notes: tuple[str, ...]


# -- a whole plan --------------------------------------------------------------------------------


def explained(spec: Loaded, v: Checked, wish: Wish, target: str, on: Device) -> Explanation:
    p = planning.plan(v.kernel, v.found, wish, target)
    m = maps.mapped(v, p, wish, on)
    return Explanation(
        variant=named(v),
        spec=v.kernel.spec,
        target=target,
        device=on.name,
        policy=p.plan.policy,
        asked=m.after.asked,
        separate=m.before.asked if m.before else None,
        limit=on.limit,
        peak=_peak(m),
        slots=tuple(_turns(p, m)),
        changes=_doings(m),
        room=_room(v.kernel, m, on),
        frees=tuple(alternatives(p.plan, spec, v, wish)),
        notes=m.after.notes,
    )


def _peak(m: StorageMap) -> Peak:
    side = m.after
    at, step = side.peak, side.steps[side.peak]
    tiles = [b for b in side.bars if b.kind != BARRIERS]
    living = [b for b in tiles if any(s < at + 1 and at < e for s, e in b.runs)]

    def without(b: Bar) -> int:
        others = [x for x in side.bars if x is not b]
        return max(maps.live(others, i) for i in range(len(side.steps)))

    return Peak(
        step.line,
        step.stage,
        step.text,
        step.live,
        sum(s.live == step.live for s in side.steps),
        tuple(
            Living(b.name, b.bytes, side.steps[b.last].line, without(b))
            for b in sorted(living, key=lambda b: (-b.bytes, b.name))
        ),
    )


def _turns(p: Planned, m: StorageMap) -> Iterator[tuple[Turn, ...]]:
    bars = {b.name: b for b in m.after.bars}
    for slot in p.plan.slots:
        yield tuple(
            Turn(
                t,
                b.first,
                b.bytes,
                *((m.after.steps[i].stage, m.after.steps[i].line) for i in (b.start, b.last)),
            )
            for t in slot.tenants
            for b in (bars[t],)
        )


def _doings(m: StorageMap, about: str | None = None) -> tuple[Doing, ...]:
    return tuple(
        Doing(c.change.kind, c.change.text, c.saves, c.change.costs)
        for c in m.changes
        if about is None or about in c.change.names
    )


def _room(kernel: Kernel, m: StorageMap, on: Device) -> Room:
    count = registers(kernel, m.target).count
    asked, blocks = m.after.asked, m.blocks[1]
    low, high = asked, max(asked, on.limit)
    while low < high:  # the most bytes that leave as many blocks
        middle = (low + high + 1) // 2
        if on.blocks_per_sm(middle, kernel.threads, count) >= blocks:
            low = middle
        else:
            high = middle - 1
    idle: dict[str, int] = {}
    for s in m.after.steps:
        free = asked - s.live
        idle[s.stage] = min(free, idle.get(s.stage, free))
    enough = tuple((stage, n) for stage, n in idle.items() if n >= KILOBYTE)
    return Room(blocks, low - asked, on.limit - asked, enough)


def lines(e: Explanation) -> list[str]:
    """The explanation as sentences."""
    apart = f"; every tile in storage of its own would take {e.separate:,}" if e.separate else ""
    p = e.peak
    alike = f"; {p.alike} statements are that full" if p.alike > 1 else ""
    out = [
        f"{e.variant} ({e.target}, policy {e.policy}) asks for {e.asked:,} bytes{apart}.",
        *(f"  {note[0].upper()}{note[1:]}." for note in e.notes),
        "",
        f"The peak is {p.live:,} bytes, at {e.spec}:{p.line} ({p.statement}, stage '{p.stage}'){alike}. There live",
    ]
    width = max((len(x.name) for x in p.living), default=0)
    for x in p.living:
        fewer = f"without it the peak would be {x.peak_without:,}"
        fewer = fewer if x.peak_without < p.live else "without it another statement is that full"
        out.append(f"  {x.name:<{width}}  {x.bytes:>7,}  needed until line {x.until}; {fewer}")
    out += ["", "Storage"]
    for turns in e.slots:
        first = min(t.first for t in turns)
        size = max(t.first + t.bytes for t in turns) - first
        lives = ", then ".join(_turn(t) for t in turns)
        alone = " alone" if len(turns) == 1 else ""
        out.append(f"  {size:,} bytes at {first:,}: {lives}{alone}")
    out += ["", "What the plan does to the author's program" if e.changes else "The program is the author's, statement by statement."]  # fmt: skip
    out += [f"  {_did(c)}" for c in e.changes]
    out += ["", *_next(e), ""]
    if e.frees:
        out.append("What would free bytes")
        width = max(len(option) for option, _ in e.frees)
        for option, asked in e.frees:
            out.append(f"  {option:<{width}}  asks for {asked:,}, {e.asked - asked:,} less")
    else:
        out.append("No option is known that would free bytes.")
    return out


def _turn(t: Turn) -> str:
    (stage, line), (last, until) = t.start, t.end
    return f"{t.name} ({stage}, line {line}, to {last}, line {until})"


def _next(e: Explanation) -> list[str]:
    r = e.room
    held = f"{r.blocks} block{'s' * (r.blocks != 1)} per SM"
    if r.to_limit < 0:
        first = f"It does not fit {e.device}, which gives a block {e.limit:,}: {-r.to_limit:,} too many."
    elif r.to_limit < KILOBYTE:
        first = f"The next kilobyte would not fit {e.device}, which gives a block {e.limit:,}."
    elif r.before_a_block < KILOBYTE:
        first = (
            f"The next kilobyte would cost a block: {e.device} holds {held} up to "
            f"{e.asked + r.before_a_block:,} bytes."
        )
    else:
        first = (
            f"The next kilobyte would cost no block: {e.device} holds {held} up to "
            f"{e.asked + r.before_a_block:,} bytes, and gives a block {e.limit:,}."
        )
    if not r.idle:
        return [first, "No stage has a kilobyte idle: any new tile adds to what is asked for."]
    idle = ", ".join(f"{stage} {n:,}" for stage, n in r.idle)
    return [
        first,
        f"Idle throughout a stage, so that a tile of that stage alone might lie there: {idle}.",
    ]


def _did(c: Doing) -> str:
    if c.costs:
        return f"{c.kind}: {c.what}: it costs {c.costs:,} bytes, of alignment"
    worth = f"without it {c.saves:,} bytes more" if c.saves else "it takes no bytes and frees none"
    return f"{c.kind}: {c.what}: {worth}"


# -- one buffer ----------------------------------------------------------------------------------


def story(v: Checked, wish: Wish, target: str, on: Device, name: str) -> Story:
    """Why a buffer lies where it does; `GdngenError` where there is none of that name."""
    p = planning.plan(v.kernel, v.found, wish, target)
    m = maps.mapped(v, p, wish, on)
    b, gone = p.kernel.buffer(name), v.kernel.buffer(name)
    if b is None and gone is None:
        raise _unknown(v.kernel, p.kernel, name)
    about = _doings(m, name)
    if b is None or not any(name in p.found.live[x.id] for x in p.found.order):
        return _told(v.kernel.spec, gone or b, None, None, GONE, (), about, ())
    lives = _lives(p, b)
    if b.scope != "shared":
        return _told(p.kernel.spec, b, None, None, lives, (), about, ())
    bar = next(x for x in m.after.bars if x.name == name)
    others = [x for x in m.after.bars if x.name not in (name, BARRIERS)]
    relations = tuple(_relation(v, p, wish, bar, x) for x in others)
    slot = p.plan.slot_of(name)
    return _told(p.kernel.spec, b, bar, slot.name, lives, relations, about, m.after.notes)


def _told(spec: str, b: Buffer, bar: Bar | None, slot, lives, relations, changes, notes) -> Story:
    first, size = (bar.first, bar.bytes) if bar else (None, b.bytes)
    return Story(
        b.name, spec, b.where.line, b.scope, b.dtype, b.shape, size, first, slot, lives,
        relations, changes, notes,
    )  # fmt: skip


def _unknown(author: Kernel, planned: Kernel, name: str) -> GdngenError:
    known = dict.fromkeys(b.name for k in (author, planned) for b in k.buffers)
    if author.tensor(name):
        why = f"'{name}' is a tensor, in global memory: no buffer"
    else:
        why = f"no buffer is called '{name[:80]}'{did_you_mean(name, known)}"
    return GdngenError(f"error: {author.module}: {why}\n  help: buffers: {' '.join(known)}")


def _lives(p: Planned, b: Buffer) -> str:
    if p.kernel.roles and b.scope == "shared":
        return "lives throughout, since roles run side by side"
    if loop := _pipelined(p, b.name):
        return f"lives throughout the pipelined loop of lines {loop}, whose rounds overlap"
    first, last = p.found.span(b.name)
    start, end = p.found.order[first], p.found.order[last]
    if first == last:
        return f"lives at line {start.where.line} alone ({said(start)}, stage '{start.stage}')"
    read = any(a.name == b.name for a in end.reads())
    return (
        f"lives from line {start.where.line} ({said(start)}, stage '{start.stage}') to line "
        f"{end.where.line} ({said(end)}, stage '{end.stage}')"
        + (", which reads it last" if read else ", while a loop may still read it")
    )


def _pipelined(p: Planned, *names: str) -> str:
    """The lines of a pipelined loop throughout which all these live; '' where there is none."""
    for s in p.kernel.statements():
        if isinstance(s, Loop) and s.kind == "pipelined":
            inside = list(leaves(s))
            if all({*names} <= p.found.live[leaf.id] for leaf in inside):
                lines = [leaf.where.line for leaf in inside]
                return f"{min(lines)} to {max(lines)}"
    return ""


def _relation(v: Checked, p: Planned, wish: Wish, one: Bar, other: Bar) -> Relation:
    found, kernel, name = p.found, p.kernel, other.name
    first, second = sorted((one, other), key=lambda x: (x.runs[0], x.runs[-1]))
    end, start = found.order[first.last], found.order[second.start]
    overlap = one.first < other.end and other.first < one.end
    both = found.meeting(one.name, name)
    if kernel.roles:
        return Relation(name, "roles", 0, "roles run side by side, and so live their tiles")
    if overlap and both:
        why = f"{second.name} is computed in place of {first.name} at line {both.where.line} ({said(both)})"
        return Relation(name, "in place", both.where.line, why)
    if overlap:
        why = (
            f"{first.name} is dead after line {end.where.line} ({said(end)}), {second.name} starts at line "
            f"{start.where.line} ({said(start)})"
        )
        kind = "shares" if one.slot == other.slot else "merged"
        why += "; the compiler's own merging puts it there" if kind == "merged" else ""
        met = _once_met(v, p, one.name, name)
        return Relation(name, kind, end.where.line, why + met)
    if both and (loop := _pipelined(p, one.name, name)):
        why = f"both live throughout the pipelined loop of lines {loop}"
        return Relation(name, "interferes", both.where.line, why)
    if both:
        why = f"both live at line {both.where.line} ({said(both)}, stage '{both.stage}')"
        if end.id == both.id:
            why += f"; it is the last to need {first.name}"
        else:
            why += f"; {first.name} is needed until line {end.where.line} ({said(end)})"
        return Relation(name, "interferes", both.where.line, why)
    if one.slot == other.slot:
        return Relation(name, "beside", 0, "they lie side by side, in columns of one slot")
    if {one.name, name} & found.private:
        ahead = one.name if one.name in found.private else name
        why = (
            f"a pipelined loop loads {ahead} ahead of its use, so {ahead} keeps its bytes to itself"
        )
        return Relation(name, "private", 0, why)
    return _apart(kernel, p, wish, one.name, name)


def _once_met(v: Checked, p: Planned, one: str, other: str) -> str:
    """Where the author's order would have had both live."""
    if v.kernel.buffer(one) is None or v.kernel.buffer(other) is None:
        return ""
    met: Leaf | None = v.found.meeting(one, other)
    if met is None:
        return ""
    return f"; in the author's order both lived at line {met.where.line} ({said(met)})"


def _apart(kernel: Kernel, p: Planned, wish: Wish, one: str, other: str) -> Relation:
    """Two tiles that never live at once and share nothing all the same."""
    a, b = kernel.buffer(one), kernel.buffer(other)
    views = viewable(kernel, p.plan.target) if wish.allow_views else frozenset()
    classes = classes_of(kernel, views)
    rows, operands = laid_out(kernel)
    if classes[one] == classes[other]:
        why = "they never live at once and could share; as they lie, it would save nothing more"
        if p.plan.policy != "lean" and a.shape != b.shape:
            why = f"they never live at once, but policy {p.plan.policy} takes tiles of one shape alone"
        return Relation(other, "free", 0, why)
    if a.shape[:-1] != b.shape[:-1]:
        why = f"rows differ: {list(a.shape)} and {list(b.shape)}"
    elif a.dtype != b.dtype:
        could = {one, other} <= viewable(kernel, p.plan.target)
        help_ = "; --allow-views lets a tile see bytes as another dtype" if could else ""
        why = f"dtypes differ: {a.dtype} and {b.dtype}{help_}"
    elif {one, other} & rows and {one, other} & operands:
        why = "a running sum needs one in rows, a gemm has a layout of its own for the other"
    else:
        why = "they can't be of one slot"
    return Relation(other, "class", 0, f"they never live at once, but {why}")


SHARED = ("shares", "merged", "in place")


def story_lines(s: Story) -> list[str]:
    """The story as sentences."""
    shape = ", ".join(map(str, s.shape))
    out = [
        f"{s.name}: a {s.scope} tile, {s.dtype} [{shape}], {s.bytes:,} bytes ({s.spec}:{s.line})"
    ]
    gone = s.lives == GONE
    out.append("  The plan has no such tile." if gone else f"  It {s.lives}.")
    if s.first is not None:
        where = "a slot of its own" if s.slot == s.name else f"the slot of {s.slot}"
        if s.slot == s.name and any(r.kind in SHARED for r in s.relations):
            where = "the slot that bears its name"
        out.append(f"  It lies at bytes {s.first:,} .. {s.first + s.bytes - 1:,}, in {where}.")
    elif s.scope != "shared" and not gone:
        out.append("  It is in registers, and takes no shared memory.")
    out += [f"  {note[0].upper()}{note[1:]}." for note in s.notes]
    for title, kinds in (
        ("Shares its bytes with", SHARED),
        ("Can't share with", ("interferes", "private", "roles", "class")),
        ("Needn't share with", ("free", "beside")),
    ):
        told: dict[str, list[str]] = {}
        for r in s.relations:
            if r.kind in kinds:
                told.setdefault(r.why, []).append(r.other)
        out += [f"  {title}"] * bool(told)
        alone = [names[0] for names in told.values() if len(names) == 1]
        width = max(map(len, alone), default=0)
        for why, names in told.items():
            listed = textwrap.wrap(", ".join(names), 96, break_long_words=False)
            if len(names) == 1:
                out.append(f"    {names[0]:<{width}}  {why}")
            else:
                out += [f"    {line}" for line in listed] + [f"      {why}"]
    out += ["  The plan"] * bool(s.changes)
    return out + [f"    {_did(c)}" for c in s.changes]
