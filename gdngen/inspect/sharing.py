"""Which tiles could lie on which, from when they live: what a person could write into the source."""

from __future__ import annotations

from dataclasses import dataclass

from gdngen.inspect.kernel import Gemm, Kernel, Move, Tile, leaves
from gdngen.inspect.lives import Lives


@dataclass(frozen=True)
class Share:
    """Tiles that can lie on one, `host`, which then has `columns` columns (None: as it is).

    saved  bytes less, side by side
    """

    host: Tile
    guests: tuple[Tile, ...]
    columns: int | None
    saved: int


def shares(kernel: Kernel, lives: Lives) -> tuple[Share, ...]:
    """Tiles of one dtype, and of one shape or as many rows, that never live at one time.

    Left out are those that TileLang keeps apart or that aliasing would break: tiles of pipelined loops
    (of which it keeps several), static ones, views, those whose layout the source gives, those that TMA
    loads by hand, and a tile that a running sum is over beside a gemm's operand.
    """
    if kernel.side_by_side:
        return ()
    barred = {a.tile for p in lives.points if p.pipelined for a in p.leaf.accesses}
    barred |= {
        leaf.detail.tile.tile
        for leaf in leaves(kernel.body)
        if isinstance(leaf.detail, Move) and leaf.detail.asynchronous
    }
    barred |= set(kernel.layouts)
    free = [
        t
        for t in kernel.shared
        if t.id in lives.first and t.id not in barred and not t.static and not t.viewed
    ]
    operands, summed = _roles(kernel)

    def apart(one: Tile, other: Tile) -> bool:
        if any(one.id in here and other.id in here for here in lives.live):
            return False
        pair = {one.id, other.id}
        return not (pair & operands and pair & summed)

    hosts: list[tuple[Tile, list[Tile]]] = []
    for tile in sorted(free, key=lambda t: (-t.bytes, lives.first[t.id], t.id)):
        fitting = [
            (host.shape != tile.shape, i)
            for i, (host, guests) in enumerate(hosts)
            if _fits(tile, host) and all(apart(tile, other) for other in (host, *guests))
        ]
        if fitting:
            hosts[min(fitting)[1]][1].append(tile)
        else:
            hosts.append((tile, []))
    return tuple(_share(host, guests, lives) for host, guests in hosts if guests)


def _roles(kernel: Kernel) -> tuple[set[str], set[str]]:
    operands, summed = set(), set()
    for leaf in leaves(kernel.body):
        if isinstance(leaf.detail, Gemm):
            operands |= {leaf.detail.a.tile, leaf.detail.b.tile}
        elif leaf.kind == "cumsum":
            summed |= {a.tile for a in leaf.accesses}
    return operands, summed


def _fits(tile: Tile, host: Tile) -> bool:
    if tile.dtype != host.dtype or len(tile.shape) != len(host.shape):
        return False
    return tile.shape[:-1] == host.shape[:-1] and tile.shape[-1] <= host.shape[-1]


def _share(host: Tile, guests: list[Tile], lives: Lives) -> Share:
    """The tile that stands first in the source keeps its place, with the columns of the widest."""
    members = sorted([host, *guests], key=lambda t: (t.where.line, t.where.column))
    first = members[0]
    wide = host.shape[-1] if host.shape[-1] > first.shape[-1] else None
    saved = sum(t.bytes for t in members) - host.bytes
    return Share(first, tuple(members[1:]), wide, saved)


def onto(found: tuple[Share, ...]) -> dict[str, str]:
    return {g.id: s.host.id for s in found for g in s.guests}
