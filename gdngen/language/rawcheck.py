"""Checks the foreign text of a `raw` statement: TileLang calls on declared names, and nothing else.

A spec may come from a stranger, and what it renders is imported; so raw lines can't reach Python.
"""

import ast
import re
import textwrap
from collections.abc import Collection

from gdngen.errors import Location, Report, did_you_mean
from gdngen.language.tree import Scalar

_ALLOWED = (
    ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.For, ast.If, ast.Call, ast.keyword, ast.Name,
    ast.Load, ast.Store, ast.Constant, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Attribute,
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
    ast.Pass,
)  # fmt: skip

# Functions of T that take source text, Python functions or addresses, or that allocate storage
# which no plan would count.
_FORBIDDEN = re.compile(
    r"_.*|.*(extern|packed|source|llvm|handle|ptr|addr|macro|prim_func|func|inline|meta|tvm|alloc|buffer"
    r"|eval|call|pass_config|compile|kernel|view|reshape|symbolic|dynamic|env|tir|register).*",
    re.IGNORECASE,
)


def check_raw(
    lines: Scalar,
    reads: Collection[str],
    writes: Collection[str],
    tiles: Collection[str],
    meanings: Collection[str],
    report: Report,
) -> None:
    """Reports whatever in the lines is not plain TileLang on names that the statement declares.

    reads, writes   tiles that the statement declares; `tiles` are all there are
    meanings        dims, dtypes and indices
    """
    text = textwrap.dedent(lines.text)
    cut = len(lines.text.split("\n")[0]) - len(text.split("\n")[0])
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as e:
        line = min((getattr(e, "lineno", None) or 1) - 1, text.count("\n"))
        report.error(lines.at(line, 0), f"raw lines are not Python: {getattr(e, 'msg', e)}")
        return
    checker = _Checker(lines, cut, report)
    checker.declared, checker.writes = {*reads, *writes}, set(writes)
    checker.tiles, checker.meanings = set(tiles), set(meanings)
    checker.own = {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    for node in ast.walk(tree):
        checker.node(node)


class _Checker:
    declared: set[str]
    writes: set[str]
    tiles: set[str]
    meanings: set[str]
    own: set[str]  # names that the lines themselves give values

    def __init__(self, lines: Scalar, cut: int, report: Report):
        self.lines, self.cut, self.report = lines, cut, report

    def error(self, node: ast.AST, what: str, hint: str | None = None) -> None:
        self.report.error(self.where(node), what, hint)

    def where(self, node: ast.AST) -> Location:
        line, column = getattr(node, "lineno", 1) - 1, getattr(node, "col_offset", 0)
        text = self.lines.text.split("\n")[line].encode()[
            : self.cut + column
        ]  # offsets count bytes
        return self.lines.at(line, len(text.decode(errors="ignore")))

    def node(self, node: ast.AST) -> None:
        if not isinstance(node, _ALLOWED):
            self.error(node, f"{type(node).__name__.lower()} has no place in raw lines")
        elif isinstance(node, ast.Attribute):
            if not isinstance(node.value, ast.Name) or node.value.id != "T":
                self.error(node, "only T.name may be used in raw lines")
            elif _FORBIDDEN.fullmatch(node.attr):
                self.error(node, f"T.{node.attr[:40]} has no place in raw lines")
        elif isinstance(node, ast.Call):
            named = isinstance(node.func, ast.Name) and node.func.id == "range"
            if not isinstance(node.func, ast.Attribute) and not named:
                self.error(node, "only functions of T may be called in raw lines")
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            name = getattr(node.value, "id", "")
            if name in self.declared and name not in self.writes:
                self.error(node, f"'{name}' is written but not declared so", "add it to writes")
        elif isinstance(node, ast.Name):
            self.name(node)

    def name(self, node: ast.Name) -> None:
        known = self.declared | self.meanings | {"T", "range"}
        if isinstance(node.ctx, ast.Store):
            if node.id in known | self.tiles or node.id.startswith("_"):
                self.error(node, f"'{node.id[:40]}' can't be given another meaning in raw lines")
        elif node.id in self.tiles and node.id not in self.declared:
            self.error(node, f"'{node.id}' is used but not declared", "add it to reads or writes")
        elif node.id not in self.own | known:
            near = did_you_mean(node.id, self.own | known)
            self.error(node, f"unknown name '{node.id[:40]}' in raw lines{near}")
