"""Expressions and regions of a spec as TileLang text, with every tile at the place its plan gives it."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from gdngen.language import expr
from gdngen.model import types, warps
from gdngen.model.model import BYTES, Buffer, Kernel, Point, Region, Span
from gdngen.plan.plan import Plan

RESERVED = {"T", "tilelang", "range", "max", "min", "self"}


def safe(name: str) -> str:
    """A name that can stand in the module: the language is called T there, so a spec's T becomes T_."""
    import keyword

    return name + "_" if name in RESERVED or keyword.iskeyword(name) else name


@dataclass(frozen=True)
class Text:
    """Writes expressions of one planned kernel."""

    kernel: Kernel
    plan: Plan

    @cached_property
    def by_rows(self) -> frozenset[int]:
        return warps.by_rows(self.kernel)

    @property
    def options(self) -> Mapping[str, int | str]:
        return {k: v for k, v in self.kernel.values if k not in self.kernel.dims}

    def expr(self, node: ast.AST) -> str:
        """For example T.if_then_else(i > j, P[i, j], 0)."""
        return ast.unparse(ast.fix_missing_locations(_Writer(self).visit(node)))

    def element(self, name: str, index: tuple[ast.expr, ...]) -> str:
        """One element, as name[i, j]."""
        return ast.unparse(ast.fix_missing_locations(_Writer(self).at(name, index)))

    def region(self, r: Region) -> str:
        """A tile whole is its name, unless it is narrower than the slot that it lives in."""
        buffer = self.kernel.buffer(r.name)
        wide = buffer is not None and self.narrow(buffer)
        if not r.index and not wide:
            return safe(r.name)
        rank = len(buffer.shape) if buffer else len(self.kernel.tensor(r.name).shape)
        parts = [self.part(p) for p in r.index] or [":"] * rank
        if wide:
            parts[-1] = self.shifted(buffer, r.index[-1] if r.index else None)
        return f"{safe(r.name)}[{', '.join(parts)}]"

    def narrow(self, b: Buffer) -> bool:
        """Whether a buffer is part of a wider slot."""
        return b.scope == "shared" and self.plan.slot_of(b.name).seen(b.name) != b.shape

    def column(self, name: str) -> int:
        """The buffer's first column in its slot."""
        buffer = self.kernel.buffer(name)
        if buffer is None or buffer.scope != "shared":
            return 0
        return self.plan.slot_of(name).column(name)

    def shifted(self, b: Buffer, last: Point | Span | None) -> str:
        """The last axis of a part of a buffer, in columns of the slot."""
        column = self.column(b.name)
        if last is None or (isinstance(last, Span) and last.full):
            return f"{column}:{column + b.shape[-1]}" if column else f":{self.size(b, -1)}"
        add = f"{column} + " if column else ""
        if isinstance(last, Point):
            return add + self.expr(last.at)
        return f"{add}{self.expr(last.start)}:{add}{self.expr(last.stop)}"

    def part(self, p: Point | Span) -> str:
        if isinstance(p, Point):
            return self.expr(p.at)
        return ":" if p.full else f"{self.expr(p.start)}:{self.expr(p.stop)}"

    def size(self, b: Buffer, axis: int) -> str:
        """A side of a buffer as the author wrote it."""
        return self.expr(ast.parse(b.shape_text[axis], mode="eval").body)

    def shape(self, b: Buffer) -> str:
        return ", ".join(self.size(b, i) for i in range(len(b.shape)))

    def allocation(self, b: Buffer) -> str:
        """The line that allocates a tile of its own."""
        return f"{safe(b.name)} = T.alloc_{b.scope}([{self.shape(b)}], {self.dtype(b.dtype_name)})"

    def dtype(self, name: str) -> str:
        return safe(name) if name in dict(self.kernel.dtypes) else f'"{name}"'


