"""Names that a spec gives to expressions of block indices and sizes, and to single elements of tensors.

What rests on indices and sizes alone is put in place of its name wherever statements use it. What
reads a tensor is a `model.Scalar`: a block reads it once, when it starts.
"""

import ast
from collections.abc import Mapping
from dataclasses import replace

from gdngen.language import expr
from gdngen.language.source import Source
from gdngen.language.syntax import Spec, Stage, Statement, Walk
from gdngen.model import maps, model, types
from gdngen.model.context import Context, Stop


def resolved(spec: Spec, cx: Context) -> tuple[Spec, tuple[model.Scalar, ...]]:
    """The spec without the scalars that stand for expressions, and those that blocks read."""
    aliases: dict[str, ast.expr] = {}
    read = []
    for name, source in spec.scalars:
        if name.text in cx.scope.values or name.text in cx.scope.ranges:
            continue  # two things of one name, reported
        try:
            if isinstance(source, Walk):
                read.append(_walked(cx, name.text, source, aliases))
                continue
            source = replace(source, node=_placed(cx.folded(source.node), aliases))
            cx.known(source, cx.scope, {**cx.tensors})
            kind = cx.type_of(source, source.node, cx.scope)
            maps.elements(cx, source, cx.scope)
            if any(isinstance(n, ast.Subscript) for n in ast.walk(source.node)):
                read.append(_read(cx, name.text, source, kind))
            elif isinstance(
                source.node, (ast.Constant, ast.Name)
            ):  # another name, nothing to work out
                aliases[name.text] = source.node
            elif spec.roles or expr.divides(source.node, set(cx.scope.values)):
                # every role uses it, or it is dear: worked out once
                read.append(_named(cx, name.text, source, kind))
            else:
                aliases[name.text] = source.node
        except Stop:  # reported
            cx.faulty.add(name.text)
    if not aliases:
        return spec, tuple(read)
    stages = tuple(Stage(s.name, s.where, _body(s.body, aliases)) for s in spec.stages)
    return replace(spec, stages=stages), tuple(read)


def _read(cx: Context, name: str, source: Source, kind: str) -> model.Scalar:
    """A whole number or a float that a block reads; no bound of it is known."""
    if kind not in ("int32", "float32"):
        what = f"'{name}' is {kind}; what a block reads is int32 or float32"
        raise cx.fail(source.where(), what, "cast(..., float32)" if types.is_float(kind) else None)
    cx.scalars[name] = kind
    cx.scope = cx.scope.inside(**{name: (-float("inf"), float("inf"))})
    return model.Scalar(name, source.where(), source.node, kind)


def _named(cx: Context, name: str, source: Source, kind: str) -> model.Scalar:
    """An expression that keeps its name in the kernel."""
    cx.scalars[name] = kind = "int32" if kind == types.WEAK_INT else kind
    cx.scope = cx.scope.inside(
        **{name: expr.interval(source.node, cx.scope.values, cx.scope.ranges)}
    )
    return model.Scalar(name, source.where(), source.node, kind)


def _walked(cx: Context, name: str, walk: Walk, aliases: Mapping[str, ast.expr]) -> model.Scalar:
    """A count of the terms of a sum; the terms' index has a meaning in them alone."""
    term, until, most = (
        replace(s, node=_placed(cx.folded(s.node), aliases))
        for s in (walk.sum, walk.until, walk.most)
    )
    _, high = cx.runtime_size(most, f"the most that '{name}' may be", cx.scope, 0)
    cx.fresh(walk.over, cx.scope)
    inner = cx.scope.inside(**{walk.over.text: (0.0, high)})
    for source, scope in ((term, inner), (until, cx.scope)):
        cx.known(source, scope, {**cx.tensors})
        kind = cx.type_of(source, source.node, scope)
        if kind not in ("float32", types.WEAK_FLOAT, types.WEAK_INT):
            raise cx.fail(source.where(), f"a sum is of float32, and this is {kind}")
        maps.elements(cx, source, scope)
    cx.scalars[name] = "int32"
    cx.scope = cx.scope.inside(**{name: (0.0, max(high, 0.0))})
    found = model.Walk(walk.over.text, term.node, until.node, most.node)
    return model.Scalar(name, walk.where, most.node, "int32", found)


def _body(body: tuple[Statement, ...], aliases: Mapping[str, ast.expr]) -> tuple[Statement, ...]:
    return tuple(
        replace(
            s,
            parts={key: _part(value, aliases) for key, value in s.parts.items()},
            body=_body(s.body, aliases),
            other=_body(s.other, aliases),
            when=_part(s.when, aliases),
        )
        for s in body
    )


def _part(value, aliases: Mapping[str, ast.expr]):
    if isinstance(value, tuple):  # the axes of a map or a loop
        return tuple(_part(v, aliases) for v in value)
    if not isinstance(value, Source):
        return value
    return replace(value, node=_placed(value.node, aliases))


def _placed(node: ast.AST, aliases: Mapping[str, ast.expr]) -> ast.AST:
    """A copy with every alias replaced; a mistake in it is shown where its name stands."""

    class Placer(ast.NodeTransformer):
        def visit_Call(self, n: ast.Call) -> ast.expr:
            return ast.copy_location(ast.Call(n.func, [self.visit(a) for a in n.args], []), n)

        def visit_Name(self, n: ast.Name) -> ast.expr:
            if n.id not in aliases:
                return n
            put = expr.copied(aliases[n.id])
            for part in ast.walk(put):
                ast.copy_location(part, n)
            return put

        def visit_BinOp(self, n: ast.BinOp) -> ast.expr:
            """Nothing is left of a 0 that is added: where(varlen, start, 0) + c*BC."""
            left, right = self.visit(n.left), self.visit(n.right)
            if isinstance(n.op, ast.Add) and isinstance(n.left, ast.Name) and _is_zero(left):
                return right
            return ast.copy_location(ast.BinOp(left, n.op, right), n)

    return Placer().visit(expr.copied(node))


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0
