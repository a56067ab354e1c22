"""Checks the foreign text of a `raw` statement: TileLang calls on declared names, and nothing else.

A spec may come from a stranger, and what it renders is imported; so raw lines can't reach Python.
"""

import ast
import textwrap

from gdngen.errors import Report
from gdngen.tree import Scalar

_ALLOWED = (
    ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.For, ast.If, ast.Call, ast.keyword, ast.Name,
    ast.Load, ast.Store, ast.Constant, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Attribute,
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
    ast.Pass,
)  # fmt: skip
_FORBIDDEN = {"import_source", "call_extern", "call_packed", "evaluate", "prim_func", "macro"}


def check_raw(lines: Scalar, declared: set[str], tiles, meanings, report: Report) -> None:
    """Reports whatever in the lines is not plain TileLang on names that the statement declares."""
    try:
        tree = ast.parse(textwrap.dedent(lines.text))
    except (SyntaxError, ValueError, MemoryError, RecursionError) as e:
        line = (getattr(e, "lineno", None) or 1) - 1
        report.error(lines.at(line, 0), f"raw lines are not Python: {getattr(e, 'msg', e)}")
        return
    own = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for node in ast.walk(tree):
        where = lines.at(getattr(node, "lineno", 1) - 1, getattr(node, "col_offset", 0))
        if not isinstance(node, _ALLOWED):
            report.error(where, f"{type(node).__name__.lower()} has no place in raw lines")
        elif isinstance(node, ast.Attribute):
            if not isinstance(node.value, ast.Name) or node.value.id != "T":
                report.error(where, "only T.name may be used in raw lines")
            elif node.attr.startswith("_") or node.attr in _FORBIDDEN:
                report.error(where, f"T.{node.attr} has no place in raw lines")
        elif isinstance(node, ast.Call) and not isinstance(node.func, ast.Attribute):
            if not (isinstance(node.func, ast.Name) and node.func.id == "range"):
                report.error(where, "only functions of T may be called in raw lines")
        elif isinstance(node, ast.Name) and node.id in tiles and node.id not in declared:
            report.error(where, f"'{node.id}' is used but not declared", f"add it to reads or writes")
        elif isinstance(node, ast.Name) and node.id not in own | declared | set(meanings) | {"T", "range"}:
            report.error(where, f"unknown name '{node.id}' in raw lines")
