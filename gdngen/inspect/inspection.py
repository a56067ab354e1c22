"""Everything that is found out about a kernel, as data: `report.py` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gdngen.devices import Device
from gdngen.errors import Diagnostic
from gdngen.inspect import asked, fragments, lives, sharing
from gdngen.inspect.asked import Asked
from gdngen.inspect.kernel import Kernel, Move, Tile
from gdngen.inspect.sharing import Share


@dataclass(frozen=True)
class Later:
    """A tile that is loaded before the peak, on `line`, and first read behind it, on line `use`."""

    tile: Tile
    line: int
    use: int


@dataclass(frozen=True)
class Peak:
    """Where most bytes are live at one time, and what could be loaded later."""

    line: int
    bytes: int
    tiles: tuple[Tile, ...]
    later: tuple[Later, ...]


@dataclass(frozen=True)
class Row:
    """A tile of the report, how many copies of it a pipelined loop keeps, and the lines between which
    it lives: None where nothing touches it."""

    tile: Tile
    copies: int
    lines: tuple[int, int] | None


@dataclass(frozen=True)
class Inspection:
    """A kernel on a device. `then` is what it would ask for if tiles shared as `shares` says."""

    kernel: Kernel
    device: Device
    asked: Asked
    rows: tuple[Row, ...]
    peak: Peak | None
    shares: tuple[Share, ...]
    then: Asked | None
    diagnostics: tuple[Diagnostic, ...]

    @property
    def fits(self) -> bool:
        return self.asked.bytes <= self.device.limit

    @property
    def errors(self) -> list[Diagnostic]:
        return [d for d in self.diagnostics if d.severity == "error"]


def inspected(kernel: Kernel, device: Device, lowered: int | None = None) -> Inspection:
    """`lowered`: what TileLang itself says that a block asks for, where it was asked."""
    bytes_ = asked.asked(kernel, device.target)
    found = lives.lives(kernel, bytes_.kept)
    shares = sharing.shares(kernel, found)
    then = asked.asked(kernel, device.target, sharing.onto(shares)) if shares else None
    rows = [Row(t, bytes_.kept.get(t.id, 1), _lines(found, t)) for t in kernel.shared]
    wrong = [
        *fragments.misuse(kernel),
        *_clobbered(kernel, found),
        *_unwritten(kernel, found),
        *_unused(kernel, found),
        *_refused(kernel, bytes_, device),
        *_too_large(kernel, bytes_, device, lowered),
    ]
    order = sorted(dict.fromkeys(wrong), key=lambda d: (d.where, d.severity, d.what))
    return Inspection(
        kernel,
        device,
        bytes_,
        tuple(rows),
        _peak(kernel, found, bytes_.kept),
        shares,
        then,
        tuple(order),
    )


def _lines(found: lives.Lives, tile: Tile) -> tuple[int, int] | None:
    return (found.first[tile.id], found.last[tile.id]) if tile.id in found.first else None


def _peak(kernel: Kernel, found: lives.Lives, kept: Mapping[str, int]) -> Peak | None:
    sizes = {t.id: t.bytes * kept.get(t.id, 1) for t in kernel.shared}
    at = found.peak(sizes)
    if at is None or not sizes:
        return None
    here = tuple(t for t in kernel.shared if t.id in found.live[at])
    return Peak(
        found.points[at].leaf.where.line,
        sum(sizes[t.id] for t in here),
        here,
        _later(kernel, found, at),
    )


def _later(kernel: Kernel, found: lives.Lives, at: int) -> tuple[Later, ...]:
    """Tiles at the peak that one copy from memory fills before it, and that nothing reads until after."""
    out = []
    for t in kernel.shared:
        touching = [i for i, p in enumerate(found.points) if t.id in lives.touched(p)]
        if t.id not in found.live[at] or len(touching) < 2 or not touching[0] < at < touching[1]:
            continue
        load, use = (found.points[i] for i in touching[:2])
        moved = load.leaf.detail
        if isinstance(moved, Move) and not (moved.store or load.guarded) and load.loop == use.loop:
            out.append(Later(t, load.leaf.where.line, use.leaf.where.line))
    return tuple(out)


def _clobbered(kernel: Kernel, found: lives.Lives):
    if kernel.side_by_side:
        return
    for c in lives.clobbered(kernel, found.points):
        yield Diagnostic(
            "error",
            c.read.where,
            f"'{c.read.name}' was written on line {c.made.where.line}, and '{c.write.name}', the same "
            f"storage, overwrites it on line {c.write.where.line} before it is read here",
            f"give '{c.write.name}' a tile of its own, or read '{c.read.name}' before line "
            f"{c.write.where.line}",
        )


def _unwritten(kernel: Kernel, found: lives.Lives):
    if kernel.side_by_side:
        return
    for a in lives.unwritten(kernel, found.points):
        kind = kernel.tiles[a.tile].scope
        adds = any(x is not a and x.write and x.tile == a.tile for x in _beside(found, a))
        yield Diagnostic(
            "error",
            a.where,
            f"{kind} tile '{a.name}' is {'added to' if adds else 'read'} before anything is written into it",
            f"T.clear({a.name}) before"
            + (", or clear_accum=True in the first gemm" if adds else ""),
        )


def _beside(found: lives.Lives, access):
    return next((p.leaf.accesses for p in found.points if access in p.leaf.accesses), ())


def _unused(kernel: Kernel, found: lives.Lives):
    for t in kernel.shared:
        if t.id not in found.first:
            what = f"'{t.name}' is allocated and never used"
            yield Diagnostic(
                "warning", t.where, what, f"{t.bytes:,} bytes less in a fork that keeps it"
            )


def _refused(kernel: Kernel, bytes_: Asked, device: Device):
    for text in bytes_.refused:
        yield Diagnostic("warning", kernel.where, f"{device.target}: TileLang may refuse a {text}")


def _too_large(kernel: Kernel, bytes_: Asked, device: Device, lowered: int | None):
    limit, asks = device.limit, bytes_.bytes if lowered is None else lowered
    room = f"{device.name} gives a block {device.block:,} bytes"
    if device.reserved:
        room += f", of which {device.reserved:,} are in use"
    if asks > limit:
        yield Diagnostic(
            "error",
            kernel.where,
            f"does not fit: {room}, the kernel asks for {asks:,}: {asks - limit:,} too many",
        )
    elif bytes_.plain + bytes_.static > limit:
        yield Diagnostic(
            "warning",
            kernel.where,
            f"fits by the compiler's own merging only: {room}, the tiles side by side take "
            f"{bytes_.plain + bytes_.static:,}. Merging differs between versions and forks of TileLang",
            "name the tiles that share storage, as above, or plan the kernel from a spec",
        )
