"""Slots for one order of statements: tiles of one class packed into as few columns as can be.

Buffers of one dtype and height may share columns when their lives are disjoint, or be one tile when
one is computed from the other in place. Packing widths over lifetimes is dynamic storage allocation;
it is solved exactly for the few tiles of a kernel (best of all first-fit orders, stopped at the
peak, which no packing beats). Tiles that overlap in columns then make one slot.

With views, buffers of one height may share columns whatever their floats' dtypes: a tenant of another
dtype than its slot's sees the same bytes as more or fewer elements a row. Each view has a layout of its
own, and a value is never read but through the view that wrote it, so tenants of two dtypes in one slot
must not live at once: columns of one are not columns of the other where layouts are swizzled.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import permutations

from gdngen.language import expr
from gdngen.model import model
from gdngen.model.analysis import Analysis
from gdngen.model.model import (
    BYTES,
    Assign,
    Branch,
    Buffer,
    Cumsum,
    Gemm,
    Kernel,
    Leaf,
    Loop,
    Raw,
    Statement,
    children,
    touched,
)
from gdngen.plan import compiler
from gdngen.plan.storage import Slot

Class = tuple[str, tuple[int, ...]]
Names = frozenset[str]
TRIES = 20_000  # first-fit orders of a class before the best so far is taken
VIEWED = ("float32", "float16", "bfloat16")  # dtypes that may see one another's bytes
VIEW_ALIGN = (
    16  # bytes: what a thread moves at once; rows seen as another dtype are multiples of it
)


def classes_of(kernel: Kernel, views: Names = frozenset()) -> dict[str, Class]:
    """Per shared tile, what tiles must agree in to share columns of one allocation: dtype and height, or
    height alone for those in `views`. Where some are operands of gemms, those that must lie in rows are
    of a class of their own."""
    rows, operands = laid_out(kernel)
    found = {b.name: ("" if b.name in views else b.dtype, b.shape[:-1]) for b in kernel.shared()}
    beside = {found[name] for name in operands}
    return {
        name: (
            (f"{kind} in rows", height)
            if name in rows and (kind, height) in beside
            else (kind, height)
        )
        for name, (kind, height) in found.items()
    }


def laid_out(kernel: Kernel) -> tuple[Names, Names]:
    """Shared tiles that must lie in rows, since a running sum runs over them, and operands of gemms, which
    are given a layout of their own: TileLang refuses one storage for both."""
    tiles = {b.name for b in kernel.shared()}
    sums = {
        a.name for x in kernel.leaves() if isinstance(x, Cumsum) for a in x.reads() + x.writes()
    }
    gemms = {r.name for x in kernel.leaves() if isinstance(x, Gemm) for r in (x.a, x.b)}
    return frozenset(sums & tiles), frozenset(gemms & tiles)


def viewable(kernel: Kernel, target: str) -> Names:
    """Tiles that may lie on one of another dtype, on a target.

    None where TMA or warpgroup gemms read a tile by a descriptor, which has one layout and one alignment,
    and none where a pipelined loop keeps several versions of a tile, of which a view would see the first.
    No tile that an arm of a branch touches: TileLang 0.1.15 counts a barrier in one arm as passed on the
    other way too, and so leaves out some that a tile which changes its dtype needs.
    """
    if compiler.has_tma(target) or any(map(_pipelined, kernel.statements())):
        return frozenset()
    apart = {name for s in kernel.statements() for name in _in_arms(s)}
    apart |= laid_out(kernel)[0]
    return frozenset(b.name for b in kernel.shared() if _could_view(b) and b.name not in apart)


def _could_view(b: Buffer) -> bool:
    return len(b.shape) == 2 and b.dtype in VIEWED and not _row(b) % VIEW_ALIGN


def _pipelined(s: Statement) -> bool:
    own = isinstance(s, Loop) and s.kind == "pipelined"
    return own or any(_pipelined(x) for group in children(s) for x in group)


def _in_arms(s: Statement) -> Iterable[str]:
    """Names that arms of branches touch in a statement."""
    if isinstance(s, Branch):
        return touched(s)
    return [name for group in children(s) for x in group for name in _in_arms(x)]


def _row(b: Buffer) -> int:
    return b.shape[-1] * BYTES[b.dtype]


@dataclass(frozen=True)
class Tile:
    """Buffers that are one tile, each computed in place of the one before; `live` are statements.

    `width` is in bytes.
    """

    names: tuple[str, ...]
    width: int
    live: frozenset[int]
    start: int
    dtype: str = "float32"


def inplace_pairs(leaf: Leaf, kernel: Kernel) -> list[tuple[str, str]]:
    """(source, target) where an element of target is computed from the same element of source alone.

    Both are shared, of one shape and dtype, and all of the target is written.
    """
    if not isinstance(leaf, Assign) or not leaf.covers:
        return []
    target = kernel.buffer(leaf.name)
    if target is None or target.scope != "shared":
        return []
    out = []
    for name in dict.fromkeys(a.name for a in leaf.reads()):
        source = kernel.buffer(name)
        if source is None or name == target.name or source.scope != "shared":
            continue
        alike = (source.shape, source.dtype) == (target.shape, target.dtype)
        if alike and all(_here(leaf, a) for a in leaf.reads() if a.name == name):
            out.append((name, target.name))
    return out


def _here(leaf: Assign, read: model.Access) -> bool:
    """Whether a read is of the very element that is written."""
    return all(map(expr.same, read.index, leaf.index))


def pack(
    kernel: Kernel,
    found: Analysis,
    apart: frozenset[tuple[str, str]] = frozenset(),
    views: Names = frozenset(),
) -> tuple[Slot, ...]:
    """Slots of all shared buffers, least bytes for this order; pairs in `apart` are not done in place, and
    tiles in `views` may lie on such of another dtype."""
    plain = _packed(kernel, found, apart, frozenset())
    if not views:
        return plain
    seen = _packed(kernel, found, apart, views)
    return min(plain, seen, key=lambda slots: sum(s.bytes for s in slots))


def apart(kernel: Kernel) -> tuple[Slot, ...]:
    """Every shared buffer in a slot of its own."""
    return tuple(Slot(b.shape, b.dtype, (b.name,)) for b in kernel.shared())


def _packed(
    kernel: Kernel, found: Analysis, apart: frozenset[tuple[str, str]], views: Names
) -> tuple[Slot, ...]:
    exact = {
        a.name
        for leaf in kernel.leaves()
        if isinstance(leaf, Raw)
        for a in leaf.reads() + leaf.writes()
    }
    classes: dict[Class, list[Buffer]] = {}
    kinds = classes_of(kernel, views)
    slots = []
    for b in kernel.shared():
        if b.name in found.private or b.name in exact:
            slots.append(Slot(b.shape, b.dtype, (b.name,)))
        else:
            classes.setdefault(kinds[b.name], []).append(b)
    for (_, height), buffers in classes.items():
        tiles = _tiles(kernel, buffers, found, apart)
        made = _slots(tiles, _columns(tiles), height)
        if any(_mixes(group, tiles) for group in made):
            for dtype in dict.fromkeys(t.dtype for t in tiles):
                own = [t for t in tiles if t.dtype == dtype]
                slots += _slots(own, _columns(own), height)
        else:
            slots += made
    order = {b.name: i for i, b in enumerate(kernel.shared())}
    return tuple(sorted(slots, key=lambda s: order[s.name]))


def _tiles(
    kernel: Kernel, buffers: list[Buffer], found: Analysis, apart: frozenset[tuple[str, str]]
) -> list[Tile]:
    """Chains of in-place updates joined into tiles; other buffers are tiles of their own."""
    at = {leaf.id: i for i, leaf in enumerate(found.order)}
    live = {b.name: frozenset(i for i, s in found.live.items() if b.name in s) for b in buffers}
    next_of: dict[str, str] = {}
    for leaf in found.order:
        for source, target in inplace_pairs(leaf, kernel):
            taken = source in next_of or target in next_of.values() or (source, target) in apart
            if source not in live or target not in live or taken:
                continue
            dead = source not in found.after[leaf.id] and live[source] & live[target] == {leaf.id}
            if dead:
                next_of[source] = target
    tiles = []
    for b in buffers:
        if b.name in next_of.values():
            continue
        names = [b.name]
        while names[-1] in next_of:
            names.append(next_of[names[-1]])
        lives = frozenset().union(*(live[n] for n in names))
        if sum(len(live[n]) for n in names) - len(lives) > len(names) - 1:
            tiles += [
                Tile((n,), _row(b), live[n], min(at[i] for i in live[n]), b.dtype) for n in names
            ]
        else:
            tiles.append(Tile(tuple(names), _row(b), lives, min(at[i] for i in lives), b.dtype))
    return sorted(tiles, key=lambda t: (t.start, -t.width, t.names))


def _columns(tiles: list[Tile]) -> list[int]:
    """First column of each tile, for the least width in all."""
    peak = max((sum(t.width for t in tiles if i in t.live) for i in _moments(tiles)), default=0)
    best: tuple[int, list[int]] | None = None
    for tries, order in enumerate(_orders(len(tiles), tiles)):
        columns = _first_fit(tiles, order)
        width = max(c + t.width for c, t in zip(columns, tiles))
        if best is None or width < best[0]:
            best = width, columns
        if best[0] == peak or tries > TRIES:
            break
    return best[1] if best else []


def _moments(tiles: list[Tile]) -> set[int]:
    return {i for t in tiles for i in t.live}


def _orders(n: int, tiles: list[Tile]) -> Iterable[tuple[int, ...]]:
    """Good orders first: by start, by width, by length of life; then all of them."""
    yield tuple(range(n))
    yield tuple(sorted(range(n), key=lambda i: (-tiles[i].width, tiles[i].start)))
    yield tuple(sorted(range(n), key=lambda i: -len(tiles[i].live)))
    yield from permutations(range(n))


def _first_fit(tiles: list[Tile], order: tuple[int, ...]) -> list[int]:
    """Each tile in turn at a free place: where a dead tile of its width lay, if it need not grow the
    slot, else the lowest."""
    columns = [-1] * len(tiles)
    for i in order:
        tile = tiles[i]
        busy = sorted(
            (columns[j], columns[j] + tiles[j].width)
            for j in range(len(tiles))
            if columns[j] >= 0 and tiles[j].live & tile.live
        )
        lowest = 0
        for start, stop in busy:
            if start - lowest >= tile.width:
                break
            lowest = max(lowest, stop)
        alike = [
            (-tiles[j].start, columns[j])
            for j in range(len(tiles))
            if columns[j] >= 0
            and (tiles[j].width, tiles[j].dtype) == (tile.width, tile.dtype)
            and not tiles[j].live & tile.live
        ]
        for _, column in sorted(alike):
            if all(stop <= column or start >= column + tile.width for start, stop in busy):
                columns[i] = column
                break
        else:
            columns[i] = lowest
    return columns


def _slots(tiles: list[Tile], columns: list[int], height: tuple[int, ...]) -> list[Slot]:
    """Tiles that overlap in columns, directly or through others, make one slot, of the first's dtype."""
    placed = sorted(zip(columns, tiles), key=lambda p: p[0])
    groups: list[tuple[int, int, list[tuple[int, Tile]]]] = []
    for column, tile in placed:
        if groups and column < groups[-1][1]:
            first, stop, inside = groups[-1]
            groups[-1] = first, max(stop, column + tile.width), inside + [(column, tile)]
        else:
            groups.append((column, column + tile.width, [(column, tile)]))
    out = []
    for first, stop, inside in groups:
        inside = sorted(inside, key=lambda p: p[1].start)
        dtype = inside[0][1].dtype
        tenants = tuple(n for _, t in inside for n in t.names)
        starts = tuple((c - first) // BYTES[t.dtype] for c, t in inside for _ in t.names)
        kinds = tuple(t.dtype for _, t in inside for _ in t.names)
        shape = (*height, (stop - first) // BYTES[dtype])
        columns_of, dtypes = starts if any(starts) else (), kinds if len({*kinds}) > 1 else ()
        out.append(Slot(shape, dtype, tenants, columns_of, dtypes))
    return out


def _mixes(slot: Slot, tiles: list[Tile]) -> bool:
    """Whether tiles of two dtypes live at once in a slot."""
    inside = [t for t in tiles if t.names[0] in slot.tenants]
    return any(a.dtype != b.dtype and a.live & b.live for a in inside for b in inside)
