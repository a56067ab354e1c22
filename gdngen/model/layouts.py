"""Tensors whose axes change places in some variants, while every statement is written once.

A spec indexes a tensor in the order in which it is declared. Where a layout's condition holds, the
tensor is declared with two axes exchanged, and so is every index of it: nothing behind knows.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gdngen.errors import did_you_mean
from gdngen.language import expr
from gdngen.language.source import Source
from gdngen.language.syntax import Layout, Spec, Walk, rewritten
from gdngen.model.context import Context, Stop

Swaps = Mapping[str, tuple[int, int]]  # tensor -> the axes that change places


def laid_out(spec: Spec, cx: Context) -> Spec:
    """The spec in the order of axes that its layouts give a variant; mistakes are reported."""
    swaps: dict[str, tuple[int, int]] = {}
    for layout in spec.layouts:
        try:
            if layout.when is None or cx.static(layout.when):
                spec = _reordered(spec, layout, cx)
                swaps |= {name: layout.swap for name in _tensors(layout, spec, cx, swaps)}
        except Stop:  # reported; the declared order stands
            continue
    if not swaps:
        return spec
    tensors = tuple(
        replace(t, shape=_swapped(t.shape, swaps[t.name])) if t.name in swaps and t.shape else t
        for t in spec.tensors
    )
    stages = rewritten(spec.stages, lambda source: _relaid(source, swaps))
    scalars = tuple((name, _scalar(value, swaps)) for name, value in spec.scalars)
    return replace(spec, tensors=tensors, stages=stages, scalars=scalars)


def _reordered(spec: Spec, layout: Layout, cx: Context) -> Spec:
    """Blocks counted in the layout's order, so that those which run together touch neighbouring rows."""
    if layout.grid is None:
        return spec
    sizes = {key.text: (key, size) for key, size in spec.grid}
    words = [w.text for w in layout.grid]
    if sorted(words) != sorted(sizes):
        what = f"a layout's grid names every block index once: {' '.join(sizes)}"
        raise cx.fail(layout.grid[0].where if layout.grid else layout.where, what)
    return replace(spec, grid=tuple(sizes[w] for w in words))


def _tensors(layout: Layout, spec: Spec, cx: Context, swaps: Swaps) -> Iterator[str]:
    """Names of the tensors that a layout is about, all of them with the axes that it swaps."""
    ranks = {t.name: len(t.shape) for t in spec.tensors if not t.faulty}
    known = [t.name for t in spec.tensors]
    words = {w.text: w.where for w in layout.tensors or ()}
    for name in words if layout.tensors is not None else known:
        where = words.get(name, layout.where)
        if name not in known:
            what = f"unknown tensor '{name[:40]}' in a layout{did_you_mean(name, known)}"
            raise cx.fail(where, what, f"tensors: {' '.join(known)}")
        if ranks.get(name, 6) <= max(layout.swap):
            what = f"'{name}' has {ranks[name]} axes, 0 to {ranks[name] - 1}; this layout swaps {max(layout.swap)}"
            raise cx.fail(where, what, "name the tensors that it is about: tensors: [...]")
        if name in swaps:
            raise cx.fail(
                where, f"two layouts hold for '{name}'", "at most one may hold in a variant"
            )
        yield name


def _swapped(parts: tuple, axes: tuple[int, int]) -> tuple:
    a, b = axes
    out = list(parts)
    out[a], out[b] = out[b], out[a]
    return tuple(out)


def _relaid(source: Source, swaps: Swaps) -> Source:
    return replace(source, node=_Swapper(swaps).visit(expr.copied(source.node)))


def _scalar(value: Source | Walk, swaps: Swaps) -> Source | Walk:
    if isinstance(value, Walk):
        return replace(value, sum=_relaid(value.sum, swaps))
    return _relaid(value, swaps)


class _Swapper(ast.NodeTransformer):
    def __init__(self, swaps: Swaps):
        self.swaps = swaps

    def visit_Subscript(self, n: ast.Subscript) -> ast.Subscript:
        self.generic_visit(n)
        axes = self.swaps.get(n.value.id) if isinstance(n.value, ast.Name) else None
        if axes and isinstance(n.slice, ast.Tuple) and len(n.slice.elts) > max(axes):
            n.slice.elts = list(_swapped(tuple(n.slice.elts), axes))
        return n
