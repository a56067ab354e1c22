"""Copies that TMA makes by itself in a kernel without roles: where they start and what waits for them.

A kernel that says `async` has its whole tiles loaded and stored so on devices that can. A load starts
where it stands and is waited for where its tile is first touched; a store goes on until its tile's
storage is written again. TMA reads 0 outside a tensor and writes nothing there: no bounds checks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gdngen.errors import Location
from gdngen.language import expr
from gdngen.model.model import BYTES, Copy, Kernel, Region, Span, Statement, leaves
from gdngen.plan import rewrite
from gdngen.plan.emission import Emitted, Home, emitted, homes, members
from gdngen.plan.instructions import has_tma
from gdngen.roles.sync import (
    AsyncLoad,
    AsyncStore,
    Barrier,
    BarrierArrive,
    BarrierWait,
    Drain,
    Fence,
    Together,
)

if TYPE_CHECKING:
    from gdngen.plan.storage import Slot

UNIT = 16  # bytes, of which TMA moves whole ones
SIDE = 256  # elements, the longest side of what one copy moves
ROUND = ast.Constant(0)  # a barrier is used once


def wanted(kernel: Kernel, target: str) -> bool:
    """Whether a kernel's copies are made so on a target."""
    return kernel.asynchronous and has_tma(target) and any(_bulk(kernel))


def loads(kernel: Kernel) -> list[Copy]:
    return [c for c in _bulk(kernel) if kernel.tensor(c.src.name)]


def _bulk(kernel: Kernel) -> Iterator[Copy]:
    """Copies of whole tiles from and to tensors, outside loops and branches."""
    for s in kernel.statements():
        if isinstance(s, Copy) and _is_bulk(s, kernel):
            yield s


def _is_bulk(copy: Copy, kernel: Kernel) -> bool:
    for tile, tensor in ((copy.dst, copy.src), (copy.src, copy.dst)):
        buffer = kernel.buffer(tile.name)
        if kernel.tensor(tensor.name) is None or buffer is None or buffer.scope != "shared":
            continue
        whole = tile.whole and len(buffer.shape) > 1 and max(buffer.shape) <= SIDE
        alike = buffer.dtype == kernel.tensor(tensor.name).dtype
        return whole and alike and _is_box(tensor, kernel, BYTES[buffer.dtype])
    return False


def _is_box(region: Region, kernel: Kernel, size: int) -> bool:
    """Whether rows are whole and a multiple of what TMA moves, and no range ends early."""
    spans = [p for p in region.index if isinstance(p, Span)]
    values = dict(kernel.values)
    as_long = all(
        p.full or expr.linear(ast.BinOp(p.stop, ast.Sub(), p.start), values) == {"": p.size}
        for p in spans
    )
    last = region.index[-1] if region.index else None
    rows = isinstance(last, Span) and last.full and last.size * size % UNIT == 0
    return as_long and rows


def barriers(kernel: Kernel) -> tuple[Barrier, ...]:
    """One for each load, which every thread arrives at."""
    return tuple(
        Barrier(rewrite.fresh(kernel, f"{c.dst.name}_full"), 1, kernel.threads)
        for c in loads(kernel)
    )


def timed(kernel: Kernel, slots: Iterable[Slot]) -> tuple[tuple[Emitted, ...], ...]:
    """Each stage's statements as they are emitted, with what starts copies and what waits for them."""
    home = homes(slots)
    place = {t: s.name for s in slots for t in s.tenants}
    bulk = {c.id for c in _bulk(kernel)}
    barrier = {c.id: b for c, b in zip(loads(kernel), barriers(kernel))}
    coming: dict[str, Barrier] = {}  # storage -> what says that its tile is there
    leaving: set[str] = set()  # storages that stores may still be reading
    used: set[str] = set()
    stages = []
    for stage in kernel.stages:
        out: list[Emitted] = []
        for s in _apart(stage.body, bulk, kernel, home):
            touches, writes = _storages(s, place)
            for storage in [n for n in coming if n in touches]:
                out.append(BarrierWait(*_at(s), coming.pop(storage), ROUND, 0))
            load = isinstance(s, Copy) and s.id in barrier
            # What threads did there is done before TMA writes, and what TMA reads before anyone does.
            settled = [Fence(*_at(s))] if load and touches & used else []
            if writes & leaving:
                settled.append(Drain(*_at(s)))
                leaving.clear()
            out += [*settled, Together(*_at(s))] if settled else []
            if load:
                out += [AsyncLoad(*_at(s), s, barrier[s.id], ROUND)]
                out += [BarrierArrive(*_at(s), barrier[s.id], ROUND)]
                coming |= {n: barrier[s.id] for n in touches}
            elif isinstance(s, Copy) and s.id in bulk:
                out += [Fence(*_at(s)), Together(*_at(s)), AsyncStore(*_at(s), s)]
                leaving |= touches
            else:
                out.append(s)
            used |= touches
        stages.append(out)
    if leaving:
        stages[-1].append(Drain(-1, kernel.stages[-1].where, kernel.stages[-1].name))
    return tuple(map(tuple, stages))


def _apart(
    body: Sequence[Statement], bulk: set[int], kernel: Kernel, home: Home
) -> Iterator[Emitted]:
    """`emitted`, with what TMA copies taken out of the groups of loads: it needs no bounds checks."""
    run: list[Statement] = []
    for s in body:
        if isinstance(s, Copy) and s.id in bulk:
            yield from emitted(run, kernel, home)
            run = []
            yield s
        else:
            run.append(s)
    yield from emitted(run, kernel, home)


def _at(s: Emitted) -> tuple[int, Location, str]:
    """Id, line and stage of what is put in before a statement."""
    first = next(leaf for x in members(s) for leaf in leaves(x))
    return -1, first.where, first.stage


def _storages(s: Emitted, place: Mapping[str, str]) -> tuple[set[str], set[str]]:
    """Storages that a statement touches, and those of them that it writes."""
    inside = [leaf for x in members(s) for leaf in leaves(x)]
    writes = {place[a.name] for x in inside for a in x.writes() if a.name in place}
    return writes | {place[a.name] for x in inside for a in x.reads() if a.name in place}, writes
