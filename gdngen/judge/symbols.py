"""Expressions of a kernel over whole maps at once, as the judge understands them.

Three kinds of result: an *exact* one (a Python number, or an array of integers or bools), which
depends on indices and sizes alone; `Data`, elements of the field; and `Doubt`, a condition that data
decides at some points. Arrays broadcast over the axes of the map.
"""

import ast
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from gdngen.judge import field
from gdngen.language.expr import BINARY, COMPARE, CONSTANTS, FUNCTIONS, ExprError


@dataclass(frozen=True)
class Data:
    values: np.ndarray


@dataclass(frozen=True)
class Doubt:
    """A condition: `truth` where it is `decided`, elsewhere known only as `token`."""

    decided: np.ndarray
    truth: np.ndarray
    token: np.ndarray


Active = np.ndarray | bool  # points at which an expression is computed
Load = Callable[[ast.Subscript, str, list, Active], np.ndarray]


@dataclass(frozen=True)
class Reader:
    """Computes expressions.

    names   name -> a number, or an array of integers that runs along an axis of the map
    load    (the element's node, its name, its indices, active points) -> field elements
    dtypes  a spec's own words for dtypes -> dtypes
    """

    names: Mapping[str, object]
    load: Load
    dtypes: Mapping[str, str]

    def data(self, node: ast.AST, active: Active = True) -> np.ndarray:
        """The expression as field elements. Raises ExprError for a name without a value."""
        return as_data(self.of(node, active))

    def exact(self, node: ast.AST) -> np.ndarray | int:
        """An index: whole numbers that no data decides."""
        found = self.of(node, True)
        if isinstance(found, (Data, Doubt)):
            raise ExprError(node, f"'{ast.unparse(node)[:60]}' depends on data")
        return found

    def condition(self, node: ast.AST, active: Active = True) -> np.ndarray | bool | Doubt:
        """A condition, decided (bools) or not."""
        return as_condition(self.of(node, active))

    def of(self, node: ast.AST, active: Active):
        match node:
            case ast.Constant(value=v):
                return v
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Name(id=name) if name in CONSTANTS:
                return CONSTANTS[name]
            case ast.Subscript(value=ast.Name(id=name), slice=at):
                parts = at.elts if isinstance(at, ast.Tuple) else [at]
                return Data(self.load(node, name, [self.exact(i) for i in parts], active))
            case ast.UnaryOp(op=ast.Not(), operand=x):
                return _not(self.condition(x, active))
            case ast.UnaryOp(op=op, operand=x):
                return (
                    _negated(self.of(x, active)) if isinstance(op, ast.USub) else self.of(x, active)
                )
            case ast.BoolOp(op=op, values=parts):
                join = _and if isinstance(op, ast.And) else _or
                return functools.reduce(join, (self.condition(p, active) for p in parts))
            case ast.Compare(left=left, ops=ops, comparators=rest):
                sides = [self.of(n, active) for n in (left, *rest)]
                pairs = zip(ops, sides, sides[1:])
                return functools.reduce(_and, (_compared(type(o), a, b) for o, a, b in pairs))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
                return _binary(type(op), self.of(left, active), self.of(right, active))
            case ast.Call(func=ast.Name(id="where" | "select" as name), args=[c, a, b]):
                return self._choice(name, c, a, b, active)
            case ast.Call(func=ast.Name(id="cast"), args=[x, ast.Name(id=to)]):
                return _cast(self.of(x, active), self.dtypes.get(to, to))
            case ast.Call(func=ast.Name(id=name), args=args):
                return _call(name, [self.of(a, active) for a in args])
        raise ExprError(node, f"'{ast.unparse(node)[:60]}' has no value")

    def _choice(self, name: str, c: ast.AST, a: ast.AST, b: ast.AST, active: Active):
        """`where` computes the side taken only, `select` both."""
        cond = self.condition(c, active)
        lazy = name == "where" and not isinstance(cond, Doubt)
        sides = [
            self.of(side, np.logical_and(active, taken) if lazy else active)
            for side, taken in ((a, cond), (b, np.logical_not(cond) if lazy else True))
        ]
        if isinstance(cond, Doubt):
            x, y = map(as_data, sides)
            open_ = field.mixed("where", cond.token, x, y)
            return Data(np.where(cond.decided, np.where(cond.truth, x, y), open_))
        if any(isinstance(s, (Data, Doubt)) for s in sides):
            return Data(np.where(cond, *map(as_data, sides)))
        return np.where(cond, *sides)


def as_data(v) -> np.ndarray:
    if isinstance(v, Data):
        return v.values
    if isinstance(v, Doubt):
        return np.where(v.decided, v.truth.astype(np.int64), v.token)
    return field.number(v)


def as_condition(v) -> np.ndarray | bool | Doubt:
    if isinstance(v, Doubt):
        return v
    if isinstance(v, Data):
        never = np.zeros_like(v.values, dtype=bool)
        return Doubt(never, never, field.mixed("holds", v.values))
    return np.asarray(v) != 0


def _doubt(c) -> Doubt:
    c = as_condition(c)
    if isinstance(c, Doubt):
        return c
    return Doubt(np.ones_like(c), c, np.zeros_like(c, dtype=np.int64))


def _not(c):
    if isinstance(c, Doubt):
        return Doubt(c.decided, ~c.truth, field.mixed("not", c.token))
    return np.logical_not(c)


def _and(a, b):
    a, b = as_condition(a), as_condition(b)
    if not isinstance(a, Doubt) and not isinstance(b, Doubt):
        return np.logical_and(a, b)
    a, b = _doubt(a), _doubt(b)
    false = (a.decided & ~a.truth) | (b.decided & ~b.truth)
    both = field.mixed("and", a.token, b.token)
    token = np.where(a.decided, b.token, np.where(b.decided, a.token, both))
    return Doubt(false | (a.decided & b.decided), ~false & a.truth & b.truth, token)


def _or(a, b):
    return _not(_and(_not(as_condition(a)), _not(as_condition(b))))


def _compared(op: type, a, b):
    if isinstance(a, (Data, Doubt)) or isinstance(b, (Data, Doubt)):
        return as_condition(Data(field.mixed(op.__name__, as_data(a), as_data(b))))
    return COMPARE[op](a, b)


def _negated(v):
    return Data(field.negate(as_data(v))) if isinstance(v, (Data, Doubt)) else -np.asarray(v)


_RING = {
    ast.Add: field.add,
    ast.Mult: field.multiply,
    ast.Sub: lambda a, b: field.add(a, field.negate(b)),
}


def _binary(op: type, a, b):
    if not isinstance(a, (Data, Doubt)) and not isinstance(b, (Data, Doubt)):
        return BINARY[op](a, b)
    a, b = as_data(a), as_data(b)
    return Data(_RING[op](a, b) if op in _RING else field.mixed(op.__name__, a, b))


def _cast(v, dtype: str):
    whole = not isinstance(v, (Data, Doubt)) and np.asarray(v).dtype.kind in "iub"
    return v if whole and "int" in dtype else Data(field.rounded(as_data(v), dtype))


def _call(name: str, args: list):
    if not any(isinstance(a, (Data, Doubt)) for a in args):
        if all(np.ndim(a) == 0 for a in args) and FUNCTIONS[name].result != "float":
            return FUNCTIONS[name].apply(*args)
        if name in ("min", "max"):
            return functools.reduce(np.minimum if name == "min" else np.maximum, args)
        if name == "abs":
            return np.abs(args[0])
        if name == "ceildiv":
            return -(-np.asarray(args[0]) // args[1])
    return Data(field.mixed(name, *map(as_data, args)))
