"""A storage map as shapes on a page, in px from its upper left corner; templates write them as SVG.

Heights follow bytes, but a tile is at least one line of text high, so that the smallest can be read:
the axis says the bytes. Widths follow statements. No text is wider than its box, by the width of a
letter: what does not fit is a number in its bar, and stands in the list below.
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gdngen.render import render
from gdngen.show.maps import BARRIERS, Bar, Bracket, Side, StorageMap

LETTER, BIG = 6.7, 9.1  # px, no less, of a letter of 11 px and of one of 15 px
PLOT, ALONE = 620, 980  # px that a side's statements take, of two or alone, if there are few enough
NARROW, WIDE = 18, 310  # px that a statement takes
LEFT, GAP, EDGE = 66, 34, 16  # px: room for offsets, between the sides, around all
TALL = 380  # px that the higher side's bytes take
LINE = 18  # px: the least height of a tile, and the height of a line of text
PROFILE = 110  # px: height of the live bytes
UPRIGHT = 16  # letters of a stage's name, written upwards
HUES = 8


@dataclass(frozen=True)
class Box:
    """A rectangle with lines of text inside; `data` are attributes, `turned` text runs upwards."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    lines: tuple[str, ...] = ()
    title: str = ""
    data: tuple[tuple[str, str], ...] = ()
    turned: bool = False
    shape: str = "box"

    @property
    def texts(self) -> tuple[tuple[float, float, str], ...]:
        """Middle and baseline of each line."""
        low = self.kind.startswith("label") and self.height < 24  # what a bar's uses stand below
        top = self.y + self.height / 2 - 1.5 * low - LINE / 3 * (len(self.lines) - 1) + 4
        middle = self.x + self.width / 2
        if self.turned:
            return tuple((middle + 4, self.y + self.height / 2, t) for t in self.lines)
        return tuple((middle, top + i * LINE * 2 / 3, t) for i, t in enumerate(self.lines))


@dataclass(frozen=True)
class Words:
    """Text at a baseline; `anchor` start, middle or end."""

    x: float
    y: float
    text: str
    kind: str = ""
    anchor: str = "start"
    shape: str = "words"


@dataclass(frozen=True)
class Stroke:
    """A line."""

    x1: float
    y1: float
    x2: float
    y2: float
    kind: str
    shape: str = "stroke"


@dataclass(frozen=True)
class Arrow:
    """A small head that points right: one tile takes over from another, in place."""

    x: float
    y: float
    shape: str = "arrow"


Shape = Box | Words | Stroke | Arrow


@dataclass(frozen=True)
class Drawing:
    width: float
    height: float
    title: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class Head:
    """Heights of what stands above the tiles, alike on both sides: roles, stages, loops, numbers."""

    roles: int
    stages: int
    loops: int
    marks: int

    @property
    def height(self) -> int:
        return self.roles + self.stages + self.loops + self.marks


@dataclass(frozen=True)
class Entry:
    """A variant on a page: its map, as drawn, and a tile a row in words."""

    anchor: str
    map: StorageMap
    drawing: Drawing
    tiles: tuple[tuple[str, ...], ...]


HEADINGS = ("tile", "dtype", "shape", "bytes", "before at", "planned at", "lives", "what it is")


def html(title: str, maps: Sequence[StorageMap]) -> str:
    """One page of all the maps, which needs nothing else: no script, no font, no other file."""
    entries = tuple(Entry(f"m{i}", m, drawn(m), tuple(_tiles(m))) for i, m in enumerate(maps, 1))
    return _template("maps.html.jinja").render(title=title, entries=entries, headings=HEADINGS)


def _tiles(m: StorageMap) -> Iterator[tuple[str, ...]]:
    old = {b.name: b for b in m.before.bars} if m.before else {}
    new = {b.name: b for b in m.after.bars}
    what = {"author": "", "staged": "a store leaves through it", "reload": "loaded again"}
    for name in (*new, *(n for n in old if n not in new)):
        b, side = (new[name], m.after) if name in new else (old[name], m.before)
        first, last = b.start, b.last
        yield (
            name,
            b.dtype,
            " x ".join(map(str, b.shape)),
            f"{b.bytes:,}",
            f"{old[name].first:,}" if name in old else "",
            f"{new[name].first:,}" if name in new else "gone",
            f"lines {side.steps[first].line} .. {side.steps[last].line}",
            what.get(b.kind, ""),
        )


def svg(m: StorageMap) -> str:
    """The map as one SVG file."""
    return _template("map.svg.jinja").render(d=drawn(m))


