"""What each thing that a lean plan does is worth: the bytes more that slots would take without it."""

from dataclasses import replace

from gdngen.model.analysis import analyse
from gdngen.model.model import Kernel
from gdngen.plan import blocks, programs, rewrite
from gdngen.plan import order as orders
from gdngen.plan import slots as packing
from gdngen.plan.order import Block
from gdngen.plan.plan import Planned, Wish
from gdngen.plan.rewrite import Change


def savings(author: Kernel, planned: Planned, wish: Wish) -> tuple[int, ...]:
    """Bytes for each of the plan's changes, undone alone; 0 where it serves something else."""
    have = sum(s.bytes for s in planned.plan.slots)
    return tuple(max(0, _without(author, planned, c, wish) - have) for c in planned.plan.changes)


def _views(program: Kernel, planned: Planned, wish: Wish) -> frozenset[str]:
    return packing.viewable(program, planned.plan.target) if wish.allow_views else frozenset()


def _without(author: Kernel, planned: Planned, change: Change, wish: Wish) -> int:
    match change.kind:
        case "in place":
            apart = frozenset({change.names})
            views = _views(planned.kernel, planned, wish)
            made = packing.pack(planned.kernel, planned.found, apart, views)
            return sum(s.bytes for s in made)
        case "moved":
            return _with_in_its_place(author, planned, change, wish)
        case "strips" | "reload" | "direct":
            return min(
                _packed(program, _views(program, planned, wish))
                for program, changes in programs.programs(author, wish.allow_reload)
                if not any(
                    c.kind == change.kind and set(c.names) & set(change.names) for c in changes
                )
            )
    return 0  # a store through an idle tile takes no bytes and gives none


def _packed(program: Kernel, views: frozenset[str], block: Block | None = None) -> int:
    """Bytes of a program's slots in its least order; 0 where its fragments fit in none."""
    found = orders.least(block or blocks.block_of(program, views=views))
    if found is None:
        return 0
    program = rewrite.reordered(program, found.order, set(orders.moves(found.order)))
    slots = packing.pack(program, analyse(program), views=views)
    return sum(s.bytes for s in slots)


def _with_in_its_place(author: Kernel, planned: Planned, change: Change, wish: Wish) -> int:
    """The least bytes of the same program with one statement kept where the author has it."""
    told = [c.text for c in planned.plan.changes if c.kind in ("strips", "reload", "direct")]
    program = next(
        p
        for p, changes in programs.programs(author, wish.allow_reload)
        if [c.text for c in changes] == told
    )
    moved = {c.at for c in planned.plan.changes if c.kind == "moved"}
    body = program.statements()
    unit = next(i for i, s in enumerate(body) if s.id == change.at)
    stays = [i for i, s in enumerate(body) if s.id not in moved]
    views = _views(program, planned, wish)
    block = blocks.block_of(program, views=views)
    before = list(block.before)
    before[unit] |= sum(1 << i for i in stays if i < unit)
    for i in stays:
        if i > unit:
            before[i] |= 1 << unit
    return _packed(program, views, replace(block, before=tuple(before)))
