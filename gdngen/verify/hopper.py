"""Static checks for sm_90, where TileLang 0.1.15 splits producer warps off a pipelined loop.

A producer runs ahead of the other warps and waits for nothing but the tiles that it refills; the
compiler says nothing of what goes wrong then:
- a slot with two tenants that TMA loads in the loop: the second is overwritten while it is read;
- a tile that the loop loads without TMA: it waits for another tile's barrier, and is overwritten
  where that one is done with earlier;
- a tile that a loop computes from a tensor among others is taken for a load, and gets a copy a stage;
- a fragment copied to a shared tile before the loop: the producer's warps, whose registers hold
  nothing, do the copy as well, and write beside the tile.

The first is looked for in the plan and again in what TileLang lowered; the others, both seen on an
H200 as wrong results, in the program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gdngen.model import model
from gdngen.model.model import Copy, Kernel, Loop, Statement
from gdngen.plan import storage
from gdngen.plan.storage import Slot
from gdngen.verify.blame import storages
from gdngen.verify.lowering import Lowered

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
    return (
        *in_plan(kernel, slots),
        *in_program(kernel, slots),
        *in_source(lowered, slots, kernel.threads),
    )


def in_program(kernel: Kernel, slots: Iterable[Slot]) -> tuple[str, ...]:
    """Loads of a split loop that TMA does not do, and copies of fragments before it."""
    slots = tuple(slots)
    loads = storage.pipelined_loads(kernel, slots, TARGET)
    if not loads:
        return ()
    found = []
    loop = next(_pipelined(kernel.statements()))
    for leaf in model.leaves(loop):
        name = leaf.writes()[0].name
        slot = next((s for s in slots if name in s.tenants), None)
        read = [a.name for a in leaf.reads()]
        outside = [r for r in read if kernel.tensor(r) is not None]
        moved = bool(read) and len(outside) == len(read)
        if slot and outside and not moved:
            found.append(
                f"{TARGET}: line {leaf.where.line}: '{name}' is made of '{outside[0]}' in a pipelined loop, "
                "and TileLang takes what reads a tensor for a load: read it before the loop, as a scalar"
            )
        if slot and moved and slot.tenants[-1] not in loads:
            found.append(
                f"{TARGET}: line {leaf.where.line}: '{name}' is loaded without TMA in a pipelined loop "
                "that TMA loads other tiles for: it may be overwritten while it is read"
            )
    fragments = {b.name for b in kernel.buffers if b.scope == "fragment"}
    for s in kernel.statements():
        if s is loop:
            break
        for leaf in model.leaves(s):
            if (
                isinstance(leaf, Copy)
                and leaf.src.name in fragments
                and kernel.buffer(leaf.dst.name)
            ):
                found.append(
                    f"{TARGET}: line {leaf.where.line}: '{leaf.src.name}' is copied before a pipelined "
                    f"loop that TMA loads tiles for: copy it inside the loop"
                )
    return tuple(dict.fromkeys(found))


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
