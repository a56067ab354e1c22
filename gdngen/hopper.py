"""Static check for sm_90: no slot with two tenants is loaded by TMA inside a pipelined loop.

There a producer's warps run ahead of the others and wait for nothing but the tiles they refill: a
second tenant of such a tile is overwritten while it is still being read, and the compiler says
nothing. The check looks at the plan, and again at what TileLang lowered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gdngen import model, storage
from gdngen.blame import storages
from gdngen.lowering import Lowered
from gdngen.model import Copy, Kernel, Loop, Statement
from gdngen.storage import Slot

TARGET = "sm_90"
_LOAD = re.compile(r"\btl::tma_load\w*(?:<[^<>]*>)?\(")
_NAME = re.compile(r"[A-Za-z_]\w*")
_LOOP = re.compile(r"^\s*for \(")
_LAUNCH = re.compile(r"__launch_bounds__\((\d+)[^)]*\)")


def applies(kernel: Kernel, target: str) -> bool:
    """Whether the check is about this kernel: a pipelined loop, for a Hopper GPU."""
    return target.startswith(TARGET) and any(_pipelined(kernel.statements()))


def problems(kernel: Kernel, slots: Iterable[Slot], lowered: Lowered) -> tuple[str, ...]:
    """What is wrong with a plan for sm_90 and with what it was lowered to; a line each."""
    slots = tuple(slots)
    return (*in_plan(kernel, slots), *in_source(lowered, slots, kernel.threads))


def in_plan(kernel: Kernel, slots: Iterable[Slot]) -> tuple[str, ...]:
    """Tenants that a pipelined loop loads, and that share their slot."""
    found = []
    loads = storage.pipelined_loads(kernel, tuple(slots), TARGET)
    for loop in _pipelined(kernel.statements()):
        for load in model.leaves(loop):
            if not isinstance(load, Copy) or kernel.tensor(load.src.name) is None:
                continue
            slot = next((s for s in slots if load.dst.name in s.tenants), None)
            if slot is None or len(slot.tenants) < 2 or slot.tenants[-1] not in loads:
                continue
            others = ", ".join(t for t in slot.tenants if t != load.dst.name)
            found.append(
                f"{TARGET}: line {load.where.line}: '{load.dst.name}' is loaded by TMA in a pipelined "
                f"loop and shares its slot with {others}"
            )
    return tuple(dict.fromkeys(found))


def in_source(lowered: Lowered, slots: Iterable[Slot], threads: int) -> tuple[str, ...]:
    """Lines of lowered CUDA where a producer's loop loads bytes that several tenants have.

    threads  that the kernel asked for; a launch of as many has no producer
    """
    launch = max((int(n) for n in _LAUNCH.findall(lowered.source)), default=0)
    if launch <= threads:
        return ()
    places = storages(lowered.source, slots, lowered.dynamic_bytes)
    found = []
    for number, line in loads_in_loops(lowered.source):
        names = set(_NAME.findall(line))
        for to in (place for place in places if place.name in names):
            meeting = [p for p in places if p.low < to.high and to.low < p.high]
            tenants = [t for p in meeting for t in (p.slot.tenants if p.slot else (p.name,))]
            if len(tenants) > 1:
                found.append(
                    f"{TARGET}: CUDA line {number}: TMA loads '{to.name}' in a pipelined loop, at "
                    f"bytes {to.low:,} to {to.high:,}, which are those of {', '.join(tenants)}"
                )
    return tuple(found)


def loads_in_loops(source: str) -> Iterator[tuple[int, str]]:
    """Lines of CUDA, from 1, with a TMA load inside a loop."""
    loops: list[int] = []  # depth of braces at which each loop that is open began
    depth = 0
    for number, line in enumerate(source.splitlines(), 1):
        if _LOOP.match(line):
            loops.append(depth)
        depth += line.count("{") - line.count("}")
        while loops and depth <= loops[-1] and not _LOOP.match(line):
            loops.pop()
        if loops and _LOAD.search(line):
            yield number, line


def _pipelined(body: tuple[Statement, ...]) -> Iterator[Loop]:
    for s in body:
        if isinstance(s, Loop) and s.kind == "pipelined":
            yield s
            continue
        for group in model.children(s):
            yield from _pipelined(group)
