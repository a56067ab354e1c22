"""Text of an expression -> `Source`: Python's grammar, read with `ast` against a whitelist.

Every part keeps its place in the spec, so that any of it can be pointed at.
"""

import ast
import math
import re
from dataclasses import dataclass, replace

from gdngen.errors import Location, Report, did_you_mean
from gdngen.language.expr import BINARY, COMPARE, FUNCTIONS, MAX_BITS
from gdngen.language.tree import Scalar

MAX_TEXT = 4000
MAX_DEPTH = 100

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
