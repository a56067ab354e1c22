"""Which elements indices reach: within a tile's extents, and one element for each point of a map.

What can be shown from ranges and conditions is shown so; the rest is tried point by point.
"""

import ast
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gdngen.language.expr import (
    CONSTANTS,
    ExprError,
    Linear,
    Range,
    bounds,
    evaluate,
    interval,
    linear,
    names,
    same,
)
from gdngen.model.context import Scope
from gdngen.model.model import Axis

MAX_POINTS = 2**15  # of a map, when an index must be tried point by point

Guards = tuple[ast.expr, ...]


def outside(
    index: ast.expr, size: int, extent: int, scope: Scope, guards: Guards = ()
) -> Range | None:
    """What `index` .. `index + size - 1` reach, if that may leave 0 .. extent - 1; else None."""
    guards = scope.guards + guards
    low, high = interval(index, scope.values, scope.ranges)
    last = extent - size
    if low >= 0 and high <= last:
        return None
    at = linear(index, scope.values)
    known = [fact for g in guards for fact in _facts(g, scope)]
    if _follows(at, known, scope) and _follows(minus({"": last}, at), known, scope):
        return None
    tried = points([index], scope, guards)
    if tried is None:
        return low, high + size - 1
    reached = [p[0] for p in tried]
    if all(0 <= r <= last for r in reached):
        return None
    return min(reached), max(reached) + size - 1


def minus(a: Linear, b: Linear) -> Linear:
    total = {t: a.get(t, 0) - b.get(t, 0) for t in {**a, **b}}
    return {t: k for t, k in total.items() if k}


def _follows(total: Linear, known: Sequence[Linear], scope: Scope) -> bool:
    """Whether a sum is at least 0, given up to two sums that are."""
    rests = [total, *(minus(total, f) for f in known)]
    rests += [minus(minus(total, f), g) for f, g in itertools.combinations(known[:8], 2)]
    return any(bounds(rest, scope.values, scope.ranges)[0] >= 0 for rest in rests)


def _facts(guard: ast.AST, scope: Scope, holds: bool = True) -> Iterator[Linear]:
    """Sums of whole numbers that are at least 0 where a condition holds (or does not)."""
    match guard:
        case ast.UnaryOp(op=ast.Not(), operand=x):
            yield from _facts(x, scope, not holds)
        case ast.BoolOp(op=op, values=parts) if isinstance(op, ast.And) == holds:
            for part in parts:
                yield from _facts(part, scope, holds)
        case ast.Compare(left=left, ops=ops, comparators=rest) if holds or len(ops) == 1:
            for a, op, b in zip([left, *rest], ops, rest):
                yield from _compared(linear(a, scope.values), op, linear(b, scope.values), holds)


def _compared(a: Linear, op: ast.cmpop, b: Linear, holds: bool) -> Iterator[Linear]:
    one = {"": 1}
    more, less = minus(minus(a, b), one), minus(minus(b, a), one)
    match op:
        case ast.Lt():
            yield less if holds else minus(a, b)
        case ast.LtE():
            yield minus(b, a) if holds else more
        case ast.Gt():
            yield more if holds else minus(b, a)
        case ast.GtE():
            yield minus(a, b) if holds else less
        case ast.Eq() if holds:
            yield minus(a, b)
            yield minus(b, a)
        case ast.NotEq() if not holds:
            yield minus(a, b)
            yield minus(b, a)


def points(exprs: Sequence[ast.expr], scope: Scope, guards: Guards) -> list[tuple] | None:
    """Values of the expressions wherever the guards may hold, over all values of the names in them;
    None if a name has no finite range, or there are too many."""
    needed = {n.id for e in exprs for n in names(e)} - set(scope.values) - set(CONSTANTS)
    guards = _related(needed, guards)
    free = needed | {n.id for g in guards for n in names(g)}
    ranges = {n: scope.ranges[n] for n in sorted(free - set(scope.values)) if n in scope.ranges}
    ranges = {n: r for n, r in ranges.items() if math.isfinite(r[0]) and math.isfinite(r[1])}
    if needed - set(ranges):
        return None
    count = math.prod(int(r[1] - r[0]) + 1 for r in ranges.values())
    if count > min(MAX_POINTS, scope.budget.points):
        return None
    scope.budget.points -= count
    sizes = [range(int(low), int(high) + 1) for low, high in ranges.values()]
    out = []
    for point in itertools.product(*sizes):
        values = {**scope.values, **dict(zip(ranges, point))}
        try:
            if all(_may_hold(g, values) for g in guards):
                out.append(tuple(evaluate(e, values) for e in exprs))
        except ExprError:
            return None
    return out


def _related(needed: set[str], guards: Guards) -> Guards:
    """The guards that say something of the needed names."""
    return tuple(g for g in guards if needed & {n.id for n in names(g)})


def _may_hold(guard: ast.AST, values) -> bool:
    """Whether a condition may hold; one that needs a runtime value may."""
    if isinstance(guard, ast.BoolOp) and isinstance(guard.op, ast.And):
        return all(_may_hold(g, values) for g in guard.values)
    try:
        return bool(evaluate(guard, values))
    except ExprError:
        return True


def meeting(index: tuple[ast.expr, ...], axes: tuple[Axis, ...], scope: Scope, guards: Guards):
    """Why two points of a map may write one element, or None if no two do."""
    index = _joined(index)
    plain = {i.id for i in index if isinstance(i, ast.Name)}
    own = {a.name for a in axes if a.extent > 1}
    if own <= plain:
        return None
    said = {n.id for i in index for n in names(i)}
    missing = [a.name for a in axes if a.name in own - said]
    if missing:
        return f"no index says {' and '.join(missing)}"
    # Names of the world around move all points alike, unless they stand in one term with an index.
    mixed, fixed = set(), {}
    for i in index:
        for term in linear(i, scope.values):
            used = {n.id for n in names(ast.parse(term or "0", mode="eval").body)}
            (mixed.update if used & own else fixed.update)(dict.fromkeys(used - own, 0))
    still = replace(scope, values={**{n: 0 for n in fixed if n not in mixed}, **scope.values})
    tried = points([*index, *(ast.Name(n) for n in sorted(mixed))], still, guards)
    if tried is None:
        return "gdngen can't show that they don't"
    return "two points meet" if len(set(tried)) < len(tried) else None


def _joined(index: Sequence[ast.expr]) -> list[ast.expr]:
    """The index with e for e // m and e % m: two values of e that agree in both are one."""
    out = list(index)
    for a in index:
        for b in index:
            match a, b:
                case (
                    ast.BinOp(left=e, op=ast.FloorDiv(), right=m),
                    ast.BinOp(left=f, op=ast.Mod(), right=n),
                ) if (
                    same(e, f) and same(m, n) and a in out and b in out
                ):
                    out[out.index(a)] = e
                    out.remove(b)
    return out


def covered(index: tuple[ast.expr, ...], axes: tuple[Axis, ...], shape: tuple[int, ...]) -> bool:
    """Whether a map without a guard writes every element of a tile."""
    extents = {a.name: a.extent for a in axes}
    plain = [i.id for i in index if isinstance(i, ast.Name)]
    return len(plain) == len(index) == len(axes) and tuple(extents.get(p) for p in plain) == shape
