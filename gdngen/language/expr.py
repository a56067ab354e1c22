"""Expressions of a spec, as Python's `ast`: what they may call, and what they come to.

evaluate   ast + values of all names -> int, float, bool or str
linear     ast -> {term: coefficient}, so that (c + 1) * BC - c * BC is seen to be BC
interval   ast + ranges of names -> (least, greatest), for index checks
substitute ast + values -> ast with known names written as numbers

`source.py` reads them from text. Nothing is ever given to Python's own `eval`.
"""

import ast
import math
import operator
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass

Value = int | float | bool | str
Range = tuple[float, float]  # closed; -inf and inf where a bound is not known

MAX_BITS = 64


class ExprError(Exception):
    """An expression has no value; `node` is the part at fault."""

    def __init__(self, node: ast.AST, what: str, hint: str | None = None):
        super().__init__(what)
        self.node, self.what, self.hint = node, what, hint


@dataclass(frozen=True)
class Function:
    """A function that specs may call.

    `tilelang` is its spelling in a kernel (None: only sizes and conditions may use it), `result`
    how its type follows from its arguments: 'same' (they are promoted), 'float', 'int' or 'cast'.
    """

    arity: tuple[int, int]
    result: str
    tilelang: str | None
    apply: Callable[..., Value]
    doc: str


def _ceil_log2(n: int) -> int:
    if n < 1:
        raise ValueError("ceil_log2 of a number below 1")
    return (int(n) - 1).bit_length()


def _quiet(f: Callable[[float], float]) -> Callable[[float], float]:
    """f, with inf where Python raises OverflowError, as a GPU gives."""

    def g(x):
        try:
            return f(x)
        except OverflowError:
            return math.inf

    return g


