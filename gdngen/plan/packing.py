"""Where TileLang 0.1.15 puts the storages of a block in its one shared buffer.

Sizes, alignments and offsets are bytes. A storage goes by the name that it has in the lowered
code: the *last* Python name that the kernel binds to it (`k_beta = P` renames P to k_beta).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

BASE_ALIGN = 16


def up(value: int, align: int) -> int:
    """The least multiple of `align` that is not below `value`."""
    return -(-value // align) * align


def plain_layout(
    sizes: Mapping[str, int], align: Mapping[str, int] = {}
) -> tuple[int, dict[str, int]]:
    """Total and offsets with `tl.disable_shared_memory_reuse`: storages in order of their names."""
    if len(sizes) == 1:  # one storage is not merged, nor rounded up
        return sum(sizes.values()), dict.fromkeys(sizes, 0)
    top, offsets = 0, {}
    for name in sorted(sizes):
        offsets[name] = up(top, max(BASE_ALIGN, align.get(name, 0)))
        top = offsets[name] + sizes[name]
    return up(top, BASE_ALIGN), offsets


def merged_layout(
    statements: Sequence[frozenset[str]],
    sizes: Mapping[str, int],
    align: Mapping[str, int] = {},
    loops: Collection[int] = (),
) -> tuple[int, dict[str, int]]:
    """Total and offsets that the compiler's default merge arrives at.

    statements  the storages that each top-level statement of the block touches, in order: a loop
                is one statement, a branch with an else one, a branch without counts as the
                statements that it guards
    loops       which of them, by index, are loops of several statements
    """
    if len(sizes) == 1:
        return sum(sizes.values()), dict.fromkeys(sizes, 0)
    start, end = _lifetimes(statements, loops)
    free = _FreeBlocks()
    live: list[tuple[int, str]] = []
    top, offsets = 0, {}
    for name in sorted(start, key=lambda name: (start[name], -sizes[name], name)):
        for entry in [entry for entry in live if entry[0] <= start[name]]:
            live.remove(entry)
            free.add(offsets[entry[1]], sizes[entry[1]])
        alignment = max(BASE_ALIGN, align.get(name, 0))
        offset = free.best_fit(sizes[name], alignment)
        if offset is None:
            offset = free.tail(alignment, top)
            if offset is None:
                offset = up(top, alignment)
                free.add(top, offset - top)
            top = offset + sizes[name]
        offsets[name] = offset
        live.append((end[name], name))
    return up(top, BASE_ALIGN), offsets


def _lifetimes(
    statements: Sequence[frozenset[str]], loops: Collection[int]
) -> tuple[dict[str, int], dict[str, int]]:
    """The statement from which each storage lives, and the one before which it is dead."""
    start: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, touched in enumerate(statements):
        for name in touched:
            start.setdefault(name, index)
            last[name] = index
    # What was born outside and dies in a loop dies after the loops that follow it directly.
    events = sorted({*start.values(), *last.values()})
    for name, index in list(last.items()):
        if index in loops and start[name] not in loops:
            for later in events[events.index(index) + 1 :]:
                if later not in loops:
                    break
                last[name] = later
    return start, {name: index + 1 for name, index in last.items()}


class _FreeBlocks:
    """Free blocks `[offset, size]` of the arena: disjoint, in order, none beside another."""

    def __init__(self) -> None:
        self.blocks: list[list[int]] = []

    def add(self, offset: int, size: int) -> None:
        if not size:
            return
        joined: list[list[int]] = []
        for block in sorted([*self.blocks, [offset, size]]):
            if joined and sum(joined[-1]) >= block[0]:
                joined[-1][1] = max(sum(joined[-1]), sum(block)) - joined[-1][0]
            else:
                joined.append(block)
        self.blocks = joined

    def best_fit(self, size: int, alignment: int) -> int | None:
        """Cut `size` from the block that it fills best; None where no block holds it."""
        fits = [b for b in self.blocks if up(b[0], alignment) + size <= sum(b)]
        if not fits:
            return None
        block = min(fits, key=lambda b: b[1])
        self.blocks.remove(block)
        offset = up(block[0], alignment)
        self.add(block[0], offset - block[0])
        self.add(offset + size, sum(block) - offset - size)
        return offset

    def tail(self, alignment: int, top: int) -> int | None:
        """Take the block that ends at `top`, too small as it is: the arena grows beyond it."""
        if not self.blocks or sum(self.blocks[-1]) != top:
            return None
        offset = up(self.blocks[-1][0], alignment)
        if offset >= top:
            return None
        start, _ = self.blocks.pop()
        self.add(start, offset - start)
        return offset
