"""Copies of a part of a tensor that ends early: `k[b, row:min(row + C, end), :] -> k_s`.

The range is of C rows; those from `end` on count as outside the tensor, so a load gives 0 there and a
store does nothing. Where `end` is the tensor's own end that is so anyhow, and the copy stays one;
else it becomes a map.
"""

import ast
from dataclasses import replace

from gdngen.language import expr
from gdngen.language.expr import constant, linear
from gdngen.language.source import Source
from gdngen.language.syntax import Statement
from gdngen.model import bounds, regions
from gdngen.model.context import Context, Scope
from gdngen.model.regions import indices

WISHES = "ijlmpq"  # names of the indices that a map gets


def copy(cx: Context, s: Statement, scope: Scope) -> Statement:
    """The statement without ends that mean nothing: a plain copy, or a map."""
    for part in ("source", "target"):
        if _clipped(s[part].node):
            s = replace(s, parts={**s.parts, part: _shortened(cx, s[part], scope)})
    if not any(_clipped(s[part].node) for part in ("source", "target")):
        return s
    return _map(cx, s, scope)


def _clipped(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and any(map(_ends_early, indices(node)))


def _ends_early(i: ast.expr) -> bool:
    return (
        isinstance(i, ast.Slice)
        and isinstance(i.upper, ast.Call)
        and i.upper.func.id == "min"
        and len(i.upper.args) == 2
    )


def _shortened(cx: Context, source: Source, scope: Scope) -> Source:
    """The region with `a:min(stop, end)` as `a:stop` where `end` is where the tensor ends."""
    node = expr.copied(source.node)
    owner = cx.tensors.get(node.value.id) if isinstance(node.value, ast.Name) else None
    if owner is None:
        what = "a range that ends early is of a tensor"
        raise cx.fail(source.where(), what, "a tile is as large as it is: take a range of it")
    parts = list(indices(node))
    for axis, (i, side) in enumerate(zip(parts, owner.shape)):
        if _ends_early(i):
            stop, end = _ends(cx, source.of(i.upper), i, scope)
            upper = stop if expr.same(end, side) else ast.Call(i.upper.func, [stop, end], [])
            parts[axis] = ast.copy_location(
                ast.Slice(i.lower, ast.copy_location(upper, i.upper)), i
            )
    inside = ast.Tuple(parts, ast.Load()) if len(parts) > 1 else parts[0]
    return replace(source, node=ast.copy_location(ast.Subscript(node.value, inside), node))


def _ends(cx: Context, source: Source, i: ast.Slice, scope: Scope) -> tuple[ast.expr, ast.expr]:
    """Of the two that a range stops at, the one a known number of rows from its start; the other."""
    a, b = i.upper.args
    start = linear(i.lower or ast.Constant(0), scope.values)
    for stop, end in ((a, b), (b, a)):
        if constant(bounds.minus(linear(stop, scope.values), start)) is not None:
            return stop, end
    what = "the size of the range is not known when rendering"
    raise cx.fail(source.where(), what, "row:min(row + C, end) is of C rows, cut at end")


def _map(cx: Context, s: Statement, scope: Scope) -> Statement:
    """The copy as a map over its elements."""
    source, target = s["source"], s["target"]
    load = _clipped(source.node)
    if load == _clipped(target.node):
        raise cx.fail(
            target.where(), "a copy between two ranges that end early", "use a tile between"
        )
    part, whole = (source, target) if load else (target, source)
    at = ast.copy_location
    spans = [i for i in indices(part.node) if isinstance(i, ast.Slice)]
    names = _names(cx, scope, len(spans))
    sizes = [
        _size(cx, part, axis, i, scope) for axis, i in enumerate(indices(part.node)) if i in spans
    ]
    _check_tile(cx, whole, sizes, scope)
    index, ends, free = [], [], iter(names)
    for i in indices(part.node):
        if isinstance(i, ast.Slice):
            place = ast.Name(next(free))
            place = ast.BinOp(i.lower, ast.Add(), place) if i.lower else place
            if _ends_early(i):
                ends.append(ast.Compare(place, [ast.Lt()], [i.upper.args[1]]))
            i = place
        index.append(i)
    holds = ends[0] if len(ends) == 1 else ast.BoolOp(ast.And(), ends)
    there = _element(part.node.value, index)
    here = _element(whole.node, _whole_index(whole, names))
    read, into = (there, here) if load else (here, there)
    if cx.dtype_of(read.value.id) != cx.dtype_of(into.value.id):
        read = _cast(read, cx.dtype_name_of(into.value.id))
    if load:
        zero = _cast(ast.Constant(0), cx.dtype_name_of(into.value.id))
        read = ast.Call(ast.Name("where"), [holds, read, zero], [])
    for node in (holds, there, here, read):
        for n in ast.walk(node):
            at(n, part.node)
    assign = Statement(
        "assign",
        s.where,
        {"target": target.of(here if load else there), "value": source.of(read)},
        words=s.words,
    )
    axes = tuple(
        (replace(part.scalar, text=n, where=part.where()), part.of(at(size, part.node)))
        for n, size in zip(names, _texts(cx, whole, sizes))
    )
    guard = None if load else target.of(holds)
    return Statement("map", s.where, {"axes": axes, "guard": guard}, (assign,), words=s.words)


def _names(cx: Context, scope: Scope, count: int) -> list[str]:
    taken = {*scope.values, *scope.ranges, *cx.taken, *cx.buffers, *cx.tensors}
    free = [w for w in (*WISHES, *(f"i{n}" for n in range(99))) if w not in taken]
    return free[:count]


def _size(cx: Context, source: Source, axis: int, i: ast.Slice, scope: Scope) -> int:
    side = cx.tensors[source.node.value.id].shape[axis]
    upper = i.upper.args[0] if _ends_early(i) else i.upper or side
    lower = linear(i.lower or ast.Constant(0), scope.values)
    size = constant(bounds.minus(linear(upper, scope.values), lower))
    if size is None or size < 1:
        raise cx.fail(source.where(i), "the size of a range is not known when rendering")
    return size


def _check_tile(cx: Context, source: Source, sizes: list[int], scope: Scope) -> None:
    """The other side is a tile, of the shape that the range has."""
    tile = regions.region(cx, source, scope)
    if tile.name in cx.tensors or tile.shape != tuple(sizes):
        what = f"a copy between {regions.shown(tuple(sizes))} of a tensor and {regions.shown(tile.shape)}"
        raise cx.fail(
            source.where(), what, "a range that ends early goes to or from a tile of its shape"
        )


def _texts(cx: Context, source: Source, sizes: list[int]) -> list[ast.expr]:
    """The sizes as the author wrote them, where the tile is whole."""
    if isinstance(source.node, ast.Name):
        return [ast.parse(t, mode="eval").body for t in cx.buffers[source.node.id].shape_text]
    return [ast.Constant(size) for size in sizes]


def _cast(node: ast.expr, dtype: str) -> ast.Call:
    return ast.Call(ast.Name("cast"), [node, ast.Name(dtype)], [])


def _whole_index(source: Source, names: list[str]) -> list[ast.expr]:
    """Where the map's indices stand in the other side of the copy."""
    node = source.node
    if isinstance(node, ast.Name):
        return [ast.Name(n) for n in names]
    free, out = iter(names), []
    for i in indices(node):
        if isinstance(i, ast.Slice):
            n = ast.Name(next(free, names[-1]))
            i = ast.BinOp(i.lower, ast.Add(), n) if i.lower else n
        out.append(i)
    return out


def _element(node: ast.expr, index: list[ast.expr]) -> ast.Subscript:
    base = node.value if isinstance(node, ast.Subscript) else node
    index = [expr.copied(i) for i in index]
    return ast.Subscript(base, ast.Tuple(index, ast.Load()) if len(index) > 1 else index[0])
