"""Types of expressions: how operands are promoted, and which stores lose digits.

A literal is 'weak': it takes the type of what it meets. Nothing narrows by itself: a store into a
smaller type is written with `cast`, so that every rounding of a kernel can be seen in its spec.
"""

import ast
from collections.abc import Callable, Mapping

from gdngen.language.expr import (
    CONSTANTS,
    FUNCTIONS,
    ExprError,
    Value,
    constant,
    evaluate,
    linear,
    names,
)

WEAK_INT, WEAK_FLOAT = "a whole number", "a number"
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTS = ("int8", "int16", "int32", "int64")


def is_float(dtype: str) -> bool:
    return dtype in FLOATS or dtype == WEAK_FLOAT


def fits(source: str, target: str) -> bool:
    """Whether every value of `source` can be stored as `target` without a cast."""
    if source == target or source == WEAK_INT:
        return True
    if source == WEAK_FLOAT:
        return target in FLOATS
    if source == "bool":
        return target in INTS
    if source in INTS and target in INTS:
        return INTS.index(source) <= INTS.index(target)
    if source in INTS:
        return target in ("float32", "float64")
    return (source in ("float16", "bfloat16") and target in ("float32", "float64")) or (
        (source, target) == ("float32", "float64")
    )


def promote(a: str, b: str, node: ast.AST) -> str:
    """The type of an operation on a and b."""
    if fits(a, b):
        return b
    if fits(b, a):
        return a
    if a == WEAK_FLOAT or b == WEAK_FLOAT:  # with an integer tensor
        return "float32"
    if {a, b} <= set(INTS) | set(FLOATS) and (a in INTS) != (b in INTS):
        return a if a in FLOATS else b
    raise ExprError(node, f"{a} and {b} don't mix", "cast one of them: cast(x, float32)")


def infer(node: ast.AST, name_type: Callable[[ast.Name | ast.Subscript], str], dtypes) -> str:
    """The type of an expression; `name_type` gives that of a name or an element.

    `dtypes` maps the words that may stand in a cast to dtypes. Raises `ExprError`.
    """

    def condition(n: ast.AST) -> str:
        if walk(n) != "bool":
            text = ast.unparse(n)
            raise ExprError(
                n, f"a condition is meant here, not '{text[:40]}'", f"say {text[:40]} != 0"
            )
        return "bool"

    def walk(n: ast.AST) -> str:
        match n:
            case ast.Constant(value=bool()):
                return "bool"
            case ast.Constant(value=int()):
                return WEAK_INT
            case ast.Constant(value=float()):
                return WEAK_FLOAT
            case ast.Constant():
                raise ExprError(n, "a word has no place in arithmetic")
            case ast.Name(id=name) if name in CONSTANTS:
                return "bool" if isinstance(CONSTANTS[name], bool) else WEAK_FLOAT
            case ast.Name() | ast.Subscript():
                return name_type(n)
            case ast.UnaryOp(op=ast.Not(), operand=x):
                return condition(x)
            case ast.UnaryOp(operand=x):
                return walk(x)
            case ast.BoolOp(values=parts):
                for p in parts:
                    condition(p)
                return "bool"
            case ast.Compare(left=left, comparators=rest):
                promoted = walk(left)
                for r in rest:
                    promoted = promote(promoted, walk(r), n)
                return "bool"
            case ast.BinOp(left=left, op=op, right=right):
                both = promote(walk(left), walk(right), n)
                if isinstance(op, ast.Div) and not is_float(both):
                    raise ExprError(n, "/ divides floats; whole numbers divide with //")
                if isinstance(op, ast.MatMult):
                    raise ExprError(n, "@ has a place in a gemm only")
                return both
            case ast.Call(func=ast.Name(id="cast"), args=[x, to]):
                walk(x)
                if not isinstance(to, ast.Name) or to.id not in dtypes:
                    raise ExprError(to, "a dtype is meant here", f"one of: {' '.join(dtypes)}")
                return dtypes[to.id]
            case ast.Call(func=ast.Name(id="where" | "select"), args=[c, a, b]):
                condition(c)
                return promote(walk(a), walk(b), n)
            case ast.Call(func=ast.Name(id=name), args=args):
                promoted = walk(args[0])
                for a in args[1:]:
                    promoted = promote(promoted, walk(a), n)
                if FUNCTIONS[name].result == "float" and not is_float(promoted):
                    return WEAK_FLOAT if promoted == WEAK_INT else "float32"
                return promoted
        raise ExprError(n, f"'{ast.unparse(n)[:40]}' has no place in an expression")

    return walk(node)


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
