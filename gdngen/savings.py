"""What each thing that a lean plan does is worth: the bytes more that slots would take without it."""

from dataclasses import replace

from gdngen import blocks, order as orders, programs, slots as packing
from gdngen.model import Kernel
from gdngen.plan import Planned
from gdngen.rewrite import Change


def savings(author: Kernel, planned: Planned, allow_reload: bool) -> tuple[int, ...]:
    """Bytes for each of the plan's changes, undone alone; 0 where it serves something else."""
    have = sum(s.bytes for s in planned.plan.slots)
    return tuple(
        max(0, _without(author, planned, c, allow_reload) - have) for c in planned.plan.changes
    )


def _without(author: Kernel, planned: Planned, change: Change, allow_reload: bool) -> int:
    match change.kind:
        case "in place":
            apart = frozenset({change.names})
            return sum(s.bytes for s in packing.pack(planned.kernel, planned.found, apart))
        case "moved":
            return _with_in_its_place(author, planned, change, allow_reload)
        case "strips" | "reload":
            return min(
                orders.least(blocks.block_of(program)).bytes
                for program, changes in programs.programs(author, allow_reload)
                if not any(
                    c.kind == change.kind and set(c.names) & set(change.names) for c in changes
                )
            )
    return 0  # a store through an idle tile takes no bytes and gives none


def _with_in_its_place(author: Kernel, planned: Planned, change: Change, allow_reload: bool) -> int:
    """The least bytes of the same program with one statement kept where the author has it."""
    told = [c.text for c in planned.plan.changes if c.kind in ("strips", "reload")]
    program = next(
        p
        for p, changes in programs.programs(author, allow_reload)
        if [c.text for c in changes] == told
    )
    moved = {c.at for c in planned.plan.changes if c.kind == "moved"}
    body = program.statements()
    unit = next(i for i, s in enumerate(body) if s.id == change.at)
    stays = [i for i, s in enumerate(body) if s.id not in moved]
    block = blocks.block_of(program)
    before = list(block.before)
    before[unit] |= sum(1 << i for i in stays if i < unit)
    for i in stays:
        if i > unit:
            before[i] |= 1 << unit
    found = orders.least(replace(block, before=tuple(before)))
    return found.bytes if found else 0
