"""Live ranges and interference, from what the statements read and write.

A buffer is live at a statement if it holds a value there that something may still read (backward
dataflow over the structured program, loops to a fixed point) and that something has written
(forward). An overwrite of the whole buffer starts a new value; a partial one keeps the old alive.
Two buffers interfere if they are live at one statement, so a statement's source and target always do.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from gdngen.errors import Report
from gdngen.model import model, written
from gdngen.model.model import Branch, Kernel, Leaf, Loop, Statement

Names = frozenset[str]


@dataclass(frozen=True)
class Analysis:
    """Live ranges of one order of statements.

    order: leaf statements as they run; live: leaf id -> buffers that hold a value during it;
    after: leaf id -> buffers that hold a value behind it; before: the same ahead of it;
    private: buffers that a pipelined loop loads, which share storage with nothing.
    """

    order: tuple[Leaf, ...]
    live: Mapping[int, Names]
    before: Mapping[int, Names]
    after: Mapping[int, Names]
    private: Names

    def span(self, name: str) -> tuple[int, int]:
        """Positions in `order` of the first and the last statement at which a buffer is live."""
        return self._spans[name]

    @cached_property
    def _spans(self) -> Mapping[str, tuple[int, int]]:
        spans: dict[str, tuple[int, int]] = {}
        for i, leaf in enumerate(self.order):
            for name in self.live[leaf.id]:
                spans[name] = spans.get(name, (i, i))[0], i
        return spans

    def stages(self, name: str) -> tuple[str, str]:
        first, last = self.span(name)
        return self.order[first].stage, self.order[last].stage

    def interfere(self, a: str, b: str) -> bool:
        return a != b and (a in self.private or b in self.private or b in self._beside[a])

    @cached_property
    def _beside(self) -> Mapping[str, Names]:
        """Buffer -> those that are live at a statement where it is."""
        beside: dict[str, set[str]] = defaultdict(set)
        for names in self.live.values():
            for name in names:
                beside[name] |= names
        return defaultdict(frozenset, {name: frozenset(them) for name, them in beside.items()})

    def meeting(self, a: str, b: str) -> Leaf | None:
        """The first statement at which both are live."""
        return next((leaf for leaf in self.order if {a, b} <= self.live[leaf.id]), None)

    def peak(self, size: Mapping[str, int]) -> tuple[int, Leaf]:
        """The most bytes live at one statement, and that statement."""
        return max(
            ((sum(size.get(n, 0) for n in self.live[leaf.id]), leaf) for leaf in self.order),
            key=lambda p: (p[0], -self.order.index(p[1])),
        )


def analyse(kernel: Kernel) -> Analysis:
    """Live ranges in the order that the kernel has now."""
    names = frozenset(b.name for b in kernel.buffers)
    statements = kernel.statements()
    flow = _Flow(names)
    flow.backward(statements, frozenset())
    flow.forward(statements, frozenset())
    order = tuple(kernel.leaves())
    live = {
        leaf.id: ((flow.before[leaf.id] | flow.after[leaf.id]) & flow.written[leaf.id])
        | _used(leaf) & names
        for leaf in order
    }
    private: set[str] = set()
    for loop in _loops(statements):
        if loop.kind == "pipelined":
            inside = [leaf.id for leaf in model.leaves(loop)]
            together = frozenset().union(*(live[i] for i in inside))
            live |= {i: together for i in inside}
            private |= loaded(loop) & names
    return Analysis(order, live, flow.before, flow.after, frozenset(private))


def loaded(loop: Loop) -> Names:
    """Buffers that a loop's copies fill."""
    inside = [leaf for leaf in model.leaves(loop) if isinstance(leaf, model.Copy)]
    return frozenset(leaf.dst.name for leaf in inside)


def _loops(statements: Iterable[Statement]) -> Iterable[Loop]:
    for s in statements:
        if isinstance(s, Loop):
            yield s
        for group in model.children(s):
            yield from _loops(group)


def _used(leaf: Leaf) -> Names:
    return frozenset(a.name for a in leaf.reads() + leaf.writes())


