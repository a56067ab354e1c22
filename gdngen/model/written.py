"""Every read finds something written: on every path, and at every element that it reads.

A write is known under the conditions that it stands under, so it serves every later read that stands
under them too. `when: d == 0` inside a loop over d serves the whole loop: its first round ran it.
"""

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gdngen.errors import Report
from gdngen.language.expr import Range, interval, linear, names
from gdngen.model.model import (
    Access,
    Assign,
    Branch,
    Broken,
    Kernel,
    Leaf,
    Loop,
    Point,
    Raw,
    Statement,
)


def check(kernel: Kernel, report: Report) -> None:
    _Paths(kernel, report).run(kernel.statements(), frozenset())
    _check_elements(kernel, report)


# -- on every path -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Condition:
    """A condition that holds on a path, and the names that it is made of."""

    text: str
    holds: bool
    names: frozenset[str]
    first_round: str | None = None  # d, where it is d == 0

    def opposite(self) -> "_Condition":
        return _Condition(self.text, not self.holds, self.names)


Path = frozenset[_Condition]


class _Paths:
    def __init__(self, kernel: Kernel, report: Report):
        self.kernel, self.report = kernel, report
        # A staged tile is written by another role: `protocol.py` says whether in time.
        self.known: dict[str, set[Path]] = {b.name: set() for b in kernel.buffers if not b.stages}
        self.loops: list[str] = []  # indices of the loops around

    def run(self, body: Sequence[Statement], path: Path) -> None:
        for s in body:
            if isinstance(s, Leaf):
                self.leaf(s, path)
            elif isinstance(s, Branch):
                cond = _condition(s.cond)
                self.run(s.then, path | {cond})
                self.run(s.other, path | {cond.opposite()})
                self.join(cond)
            else:
                self.loop(s, path)

    def leaf(self, leaf: Leaf, path: Path) -> None:
        if not isinstance(leaf, Broken):
            for access in leaf.reads():
                if access.name in self.known and not any(
                    p <= path for p in self.known[access.name]
                ):
                    self.unwritten(leaf, access)
        for access in leaf.writes():
            if access.name in self.known:
                self.known[access.name].add(path)

    def join(self, cond: _Condition) -> None:
        """What both arms write, and what the first round of a loop writes, needs the condition no more."""
        for paths in self.known.values():
            for p in [p for p in paths if cond in p]:
                rest = p - {cond}
                both = any(q <= rest | {cond.opposite()} for q in paths)
                d = cond.first_round
                first = d in self.loops and not any(d in c.names for c in rest)
                if both or first:
                    paths.add(rest)

    def loop(self, s: Loop, path: Path) -> None:
        if s.var:
            self.loops.append(s.var)
        runs = () if s.runs else (_Condition(f"{ast.dump(s.count)} > 0", True, _free(s.count)),)
        self.run(s.body, path | frozenset(runs))
        if s.var:  # what held for one index says nothing once the loop is over
            self.loops.pop()
            for name, paths in self.known.items():
                self.known[name] = {p for p in paths if not any(s.var in c.names for c in p)}

    def unwritten(self, leaf: Leaf, access: Access) -> None:
        writes = (
            a.where.line for s in self.kernel.leaves() for a in s.writes() if a.name == access.name
        )
        first = next(writes, None)
        line = f"; its first write is on line {first}" if first else ""
        self.report.error(
            access.where,
            f"'{access.name}' is read before it is written, in stage '{leaf.stage}'{line}",
            "write all of it first on every path: copy, fill or gemm with ->",
            kind=f"unwritten {access.name}",
        )


def _condition(cond: ast.expr) -> _Condition:
    if isinstance(cond, ast.UnaryOp) and isinstance(cond.op, ast.Not):
        return _condition(cond.operand).opposite()
    first = None
    if isinstance(cond, ast.Compare) and len(cond.ops) == 1 and isinstance(cond.ops[0], ast.Eq):
        sides = (cond.left, cond.comparators[0])
        zero = any(isinstance(x, ast.Constant) and x.value == 0 for x in sides)
        first = next((x.id for x in sides if zero and isinstance(x, ast.Name)), None)
    return _Condition(ast.dump(cond), True, _free(cond), first)