MANY = 64
FUNCTIONS: dict[str, Function] = {
    "where": Function((3, 3), "same", "T.if_then_else", lambda c, a, b: a if c else b,
                      "a where the condition holds, else b; only the side taken is computed"),
    "select": Function((3, 3), "same", "T.Select", lambda c, a, b: a if c else b,
                       "as where, but both sides are computed: no branch"),
    "min": Function((2, MANY), "same", "T.min", min, "the least"),
    "max": Function((2, MANY), "same", "T.max", max, "the greatest"),
    "abs": Function((1, 1), "same", "T.abs", abs, "absolute value"),
    "exp": Function((1, 1), "float", "T.exp", _quiet(math.exp), "e to the power x"),
    "exp2": Function((1, 1), "float", "T.exp2", _quiet(lambda x: 2.0**x), "2 to the power x"),
    "log": Function((1, 1), "float", "T.log", math.log, "natural logarithm"),
    "log2": Function((1, 1), "float", "T.log2", math.log2, "logarithm to base 2"),
    "sqrt": Function((1, 1), "float", "T.sqrt", math.sqrt, "square root"),
    "rsqrt": Function((1, 1), "float", "T.rsqrt", lambda x: 1 / math.sqrt(x), "1 / sqrt(x)"),
    "tanh": Function((1, 1), "float", "T.tanh", math.tanh, "hyperbolic tangent"),
    "sigmoid": Function((1, 1), "float", "T.sigmoid", lambda x: 1 / (1 + math.exp(-x)),
                        "1 / (1 + exp(-x))"),
    "cast": Function((2, 2), "cast", "T.cast", lambda x, dtype: x, "x converted to a dtype"),
    "ceildiv": Function((2, 2), "int", "T.ceildiv", lambda a, b: -(-a // b),
                        "a / b rounded up"),
    "ceil_log2": Function((1, 1), "int", None, _ceil_log2,
                          "the least n with 2**n >= x; of sizes that are known when rendering"),
}  # fmt: skip

CONSTANTS: dict[str, Value] = {"inf": math.inf, "true": True, "false": False}

BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
COMPARE = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def names(node: ast.AST) -> Iterator[ast.Name]:
    """Names that an expression reads, in the order written; functions are not among them."""
    if isinstance(node, ast.Name):
        yield node
        return
    skip = node.func if isinstance(node, ast.Call) else None
    for child in ast.iter_child_nodes(node):
        if child is not skip:
            yield from names(child)


def evaluate(node: ast.AST, values: Mapping[str, Value]) -> Value:
    """The value of an expression whose names are all in `values`; `ExprError` where it has none."""
    match node:
        case ast.Constant(value=v):
            return _bounded(v, node)
        case ast.Name(id=name):
            if name in values:
                return values[name]
            if name in CONSTANTS:
                return CONSTANTS[name]
            raise ExprError(node, f"'{name}' has no value here")
        case ast.UnaryOp(op=ast.Not(), operand=x):
            return not evaluate(x, values)
        case ast.UnaryOp(op=op, operand=x):
            v = _number(evaluate(x, values), x)
            return -v if isinstance(op, ast.USub) else v
        case ast.BoolOp(op=op, values=parts):
            is_and = isinstance(op, ast.And)
            for part in parts:
                if bool(evaluate(part, values)) != is_and:
                    return not is_and
            return is_and
        case ast.Compare(left=left, ops=ops, comparators=rest):
            a = evaluate(left, values)
            for op, node_b in zip(ops, rest):
                b = evaluate(node_b, values)
                if isinstance(a, str) != isinstance(b, str):
                    raise ExprError(node, "a word is compared with a number")
                if not COMPARE[type(op)](a, b):
                    return False
                a = b
            return True
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            a, b = evaluate(left, values), evaluate(right, values)
            return _arithmetic(node, op, _number(a, left), _number(b, right))
        case ast.Call(func=ast.Name(id="where" | "select"), args=[c, a, b]):
            return evaluate(a if evaluate(c, values) else b, values)
        case ast.Call(func=ast.Name(id=name), args=args):
            numbers = [evaluate(a, values) for a in (args[:1] if name == "cast" else args)]
            try:
                return _bounded(FUNCTIONS[name].apply(*numbers, *args[len(numbers) :]), node)
            except (ValueError, ZeroDivisionError, TypeError, OverflowError) as e:
                raise ExprError(node, f"{name}: {e}") from None
    raise ExprError(node, f"'{ast.unparse(node)[:60]}' has no value when rendering")


def _number(v: Value, node: ast.AST) -> int | float:
    if isinstance(v, str):
        raise ExprError(node, f"a number is meant here, not the word '{v}'")
    return v


def _bounded(v: Value, node: ast.AST) -> Value:
    if isinstance(v, int) and v.bit_length() > MAX_BITS:
        raise ExprError(node, f"a number of {v.bit_length()} bits; at most {MAX_BITS}")
    return v


def _arithmetic(node: ast.AST, op: ast.operator, a: int | float, b: int | float) -> int | float:
    if isinstance(op, ast.Pow) and (abs(b) > MAX_BITS or abs(a) > 2**MAX_BITS):
        raise ExprError(node, f"a power too large to compute (more than {MAX_BITS} bits)")
    try:
        value = BINARY[type(op)](a, b)
    except ZeroDivisionError:
        raise ExprError(node, "division by zero") from None
    except OverflowError:
        raise ExprError(node, "a number too large to compute") from None
    if isinstance(value, complex):
        raise ExprError(node, "a root of a negative number")
    return _bounded(value, node)


Linear = dict[str, int]  # text of a term -> coefficient; "" is the constant


def linear(node: ast.AST, values: Mapping[str, Value]) -> Linear:
    """The expression as a sum of integer multiples of terms; what is not linear is a term of its own."""
    match node:
        case ast.Constant(value=int(v)):
            return {"": int(v)} if v else {}
        case ast.Name(id=name) if isinstance(values.get(name), int):
            return {"": int(values[name])} if values[name] else {}
        case ast.Name(id=name) if name not in values:
            return {name: 1}
        case ast.UnaryOp(op=ast.USub(), operand=x):
            return _scaled(linear(x, values), -1)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            sign = 1 if isinstance(op, ast.Add) else -1
            total = dict(linear(left, values))
            for term, k in linear(right, values).items():
                total[term] = total.get(term, 0) + sign * k
            return {t: k for t, k in total.items() if k}
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            a, b = linear(left, values), linear(right, values)
            if set(a) <= {""}:
                return _scaled(b, a.get("", 0))
            if set(b) <= {""}:
                return _scaled(a, b.get("", 0))
    try:
        v = evaluate(node, values)
        if isinstance(v, int):
            return {"": int(v)} if v else {}
    except ExprError:
        pass
    return {ast.unparse(substitute(node, values)): 1}


def _scaled(a: Linear, k: int) -> Linear:
    return {term: v * k for term, v in a.items()} if k else {}


def constant(a: Linear) -> int | None:
    """The value of a sum that has no terms left."""
    return a.get("", 0) if set(a) <= {""} else None


class _Names(ast.NodeTransformer):
    """Other nodes for some names; the functions that are called keep theirs."""

    def __init__(self, nodes: Mapping[str, ast.expr]):
        self.nodes = nodes

    def visit_Call(self, n: ast.Call):
        return ast.Call(n.func, [self.visit(a) for a in n.args], [])

    def visit_Name(self, n: ast.Name):
        return ast.copy_location(copied(self.nodes[n.id]), n) if n.id in self.nodes else n


def substitute(node: ast.AST, values: Mapping[str, Value]) -> ast.AST:
    """A copy with every known name written as its value."""
    nodes = {name: ast.Constant(values[name]) for name in names(node) if name in values}
    return _Names(nodes).visit(copied(node))


def divides(node: ast.AST, known: Container[str]) -> bool:
    """Whether it divides by what is not known before the kernel runs: some forty instructions a time."""
    for n in ast.walk(node):
        match n:
            case ast.BinOp(op=ast.FloorDiv() | ast.Mod(), right=by):
                pass
            case ast.Call(func=ast.Name(id="ceildiv"), args=[_, by]):
                pass
            case _:
                continue
        if any(name.id not in known for name in names(by)):
            return True
    return False


def renamed(node: ast.AST, meant: Mapping[str, str]) -> ast.AST:
    """A copy with some names for others."""
    return _Names({old: ast.Name(new) for old, new in meant.items()}).visit(copied(node))


def same(one: ast.AST, other: ast.AST) -> bool:
    """Whether two expressions are written alike, wherever they stand."""
    match one, other:
        case ast.Name(id=a), ast.Name(id=b):
            return a == b
        case ast.Name(), _:
            return False
    return ast.dump(one) == ast.dump(other)


def copied(node: ast.AST) -> ast.AST:
    fields = {
        f: (
            [copied(x) for x in v]
            if isinstance(v, list)
            else copied(v) if isinstance(v, ast.AST) else v
        )
        for f, v in ast.iter_fields(node)
    }
    return (
        ast.copy_location(type(node)(**fields), node)
        if hasattr(node, "lineno")
        else type(node)(**fields)
    )


def interval(node: ast.AST, values: Mapping[str, Value], ranges: Mapping[str, Range]) -> Range:
    """Bounds of an integer expression: exact for sums of independent names, else what can be shown."""
    return bounds(linear(node, values), values, ranges)


def bounds(total: Linear, values: Mapping[str, Value], ranges: Mapping[str, Range]) -> Range:
    """Bounds of a sum."""
    if any(abs(k).bit_length() > MAX_BITS for k in total.values()):
        return -math.inf, math.inf
    low = high = float(total.get("", 0))
    for term, k in total.items():
        if term:
            a, b = _term_interval(term, values, ranges)
            low += min(k * a, k * b)
            high += max(k * a, k * b)
    return low, high


def _term_interval(term: str, values: Mapping[str, Value], ranges: Mapping[str, Range]) -> Range:
    node = ast.parse(term, mode="eval").body
    match node:
        case ast.Name(id=name):
            return ranges.get(name, (-math.inf, math.inf))
        case ast.Call(func=ast.Name(id="min" | "max" as f), args=args):
            parts = [interval(a, values, ranges) for a in args]
            pick = min if f == "min" else max
            return pick(p[0] for p in parts), pick(p[1] for p in parts)
        case ast.Call(func=ast.Name(id="where" | "select"), args=[_, a, b]):
            (la, ha), (lb, hb) = interval(a, values, ranges), interval(b, values, ranges)
            return min(la, lb), max(ha, hb)
        case ast.Call(func=ast.Name(id="ceildiv"), args=[a, b]):
            by = constant(linear(b, values))
            low, high = interval(a, values, ranges)
            if by and by > 0:
                return _floordiv(low + by - 1, by), _floordiv(high + by - 1, by)
        case ast.BinOp(left=a, op=ast.FloorDiv() | ast.Mod() as op, right=b):
            by = constant(linear(b, values))
            low, high = interval(a, values, ranges)
            if by and by > 0 and isinstance(op, ast.FloorDiv):
                return _floordiv(low, by), _floordiv(high, by)
            if by and by > 0:
                inside = math.isfinite(low) and low // by == high // by
                return (low % by, high % by) if inside else (0, by - 1)
    return -math.inf, math.inf


def _floordiv(a: float, b: int) -> float:
    return a if math.isinf(a) else a // b
