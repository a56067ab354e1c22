"""Where a plan puts every shared buffer, in bytes of the block's shared memory: what the judge judges."""

import itertools
import math
from collections.abc import Iterator, Sequence

from gdngen.judge.arena import Address
from gdngen.model.model import BYTES, Kernel, Statement, children
from gdngen.plan import emission
from gdngen.plan.plan import Plan

ALIGNMENT = 1024


def addresses(kernel: Kernel, plan: Plan) -> dict[str, Address]:
    """Every slot on its own, in order, at multiples of `ALIGNMENT`; tenants at their first column."""
    found: dict[str, Address] = {}
    offset = 0
    for slot in plan.slots:
        for tenant in slot.tenants:
            size, sides = BYTES[slot.dtype_of(tenant)], reversed(slot.seen(tenant)[1:])
            strides = [*itertools.accumulate(sides, lambda a, b: a * b, initial=1)]
            strides = tuple(size * s for s in reversed(strides))
            start = offset + slot.column(tenant) * strides[-1]
            rank = len(kernel.buffer(tenant).shape)
            found[tenant] = Address(start, strides[len(strides) - rank :], size)
        offset += math.ceil(slot.bytes / ALIGNMENT) * ALIGNMENT
    return found


def together(kernel: Kernel, plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Ids of the assignments that are emitted as one parallel loop, for each such loop."""
    home = emission.homes(plan.slots)

    def groups(body: Sequence[Statement]) -> Iterator[tuple[int, ...]]:
        for s in emission.fused(body, home):
            if isinstance(s, tuple):
                yield tuple(a.id for a in s)
            else:
                for inner in children(s):
                    yield from groups(inner)

    return tuple(g for stage in kernel.stages for g in groups(stage.body) if len(g) > 1)
