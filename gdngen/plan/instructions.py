"""The instructions that TileLang 0.1.15 chooses for a gemm or a copy, from plain facts.

After its own selection: WGMMA against MMA, the split of a tile over warps, and TMA.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd, prod

DTYPE_BYTES = {
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64"), 8),
}
# WGMMA takes these with either operand transposed; all that it takes besides is of 8 bits.
HALVES = ("float16", "bfloat16")


@dataclass(frozen=True)
class Tile:
    """A shared tile: its shape in elements and its dtype."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Gemm:
    """`c[m, n] (+)= a @ b` over k; `a` and `b` name shared tiles, None is a fragment."""

    a: str | None
    b: str | None
    m: int
    n: int
    k: int
    dtype: str
    accumulator: str = "float32"
    transpose_a: bool = False
    transpose_b: bool = False
    policy: str = "square"


@dataclass(frozen=True)
class Copy:
    """A copy between a shared tile (whole or sliced) and a global tensor.

    dtype, shape  of the tensor; None in the shape is a symbolic dimension
    extents       of the slice of the tensor
    in_bounds     whether that slice provably lies inside the tensor, so no tail is ever cut
    """

    tile: str
    dtype: str
    shape: tuple[int | None, ...]
    extents: tuple[int, ...]
    store: bool
    disable_tma: bool = False
    in_bounds: bool = False


def is_modelled(target: str) -> bool:
    """Whether bytes are predicted exactly: sm_80 and later, and AMD.

    Before sm_80 a gemm may run without tensor cores, which stages fragments in shared memory, and
    sm_70 pads the tiles of the others.
    """
    return not target.startswith("sm_") or int(target[3:].rstrip("af")) >= 80


def is_hopper(target: str) -> bool:
    return target.startswith("sm_90")


def has_tma(target: str) -> bool:
    return target.startswith("sm_") and int(target[3:].rstrip("af")) >= 90


def warp_size(target: str) -> int:
    """Threads of a warp: 64 on CDNA, 32 elsewhere."""
    return 64 if target.startswith("gfx9") else 32


# Gemm


def is_wgmma(gemm: Gemm, threads: int, target: str) -> bool:
    """Whether a gemm becomes warpgroup instructions, which read shared tiles by descriptor."""
    if not is_hopper(target) or gemm.b is None or gemm.m < 64 or threads // 32 % 4:
        return False
    if gemm.dtype in HALVES:
        accumulators = ("float32", "float16") if gemm.dtype == "float16" else ("float32",)
        return gemm.accumulator in accumulators and gemm.k % 16 == 0
    if DTYPE_BYTES[gemm.dtype] != 1:
        return False
    return not gemm.transpose_a and gemm.transpose_b and gemm.k % 32 == 0


def partition(gemm: Gemm, threads: int, target: str) -> tuple[int, int] | None:
    """The warps (rows, columns) over which a gemm's tile is split, None where none covers it."""
    warps = threads // warp_size(target)
    group = 4 if is_wgmma(gemm, threads, target) else 1
    width = 16 if target.startswith("gfx") or target == "sm_70" else 8
    found = [
        (rows, warps // rows)
        for rows in range(group, warps + 1, group)
        if warps % rows == 0 and gemm.m % (16 * rows) == 0 and gemm.n % (warps // rows * width) == 0
    ]
    if not found:
        return None
    if gemm.policy == "full_row":
        return found[-1]
    if gemm.policy == "full_col":
        return found[0]

    def imbalance(split: tuple[int, int]) -> float:
        per_warp = (gemm.m / (16 * split[0])) / (gemm.n / (width * split[1]))
        return abs(per_warp - gemm.m / gemm.n)

    return min(found, key=imbalance)


def covers(gemm: Gemm, threads: int, target: str) -> bool:
    """Whether the threads can cover a gemm's tile: each warp owns 16 rows and 8 columns, or more.

    Columns come in sixteens on AMD and sm_70; a warpgroup owns 64 rows at a time.
    """
    return partition(gemm, threads, target) is not None


def operand_spans(gemm: Gemm, threads: int, target: str) -> dict[str, int]:
    """Widest swizzle span (bytes) that a warpgroup gemm reads of each of its shared tiles."""
    rows, columns = partition(gemm, threads, target) or (4, 1)
    width = gemm.n // columns
    inst_n = gcd(width, 256)
    if width % 16 == 0:
        inst_n = max([n for n in range(inst_n, 257, 16) if width % n == 0] or [inst_n])
    size = DTYPE_BYTES[gemm.dtype]
    spans = {gemm.b: span_of((gemm.k if gemm.transpose_b else inst_n) * size)}
    if gemm.a is not None:
        span = span_of((64 if gemm.transpose_a else gemm.k) * size)
        spans[gemm.a] = min(span, spans.get(gemm.a, span))
    return spans


def span_of(row_bytes: int) -> int:
    """The widest swizzle whose spans a row fills, in bytes."""
    return next((span for span in (128, 64, 32) if row_bytes % span == 0), 0)


# Copies


def is_tma(copy: Copy, tile: Tile, target: str, producer: bool = False) -> bool:
    """Whether a copy is done by TMA.

    Stores are wherever they can be. Loads are in warp-specialised kernels only (`producer`).
    """
    if not has_tma(target) or copy.disable_tma or not (copy.store or producer):
        return False
    if copy.dtype != tile.dtype:
        return False
    # The first dimensions' strides must not be known to break 16-byte units.
    size = DTYPE_BYTES[copy.dtype]
    for dim in range(1, len(copy.shape)):
        stride = _product(copy.shape[dim:])
        if stride is not None and stride * size % 16:
            return False
    return copy.extents[-1] * size % 16 == 0 or is_bulk(copy, tile)


def is_bulk(copy: Copy, tile: Tile) -> bool:
    """Whether a TMA copy moves one contiguous run, with no tensor map and no tail to cut."""
    if not copy.in_bounds:
        return False
    whole = [e == s for e, s in zip(copy.extents, copy.shape)]
    first = next((dim for dim in reversed(range(len(whole))) if not whole[dim]), 0)
    contiguous = all(extent == 1 for extent in copy.extents[:first])
    return contiguous and prod(copy.extents) * DTYPE_BYTES[copy.dtype] % 16 == 0


def _product(shape: Iterable[int | None]) -> int | None:
    shape = tuple(shape)
    return None if None in shape else prod(shape)
