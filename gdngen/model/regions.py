"""Rectangles of tiles and tensors: `name` or `name[i, a:b, :]`, their sizes known when rendering."""

import ast
import math

from gdngen.language.expr import Range, constant, linear
from gdngen.language.source import Source
from gdngen.model import bounds, model
from gdngen.model.context import Context, Scope


def region(cx: Context, source: Source, scope: Scope) -> model.Region:
    node = source.node
    base = node.value if isinstance(node, ast.Subscript) else node
    if not isinstance(base, ast.Name):
        raise cx.fail(source.where(), "a tile or tensor is meant here: name or name[i, a:b, :]")
    owner, name = cx.declared(source, base), base.id
    index = [ast.Slice()] * len(owner.shape)
    if isinstance(node, ast.Subscript):
        index = indices(node)
        check_rank(cx, source, node, name, len(owner.shape))
    parts = tuple(_part(cx, source, name, axis, i, scope) for axis, i in enumerate(index))
    if name in cx.buffers:
        _check_inside(cx, source, name, parts, scope)
    return model.Region(
        name=name,
        where=source.where(),
        index=parts if isinstance(node, ast.Subscript) else (),
        shape=tuple(p.size for p in parts if isinstance(p, model.Span)),
        whole=all(isinstance(p, model.Span) and p.full for p in parts),
    )


def indices(node: ast.Subscript) -> list[ast.expr]:
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def check_rank(cx: Context, source: Source, node: ast.Subscript, name: str, rank: int) -> None:
    given = len(indices(node))
    if given != rank:
        raise cx.fail(source.where(node), f"'{name}' has {rank} axes, {given} indices given")


def _part(cx: Context, source: Source, name: str, axis: int, i: ast.expr, scope: Scope):
    if not isinstance(i, ast.Slice):
        cx.known(source.of(i), scope)
        cx.integer(source, i, scope)
        return model.Point(i)
    if i.step is not None:
        raise cx.fail(source.where(i.step), "a range has no step")
    extent = _extent(cx, name, axis)
    start, stop = i.lower or ast.Constant(0), i.upper or extent
    for end in (i.lower, i.upper):
        if end is not None:
            cx.known(source.of(end), scope)
            cx.integer(source, end, scope)
    first = linear(start, scope.values)
    size = constant(bounds.minus(linear(stop, scope.values), first))
    where = source.where(i.lower)
    if size is None:
        raise cx.fail(
            where,
            f"the size of axis {axis} of '{name}' is not known when rendering",
            "take a range whose ends differ by a known number: c*BC:(c+1)*BC",
        )
    if size < 1:
        raise cx.fail(where, f"an empty range along axis {axis} of '{name}'")
    full = constant(linear(extent, scope.values)) == size and constant(first) == 0
    return model.Span(start, stop, size, full)


def _extent(cx: Context, name: str, axis: int) -> ast.expr:
    if name in cx.buffers:
        return ast.Constant(cx.buffers[name].shape[axis])
    return cx.tensors[name].shape[axis]


def _check_inside(cx: Context, source: Source, name: str, parts, scope: Scope) -> None:
    for axis, (p, extent) in enumerate(zip(parts, cx.buffers[name].shape)):
        start, size = (p.at, 1) if isinstance(p, model.Point) else (p.start, p.size)
        if reached := bounds.outside(start, size, extent, scope):
            raise cx.fail(
                source.where(start),
                f"axis {axis} of '{name}' is used from {span(reached)}",
                f"it has {extent}: 0 to {extent - 1}",
                kind=f"bounds {name} {axis}",
            )


def span(reached: Range) -> str:
    low, high = reached
    a, b = ("-inf" if math.isinf(low) else int(low)), ("inf" if math.isinf(high) else int(high))
    return f"{a} to {b}" if a != b else str(a)


def shown(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
