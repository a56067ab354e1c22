"""Statements as they are emitted: maps fused into one loop, loads put under one bounds check.

The renderer writes what this says, and `storage` counts it: both must see the same statements.
"""

from __future__ import annotations

import ast
from ast import dump
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gdngen.language import expr
from gdngen.model.model import (
    Assign,
    Copy,
    Kernel,
    Loop,
    Point,
    Span,
    Statement,
    children,
)

if TYPE_CHECKING:
    from gdngen.plan.storage import Slot

# buffer -> its slot, and in elements of which dtype and from which column it lies there
Home = Mapping[str, tuple[str, tuple[str, int]]]


def homes(slots: Iterable[Slot]) -> Home:
    """Where each shared buffer lives."""
    return {t: (s.name, (s.dtype_of(t), s.column(t))) for s in slots for t in s.tenants}


def fused(statements: Sequence[Statement], home: Home) -> Iterable[Statement | tuple[Assign, ...]]:
    """Statements as they are emitted: assignments written in one map stay one loop where they can.

    A later assignment may join if it meets earlier ones only at the same element of storage: threads
    run the loop's points in any order.
    """
    run: list[Assign] = []
    for s in statements:
        if run and isinstance(s, Assign) and _joins(run, s, home):
            run.append(s)
            continue
        if run:
            yield tuple(run)
        run = [s] if isinstance(s, Assign) else []
        if not run:
            yield s
    if run:
        yield tuple(run)


def _joins(run: list[Assign], s: Assign, home: Home) -> bool:
    first = run[0]
    if (s.group, s.axes, s.stage) != (first.group, first.axes, first.stage):
        return False
    seen: dict[str, set[tuple]] = {}
    for other in run:
        for a in other.reads() + other.writes():
            place, element = _element(a, home)
            seen.setdefault(place, set()).add(element)
    written = {_element(a, home)[0] for other in run for a in other.writes()}
    for a in s.reads():
        place, element = _element(a, home)
        if place in written and seen[place] != {element}:
            return False
    place, element = _element(s.writes()[0], home)
    return place not in seen or seen[place] == {element}


def _element(a, home: Home) -> tuple[str, tuple]:
    """The storage that an access is in, and the element of it."""
    place, start = home.get(a.name, (a.name, ("", 0)))
    return place, (start, *(dump(i) for i in a.index))


@dataclass(frozen=True)
class Guarded:
    """Loads that all lie inside their tensors where `conds` hold, and so need no bounds checks there.

    A check makes a branch of every load, which then can't overlap with the next: twice the time. A
    load is a copy, or a map that stands for the copy of a range that ends early; `bare` are the loads
    without the ends that they check.
    """

    conds: tuple[ast.expr, ...]
    loads: tuple[Copy | Assign, ...]
    bare: tuple[Copy | Assign, ...]


Emitted = Statement | tuple[Assign, ...] | Guarded


def members(s: Emitted) -> Sequence[Statement]:
    """The statements that are emitted as one."""
    return s.loads if isinstance(s, Guarded) else s if isinstance(s, tuple) else (s,)


def emitted(body: Sequence[Statement], kernel: Kernel, home: Home) -> Iterator[Emitted]:
    """`fused`, with neighbouring loads that may cross a tensor's end put under one condition.

    Not where a loop is pipelined: there loads are made ahead, without branches.
    """
    if any(isinstance(s, Loop) and s.kind == "pipelined" for s in _all(kernel.statements())):
        yield from fused(body, home)
        return
    held: list[tuple[Copy | Assign, Copy | Assign]] = []
    conds: dict[str, ast.expr] = {}

    def group() -> Guarded:
        return Guarded(tuple(conds.values()), *zip(*held))

    for s in fused(body, home):
        one = s[0] if isinstance(s, tuple) and len(s) == 1 else s
        bare, needed = one, {}
        if isinstance(one, Copy):
            needed = _inside_if(one, kernel)
        elif isinstance(one, Assign):
            bare, needed = _without_ends(one, kernel)
        if held and (
            not needed or one.stage != held[0][0].stage or not conds.keys() & needed.keys()
        ):
            yield group()
            held, conds = [], {}
        if needed:
            held.append((one, bare))
            conds |= needed
        else:
            yield s
    if held:
        yield group()