def _free(node: ast.expr) -> frozenset[str]:
    return frozenset(n.id for n in names(node))


# -- at every element ----------------------------------------------------------------------------

Box = tuple[Range, ...]


def _check_elements(kernel: Kernel, report: Report) -> None:
    """A read may not reach past the hull of all writes: rows that nothing ever writes."""
    shapes = {b.name: b.shape for b in kernel.buffers}
    values, hulls, reads = dict(kernel.values), {}, []
    for leaf, ranges, branched in _placed(kernel.statements(), dict(kernel.ranges), values):
        for access in leaf.writes():
            if access.name in shapes:
                box = _box(access, leaf, shapes[access.name], ranges, values)
                hulls[access.name] = _hull(hulls.get(access.name, box), box)
        for access in leaf.reads():
            if access.name in shapes and _is_exact(access, leaf, ranges, values, branched):
                reads.append((access, _box(access, leaf, shapes[access.name], ranges, values)))
    for access, box in reads:
        for axis, (read, written) in enumerate(zip(box, hulls.get(access.name, box))):
            if read[0] < written[0] or read[1] > written[1]:
                report.error(
                    access.where,
                    f"'{access.name}' is read from {read[0]:.0f} to {read[1]:.0f} along axis {axis}, but only "
                    f"{written[0]:.0f} to {written[1]:.0f} is ever written",
                    "fill the rest first, or read only what is written",
                    kind=f"partly {access.name} {axis}",
                )


def _placed(
    body: Sequence[Statement],
    ranges: dict[str, Range],
    values: Mapping,
    branched: frozenset = frozenset(),
) -> Iterator[tuple[Leaf, dict[str, Range], frozenset[str]]]:
    """Every leaf with the ranges of the names around it, and those that conditions narrow there."""
    for s in body:
        if isinstance(s, Branch):
            narrowed = branched | _free(s.cond)
            yield from _placed((*s.then, *s.other), ranges, values, narrowed)
        elif isinstance(s, Loop):
            _, high = interval(s.count, values, ranges)
            inner = {**ranges, s.var: (0.0, high - 1)} if s.var else ranges
            yield from _placed(s.body, inner, values, branched)
        else:
            own = {a.name: (0.0, a.extent - 1.0) for a in s.axes} if isinstance(s, Assign) else {}
            yield s, {**ranges, **own}, branched


def _parts(access: Access, leaf: Leaf) -> list[tuple[ast.expr, int]] | None:
    """First position and size along each axis; None for all of a buffer."""
    if isinstance(leaf, (Raw, Broken)) or (access.region and not access.region.index):
        return None
    if access.region is None:
        return [(i, 1) for i in access.index]
    return [(p.at, 1) if isinstance(p, Point) else (p.start, p.size) for p in access.region.index]


def _box(access: Access, leaf: Leaf, shape: tuple[int, ...], ranges, values) -> Box:
    """The positions that an access may reach along each axis, no further than the buffer."""
    parts = _parts(access, leaf)
    if parts is None:
        return tuple((0, n - 1) for n in shape)
    out = []
    for (start, size), extent in zip(parts, shape):
        low, high = interval(start, values, ranges)
        out.append((max(low, 0), min(high + size - 1, extent - 1)))
    return tuple(out)


def _hull(a: Box, b: Box) -> Box:
    return tuple((min(x[0], y[0]), max(x[1], y[1])) for x, y in zip(a, b))


def _is_exact(access: Access, leaf: Leaf, ranges, values, branched: frozenset[str]) -> bool:
    """Whether all of an access's box is really read: no condition decides, every index takes all values."""
    if isinstance(leaf, (Raw, Broken)):
        return False
    if isinstance(leaf, Assign):
        asks = any(isinstance(n, ast.Call) and n.func.id == "where" for n in ast.walk(leaf.value))
        if leaf.guard is not None or asks:
            return False
    for start, _ in _parts(access, leaf) or ():
        terms = set(linear(start, values)) - {""}
        if not all(
            t in ranges and math.isfinite(ranges[t][1]) and t not in branched for t in terms
        ):
            return False
    return True
