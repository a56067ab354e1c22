"""Expressions of a spec: Python's grammar, read with `ast` against a whitelist, never evaluated by Python.

    parse      text -> ast, with located errors
    evaluate   ast + values of all names -> int, float, bool or str
    linear     ast -> {term: coefficient}, so that (c + 1) * BC - c * BC is seen to be BC
    interval   ast + ranges of names -> (least, greatest), for index checks
    check      ast + known values -> ExprError where a part that is known has no value
    substitute ast + values -> ast with known names written as numbers
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from gdngen.errors import Location, Report, did_you_mean
from gdngen.tree import Scalar

Value = int | float | bool | str
Range = tuple[float, float]  # closed; -inf and inf where a bound is not known

MAX_TEXT = 4000
MAX_DEPTH = 100
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
_ALLOWED = (
    ast.BinOp, ast.UnaryOp, ast.USub, ast.UAdd, ast.Not, ast.MatMult, ast.BoolOp, ast.And, ast.Or,
    ast.Compare, ast.Call, ast.Name, ast.Load, ast.Store, ast.Constant, ast.Subscript, ast.Slice,
    ast.Tuple, ast.Attribute, *BINARY, *COMPARE,
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """An expression with the text that it came from, so that any part of it can be pointed at.

    `line` and `column` are where the parsed text starts within the scalar's.
    """

    node: ast.AST
    scalar: Scalar
    line: int = 0
    column: int = 0

    def where(self, node: ast.AST | None = None) -> Location:
        node = node if hasattr(node, "lineno") else self.node
        first, start = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        last, end = getattr(node, "end_lineno", None), getattr(node, "end_col_offset", None)
        width = end - start if last == first and end is not None else 1
        column = start + self.column if first == 1 else start
        return self.scalar.at(self.line + first - 1, column, max(1, width))

    def of(self, node: ast.AST) -> "Source":
        return replace(self, node=node)


def place(text: str, at: int) -> tuple[int, int]:
    """Line and column, from 0, of a character of a text."""
    return text.count("\n", 0, at), at - (text.rfind("\n", 0, at) + 1)


def parse(scalar: Scalar, report: Report, mode="eval", start: int = 0, end: int | None = None):
    """A `Source` for the scalar's text (or the part of it from `start` to `end`), or None.

    `mode` 'eval' reads an expression, 'exec' one assignment. Names are not checked here.
    """
    part = scalar.text[start:end]
    begin = start + len(part) - len(part.lstrip())
    text = part.strip()
    line, column = place(scalar.text, begin)
    where = scalar.at(line, column, max(1, len(text.split("\n")[0])))
    if len(text) > MAX_TEXT:
        report.error(where, f"an expression of {len(text):,} characters; at most {MAX_TEXT:,}")
        return None
    if not text:
        report.error(where, "an expression is missing here")
        return None
    for i, c in enumerate(text):
        if not c.isascii() or c == "#":
            spot = scalar.at(*place(scalar.text, begin + i))
            report.error(spot, f"the character '{c}' has no place in an expression")
            return None
    try:
        # Parentheses let a `|` block break lines anywhere; columns of line 1 move by one.
        source = f"({text}\n)" if mode == "eval" else text
        tree = ast.parse(source, mode=mode)
    except SyntaxError as e:
        row = min((e.lineno or 1) - 1, text.count("\n"))
        col = max(0, (e.offset or 1) - 1 - (mode == "eval" and row == 0))
        col = min(col, len(text.split("\n")[row]))
        report.error(
            scalar.at(line + row, col + (column if row == 0 else 0)),
            f"not an expression: {e.msg}",
            _syntax_hint(e.msg, text, mode),
        )
        return None
    except (ValueError, MemoryError, RecursionError):
        report.error(where, "an expression nested too deep to read")
        return None
    if mode == "exec" and len(tree.body) != 1:
        report.error(where, "one assignment is meant here")
        return None
    node = tree.body if mode == "eval" else tree.body[0]
    return _checked(Source(node, scalar, line, column - (mode == "eval")), report, mode)


def _syntax_hint(message: str, text: str, mode: str) -> str:
    if mode == "eval" and re.search(r"(?<![=!<>])=(?!=)", text):
        return "== compares; an assignment stands under a map's do"
    if "never closed" in message:
        return "inside { } or [ ] quote an expression that holds a comma"
    return "expressions are Python's: names, numbers, + - * / // %, comparisons, and/or, calls"


def _checked(source: Source, report: Report, mode: str) -> Source | None:
    statement = (ast.Assign, ast.AugAssign) if mode == "exec" else ()
    if mode == "exec" and not isinstance(source.node, statement):
        report.error(source.where(), "an assignment is meant here: buffer[i, j] = expression")
        return None
    if _depth(source.node) > MAX_DEPTH:
        report.error(source.where(), f"an expression nested deeper than {MAX_DEPTH}")
        return None
    fine = True
    for node in ast.walk(source.node):
        if not isinstance(node, _ALLOWED + statement):
            name = type(node).__name__.lower()
            report.error(source.where(node), f"{name} is not part of the expression language")
            return None  # what stands inside it would only repeat this
        if isinstance(node, ast.Call) and not _check_call(node, source, report):
            return None
        if isinstance(node, ast.Constant):
            fine = _check_constant(node, source, report) and fine
    return source if fine else None


def _check_constant(node: ast.Constant, source: Source, report: Report) -> bool:
    v = node.value
    if not isinstance(v, (int, float, str)):
        report.error(source.where(node), f"a constant {v!r} has no meaning here")
    elif isinstance(v, int) and v.bit_length() > MAX_BITS:
        report.error(source.where(node), f"a number of {v.bit_length()} bits; at most {MAX_BITS}")
    elif isinstance(v, float) and math.isinf(v):
        report.error(source.where(node), "a number too large for any dtype", "write inf")
    else:
        return True
    return False


def _depth(node: ast.AST) -> int:
    depth, level = 0, [node]
    while level:
        depth, level = depth + 1, [c for n in level for c in ast.iter_child_nodes(n)]
    return depth


def _check_call(node: ast.Call, source: Source, report: Report) -> bool:
    name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)[:40]
    known = FUNCTIONS.get(name)
    if known is None:
        report.error(
            source.where(node.func),
            f"unknown function '{name}'{did_you_mean(name, FUNCTIONS)}",
            "functions: " + " ".join(FUNCTIONS),
        )
        return False
    least, most = known.arity
    if node.keywords or not least <= len(node.args) <= most:
        count = str(least) if least == most else f"{least} or more"
        what = f"{name} takes {count} argument{'s' * (count != '1')}, {len(node.args)} given"
        report.error(source.where(node), what, known.doc)
        return False
    return True


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


def check(node: ast.AST, values: Mapping[str, Value]) -> None:
    """Raises `ExprError` for a part that is wrong whatever the rest is: 9**9**9, x % 0, log(-1)."""
    if _is_known(node, values):
        evaluate(node, values)


def _is_known(node: ast.AST, values: Mapping[str, Value]) -> bool:
    """Whether an expression has a value already; where it has none, its largest known parts are tried."""
    if isinstance(node, (ast.Name, ast.Constant)):
        return not isinstance(node, ast.Name) or node.id in values or node.id in CONSTANTS
    inside = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    parts = [(part, _is_known(part, values)) for part in inside if isinstance(part, ast.expr)]
    whole = isinstance(node, (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call))
    if whole and all(known for _, known in parts):
        return True
    for part, known in parts:
        if known and not isinstance(part, (ast.Name, ast.Constant)):
            evaluate(part, values)
    _check_operands(node, values)
    return False


def _check_operands(node: ast.AST, values: Mapping[str, Value]) -> None:
    by = None
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv, ast.Mod)):
        by = node.right
    elif isinstance(node, ast.Call) and node.func.id == "ceildiv":
        by = node.args[1]
    if by is not None and constant(linear(by, values)) == 0:
        raise ExprError(node, "division by zero")
    if isinstance(node, ast.Call) and FUNCTIONS[node.func.id].tilelang is None:
        free = next((n.id for n in names(node) if n.id not in values), "it")
        what = f"{node.func.id} is of sizes that are known when rendering; '{free}' is not"
        raise ExprError(node, what)


Linear = dict[str, int]  # text of a term -> coefficient; "" is the constant


def linear(node: ast.AST, values: Mapping[str, Value]) -> Linear:
    """The expression as a sum of integer multiples of terms; what is not linear is a term of its own."""
    match node:
        case ast.Constant(value=int(v)):
            return {"": int(v)} if v else {}
        case ast.Name(id=name) if isinstance(values.get(name), int):
            return {"": int(values[name])} if values[name] else {}
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


def substitute(node: ast.AST, values: Mapping[str, Value]) -> ast.AST:
    """A copy with every known name written as its value."""

    class Writer(ast.NodeTransformer):
        def visit_Call(self, n: ast.Call):
            return ast.Call(n.func, [self.visit(a) for a in n.args], [])

        def visit_Name(self, n: ast.Name):
            return ast.copy_location(ast.Constant(values[n.id]), n) if n.id in values else n

    return Writer().visit(copied(node))


def copied(node: ast.AST) -> ast.AST:
    fields = {
        f: [copied(x) for x in v] if isinstance(v, list) else copied(v) if isinstance(v, ast.AST) else v
        for f, v in ast.iter_fields(node)
    }
    return ast.copy_location(type(node)(**fields), node) if hasattr(node, "lineno") else type(node)(**fields)


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