class _Writer(ast.NodeTransformer):
    """Spec expression -> Python of TileLang."""

    def __init__(self, text: Text):
        self.text = text
        self.values = dict(text.kernel.values)

    def visit_Name(self, n: ast.Name) -> ast.expr:
        if n.id in self.text.options:
            return ast.Constant(self.text.options[n.id])
        if n.id == "inf":
            return ast.parse('T.infinity("float32")', mode="eval").body
        if n.id in ("true", "false"):
            return ast.Constant(n.id == "true")
        return ast.Name(safe(n.id))

    def visit_Constant(self, n: ast.Constant) -> ast.expr:
        return n

    def visit_BinOp(self, n: ast.BinOp) -> ast.expr:
        left, right = self.visit(n.left), self.visit(n.right)
        if isinstance(n.op, ast.Pow):
            if isinstance(left, ast.Constant) and isinstance(right, ast.Constant):
                return ast.Constant(left.value**right.value)  # T.pow takes no two numbers
            return _call("T.pow", left, right)
        if isinstance(n.op, (ast.Mult, ast.FloorDiv)) and _is_one(right):  # an option's 1
            return left
        if isinstance(n.op, ast.Mod) and _is_one(right):
            return ast.Constant(0)
        return ast.BinOp(left, n.op, right)

    def visit_Subscript(self, n: ast.Subscript) -> ast.expr:
        index = n.slice.elts if isinstance(n.slice, ast.Tuple) else (n.slice,)
        return self.at(n.value.id, tuple(index))

    def at(self, name: str, index: tuple[ast.expr, ...]) -> ast.expr:
        """An element, moved to where its buffer starts in its slot."""
        parts = [self.visit(i) for i in index]
        if column := self.text.column(name):
            parts[-1] = ast.BinOp(ast.Constant(column), ast.Add(), parts[-1])
        inside = parts[0] if len(parts) == 1 else ast.Tuple(parts, ast.Load())
        return ast.Subscript(ast.Name(safe(name)), inside, ast.Load())

    def visit_Tuple(self, n: ast.Tuple) -> ast.expr:
        return ast.Tuple([self.visit(e) for e in n.elts], ast.Load())

    def visit_UnaryOp(self, n: ast.UnaryOp) -> ast.expr:
        return ast.UnaryOp(n.op, self.visit(n.operand))

    def visit_BoolOp(self, n: ast.BoolOp) -> ast.expr:
        return ast.BoolOp(n.op, [self.visit(v) for v in n.values])

    def visit_Compare(self, n: ast.Compare) -> ast.expr:
        return ast.Compare(self.visit(n.left), n.ops, [self.visit(c) for c in n.comparators])

    def visit_Call(self, n: ast.Call) -> ast.expr:
        name = n.func.id
        known = {**self.values}
        if expr.FUNCTIONS[name].result == "int" and all(x.id in known for x in expr.names(n)):
            return ast.Constant(expr.evaluate(n, known))
        if name == "cast":
            return self.cast(n)
        args = [self.visit(a) for a in n.args]
        if name == "select":  # unlike the rest of TileLang, it takes two values of one dtype only
            args[1:] = self.alike(n, args[1:])
        spelled = expr.FUNCTIONS[name].tilelang
        if name in ("min", "max"):  # TileLang's take two
            result = args[0]
            for a in args[1:]:
                result = _call(spelled, result, a)
            return result
        return _call(spelled, *args)

    def alike(self, n: ast.Call, sides: list[ast.expr]) -> list[ast.expr]:
        """Both sides of a select, converted to the dtype that they have together."""
        dtypes = {**{d: d for d in BYTES}, **dict(self.text.kernel.dtypes)}
        whole, *own = (types.infer(x, self.type_of, dtypes) for x in (n, *n.args[1:]))
        if whole == types.WEAK_FLOAT:
            whole = "float32"
        elif whole not in BYTES:
            return sides
        return [
            s if t == whole else _call("T.cast", s, ast.Constant(whole)) for s, t in zip(sides, own)
        ]

    def type_of(self, n: ast.Name | ast.Subscript) -> str:
        kernel = self.text.kernel
        if isinstance(n, ast.Subscript):
            return (kernel.buffer(n.value.id) or kernel.tensor(n.value.id)).dtype
        value = self.values.get(n.id)
        if isinstance(value, bool):
            return "bool"
        if value is not None:
            return types.WEAK_INT
        return next((s.dtype for s in kernel.scalars if s.name == n.id), "int32")

    def cast(self, n: ast.Call) -> ast.expr:
        to = n.args[1].id
        dtype = ast.Name(safe(to)) if to in dict(self.text.kernel.dtypes) else ast.Constant(to)
        return _call("T.cast", self.visit(n.args[0]), dtype)


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1 and isinstance(node.value, int)


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.parse(name, mode="eval").body, list(args), [])
