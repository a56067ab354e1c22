"""Fragments: registers of many threads, of which none can read another's.

What is found here follows what TileLang 0.1.15 does, tried out pattern by pattern: most misuse it
refuses, with words about layouts; some it compiles into a wrong answer. Legal, and left alone: any one
tuple of a parallel loop's variables; a row of a statistic where something fixes who holds which row.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from gdngen.errors import Diagnostic
from gdngen.inspect.kernel import (
    Access,
    Gemm,
    Kernel,
    Leaf,
    Reduce,
    leaves,
    meet,
    number,
)
from gdngen.language import expr

REFUSES = "TileLang refuses it"
WRONG = "TileLang compiles it, wrongly"
EITHER = "TileLang refuses it, or compiles it wrongly"


@dataclass(frozen=True)
class _Read:
    """An access to a fragment in a parallel loop: of each axis the loop's variable that indexes it,
    None where that is anything else."""

    access: Access
    axes: tuple[str | None, ...]

    @property
    def plain(self) -> bool:
        return None not in self.axes and len(set(self.axes)) == len(self.axes)


def misuse(kernel: Kernel) -> Iterator[Diagnostic]:
    """Every access that a fragment's layout, or a thread's own array, can't serve; and races."""
    layouts = _Layouts(kernel)
    said: set[tuple] = set()
    for found in (*_each(kernel, layouts), *layouts.torn()):
        # Of what is told of one tile, no more than a word a place.
        if found.where not in said:
            said.add(found.where)
            yield found


def _each(kernel: Kernel, layouts: _Layouts) -> Iterator[Diagnostic]:
    for leaf in leaves(kernel.body):
        if leaf.axes:
            yield from _in_map(leaf, kernel, layouts)
            yield from _locals(leaf, kernel)
            yield from _races(leaf, kernel)
        elif leaf.kind == "scalar":
            yield from _alone(leaf, kernel, layouts)
        else:
            yield from _parts(leaf, kernel, layouts)


