"""Kernel -> kernel: maps that read a tensor themselves, where they read a tile that was only copied from it.

`copy: k[b, h, c*C:(c+1)*C, :] -> k_s` and later `x[i, j] = k_s[i, j] * beta_s[i]` give
`x[i, j] = k[b, h, c*C + i, j] * beta_s[i]`: every element is read once by its own thread, so the tile
need not live until then. Outside a tensor both read 0.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gdngen.language import expr
from gdngen.model.model import Access, Assign, Copy, Kernel, Point, Statement, touched
from gdngen.plan.rewrite import Change, written


@dataclass(frozen=True)
class Read:
    """A load, and the maps after its last other reader that can do without its tile.

    `rest` says whether anything else reads the tile: then its tensor is read a second time.
    """

    load: Copy
    maps: tuple[Assign, ...]
    rest: bool


def reads(kernel: Kernel) -> Iterator[Read]:
    """Every load of a whole tile with a map, or several, that can read its tensor instead."""
    body = kernel.statements()
    changed = {name for s in body for name in written(s)}
    for load in body:
        if not isinstance(load, Copy) or not load.dst.whole or load.src.name in changed:
            continue
        tile, tensor = kernel.buffer(load.dst.name), kernel.tensor(load.src.name)
        if tile is None or tensor is None or tile.scope != "shared" or tile.dtype != tensor.dtype:
            continue
        users = [s for s in body if tile.name in touched(s) and s is not load]
        if not load.src.index or any(tile.name in written(s) for s in users):
            continue
        maps: list[Assign] = []
        while users and _can(users[-1], tile.name, tile.shape):
            maps.insert(0, users.pop())
        if maps:
            yield Read(load, tuple(maps), bool(users))


def _can(s: Statement, name: str, shape: tuple[int, ...]) -> bool:
    """Whether a statement is a map that reads the tile at its own point alone: once an element."""
    if not isinstance(s, Assign) or tuple(a.extent for a in s.axes) != shape:
        return False
    own = [a.name for a in s.axes]
    return all(
        [i.id if isinstance(i, ast.Name) else None for i in a.index] == own
        for a in s.used
        if a.name == name
    )


def read_directly(kernel: Kernel, read: Read) -> Kernel:
    """The maps with elements of the tensor for those of the tile; the load and its tile gone, if nothing
    else reads it."""
    name, gone = read.load.dst.name, set() if read.rest else {read.load.id}
    ids = {s.id for s in read.maps}
    stages = tuple(
        replace(
            stage,
            body=tuple(
                _swapped(s, read.load) if s.id in ids else s for s in stage.body if s.id not in gone
            ),
        )
        for stage in kernel.stages
    )
    buffers = tuple(b for b in kernel.buffers if read.rest or b.name != name)
    return replace(kernel, buffers=buffers, stages=tuple(s for s in stages if s.body))


def _swapped(s: Assign, load: Copy) -> Assign:
    tile = load.dst.name

    class Swap(ast.NodeTransformer):
        def visit_Subscript(self, n: ast.Subscript):
            return _element(load, s) if n.value.id == tile else self.generic_visit(n)

    def used(a: Access) -> Access:
        if a.name != tile:
            return a
        return Access(load.src.name, a.where, False, _index(load, s))

    swap = Swap()
    return replace(
        s,
        value=swap.visit(expr.copied(s.value)),
        guard=swap.visit(expr.copied(s.guard)) if s.guard is not None else None,
        used=tuple(dict.fromkeys(map(used, s.used))),
    )


def _element(load: Copy, s: Assign) -> ast.Subscript:
    index = _index(load, s)
    inside = ast.Tuple(list(index), ast.Load()) if len(index) > 1 else index[0]
    return ast.Subscript(ast.Name(load.src.name), inside, ast.Load())


def _index(load: Copy, s: Assign) -> tuple[ast.expr, ...]:
    """Where in the tensor the tile's element at the map's own point came from."""
    axes = iter(s.axes)
    out: list[ast.expr] = []
    for part in load.src.index:
        if isinstance(part, Point):
            out.append(expr.copied(part.at))
            continue
        at = ast.Name(next(axes).name)
        zero = part.full or (isinstance(part.start, ast.Constant) and part.start.value == 0)
        out.append(at if zero else ast.BinOp(expr.copied(part.start), ast.Add(), at))
    return tuple(out)


def said(read: Read, kernel: Kernel) -> Change:
    """What reading directly does, in a line."""
    tile, tensor = read.load.dst.name, read.load.src.name
    lines = ", ".join(str(s.where.line) for s in read.maps)
    by = f"{tensor} is read by the map of line {lines} itself"
    if not read.rest:
        return Change("direct", f"{by}; there is no {tile}", (tile,))
    more = kernel.buffer(tile).bytes * len(read.maps)
    return Change("direct", f"{by}, not from {tile}: {more:,} bytes more traffic a block", (tile,))