def _template(name: str):
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(render.TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=True,  # names are the user's
    )
    made.filters["px"] = lambda x: f"{x:.1f}".removesuffix(".0")
    return made.get_template(name)


def drawn(m: StorageMap) -> Drawing:
    """All shapes, those behind first."""
    columns = [_column(side, PLOT if m.before else ALONE) for side in m.sides]
    widths = [LEFT + len(s.steps) * c for s, c in zip(m.sides, columns)]
    width = max(2 * EDGE + sum(widths) + GAP * (len(widths) - 1), 1100.0)
    head = _head(m, columns)
    top = EDGE + 4 * LINE + head.height + 8
    scale = TALL / max(s.asked for s in m.sides)
    heights = [_axis(s, scale) for s in m.sides]
    floor = top + max(h[s.asked] for h, s in zip(heights, m.sides))
    most = max(s.asked for s in m.sides)
    shapes: list[Shape] = list(_title(m, width))
    key: list[str] = []
    x = float(EDGE)
    for i, (side, column, axis) in enumerate(zip(m.sides, columns, heights)):
        shapes += _side(m, i, x + LEFT, top, floor, column, axis, head, key)
        shapes += _profile(m, side, x + LEFT, floor + LINE + 12, column, most)
        x += widths[i] + GAP
    y = floor + LINE + 12 + PROFILE + 4 * LINE
    gauge, y = _gauge(m, y, width)
    unsaid = _unsaid(m, shapes)
    notes, y = _notes(m, key, unsaid, y, width)
    title = f"Shared memory of {m.variant} on {m.target}: {m.after.asked:,} bytes"
    return Drawing(width, y, title, (*shapes, *gauge, *notes))


def _column(side: Side, plot: float) -> float:
    return round(max(NARROW, min(WIDE, plot / len(side.steps))), 1)


def short(text: str, room: float, letter: float = LETTER) -> str:
    """The text, or as much as there is room for in px, with an ellipsis; nothing if that says nothing."""
    letters = int(room / letter)
    if len(text) <= letters:
        return text
    return text[: letters - 1] + "…" if letters > 2 else ""


def _title(m: StorageMap, width: float) -> Iterator[Shape]:
    room = width - 2 * EDGE
    yield Words(EDGE, EDGE + 14, short(f"{m.variant}, {m.target}", room, BIG), "title")
    said = f"{m.spec}: {m.after.asked:,} bytes of shared memory a block"
    if m.before:
        said += f", {m.before.asked:,} if every tile had its own"
    yield Words(EDGE, EDGE + 32, short(said, room), "small")


# -- what stands above ---------------------------------------------------------------------------


def _head(m: StorageMap, columns: Sequence[float]) -> Head:
    brackets = [(b, c) for s, c in zip(m.sides, columns) for b in s.brackets]
    stages = [(b, c) for b, c in brackets if b.kind == "stage"]
    upright = [b for b, c in stages if _is_turned(b, c)]
    longest = max((len(b.texts[0]) for b in upright), default=0)
    rows = max((b.depth + 1 for b, _ in brackets if b.kind in ("loop", "branch")), default=0)
    most = max((_crowd(s) for s in m.sides), default=0)
    return Head(
        roles=LINE if any(b.kind == "role" for b, _ in brackets) else 0,
        stages=round(min(longest, UPRIGHT) * LETTER + 10) if upright else LINE,
        loops=rows * LINE,
        marks=most * LINE,
    )


def _extent(b: Bracket, column: float) -> float:
    return (b.last - b.first + 1) * column


def _is_turned(b: Bracket, column: float) -> bool:
    """Whether a stage's name has no room along its statements, and more of it upwards."""
    across = _extent(b, column)
    return len(b.texts[0]) * LETTER > across - 6 and across < UPRIGHT * LETTER + 10


def _crowd(side: Side) -> int:
    """The most changes that show at one statement."""
    at = [i for i, _ in side.marks]
    return max((at.count(i) for i in at), default=0)