class _Layouts:
    """Fragments that have one layout between them, and what each statistic is a row of."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.parent: dict[str, str] = {}
        self.fixed: set[str] = set()
        self.reduced: set[str] = set()
        # fragment -> layout, axis of it -> the access that tied it so
        self.rows: dict[str, dict[tuple[str, int], Access]] = defaultdict(dict)
        tied: list[tuple[str, str, int, Access]] = []
        for leaf in leaves(kernel.body):
            fragments = [a for a in leaf.accesses if kernel.tiles[a.tile].scope == "fragment"]
            if isinstance(leaf.detail, Gemm):
                self.fixed |= {a.tile for a in fragments}
            if isinstance(leaf.detail, Reduce):
                made, of = leaf.detail.dst, leaf.detail.src
                self.reduced.add(made.tile)
                ranks = [len(kernel.tiles[x.tile].shape) for x in (made, of)]
                if all(kernel.tiles[x.tile].scope == "fragment" for x in (made, of)) and ranks == [
                    1,
                    2,
                ]:
                    tied.append((made.tile, of.tile, 1 - leaf.detail.axis, made))
            if leaf.kind == "copy" and len(fragments) == 2 and not any(a.index for a in fragments):
                self.join(*(a.tile for a in fragments))
            if leaf.axes:
                full = [
                    r for r in _reads(leaf, kernel) if r.plain and len(r.axes) == len(leaf.axes) > 1
                ]
                for one, other in zip(full, full[1:]):
                    if one.axes == other.axes:
                        self.join(one.access.tile, other.access.tile)
                for row in _reads(leaf, kernel):
                    if row.plain and len(row.axes) == 1 and full:
                        at = full[0].axes.index(row.axes[0])
                        tied.append((row.access.tile, full[0].access.tile, at, row.access))
        for statistic, of, axis, access in tied:
            self.rows[statistic].setdefault((self.layout(of), axis), access)

    def layout(self, tile: str) -> str:
        while self.parent.get(tile, tile) != tile:
            tile = self.parent[tile]
        return tile

    def join(self, one: str, other: str) -> None:
        self.parent[self.layout(one)] = self.layout(other)

    def is_fixed(self, tile: str) -> bool:
        return any(self.layout(f) == self.layout(tile) for f in self.fixed)

    def torn(self) -> Iterator[Diagnostic]:
        """Statistics that would have to be held by rows and by columns of one layout."""
        for name, ties in self.rows.items():
            by_layout: dict[str, list[Access]] = defaultdict(list)
            for (layout, _), access in ties.items():
                by_layout[layout].append(access)
            for found in by_layout.values():
                if len(found) > 1:
                    first, second = sorted(found, key=lambda a: a.where)[:2]
                    yield Diagnostic(
                        "error",
                        second.where,
                        f"fragment '{second.name}' goes along another axis here than on line "
                        f"{first.where.line}: one layout can't serve both. {REFUSES}",
                        _in_shared(self.kernel, name),
                    )


def _reads(leaf: Leaf, kernel: Kernel) -> list[_Read]:
    own = {a.id for a in leaf.axes}
    found = []
    for a in leaf.accesses:
        tile = kernel.tiles[a.tile]
        if tile.scope != "fragment" or not a.element or tile.viewed or a.tile in kernel.layouts:
            continue
        sides = [p for p, n in zip(a.index, tile.shape) if n > 1]
        axes = tuple(p.id if isinstance(p, ast.Name) and p.id in own else None for p in sides)
        found.append(_Read(a, axes))
    return found


def _wide(leaf: Leaf) -> int:
    """Axes of a loop that are longer than one."""
    return sum(a.extent != 1 for a in leaf.axes)


def _in_map(leaf: Leaf, kernel: Kernel, layouts: _Layouts) -> Iterator[Diagnostic]:
    reads = _reads(leaf, kernel)
    names = {a.id: a.name for a in leaf.axes}
    over = f"a loop over ({', '.join(names.values())})"
    full = [r for r in reads if r.plain and len(r.axes) == _wide(leaf)]
    wrong: set[str] = set()
    first: dict[str, _Read] = {}
    for r in reads:
        if r.access.tile in wrong or not r.axes:
            continue
        before = first.setdefault(r.access.tile, r)
        fault = None
        if _dump(before.access) != _dump(r.access):
            fault = (
                f"is touched at two elements by one thread, [{_text(before.access, kernel)}] and "
                f"[{_text(r.access, kernel)}]: it holds at most one of them. {REFUSES}"
            )
        elif not r.plain:
            fault = _computed(r, leaf, kernel, layouts)
        elif len(r.axes) < _wide(leaf):
            fault = _row(r, full, leaf, kernel, layouts)
        if fault is None:
            continue
        severity = "error"
        if isinstance(fault, tuple):
            severity, fault = fault
        wrong.add(r.access.tile)
        yield Diagnostic(
            severity,
            r.access.where,
            f"fragment '{r.access.name}' in {over} {fault}",
            _in_shared(kernel, r.access.tile),
        )
    for one, other in zip(full, full[1:]):
        if one.axes != other.axes and not {one.access.tile, other.access.tile} & wrong:
            tiles = one.access.tile, other.access.tile
            both = (
                all(layouts.is_fixed(t) for t in tiles) or len({*map(layouts.layout, tiles)}) == 1
            )
            yield Diagnostic(
                "error" if both else "warning",
                other.access.where,
                f"fragment '{other.access.name}' is met transposed, beside '{one.access.name}': one's layout "
                "must be the other's transpose" + (f". {REFUSES}" if both else ""),
                _in_shared(kernel, other.access.tile),
            )
            return


def _computed(r: _Read, leaf: Leaf, kernel: Kernel, layouts: _Layouts) -> str | tuple | None:
    """What is wrong with an index that is more than variables of the loop."""
    tile = kernel.tiles[r.access.tile]
    sides = [p for p, n in zip(r.access.index, tile.shape) if n > 1]
    own = {a.id for a in leaf.axes}
    fixed = layouts.is_fixed(tile.id)
    at = _text(r.access, kernel)
    if any(number(p) is not None for p in sides):
        if len(tile.shape) == 1 and number(sides[0]) == 0:
            return None
        return f"is touched at a fixed element, [{at}], which one thread holds. {REFUSES}"
    if any(_is_shift(n) for p in sides for n in ast.walk(p)):
        return f"is touched at [{at}], elements of other threads. {REFUSES}"
    inner = {a.id for a in leaf.inner}
    for p in sides:
        names = {n.id for n in expr.names(p)}
        if names <= own:
            continue
        if fixed and not (names & own and names <= own | inner):
            return f"is touched at [{at}], by what is the same for every thread. {EITHER}"
        if not fixed:
            return "warning", (
                f"is touched at [{at}], by what is the same for every thread: right only if every thread holds "
                "all such elements"
            )
    if any(isinstance(n, ast.FloorDiv | ast.Mod) for p in sides for n in ast.walk(p)):
        return None  # several points, one element: it is kept by all of their threads
    if fixed and not r.access.write:
        return None  # a part of an accumulator: the loop is laid out by it
    return (
        "warning",
        f"is touched at [{at}]: right only if its layout lets every thread find that element",
    )


def _is_shift(node: ast.AST) -> bool:
    """Whether a part is `(i + 1) % n`."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Mod)
        and not isinstance(node.left, ast.Name)
    )


