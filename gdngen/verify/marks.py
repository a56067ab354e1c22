"""Which line of a module each line of its CUDA comes from, although TileLang says nothing of it.

The module is lowered a second time with a mark before every statement: a call of a function that
does not exist, with the statement's line number, which TileLang carries into the CUDA where it
stood. Marks may part what the compiler would join, so the marked text is laid beside the true one:
what agrees line for line takes its statement from the last mark before it, and what does not, the
statement of the line before.
"""

from __future__ import annotations

import ast
import bisect
import difflib
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gdngen.verify import lowering

MARK = "gdngen_line"
_MARKED = re.compile(rf"^\s*{MARK}\((\d+)\);\s*$")
_NUMBERED = re.compile(r"(?<=[A-Za-z_])_+\d+\b|\b__\d+\b")
_SIMPLE = ("T.serial", "T.Pipelined", "range")  # loops whose bodies are statements of their own
_NO_STATEMENT = ("T.alloc_", "T.annotate_", "T.use_", "T.view", "T.reshape")


@dataclass(frozen=True)
class Statement:
    """A statement of a module: its lines, from 1, and the heading of the stage that it is in."""

    first: int
    last: int
    stage: str


@dataclass(frozen=True)
class Lines:
    """CUDA lines of a module's kernel and the statements that they come from.

    exact   whether the marked CUDA, without its marks, is the true one line for line
    """

    statements: dict[int, Statement]
    exact: bool

    def of(self, cuda_line: int) -> Statement | None:
        return self.statements.get(cuda_line)


def lines(path: Path, source: str, target: str) -> Lines:
    """Statements of the module at `path` behind the lines of `source`, its CUDA for `target`."""
    text = path.read_text()
    found = tuple(statements(text))
    if not found:
        return Lines({}, False)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.name)
        copy.write_text(marked(text, found))
        try:
            lowered = lowering.cached_lower(copy, target).source
        except lowering.LoweringError:
            return Lines({}, False)
    return aligned(source, lowered, {s.first: s for s in found})


def statements(text: str) -> Iterator[Statement]:
    """Statements inside the kernel, loops and branches besides what stands in them."""
    tree = ast.parse(text)
    kernels = [n for n in ast.walk(tree) if isinstance(n, ast.With)]
    headings = [(i, line.strip()[2:]) for i, line in enumerate(text.splitlines(), 1)
                if line.startswith(" ") and line.strip().startswith("# ")]  # fmt: skip

    def walk(body: list[ast.stmt]) -> Iterator[Statement]:
        for node in body:
            if _allocates(node):
                continue
            stage = (
                headings[max(bisect.bisect(headings, (node.lineno,)) - 1, 0)][1] if headings else ""
            )
            yield Statement(node.lineno, _own_end(node), stage)
            for group in _inside(node):
                yield from walk(group)

    for kernel in kernels[:1]:
        yield from walk(kernel.body)


def _allocates(node: ast.stmt) -> bool:
    """Whether a statement only names storage: an allocation, or a second name for one."""
    if isinstance(node, ast.Pass):
        return True
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Name)
    return isinstance(node, ast.Expr) and ast.unparse(node.value).startswith(_NO_STATEMENT)


def _own_end(node: ast.stmt) -> int:
    """The last line of a statement, without those that stand in it."""
    groups = [g for g in _inside(node) if g]
    return groups[0][0].lineno - 1 if groups else node.end_lineno


def _inside(node: ast.stmt) -> list[list[ast.stmt]]:
    if isinstance(node, ast.For) and ast.unparse(node.iter).startswith(_SIMPLE):
        return [node.body]
    return [node.body, node.orelse] if isinstance(node, ast.If) else []


def marked(text: str, found: tuple[Statement, ...]) -> str:
    """The module with a mark before every statement; what has no line of its own is not marked."""
    lines = text.splitlines()
    for s in sorted(found, key=lambda s: -s.first):
        line = lines[s.first - 1]
        if line.lstrip().startswith(("elif ", "else")):
            continue
        indent = line[: len(line) - len(line.lstrip())]
        lines.insert(
            s.first - 1, f'{indent}T.evaluate(T.call_extern("int32", "{MARK}", {s.first}))'
        )
    return "\n".join(lines) + "\n"


def aligned(source: str, marked_source: str, found: dict[int, Statement]) -> Lines:
    """Lays the true CUDA beside the marked one."""
    plain, numbers, at = [], [], 0
    for line in marked_source.splitlines():
        if mark := _MARKED.match(line):
            at = int(mark[1])
        else:
            plain.append(line)
            numbers.append(at)
    true = source.splitlines()
    a, b = ([_NUMBERED.sub("", line) for line in text] for text in (true, plain))
    taken: dict[int, int] = {}
    for i, j, size in difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks():
        taken |= {i + k: numbers[j + k] for k in range(size)}
    out, last = {}, 0
    for i in range(len(true)):
        last = taken.get(i) or last
        if last:
            out[i + 1] = found[last]
    return Lines(out, a == b)