def _above(side: Side, x: float, bottom: float, column: float, head: Head) -> Iterator[Shape]:
    rows = {
        "role": (bottom - head.height, head.roles),
        "stage": (bottom - head.height + head.roles, head.stages),
    }
    loops = bottom - head.marks - head.loops
    odd = 0
    for b in side.brackets:
        y, height = rows.get(b.kind, (loops + b.depth * LINE, LINE))
        kind = b.kind
        if kind == "stage":
            kind, odd = f"stage odd{odd}", 1 - odd
        across = _extent(b, column)
        turned = b.kind == "stage" and _is_turned(b, column)
        room = (head.stages if turned else across) - 6
        fits = [t for t in b.texts if len(t) * LETTER <= room]
        text = fits[0] if fits else short(b.texts[-1], room) if b.kind == "stage" else ""
        title = f"{b.texts[0]}, {_lines(side, b)}"
        yield Box(
            x + b.first * column + 0.5, y + 0.5, across - 1, height - 2, kind,
            (text,) if text else (), title, turned=turned,
        )  # fmt: skip
    seen: dict[int, int] = {}
    for at, number in side.marks:
        row = seen[at] = seen.get(at, -1) + 1
        y = bottom - head.marks + row * LINE
        yield Box(
            x + at * column + column / 2 - 8.5, y, 17, LINE - 3, "mark", (str(number + 1),),
            data=(("change", str(number + 1)),),
        )  # fmt: skip


def _lines(side: Side, b: Bracket) -> str:
    lines = [s.line for s in side.steps[b.first : b.last + 1]]
    return f"line {lines[0]}" if len({*lines}) == 1 else f"lines {min(lines)} .. {max(lines)}"


# -- tiles ---------------------------------------------------------------------------------------


def _axis(side: Side, scale: float) -> dict[int, float]:
    """Where each first byte and end of a tile lies, in px from the top; every tile a line high or more."""
    edges = sorted({0, side.asked, *(b.first for b in side.bars), *(b.end for b in side.bars)})
    heights = {e: (after - e) * scale for e, after in zip(edges, edges[1:])}
    for b in sorted(side.bars, key=lambda b: (b.bytes, b.first)):
        inside = [e for e in heights if b.first <= e < b.end]
        have = sum(heights[e] for e in inside)
        if have < LINE:
            heights |= {e: heights[e] * LINE / have for e in inside}
    out, y = {}, 0.0
    for e in edges:
        out[e] = y
        y += heights.get(e, 0.0)
    return out


def _side(
    m: StorageMap, number: int, x: float, top: float, floor: float, column: float,
    axis: dict[int, float], head: Head, key: list[str],
) -> Iterator[Shape]:  # fmt: skip
    side = m.sides[number]
    across = len(side.steps) * column
    held = m.blocks[number if m.before else 1]
    room = f"{held} block{'s' * (held != 1)} per SM" if held else f"does not fit {m.device.name}"
    said = f"{side.title}, {side.asked:,} bytes, {room}"
    yield Words(x, top - head.height - 14, short(said, across), "heading")
    yield from _above(side, x, top - 4, column, head)
    bottom = top + axis[side.asked]
    yield Box(x, top, across, axis[side.asked], "field")
    for i in range(1, len(side.steps)):
        if side.steps[i].stage != side.steps[i - 1].stage:
            yield Stroke(x + i * column, top, x + i * column, floor + LINE + 12 + PROFILE, "grid")
    yield Box(x + side.peak * column, top, column, bottom - top, "peak")
    last = -LINE
    for e, y in sorted(axis.items()):
        yield Stroke(x - 4, top + y, x + across, top + y, "grid")
        if y - last >= 11:
            yield Words(x - 8, top + y + 4, f"{e:,}", "small", "end")
            last = y
    labels: list[Shape] = []
    for b in side.bars:
        yield from _bar(b, side, x, top, column, axis, key, labels)
    yield Box(x + side.peak * column, top, column, bottom - top, "peak edge")
    yield from labels
    y = floor + LINE + 12 + PROFILE + 2 * LINE + 10
    for text in side.notes:
        yield Words(x, y, short(text, across), "small")