def _row(r: _Read, full: list[_Read], leaf: Leaf, kernel: Kernel, layouts: _Layouts):
    """What is wrong with an element of fewer axes than the loop has."""
    at = _text(r.access, kernel)
    if r.access.write or any(a.write and a.tile == r.access.tile for a in leaf.accesses):
        # A sum along the loop's other axes, which each thread makes of its own rows.
        return f"is written at [{at}] by several threads at one time. {REFUSES}" if full else None
    last = [a.id for a in leaf.axes if a.extent != 1][-1]
    if full or r.axes[-1] == last or r.access.tile in layouts.reduced:
        return None
    if ties := layouts.rows.get(r.access.tile):
        line = min(a.where for a in ties.values()).line
        return "warning", (
            f"is read at [{at}] beside shared tiles only: right only as the loop of line {line}, where it meets "
            "a fragment, has every thread keep the rows that it needs. No thread can read another's registers"
        )
    size, threads = kernel.tiles[r.access.tile].shape[0], kernel.threads
    fault = (
        f"is read at [{at}] beside shared tiles only: nothing fixes which threads hold [{at}], "
        "and no thread can read another's registers"
    )
    if threads is not None and size % threads == 0:
        return "warning", f"{fault}; it is right only as {threads} threads divide {size}"
    return f"{fault}. {WRONG}: a barrier that only some threads reach"


def _locals(leaf: Leaf, kernel: Kernel) -> Iterator[Diagnostic]:
    own = {a.id: a.name for a in leaf.axes}
    for a in leaf.accesses:
        if kernel.tiles[a.tile].scope != "local" or not a.element:
            continue
        used = [own[n.id] for p in a.index for n in expr.names(p) if n.id in own]
        if used:
            what = f"'{a.name}' is a thread's own array, and {used[0]} runs over threads. {REFUSES}"
            yield Diagnostic("error", a.where, what, "T.alloc_fragment spreads a tile over threads")
            return


def _races(leaf: Leaf, kernel: Kernel) -> Iterator[Diagnostic]:
    """A shared tile that a thread writes where another reads, in one parallel loop."""
    own = {a.id for a in leaf.axes}
    shared = [a for a in leaf.accesses if kernel.tiles[a.tile].scope == "shared" and a.element]
    for w in (a for a in shared if a.write):
        for r in (a for a in shared if not a.write and a.tile == w.tile and not a.anew):
            bare = [
                (at, p.id)
                for at, p in enumerate(w.index)
                if isinstance(p, ast.Name) and p.id in own
            ]
            alike = all(
                isinstance(r.index[at], ast.Name) and r.index[at].id == id for at, id in bare
            )
            if (bare and alike) or _dump(w) == _dump(r) or not meet(w.box, r.box):
                continue
            yield Diagnostic(
                "error" if w.exact else "warning",
                r.where,
                f"'{r.name}' is read at [{_text(r, kernel)}] where other threads write "
                f"[{_text(w, kernel)}] in the same loop: a race",
                "write into another tile, or read in a loop of its own before",
            )
            return


def _alone(leaf: Leaf, kernel: Kernel, layouts: _Layouts) -> Iterator[Diagnostic]:
    """Elements of fragments outside parallel loops, where every thread does all."""
    touched = {
        a.tile
        for other in leaves(kernel.body)
        if other.axes or other.kind in ("gemm", "reduce")
        for a in other.accesses
    }
    for a in leaf.accesses:
        tile = kernel.tiles[a.tile]
        if tile.scope != "fragment" or not a.element:
            continue
        sides = [p for p, n in zip(a.index, tile.shape) if n > 1]
        if all(number(p) == 0 for p in sides):
            continue
        if all(number(p) is not None for p in sides):
            fault = f"is touched at a fixed element, [{_text(a, kernel)}]. {REFUSES}"
        elif a.tile in touched:
            fault = (
                f"is touched at [{_text(a, kernel)}] outside T.Parallel: every thread runs this, and holds a "
                f"few of its elements only. {EITHER}"
            )
        else:
            continue
        yield Diagnostic(
            "error", a.where, f"fragment '{a.name}' {fault}", _in_shared(kernel, a.tile)
        )
        return


def _parts(leaf: Leaf, kernel: Kernel, layouts: _Layouts) -> Iterator[Diagnostic]:
    """Parts of fragments in copies and the like. An accumulator's may be taken."""
    for a in leaf.accesses:
        tile = kernel.tiles[a.tile]
        if tile.scope != "fragment" or tile.viewed or not a.index or a.box == tile.box:
            continue
        if not layouts.is_fixed(a.tile):
            what = (
                f"a part of fragment '{a.name}' is used: its elements are spread over the threads"
            )
            yield Diagnostic(
                "warning",
                a.where,
                f"{what}. TileLang refuses most of these",
                _in_shared(kernel, a.tile),
            )
            return


def _in_shared(kernel: Kernel, tile: str) -> str:
    t = kernel.tiles[tile]
    return f"keep it in shared memory: T.alloc_shared takes {t.bytes:,} bytes for it"


def _dump(a: Access) -> list[str]:
    return [ast.dump(p) for p in a.index]


def _text(a: Access, kernel: Kernel) -> str:
    """An index as the source has it, nearly: unique names without what makes them so."""
    words = {n.id: n.id.partition("__")[0] for p in a.index for n in expr.names(p)}
    return ", ".join(ast.unparse(expr.renamed(p, words)) for p in a.index)