class _Flow:
    """Dataflow over the structured program; leaf id -> names before, after, and written so far."""

    def __init__(self, names: Names):
        self.names = names
        self.before: dict[int, Names] = {}
        self.after: dict[int, Names] = {}
        self.written: dict[int, Names] = {}

    def backward(self, body: tuple[Statement, ...], live: Names) -> Names:
        """Names live before `body`, given those live after it."""
        for s in reversed(body):
            if isinstance(s, Leaf):
                self.after[s.id] = live
                killed = {a.name for a in s.writes() if a.whole}
                live = (live - killed) | {a.name for a in s.reads() if a.name in self.names}
                self.before[s.id] = live
            elif isinstance(s, Branch):
                live = self.backward(s.then, live) | self.backward(s.other, live)
            else:
                live = self._loop(s, live)
        return live

    def _loop(self, loop: Loop, live: Names) -> Names:
        head: Names = frozenset()
        while True:
            again = self.backward(loop.body, live | (head if loop.trips != 1 else frozenset()))
            if again <= head:
                return head if loop.runs else head | live
            head |= again

    def forward(self, body: tuple[Statement, ...], written: Names) -> Names:
        """Names that may have been written after `body`, given those before it."""
        for s in body:
            if isinstance(s, Leaf):
                now = written | {a.name for a in s.writes()}
                self.written[s.id] = now
                written = now
            elif isinstance(s, Branch):
                written = self.forward(s.then, written) | self.forward(s.other, written)
            else:
                written = self.forward(s.body, self.forward(s.body, written))
        return written


def check(kernel: Kernel, report: Report) -> Analysis:
    """The analysis of the author's order; reads of what is not written and wrong lifetimes reported."""
    found = analyse(kernel)
    written.check(kernel, report)
    for buffer in kernel.buffers:
        _check_lifetime(kernel, buffer, found, report)
        _check_read(kernel, buffer, report)
    return found


def _check_lifetime(kernel: Kernel, buffer: model.Buffer, found: Analysis, report: Report) -> None:
    """A declared lifetime is a contract: too short is an error, too long a warning."""
    if not buffer.live:
        return
    stages = [s.name for s in kernel.stages]
    first, last = found.stages(buffer.name)
    right = f"live: {first} .. {last}" if first != last else f"live: {first}"
    places = {s: i for i, s in enumerate(stages)}
    start, end = (places.get(s) for s in buffer.live)
    if start is None or end is None:
        return  # a stage that is empty in this variant; other variants check it
    if places[first] < start:
        use = _use(found, buffer.name, first)
        report.error(
            buffer.live_where[0],
            f"'{buffer.name}' is used in stage '{first}' (line {use}), before its lifetime starts with "
            f"'{buffer.live[0]}'",
            right,
            kind=f"live {buffer.name}",
        )
    if places[last] > end:
        use = _use(found, buffer.name, last)
        report.error(
            buffer.live_where[1],
            f"'{buffer.name}' is used in stage '{last}' (line {use}), after its lifetime ends with "
            f"'{buffer.live[1]}'",
            right,
            kind=f"live {buffer.name}",
        )
    if places[first] > start or places[last] < end:
        report.warning(
            buffer.live_where[0 if places[first] > start else 1],
            f"the lifetime of '{buffer.name}' is longer than its use, {first} .. {last}",
            right,
            kind=f"long {buffer.name}",
        )


def _use(found: Analysis, name: str, stage: str) -> int:
    """Line of the first access to a buffer in a stage (of the stage's first statement if none)."""
    in_stage = [leaf for leaf in found.order if leaf.stage == stage]
    lines = (
        a.where.line for leaf in in_stage for a in leaf.reads() + leaf.writes() if a.name == name
    )
    return next(lines, in_stage[0].where.line)


def _check_read(kernel: Kernel, buffer: model.Buffer, report: Report) -> None:
    if not any(a.name == buffer.name for leaf in kernel.leaves() for a in leaf.reads()):
        report.warning(
            buffer.where,
            f"'{buffer.name}' is written but never read",
            "take it out, with the statements that write it",
            kind=f"unread {buffer.name}",
        )
