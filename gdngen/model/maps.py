"""Maps: one assignment for every point of an index space, all points at once."""

import ast

from gdngen.language import expr
from gdngen.language.source import Source
from gdngen.language.syntax import Statement
from gdngen.model import bounds, model, types
from gdngen.model.context import Context, Scope, Stop
from gdngen.model.regions import check_rank, indices, span

MAX_EXTENT = 65536


def assignments(cx: Context, s: Statement, scope: Scope) -> list[model.Statement]:
    """The assignments of a map, each a statement of its own."""
    axes = []
    for name, extent in s["axes"]:
        cx.fresh(name, scope)
        size = cx.size(extent, f"the extent of '{name.text}'", most=MAX_EXTENT, scope=scope)
        axes.append(model.Axis(name.text, size, ast.unparse(cx.folded(extent.node))))
    inner = scope.inside(**{a.name: (0.0, a.extent - 1.0) for a in axes})
    guard, read = s["guard"], ()
    if guard is not None:
        cx.known(guard, inner, {**cx.tensors, **cx.buffers})
        cx.condition(guard, inner)
        read = tuple(_elements(cx, guard, guard.node, inner, ()))
        inner = inner.where(guard.node)
    group, out = next(cx.groups), []
    for assign in s.body:
        try:
            if assign.kind == "broken":
                raise Stop
            out.append(_assign(cx, assign, guard, read, tuple(axes), inner, group))
        except Stop:
            out.append(broken(cx, assign))
    return out


def elements(cx: Context, source: Source, scope: Scope) -> list[model.Access]:
    """Every element that an expression reads; indices that may leave a tile are reported."""
    return _elements(cx, source, source.node, scope, ())


def broken(cx: Context, s: Statement) -> model.Broken:
    """Stands for a statement with a mistake."""
    names = tuple(w for w in s.words if cx.is_tile(w))
    return model.Broken(next(cx.ids), s.where, cx.stage, names)


def _assign(
    cx: Context, s, guard: Source | None, read, axes, scope: Scope, group: int
) -> model.Assign:
    target, value = s["target"], s["value"]
    name, index = _element(cx, target, target.node, scope)
    cx.writable(name, target.where())
    cx.known(value, scope, {**cx.tensors, **cx.buffers})
    used = [*read, *_elements(cx, value, value.node, scope, ())]
    _check_store(cx, cx.type_of(value, value.node, scope), value, name)
    _check_bounds(cx, name, index, target, scope, ())
    if reason := bounds.meeting(index, axes, scope, scope.guards):
        raise cx.fail(
            target.where(),
            f"several points of the map write one element of '{name}': {reason}",
            "every point of a map writes an element of its own; reduce: and gemm: sum over an index",
        )
    for access in used:
        if access.name == name and not all(map(expr.same, access.index, index)):
            raise cx.fail(
                access.where,
                f"'{name}' is read at another element than the one written here: a race between threads",
                "write into another buffer, or copy this one first",
            )
    return model.Assign(
        id=next(cx.ids),
        where=s.where,
        stage=cx.stage,
        axes=axes,
        name=name,
        index=index,
        value=value.node,
        guard=guard.node if guard else None,
        covers=guard is None
        and name in cx.buffers
        and bounds.covered(index, axes, cx.buffers[name].shape),
        used=tuple(used),
        group=group,
    )


def _check_store(cx: Context, kind: str, value: Source, name: str) -> None:
    into = cx.dtype_of(name)
    if not types.fits(kind, into):
        raise cx.fail(
            value.where(),
            f"a store of {kind} into '{name}', which is {into}, loses digits",
            f"say so: cast(..., {cx.dtype_name_of(name)})",
        )


def _element(cx: Context, source: Source, node: ast.AST, scope: Scope):
    """The buffer or tensor and the index of `name[i, j]`."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
        raise cx.fail(source.where(node), "an element is meant here: name[i, j]")
    name = node.value.id
    rank = len(cx.declared(source, node.value).shape)
    for i in indices(node):
        if isinstance(i, ast.Slice):
            raise cx.fail(source.where(node), f"one element of '{name}' is meant here, not a range")
        cx.known(source.of(i), scope, {**cx.tensors, **cx.buffers})
        cx.integer(source, i, scope)
    check_rank(cx, source, node, name, rank)
    return name, tuple(indices(node))


def _elements(
    cx: Context, source: Source, node: ast.AST, scope: Scope, guards
) -> list[model.Access]:
    """Every element that an expression reads, bounds checked under the conditions around it."""
    if isinstance(node, ast.Subscript):
        name, index = _element(cx, source, node, scope)
        _check_bounds(cx, name, index, source, scope, guards)
        inner = [a for i in index for a in _elements(cx, source, i, scope, guards)]
        return [*inner, model.Access(name, source.where(node), False, index)]
    if isinstance(node, ast.Call) and node.func.id == "where":
        c, a, b = node.args
        otherwise = ast.UnaryOp(ast.Not(), c)
        return (
            _elements(cx, source, c, scope, guards)
            + _elements(cx, source, a, scope, guards + (c,))
            + _elements(cx, source, b, scope, guards + (otherwise,))
        )
    inside = node.args if isinstance(node, ast.Call) else list(ast.iter_child_nodes(node))
    return [a for child in inside for a in _elements(cx, source, child, scope, guards)]


def _check_bounds(cx: Context, name: str, index, source: Source, scope: Scope, guards) -> None:
    """Every index of a buffer lies within it. Tensors need no check: outside them loads give 0."""
    if name not in cx.buffers:
        return
    for axis, (i, extent) in enumerate(zip(index, cx.buffers[name].shape)):
        if reached := bounds.outside(i, 1, extent, scope, guards):
            hint = f"axis {axis} of '{name}' has {extent}: 0 to {extent - 1}"
            if any(map(_unbounded, reached)):
                hint += f"; min(max(..., 0), {extent - 1}) keeps it inside"
            raise cx.fail(
                source.where(i),
                f"index {ast.unparse(i)} of '{name}' reaches {span(reached)}",
                hint,
                kind=f"bounds {name} {axis}",
            )


def _unbounded(end: float) -> bool:
    return abs(end) == float("inf")