def _bar(
    b: Bar, side: Side, x: float, top: float, column: float, axis: dict[int, float],
    key: list[str], labels: list[Shape],
) -> Iterator[Shape]:  # fmt: skip
    """A tile's stretches, with what reads and writes it; its name goes on top of all, into `labels`."""
    y, end = top + axis[b.first], top + axis[b.end]
    widest = max(b.runs, key=lambda r: (r[1] - r[0], -r[0]))
    room = (widest[1] - widest[0]) * column - 1
    lines, turned = _label(b, room, end - y - 1, key)
    hue = f"hue{b.hue % HUES}" if b.kind != BARRIERS else BARRIERS
    kind = f"bar {b.kind} {hue}" if b.kind != BARRIERS else f"bar {hue}"
    data = (("name", b.name), ("first", f"{b.first}"), ("bytes", f"{b.bytes}"))
    title = describe(b, side)
    for run in b.runs:
        place = x + run[0] * column + 0.5, y + 0.5, (run[1] - run[0]) * column - 1, end - y - 1
        lasts = (*data, ("from", f"{run[0]:g}"), ("to", f"{run[1]:g}"))
        yield Box(*place, kind, (), title, lasts)
        if run == widest and lines:
            labels.append(Box(*place, f"label {hue}", lines, data=data[:1], turned=turned))
        for i in range(1, b.rounds):
            at = y + (end - y) * i / b.rounds
            yield Stroke(place[0], at, place[0] + place[2], at, "round")
        if run[0] % 1:
            yield Arrow(x + run[0] * column, (y + end) / 2)
    for i in sorted({*b.writes, *b.reads}):
        half = 4 if i in b.writes else 1.5
        shift = _shift(b, i) * column
        kind = "wrote" if i in b.writes else "read"
        middle = x + (i + 0.5) * column + shift
        yield Box(middle - half, end - 4, 2 * half, 2.5, kind)


def _shift(b: Bar, at: int) -> float:
    """How far from a statement's middle a tile is used that lives for half of it, in statements."""
    starts, stops = {s for s, _ in b.runs}, {e for _, e in b.runs}
    return 0.25 * ((at + 0.5 in starts) - (at + 0.5 in stops))


def _label(b: Bar, room: float, height: float, key: list[str]) -> tuple[tuple[str, ...], bool]:
    """What stands in a bar, and whether it is turned; a name that there is no room for goes into the key."""
    full = (b.name, f"{b.bytes:,}")

    def fits(words: Iterable[str], across: float, along: float) -> bool:
        return all(len(w) * LETTER <= across - 4 for w in words) and len([*words]) * 13 <= along - 2

    one = " ".join(full)
    for words, turned in (((one,), False), (full, False), ((one,), True)):
        if fits(words, *((height, room) if turned else (room, height))):
            return words, turned
    for turned in (False, True):
        if fits((b.name,), *((height, room) if turned else (room, height))):
            return (b.name,), turned
    if b.name not in key:
        key.append(b.name)
    number = f"#{key.index(b.name) + 1}"
    if fits((number,), room - 8 * LETTER, height):
        number = short(f"{number} {b.name}", room - 4)
    return ((number,) if fits((number,), room + 4, height) else ()), False


def describe(b: Bar, side: Side) -> str:
    """A tile in words: what it is, where it lies and when."""
    if b.kind == BARRIERS:
        return f"barriers: {b.bytes:,} bytes"
    shape = " x ".join(map(str, b.shape))
    first, last = b.start, b.last
    lives = f"lives from line {side.steps[first].line} ({side.steps[first].stage}) to line"
    lives += f" {side.steps[last].line} ({side.steps[last].stage})"
    rounds = f", {b.rounds} rounds" if b.rounds > 1 else ""
    made = {"staged": ", a store leaves through it", "reload": ", loaded again"}.get(b.kind, "")
    return (
        f"{b.name}: {b.dtype} [{shape}]{rounds}, {b.bytes:,} bytes at {b.first:,} .. {b.end - 1:,}, "
        f"{lives}{made}"
    )


# -- live bytes and limits -----------------------------------------------------------------------


def _profile(
    m: StorageMap, side: Side, x: float, top: float, column: float, most: int
) -> Iterator[Shape]:
    """Bytes live at each statement; what is asked for and what devices give, as lines."""
    across, bottom = len(side.steps) * column, top + PROFILE
    scale = PROFILE / (most * 1.06)
    peak = side.steps[side.peak]
    yield Words(x - 8, top + 4, "live", "small", "end")
    yield Words(x - 8, bottom, "line", "small", "end")
    for i, step in enumerate(side.steps):
        height = step.live * scale
        most_live = " most" if step.live == peak.live else ""
        kind = "live peaking" if i == side.peak else f"live{most_live}"
        title = f"line {step.line}, {step.stage}: {step.text}; {step.live:,} bytes live"
        data = (("line", f"{step.line}"), ("live", f"{step.live}"))
        yield Box(x + i * column + 0.5, bottom - height, column - 1, height, kind, (), title, data)
        yield Box(x + i * column, bottom + 2, column, 30, "number", (str(step.line),), turned=True)
    for limit, names in m.limits:
        if limit * scale <= PROFILE:
            y = bottom - limit * scale
            yield Stroke(x, y, x + across, y, "limit")
    y = bottom - side.asked * scale
    yield Stroke(x, y, x + across, y, "asked")
    yield Words(x + across, y - 4, short(f"asked {side.asked:,}", across), "small", "end")
    text = f"peak: {peak.live:,} bytes live at line {peak.line}, {peak.stage}"
    yield Words(x, top - 10, short(text, across), "small")


