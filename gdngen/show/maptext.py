"""A storage map as text: a tile a row, a statement a column, before and after side by side.

Letters only of ASCII, so that every terminal shows them.
"""

from collections.abc import Iterator

from gdngen.show.maps import Bar, Bracket, Side, StorageMap

WIDTH = 150  # letters that a line may take before the sides stand one below the other
KEYS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
LEGEND = (
    "W written, R read, = held; > computed in place of the tile before it. `live` is in tenths of what is "
    "asked for; ^ is the peak."
)


def lines(m: StorageMap) -> list[str]:
    """The whole map; where both sides have no room beside each other, they stand one below the other."""
    out = [f"{m.variant} ({m.target})"]
    blocks = [_block(m, side) for side in m.sides]
    widths = [max(map(len, b)) for b in blocks]
    if sum(widths) + 3 <= WIDTH and len(blocks) == 2:
        rows = max(map(len, blocks))
        filled = [b + [""] * (rows - len(b)) for b in blocks]
        out += [f"  {one.ljust(widths[0])}   {other}".rstrip() for one, other in zip(*filled)]
    else:
        for block in blocks:
            out += [f"  {line}".rstrip() for line in block] + [""]
        out.pop()
    out += [f"  {LEGEND}", *(f"  {line}" for line in _stages(m))]
    out += [f"  {c.change.kind}: {c.text}" for c in m.changes]
    above = [f"{limit:,} {' '.join(names)}" for limit, names in m.limits if limit < m.after.asked]
    if above:
        out.append(f"  too much for: {', '.join(above)}")
    return out


def _block(m: StorageMap, side: Side) -> list[str]:
    held = m.blocks[0 if side is m.before else 1]
    room = f"{held} block{'s' * (held != 1)} per SM" if held else f"does not fit {m.device.name}"
    name = max(4, *(len(b.name) for b in side.bars))
    keys = _keys(m)
    letters = "".join(keys[s.stage] for s in side.steps)
    out = [
        f"{side.title}, {side.asked:,} bytes, {room}",
        f"{'tile':<{name}} {'at':>7} {'bytes':>7}  {letters}",
    ]
    for b in sorted(side.bars, key=lambda b: (b.first, b.runs[0])):
        lives = "".join(_sign(b, i) for i in range(len(side.steps)))
        out.append(f"{b.name:<{name}} {b.first:>7,} {b.bytes:>7,}  {lives}".rstrip())
    tenths = "".join(str(min(9, 10 * s.live // side.asked)) for s in side.steps)
    peak = side.steps[side.peak]
    blank = " " * (name + 18)
    out += [
        f"{'live':<{name}} {'':7} {peak.live:>7,}  {tenths}",
        f"{blank}{' ' * side.peak}^ line {peak.line}, {peak.stage}",
    ]
    return out + [f"({note})" for note in side.notes]


def _sign(b: Bar, at: int) -> str:
    if not any(s < at + 1 and at < e for s, e in b.runs):
        return "."
    if at + 0.5 in (s for s, _ in b.runs):
        return ">"
    return "W" if at in b.writes else "R" if at in b.reads else "="


def _keys(m: StorageMap) -> dict[str, str]:
    """A letter for each stage, in the author's order."""
    first = m.sides[0]
    names = dict.fromkeys(s.stage for side in (first, m.after) for s in side.steps)
    return {name: KEYS[i % len(KEYS)] for i, name in enumerate(names)}


def _stages(m: StorageMap) -> Iterator[str]:
    """What the letters above the tiles stand for, with the lines of each stage and its loops."""
    keys = _keys(m)
    told = [
        f"{keys[b.texts[0]]} {b.texts[0]} {_spoken(_numbers(m.sides[0], b))}"
        for b in m.sides[0].brackets
        if b.kind == "stage"
    ]
    yield "stages and their lines: " + ", ".join(told)
    for b in m.after.brackets:
        if b.kind != "stage":
            yield f"{b.texts[0]}: lines {_spoken(_numbers(m.after, b))}"


def _numbers(side: Side, b: Bracket) -> list[int]:
    return [s.line for s in side.steps[b.first : b.last + 1]]


def _spoken(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}..{high}" if low < high else f"{low}"
