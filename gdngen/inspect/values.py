"""What the expressions of a kernel's source come to, as far as that can be known without running it."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gdngen.inspect.kernel import Span, Tensor
from gdngen.language import expr
from gdngen.plan.instructions import DTYPE_BYTES

DTYPES = {
    **{name: name for name in DTYPE_BYTES},
    **{"float": "float32", "half": "float16", "int": "int32", "double": "float64"},
    **{
        "float8_e4m3": "float8_e4m3fn",
        "e4m3_float8": "float8_e4m3fn",
        "e5m2_float8": "float8_e5m2",
    },
}
# Functions of tilelang, math and Python that `expr` knows by these names.
KNOWN = {"min": "min", "max": "max", "ceildiv": "ceildiv", "cdiv": "ceildiv"}
MATHS: dict[str, Callable] = {
    name: getattr(math, name) for name in ("ceil", "floor", "log2", "sqrt", "gcd", "prod", "log")
}


@dataclass(frozen=True)
class Held:
    """A tile by one of its names; `window` is the part of it that the name stands for."""

    tile: str
    name: str
    window: tuple[Span, ...] = ()
    viewed: bool = False


@dataclass(frozen=True)
class Macro:
    """A function of the file, with the names that it sees."""

    node: ast.FunctionDef
    env: Env


@dataclass(frozen=True)
class Several:
    """A tuple or list of values."""

    items: tuple[Value, ...]


@dataclass(frozen=True)
class Library:
    """A module: tilelang.language, tilelang, math, or another ('')."""

    name: str


Value = ast.expr | Held | Tensor | Macro | Several | Library


@dataclass
class Env:
    """Names in reach, inner ones first."""

    outer: Env | None = None
    names: dict[str, Value] = field(default_factory=dict)

    def get(self, name: str) -> Value | None:
        env: Env | None = self
        while env is not None:
            if name in env.names:
                return env.names[name]
            env = env.outer
        return None


class Names:
    """Unique names: for loop variables, sizes known at launch only, and what is not understood."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}
        self._texts: dict[str, str] = {}

    def fresh(self, name: str) -> str:
        self._taken[name] = count = self._taken.get(name, 0) + 1
        return name if count == 1 else f"{name}__{count}"

    def opaque(self, text: str) -> ast.Name:
        """One name for each text: the same unknown is the same unknown."""
        if text not in self._texts:
            self._texts[text] = self.fresh("unknown")
        return ast.Name(self._texts[text])