def _all(body: Iterable[Statement]) -> Iterator[Statement]:
    for s in body:
        yield s
        for group in children(s):
            yield from _all(group)


def is_block(at: ast.expr, side: ast.expr, kernel: Kernel) -> bool:
    """Whether an index is that of the block, in a grid as long as the tensor's side; or h // n in a grid
    n times as long, as where n heads share one of another tensor."""
    values, share = dict(kernel.values), 1
    if isinstance(at, ast.BinOp) and isinstance(at.op, ast.FloorDiv):
        at, share = at.left, expr.constant(expr.linear(at.right, values)) or 0
    blocks = dict(kernel.grid).get(at.id) if isinstance(at, ast.Name) else None
    if blocks is None:
        return False
    length = {term: k * share for term, k in expr.linear(side, values).items()}
    return share > 0 and expr.linear(blocks, values) == length


def _without_ends(s: Assign, kernel: Kernel) -> tuple[Assign, dict[str, ast.expr]]:
    """A load `tile[..] = where(row + i < end, tensor[.., row + i, ..], 0)` without the `where`, and the
    conditions under which all its rows lie before `end` and inside the tensor; none for anything else.
    """
    match s.value:
        case ast.Call(func=ast.Name(id="where"), args=[holds, value, _]) if s.guard is None:
            pass
        case _:
            return s, {}
    tensors = [
        n
        for n in ast.walk(value)
        if isinstance(n, ast.Subscript) and kernel.tensor(n.value.id) is not None
    ]
    if kernel.buffer(s.name) is None or len(tensors) != 1:
        return s, {}
    index = tensors[0].slice.elts if isinstance(tensors[0].slice, ast.Tuple) else [tensors[0].slice]
    sides = {dump(at): side for at, side in zip(index, kernel.tensor(tensors[0].value.id).shape)}
    values, ranges = dict(kernel.values), dict(kernel.ranges)
    axes = {a.name: a for a in s.axes}
    conds: list[ast.expr] = []
    for end in holds.values if isinstance(holds, ast.BoolOp) else [holds]:
        match end:
            case ast.Compare(
                left=ast.BinOp(left=low, op=ast.Add(), right=ast.Name(id=name)) as place,
                ops=[ast.Lt()],
                comparators=[stop],
            ) if (
                name in axes and dump(place) in sides
            ):
                pass
            case _:
                return s, {}
        if expr.interval(low, values, ranges)[0] < 0:
            conds.append(ast.Compare(low, [ast.GtE()], [ast.Constant(0)]))
        last = ast.BinOp(low, ast.Add(), ast.parse(axes[name].text, mode="eval").body)
        conds += [ast.Compare(last, [ast.LtE()], [x]) for x in (stop, sides[dump(place)])]
    return replace(s, value=value), {dump(c): c for c in conds}


def _inside_if(load: Copy, kernel: Kernel) -> dict[str, ast.expr]:
    """Conditions under which a load from a tensor stays inside it; empty where it always does, and
    where no simple condition says so."""
    tensor = kernel.tensor(load.src.name)
    if tensor is None or kernel.tensor(load.dst.name) is not None:
        return {}
    values, ranges = dict(kernel.values), dict(kernel.ranges)
    out: dict[str, ast.expr] = {}
    for part, side in zip(load.src.index, tensor.shape):
        if isinstance(part, Span) and part.full:
            continue
        at = part.at if isinstance(part, Point) else part.start
        if isinstance(part, Point) and is_block(at, side, kernel):
            continue
        extent = expr.constant(expr.linear(side, values))
        low, high = expr.interval(at, values, ranges)
        if (
            extent is not None
            and low >= 0
            and high + (part.size if isinstance(part, Span) else 1) <= extent
        ):
            continue
        if low < 0:
            return {}
        end, op = (part.stop, ast.LtE()) if isinstance(part, Span) else (part.at, ast.Lt())
        cond = ast.Compare(end, [op], [side])
        out[dump(cond)] = cond
    return out
