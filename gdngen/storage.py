"""Bytes that TileLang's compiler will ask for, given the slots: with its own merging and without.

The rules of the compiler are in `compiler.py`; this module tells it what the kernel does.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gdngen import compiler
from gdngen.model import Assign, Kernel, Statement, children, touched


@dataclass(frozen=True)
class Layout:
    """Dynamic and static shared bytes of a block."""

    dynamic: int
    static: int


def fused(statements: Sequence[Statement]) -> Iterable[Statement | tuple[Assign, ...]]:
    """Statements as they are emitted: assignments written in one map stay one loop where they can.

    A later assignment may join if it meets earlier ones only at the same element: threads run the
    loop's points in any order.
    """
    run: list[Assign] = []
    for s in statements:
        if run and isinstance(s, Assign) and _joins(run, s):
            run.append(s)
            continue
        if run:
            yield tuple(run)
        run = [s] if isinstance(s, Assign) else []
        if not run:
            yield s
    if run:
        yield tuple(run)


def _joins(run: list[Assign], s: Assign) -> bool:
    from ast import dump

    first = run[0]
    if (s.group, s.axes, s.stage) != (first.group, first.axes, first.stage):
        return False
    seen: dict[str, set[tuple[str, ...]]] = {}
    for other in run:
        for a in other.reads() + other.writes():
            seen.setdefault(a.name, set()).add(tuple(dump(i) for i in a.index))
    written = {other.name for other in run}
    for a in s.reads() + s.writes():
        meets = a.name in written or (a.name in seen and a.name == s.name)
        if meets and seen[a.name] != {tuple(dump(i) for i in a.index)}:
            return False
    return True


def layouts(kernel: Kernel, slots, target: str) -> tuple[Layout, Layout]:
    """(as the slots are, after the compiler's default merging)."""
    slot_of = {t: s.name for s in slots for t in s.tenants}
    sizes = {s.name: s.bytes for s in slots}
    align: dict[str, int] = {}
    events = [
        frozenset(slot_of[n] for n in _names(s) if n in slot_of) for s in fused(kernel.statements())
    ]
    plain, _ = compiler.plain_layout(sizes, align)
    merged, _ = compiler.merged_layout(events, sizes, align)
    return Layout(plain, 0), Layout(merged, 0)


def _names(s: Statement | tuple[Assign, ...]) -> list[str]:
    return [n for a in s for n in touched(a)] if isinstance(s, tuple) else list(touched(s))