def dtype_of(value: Value | None) -> str | None:
    """The dtype that a value names; None where it names none."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return DTYPES.get(value.value.removeprefix("T."))
    return None


def plain(value: Value | None) -> object:
    """The Python value of a constant, or of a tuple of them; None for all else."""
    if isinstance(value, ast.Constant):
        return value.value
    if isinstance(value, Several):
        return tuple(plain(item) for item in value.items)
    return None


def is_known(value: Value | None) -> bool:
    if isinstance(value, Several):
        return all(is_known(item) for item in value.items)
    return isinstance(value, ast.Constant)


class Folder:
    """Folds expressions of the source. `tile_shape` gives a tile's shape, for `x.shape`."""

    def __init__(self, names: Names, shapes: Callable[[str], tuple[int, ...]]):
        self.names, self.shapes = names, shapes

    def fold(self, node: ast.expr, env: Env) -> Value:
        """The value of an expression; what is not understood is a name of its own."""
        match node:
            case ast.Constant():
                return node
            case ast.Name(id=name):
                found = env.get(name)
                if found is not None:
                    return found
                return ast.Name(name) if name in KNOWN else self._opaque(node, env)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return Several(tuple(self.fold(p, env) for p in parts))
            case ast.Attribute():
                return self._attribute(node, env)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                chosen = self.truth(test, env)
                if chosen is None:
                    return self._opaque(node, env)
                return self.fold(body if chosen else orelse, env)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(node, self.fold(left, env), op, self.fold(right, env), env)
            case ast.UnaryOp(op=ast.USub() | ast.Not() as op, operand=x):
                return self._settled(ast.UnaryOp(op, self._scalar(x, env)))
            case ast.BoolOp(op=op, values=parts):
                return self._settled(ast.BoolOp(op, [self._scalar(p, env) for p in parts]))
            case ast.Compare(left=left, ops=ops, comparators=rest):
                return self._compare(node, left, ops, rest, env)
            case ast.Call():
                return self._call(node, env)
            case ast.Subscript(value=inner, slice=index):
                return self._item(node, self.fold(inner, env), self.fold(index, env), env)
        return self._opaque(node, env)

    def truth(self, node: ast.expr, env: Env) -> bool | None:
        """Whether a condition holds; None where that is not known before the kernel runs."""
        value = self.fold(node, env)
        return bool(plain(value)) if is_known(value) else None

    def scalar(self, node: ast.expr, env: Env) -> ast.expr:
        return self._scalar(node, env)

    def _scalar(self, node: ast.expr, env: Env) -> ast.expr:
        value = self.fold(node, env)
        return value if isinstance(value, ast.expr) else self._opaque(node, env)

    def _opaque(self, node: ast.expr, env: Env) -> ast.Name:
        """A name for what is not known. Names inside count by what they stand for."""
        text = ast.unparse(_Resolved(env).visit(expr.copied(node)))
        return self.names.opaque(text)

    def _settled(self, node: ast.expr) -> ast.expr:
        try:
            value = expr.evaluate(node, {})
        except expr.ExprError:
            return node
        except (KeyError, TypeError):  # None, or what numbers do not have
            return self.names.opaque(ast.unparse(node))
        return node if isinstance(value, float) and not math.isfinite(value) else _constant(value)

    def _binary(self, node: ast.BinOp, a: Value, op: ast.operator, b: Value, env: Env) -> Value:
        if isinstance(a, Several) or isinstance(b, Several):
            count = plain(b)
            if isinstance(a, Several) and isinstance(op, ast.Mult) and isinstance(count, int):
                return Several(a.items * min(max(count, 0), 1024))
            if isinstance(a, Several) and isinstance(b, Several) and isinstance(op, ast.Add):
                return Several(a.items + b.items)
            return self._opaque(node, env)
        if type(op) not in expr.BINARY or not all(isinstance(x, ast.expr) for x in (a, b)):
            return self._opaque(node, env)
        return self._settled(ast.BinOp(a, op, b))

    def _compare(self, node, left, ops, rest, env: Env) -> Value:
        values = [self.fold(x, env) for x in (left, *rest)]
        if all(is_known(v) for v in values):
            found = [plain(v) for v in values]
            try:
                return _constant(all(_holds(op, a, b) for a, op, b in zip(found, ops, found[1:])))
            except (TypeError, KeyError):
                return self._opaque(node, env)
        if all(isinstance(v, ast.expr) for v in values) and all(
            type(o) in expr.COMPARE for o in ops
        ):
            return ast.Compare(values[0], ops, values[1:])
        return self._opaque(node, env)

    def _attribute(self, node: ast.Attribute, env: Env) -> Value:
        inner = self.fold(node.value, env)
        if isinstance(inner, Held) and node.attr == "shape":
            return Several(tuple(map(_constant, self.shapes(inner.tile))))
        if isinstance(inner, Tensor) and node.attr == "shape":
            return Several(inner.shape)
        if isinstance(inner, Tensor) and node.attr == "dtype":
            return _constant(inner.dtype)
        if node.attr in DTYPES and isinstance(inner, Library):
            return _constant(DTYPES[node.attr])
        if isinstance(inner, Library) and inner.name == "tilelang" and node.attr == "language":
            return Library("T")
        return self._opaque(node, env)

    def _call(self, node: ast.Call, env: Env) -> Value:
        name = called(node.func, env)
        given = [self.fold(a, env) for a in node.args]
        if name in KNOWN and not node.keywords and given:
            if len(given) == 1 and isinstance(given[0], Several):
                given = list(given[0].items)
            if all(isinstance(v, ast.expr) for v in given):
                if len(given) == 1:
                    return given[0]
                return self._settled(ast.Call(ast.Name(KNOWN[name]), given, []))
        if name == "int" and len(given) == 1 and isinstance(plain(given[0]), int | float):
            return _constant(int(plain(given[0])))
        if name == "len" and len(given) == 1 and isinstance(given[0], Several):
            return _constant(len(given[0].items))
        if name in ("floordiv", "truncdiv") and len(given) == 2:
            return self._binary(node, given[0], ast.FloorDiv(), given[1], env)
        if name in ("floormod", "truncmod") and len(given) == 2:
            return self._binary(node, given[0], ast.Mod(), given[1], env)
        if name in MATHS and all(is_known(v) for v in given):
            try:
                return _constant(MATHS[name](*map(plain, given)))
            except (ValueError, TypeError, OverflowError):
                return self._opaque(node, env)
        return self._opaque(node, env)

    def _item(self, node: ast.Subscript, inner: Value, index: Value, env: Env) -> Value:
        at = plain(index)
        if isinstance(inner, Several) and isinstance(at, int) and -len(inner.items) <= at:
            if at < len(inner.items):
                return inner.items[at]
        return self._opaque(node, env)


def called(func: ast.expr, env: Env) -> str:
    """The last name of a function of tilelang, of math, or of Python; '' for one of the file's own
    or of another module."""
    match func:
        case ast.Attribute(value=inner, attr=name):
            while isinstance(inner, ast.Attribute):
                inner = inner.value
            if isinstance(inner, ast.Name) and isinstance(env.get(inner.id), Library):
                return name if env.get(inner.id).name else ""
        case ast.Name(id=name):
            found = env.get(name)
            if found is None:
                return name
            if isinstance(found, Library):  # from tilelang.language import name
                return found.name.partition(":")[2]
    return ""


def _constant(value: object) -> ast.Constant:
    return ast.Constant(value)


def _holds(op: ast.cmpop, a: object, b: object) -> bool:
    match op:
        case ast.Is():
            return a is b
        case ast.IsNot():
            return a is not b
        case ast.In():
            return a in b
        case ast.NotIn():
            return a not in b
    return expr.COMPARE[type(op)](a, b)


class _Resolved(ast.NodeTransformer):
    """Names of scalars written as what they stand for, so that equal texts mean equal values."""

    def __init__(self, env: Env):
        self.env = env

    def visit_Name(self, n: ast.Name):
        found = self.env.get(n.id)
        if isinstance(found, Held):
            return ast.Name(found.tile)
        return expr.copied(found) if isinstance(found, ast.expr) else n


def unknown(nodes: Iterable[ast.expr]) -> list[str]:
    """Names, of those that an expression holds, that nothing gives a value to."""
    return sorted({n.id for node in nodes for n in expr.names(node)})


def settings_of(values: Mapping[str, str]) -> dict[str, ast.Constant]:
    """Values of the command line as the source would write them."""
    return {name: _constant(_parsed(text)) for name, text in values.items()}


def _parsed(text: str) -> object:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
