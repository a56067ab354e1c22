"""Expressions of a spec over whole grids of points: float64 for numbers, int64 for integers, bool.

The types are wide whatever a spec says, so that no rounding of a kernel's is repeated here; a cast
to a float type changes nothing, a cast to an integer drops the fraction.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gdngen.language.expr import BINARY, COMPARE, CONSTANTS, FUNCTIONS, ExprError
from gdngen.model.types import FLOATS

if TYPE_CHECKING:
    import torch

Names = Mapping[str, "int | float | bool | torch.Tensor"]
Load = Callable[[str, "list[torch.Tensor]"], "torch.Tensor"]


def wide(dtype: str) -> torch.dtype:
    """The torch dtype that stands for a dtype of a spec."""
    import torch

    return torch.float64 if dtype in FLOATS else torch.bool if dtype == "bool" else torch.int64


def value(node: ast.AST, names: Names, load: Load, dtypes: Mapping[str, str]) -> torch.Tensor:
    """An expression at every point of a map at once.

    names   name -> a number, or a tensor of integers that runs along one axis of the map
    load    (name, index of every axis) -> the elements of a tensor or buffer
    dtypes  a spec's own words for dtypes -> dtypes, for casts

    Raises ExprError for a name that is not among `names`.
    """
    import torch

    def of(n: ast.AST) -> torch.Tensor:
        return value(n, names, load, dtypes)

    match node:
        case ast.Constant(value=v):
            return scalar(v)
        case ast.Name(id=name) if name in names:
            return scalar(names[name])
        case ast.Name(id=name) if name in CONSTANTS:
            return scalar(CONSTANTS[name])
        case ast.Subscript(value=ast.Name(id=name), slice=at):
            parts = at.elts if isinstance(at, ast.Tuple) else [at]
            return load(name, [of(i) for i in parts])
        case ast.UnaryOp(op=ast.Not(), operand=x):
            return ~of(x).bool()
        case ast.UnaryOp(op=op, operand=x):
            return -of(x) if isinstance(op, ast.USub) else of(x)
        case ast.BoolOp(op=op, values=parts):
            both = torch.logical_and if isinstance(op, ast.And) else torch.logical_or
            return functools.reduce(both, map(of, parts))
        case ast.Compare(left=left, ops=ops, comparators=rest):
            sides = [of(left), *map(of, rest)]
            pairs = zip(ops, sides, sides[1:])
            return functools.reduce(
                torch.logical_and, (COMPARE[type(o)](a, b) for o, a, b in pairs)
            )
        case ast.BinOp(left=left, op=op, right=right):
            return BINARY[type(op)](of(left), of(right))
        case ast.Call(func=ast.Name(id="cast"), args=[x, ast.Name(id=to)]):
            return of(x).to(wide(dtypes.get(to, to)))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _call(name, [of(a) for a in args])
    raise ExprError(node, f"'{ast.unparse(node)[:60]}' has no value")


def along(axis: int, rank: int, extent: int) -> torch.Tensor:
    """0 .. extent - 1 along one of `rank` axes."""
    import torch

    return torch.arange(extent).view([-1 if i == axis else 1 for i in range(rank)])


def scalar(v) -> torch.Tensor:
    import torch

    # A Python float among integer tensors would make them float32.
    return torch.tensor(v, dtype=torch.float64) if isinstance(v, float) else torch.as_tensor(v)


def _call(name: str, args: list[torch.Tensor]) -> torch.Tensor:
    import torch

    match name, args:
        case "where" | "select", [c, a, b]:
            return torch.where(c.bool(), a, b)
        case "min" | "max", _:
            return functools.reduce(torch.minimum if name == "min" else torch.maximum, args)
        case "abs", [x]:
            return x.abs()
        case _ if FUNCTIONS[name].result == "float":
            return getattr(torch, name)(args[0].double())
        case "ceildiv", [a, b]:
            return -(-a // b)
    return scalar(FUNCTIONS[name].apply(*(int(a) for a in args)))
