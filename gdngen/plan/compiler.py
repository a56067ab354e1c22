"""What TileLang 0.1.15 asks a device for: a model, in plain Python, of the passes that decide it.

Facts about a kernel go in as plain data (`instructions`), bytes of one block come out; `packing`
lays the storages out and `pipeline` adds what a pipelined loop needs. Proven against lowered
kernels by `tests/test_compiler.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .instructions import (  # noqa: F401  (with packing's, this module's interface)
    DTYPE_BYTES,
    Copy,
    Gemm,
    Tile,
    covers,
    has_tma,
    is_bulk,
    is_modelled,
    is_tma,
    is_wgmma,
    operand_spans,
    span_of,
)
from .packing import merged_layout, plain_layout  # noqa: F401

# A shared operand that is read through a descriptor and has no exact requirement of its own.
DESCRIPTOR_ALIGN = 1024
# Bytes of a swizzle's span (0: no swizzle) -> alignment of a tile that TMA reads or writes.
TMA_ALIGN = {0: 128, 32: 256, 64: 512, 128: 1024}


@dataclass(frozen=True)
class Program:
    """The shared tiles of a kernel, by name, and what touches them, in program order.

    `producer` says that TileLang splits off a producer's warps (see `pipeline`): then the loads
    here are those that TMA may do, `pipeline.producer_loads`.
    """

    tiles: Mapping[str, Tile]
    gemms: tuple[Gemm, ...]
    copies: tuple[Copy, ...]
    threads: int
    producer: bool = False


def swizzles(program: Program, target: str) -> dict[str, int]:
    """Span in bytes of the swizzle of every tile that a gemm reads or TMA moves; 0 is none."""
    spans: dict[str, int] = {}
    for gemm in program.gemms:
        if is_wgmma(gemm, program.threads, target):
            read = operand_spans(gemm, program.threads, target)
        else:
            names = [name for name in (gemm.a, gemm.b) if name is not None]
            read = {name: _tile_span(program.tiles[name]) for name in names}
        for name, span in read.items():
            spans[name] = min(span, spans.get(name, span))
    for copy in program.copies:
        tile = program.tiles[copy.tile]
        if copy.tile not in spans and is_tma(copy, tile, target, program.producer):
            # Whichever comes first decides, and only a store of boxes asks for a swizzle.
            spans[copy.tile] = _tile_span(tile) if copy.store and not is_bulk(copy, tile) else 0
    return spans


def _tile_span(tile: Tile) -> int:
    if len(tile.shape) < 2 or tile.shape[-2] % 8:
        return 0
    return span_of(tile.shape[-1] * DTYPE_BYTES[tile.dtype])


def alignments(program: Program, target: str) -> dict[str, int]:
    """Alignment of every shared tile that needs more than `packing.BASE_ALIGN`.

    A tile that only warpgroup gemms read by descriptor gets 1024; one that TMA touches gets what
    its swizzle needs, even where that is less.
    """
    spans = swizzles(program, target)
    align: dict[str, int] = {}
    for gemm in program.gemms:
        if is_wgmma(gemm, program.threads, target):
            align |= {name: DESCRIPTOR_ALIGN for name in (gemm.a, gemm.b) if name is not None}
    exact: set[str] = set()
    for copy in program.copies:
        tile = program.tiles[copy.tile]
        if not is_tma(copy, tile, target, program.producer):
            continue
        if is_bulk(copy, tile) and not spans[copy.tile]:
            align.setdefault(copy.tile, DESCRIPTOR_ALIGN)
        else:
            exact.add(copy.tile)
    return align | {name: TMA_ALIGN[spans[name]] for name in sorted(exact)}


def refusals(program: Program, target: str) -> list[str]:
    """Why TileLang would refuse the program's gemms and copies: one line each, none if it won't."""
    found = []
    spans = swizzles(program, target)
    for gemm in program.gemms:
        name = f"gemm of {gemm.m}x{gemm.n}x{gemm.k}"
        if not covers(gemm, program.threads, target):
            found.append(f"{name}: {program.threads} threads cannot cover its tile")
        elif is_wgmma(gemm, program.threads, target):
            read = operand_spans(gemm, program.threads, target)
            if not read[gemm.b] and not gemm.transpose_b:
                found.append(f"{name}: a warpgroup's columns of b must come in sixteens")
            for tile, span in read.items():
                shape = program.tiles[tile].shape
                if span and shape[-1] * DTYPE_BYTES[gemm.dtype] % span:
                    found.append(f"{name}: rows of {tile} are no multiple of {span} bytes")
    for copy in program.copies:
        tile = program.tiles[copy.tile]
        if not is_tma(copy, tile, target, program.producer) or len(tile.shape) < 2:
            continue
        moved, whole = copy.extents[-1], tile.shape[-1]
        unit = spans[copy.tile] // DTYPE_BYTES[tile.dtype] or whole
        if moved % unit:
            found.append(f"copy of {moved} of {whole} columns of {copy.tile}: needs disable_tma")
    return found