def _gauge(m: StorageMap, y: float, width: float) -> tuple[list[Shape], float]:
    """What is asked for beside what every device gives a block."""
    out: list[Shape] = [Words(EDGE, y, "What devices give a block, in bytes", "heading")]
    x, room = EDGE + 110.0, width - 2 * EDGE - 110.0
    most = max(*(limit for limit, _ in m.limits), *(s.asked for s in m.sides))
    scale = room / most / 1.02
    rows: list[float] = []
    spots = []
    for limit, names in m.limits:
        text = f"{limit:,} {' '.join(names)}"
        at, long = x + limit * scale, len(text) * LETTER + 12
        above = range(len(rows) + 1)  # lines come down from their names: none through another's
        row = next(r for r in above if all(x <= at - long for x in rows[r:]))
        rows = [*rows[:row], at, *rows[row + 1 :]]
        spots.append((at, row, text, m.device.name in names))
    bars = y + 10 + len(rows) * LINE
    end = bars + LINE * len(m.sides) + 6
    for at, row, text, own in spots:
        base = bars - 6 - row * LINE
        out.append(Words(at - 5, base, short(text, at - EDGE), "own" if own else "small", "end"))
        out.append(Stroke(at, base - 9, at, end, "limit own" if own else "limit"))
    for i, side in enumerate(m.sides):
        at = bars + 4 + i * LINE
        out.append(Words(x - 8, at + 12, side.title[:15], "small", "end"))
        title = f"{side.title}: {side.asked:,} bytes"
        kind = "gauge then" if side is m.before else "gauge"
        data = (("asked", f"{side.asked}"),)
        out.append(Box(x, at, max(1.0, side.asked * scale), LINE - 3, kind, (), title, data))
    return out, end + 2 * LINE


def _unsaid(m: StorageMap, shapes: Iterable[Shape]) -> dict[str, int]:
    """Bytes of tiles of which a label doesn't say them."""
    sizes = {b.name: b.bytes for side in m.sides for b in side.bars}
    told = [s for s in shapes if isinstance(s, Box) and s.kind.startswith("label")]
    have = [(dict(s.data)["name"], " ".join(s.lines)) for s in told]
    bare = {n for n, text in have if f"{sizes[n]:,}" not in text}
    bare |= {*sizes} - {n for n, _ in have}
    return {n: size for n, size in sizes.items() if n in bare}


def _notes(
    m: StorageMap, key: list[str], unsaid: dict[str, int], y: float, width: float
) -> tuple[list[Shape], float]:
    """Changes by their numbers, tiles by theirs, and what the signs mean."""
    out: list[Shape] = []
    letters = int((width - 2 * EDGE) / LETTER)

    def say(text: str, kind: str, indent: str = "") -> None:
        nonlocal y
        for line in textwrap.wrap(text, letters, subsequent_indent=indent):
            out.append(
                Words(EDGE + LETTER * (len(line) - len(line.lstrip())), y, line.strip(), kind)
            )
            y += LINE

    if m.changes:
        say("What the plan does to the author's program", "heading")
        for i, c in enumerate(m.changes, 1):
            say(f"{i:>3} {c.change.kind}: {c.text}", "", "    ")
        y += LINE / 2
    if key:
        say("Tiles whose bars have no room for their names, and their bytes", "heading")
        named = (f"#{i}\xa0{name}\xa0{unsaid[name]:,}" for i, name in enumerate(key, 1))
        say("  ".join(named), "")
        y += LINE / 2
    if unsaid.keys() - {*key}:
        say("Bytes of the tiles whose bars don't say them", "heading")
        say("  ".join(f"{n}\xa0{size:,}" for n, size in unsaid.items() if n not in key), "")
        y += LINE / 2
    say(
        "Down: bytes of shared memory, a tile at least a line high. Across: statements, by their lines "
        "in the spec. In a bar, a long dash is a write and a dot a read; an arrow is a tile computed "
        "in place of the one before it; dashed, a tile that a store leaves through; dotted, one that "
        "is loaded again. The shaded column is the peak; below, the line is what is asked for, dashed "
        "ones what devices give.",
        "small",
    )
    return out, y
