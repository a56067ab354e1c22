"""What TileLang 0.1.15 makes of a `T.Pipelined` loop: copies of its tiles, and barriers.

Two passes compete. Where TMA can load a tile of the loop, a producer's warps are split off and
wait on mbarriers, which are static shared memory. Elsewhere the loop is software-pipelined.
AMD targets but gfx950 run it as a plain loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .instructions import Copy, Tile, is_modelled, is_tma

BARRIER_BYTES = 8


@dataclass(frozen=True)
class Statement:
    """One statement of a block: the shared tiles that it reads and writes.

    load    the copy, where the statement is one from a global tensor into a shared tile
    simt    whether it is a parallel loop that only moves global values into shared tiles
    """

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    load: Copy | None = None
    simt: bool = False

    @property
    def touches(self) -> frozenset[str]:
        return self.reads | self.writes


@dataclass(frozen=True)
class Loop:
    """A pipelined loop of `stages`: its body, and the statements of the block before it."""

    stages: int
    body: tuple[Statement, ...]
    before: tuple[Statement, ...] = ()


def is_specialised(loop: Loop, tiles: Mapping[str, Tile], target: str) -> bool:
    """Whether a producer's warps are split off: TMA can load one of the loop's tiles."""
    return loop.stages >= 1 and any(_is_producer(s, tiles, target) for s in loop.body)


def _is_producer(statement: Statement, tiles: Mapping[str, Tile], target: str) -> bool:
    load = statement.load
    return load is not None and is_tma(load, tiles[load.tile], target, producer=True)


def is_pipelined(loop: Loop, target: str) -> bool:
    return loop.stages >= 1 and (not target.startswith("gfx") or target == "gfx950")


def versions(loop: Loop, target: str) -> dict[str, int]:
    """Copies that the compiler keeps of each tile that the loop loads; all others have one."""
    if not is_pipelined(loop, target) or loop.stages == 1:
        return {}
    kept: dict[str, int] = {}
    for index, statement in enumerate(loop.body):
        if statement.load is None and not statement.simt:
            continue
        later = frozenset().union(*(other.reads for other in loop.body[index + 1 :]))
        kept |= dict.fromkeys(sorted(statement.writes & later), loop.stages)
    return kept


def producer_loads(loop: Loop, tiles: Mapping[str, Tile], target: str) -> tuple[Copy, ...]:
    """The loads that TMA does: the loop's, and those before it whose tiles the loop reads."""
    if not is_specialised(loop, tiles, target):
        return ()
    consumers = _consumers(loop, tiles, target)
    read = frozenset().union(*(statement.reads for statement in consumers))
    return tuple(
        statement.load
        for statement in (*loop.before, *loop.body)
        if _is_producer(statement, tiles, target)
        and (statement in loop.body or statement.load.tile in read)
    )


def barrier_bytes(loop: Loop, tiles: Mapping[str, Tile], target: str) -> int:
    """Static bytes of the mbarriers: full and empty for each load and stage.

    Loads that are first waited for and last used at the same statements share theirs; a load
    before the loop has one of its own.
    """
    loads = producer_loads(loop, tiles, target)
    if not loads:
        return 0
    inside = [s.load for s in loop.body if _is_producer(s, tiles, target)]
    consumers = _consumers(loop, tiles, target)
    spans = {_span(load.tile, consumers) for load in inside}
    shared = len(spans) == 1 and not any(statement.simt for statement in loop.body)
    groups = 1 if shared else len(inside)
    return BARRIER_BYTES * (2 * groups * loop.stages + len(loads) - len(inside))


def needs_static_trips(loop: Loop, tiles: Mapping[str, Tile], target: str) -> bool:
    """Whether TileLang refuses the loop when its trip count is symbolic.

    Asynchronous copies that run two stages ahead end in a wait whose count is not a constant
    (`Downcast from tirx.Sub to ir.IntImm failed`). `tirx.use_async_copy=False` avoids it.
    """
    asynchronous = target == "gfx950" or (target.startswith("sm_") and is_modelled(target))
    if not asynchronous:
        return False
    if not is_pipelined(loop, target) or is_specialised(loop, tiles, target):
        return False
    last_uses = set()
    for index, statement in enumerate(loop.body):
        if statement.load is None and not statement.simt:
            continue
        uses = [
            i for i, other in enumerate(loop.body) if i > index and other.reads & statement.writes
        ]
        last_uses |= {max(uses)} if uses else set()
    if not last_uses:
        return False
    others = [i for i, s in enumerate(loop.body) if s.load is None and not s.simt]
    # Where every load is last used by the last statement, the pipeline is one stage shorter.
    ahead = loop.stages - 1 if last_uses == {max(others)} and loop.stages > 1 else loop.stages
    return ahead > 1


def _consumers(loop: Loop, tiles: Mapping[str, Tile], target: str) -> list[Statement]:
    return [s for s in loop.body if not s.simt and not _is_producer(s, tiles, target)]


def _span(tile: str, consumers: list[Statement]) -> tuple[int, int]:
    """The first statement that waits for a tile and the one after which it is free."""
    reads = [index for index, s in enumerate(consumers) if tile in s.reads]
    uses = [index for index, s in enumerate(consumers) if tile in s.touches]
    return (reads[0] if reads else 0, uses[-1] + 1 if uses else len(consumers))
