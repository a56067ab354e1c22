"""What a gemm may multiply: shapes, dtypes and scopes of its operands, and threads that cover its tile."""

import ast
from dataclasses import dataclass

from gdngen.language.source import Source
from gdngen.language.syntax import Statement
from gdngen.model.context import Context, Scope
from gdngen.model.model import BYTES, Region
from gdngen.model.regions import region, shown

WARP = 32
ROWS, COLUMNS = 16, 8  # a warp owns multiples of these

# dtype of the operands -> those that their product can be summed in
SUMS = {
    "float16": ("float32", "float16"),
    "bfloat16": ("float32",),
    "float32": ("float32",),
    "float64": ("float64",),
    "int8": ("int32",),
}


@dataclass(frozen=True)
class Operands:
    a: Region
    b: Region
    c: Region
    transpose_a: bool
    transpose_b: bool


def operand(cx: Context, source: Source, scope: Scope) -> tuple[Region, bool]:
    """The tile and whether `.T` stands behind it."""
    if not isinstance(source.node, ast.Attribute):
        return region(cx, source, scope), False
    if source.node.attr != "T":
        raise cx.fail(source.where(), f"'.{source.node.attr}' has no meaning; .T transposes")
    return region(cx, source.of(source.node.value), scope), True


def check(cx: Context, s: Statement, o: Operands) -> tuple[int, int, int]:
    """m, n and k, once all is well."""
    _check_tiles(cx, s, o)
    (m, k), (k2, n) = (
        o.a.shape[:: -1 if o.transpose_a else 1],
        o.b.shape[:: -1 if o.transpose_b else 1],
    )
    if k != k2 or (m, n) != o.c.shape:
        product = f"{shown((m, k))} @ {shown((k2, n))}"
        raise cx.fail(
            s["a"].where(),
            f"shapes don't match: {product} into {shown(o.c.shape)}",
            f"{product} gives {shown((m, n))}" if k == k2 else "transpose one with .T?",
        )
    _check_dtypes(cx, s, o)
    _check_scopes(cx, s, o)
    if cx.threads and (reason := uncovered(m, n, cx.threads)):
        most = most_threads(m, n)
        raise cx.fail(
            s["target"].where(),
            f"{cx.threads} threads can't cover a gemm tile of {m}x{n}: {reason}",
            f"use {most} threads, or a larger tile" if most else "pad the tile",
        )
    step = max(ROWS // BYTES[cx.dtype_of(o.a.name)] * 2, 4)  # 32 bytes of a row at a time
    if k % step:
        dtype = cx.dtype_of(o.a.name)
        what = f"a gemm of {dtype} sums over a multiple of {step}; {k} here"
        raise cx.fail(s["a"].where(), what, "pad the tile")
    return m, n, k


def _check_tiles(cx: Context, s: Statement, o: Operands) -> None:
    for r, part in ((o.a, "a"), (o.b, "b"), (o.c, "target")):
        if r.name in cx.tensors:
            raise cx.fail(
                s[part].where(),
                f"'{r.name}' is a tensor in global memory",
                "copy it into a shared buffer first: a gemm works on tiles",
            )
        if len(r.shape) != 2:
            what = f"a gemm works on matrices; '{r.name}' is {shown(r.shape)} here"
            raise cx.fail(s[part].where(), what)
    if o.c.name in (o.a.name, o.b.name):
        what = f"'{o.c.name}' is an operand and the target of one gemm"
        raise cx.fail(s["target"].where(), what, "give the product a fragment of its own")


def _check_dtypes(cx: Context, s: Statement, o: Operands) -> None:
    a, b, c = (cx.dtype_of(r.name) for r in (o.a, o.b, o.c))
    if a != b:
        raise cx.fail(
            s["a"].where(),
            f"gemm operands of two dtypes: {o.a.name} {a}, {o.b.name} {b}",
            "TileLang refuses mixed operands: give both tiles one dtype",
        )
    if a not in SUMS:
        what = f"a gemm of {a} is not to be had"
        raise cx.fail(s["a"].where(), what, f"operands are {', '.join(SUMS)}")
    if c not in SUMS[a]:
        what = f"a gemm of {a} can't accumulate in {c}"
        raise cx.fail(s["target"].where(), what, f"make '{o.c.name}' {' or '.join(SUMS[a])}")


def _check_scopes(cx: Context, s: Statement, o: Operands) -> None:
    scopes = {r.name: cx.buffers[r.name].scope for r in (o.a, o.b, o.c)}
    if scopes[o.c.name] != "fragment":
        raise cx.fail(
            s["target"].where(),
            f"'{o.c.name}' is {scopes[o.c.name]}; a gemm accumulates in a fragment",
            "accumulate in a fragment, then copy it",
        )
    for r, part, allowed in ((o.a, "a", ("shared", "fragment")), (o.b, "b", ("shared",))):
        if scopes[r.name] not in allowed:
            raise cx.fail(
                s[part].where(),
                f"'{r.name}' is {scopes[r.name]}",
                "the second operand of a gemm is shared, the first shared or a fragment",
            )


def most_threads(m: int, n: int, warp: int = WARP) -> int:
    """The most threads, a power of two of warps, that cover a gemm tile; 0 if none do."""
    counts = [1 << i for i in range(6) if not uncovered(m, n, warp << i, warp)]
    return max(counts, default=0) * warp


def uncovered(m: int, n: int, threads: int, warp: int = WARP) -> str | None:
    """Why no split of the warps into rows x columns covers an m x n tile, or None if one does."""
    warps = threads // warp
    if m % ROWS or n % COLUMNS:
        return "rows come in sixteens and columns in eights"
    for rows in range(1, warps + 1):
        columns = warps // rows
        if warps % rows == 0 and m % (ROWS * rows) == 0 and n % (COLUMNS * columns) == 0:
            return None
    return f"{warps} warps of {warp} don't split it into whole {ROWS}x{COLUMNS} pieces"
