"""A stand-in for `tilelang.language` under which a kernel's own text runs serially on the CPU.

TileLang's target `c` knows no shared memory, no fragments and no threads. The stand-in forwards
every name to the real module and overrides the few that need those: tiles become local arrays,
parallel loops plain loops, and gemm, reduce and cumsum loop nests. Aliasing survives: two tiles in
one storage are one array. A fresh tile holds NaN, as no GPU promises anything better, so a read
before the first write shows. Target `c` cannot store bfloat16: tiles and tensors are float32 there.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from gdngen.verify import versions

# What orders threads and copies: here statements run one after the other.
DROPPED_CALLS = (
    "alloc_barrier",
    "annotate_layout",
    "annotate_l2_hit_ratio",
    "annotate_min_blocks_per_sm",
    "annotate_restrict_buffers",
    "annotate_safe_value",
    "barrier_arrive",
    "barrier_wait",
    "fence_proxy_async",
    "no_set_max_nreg",
    "set_max_nreg",
    "sync_threads",
    "sync_warp",
    "tma_store_wait",
    "use_swizzle",
)
# Target `c` has these for float32 and float64 only.
MATHS = (
    "acos asin atan atan2 ceil cos cosh erf exp exp2 floor log log10 log1p log2 pow round rsqrt "
    "sigmoid sin sinh sqrt tan tanh trunc"
).split()
REDUCTIONS = ("sum", "abssum", "max", "absmax", "min")


class StandIn(ModuleType):
    """A module that has `overrides` of its own and takes every other name from `real`."""

    def __init__(self, real: ModuleType, overrides: dict[str, Any]):
        super().__init__(real.__name__)
        self.__dict__.update(overrides)
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


WIDER = {"float16": "float32", "float32": "float64"}


def stored(dtype: Any) -> Any:
    """The dtype that target `c` stores for `dtype`."""
    return "float32" if str(dtype) in ("bfloat16", "T.bfloat16") else dtype


def widened(dtype: Any) -> Any:
    """`stored`, with as many bits for the other floats as a bfloat16 has more then: a tile of one and
    its view as the other still take the same bytes."""
    name = str(dtype).removeprefix("T.")
    return WIDER.get(name, stored(dtype))


def language(declared: list[tuple[Any, str]], bf16_views: bool = False) -> StandIn:
    """Return the stand-in for `tilelang.language`.

    declared    receives (buffer, dtype as written) of every `T.Tensor` of the kernel's signature
    bf16_views  whether a tile is seen through a view as bfloat16, which is stored in twice its bytes:
                then tiles of the other floats are too
    """
    of_tile = widened if bf16_views else stored

    import tilelang.language as T
    from tilelang.utils.language import to_buffer_region

    def tensor(shape, dtype="float32", *args, **kwargs):
        buffer = T.Tensor(shape, stored(dtype), *args, **kwargs)
        declared.append((buffer, str(dtype).removeprefix("T.")))
        return buffer

    def tile(shape, dtype, scope=None):
        buffer = T.alloc_local(shape, of_tile(dtype))
        T.evaluate(T.fill(buffer, unwritten(buffer.dtype)))
        return buffer

    def unwritten(dtype):
        return versions.nan(dtype) if "float" in str(dtype) else T.min_value(dtype)

    def view(src, shape=None, dtype=None):
        shape = src.shape if shape is None else shape
        return T.view(src, shape, src.dtype if dtype is None else of_tile(dtype))

    def place(operand):
        """`(buffer, corner, extents)` of a tile or a slice of one."""
        region = to_buffer_region(operand)
        return (
            region.buffer,
            [r.min for r in region.region],
            [r.extent for r in region.region],
        )

    def gemm(A, B, C, transpose_A=False, transpose_B=False, policy=None, clear_accum=False, **_):
        (a, a0, ax), (b, b0, bx), (c, c0, cx) = place(A), place(B), place(C)
        rows, columns = cx[-2:]
        depth = ax[-2] if transpose_A else ax[-1]
        for name, have, want in (
            ("rows of A", ax[-1] if transpose_A else ax[-2], rows),
            ("columns of B", bx[-2] if transpose_B else bx[-1], columns),
            ("depth of B", bx[-1] if transpose_B else bx[-2], depth),
        ):
            if int(have) != int(want):
                raise ValueError(f"T.gemm: {name} are {have}, not {want}")
        if a.dtype != b.dtype:
            raise ValueError(f"T.gemm: operands are {a.dtype} and {b.dtype}")

        def at(buffer, corner, i, j):
            return buffer[tuple(corner[:-2]) + (corner[-2] + i, corner[-1] + j)]

        def store(i, j, value):
            T.buffer_store(c, value, [*c0[:-2], c0[-2] + i, c0[-1] + j])

        with T.grid(rows, columns) as (i, j):
            if not isinstance(clear_accum, bool):
                store(i, j, T.if_then_else(clear_accum, T.cast(0, c.dtype), at(c, c0, i, j)))
            elif clear_accum:
                store(i, j, T.cast(0, c.dtype))
            with T.serial(depth) as k:
                x = at(a, a0, k, i) if transpose_A else at(a, a0, i, k)
                y = at(b, b0, j, k) if transpose_B else at(b, b0, k, j)
                store(i, j, at(c, c0, i, j) + T.cast(x, c.dtype) * T.cast(y, c.dtype))

    def reducer(kind):
        def combine(old, new):
            new = absolute(new) if kind.startswith("abs") else new
            if kind.endswith("sum"):
                return old + new
            return T.min(old, new) if kind == "min" else T.max(old, new)

        def first(dtype):
            if kind in ("sum", "abssum", "absmax"):
                return T.cast(0, dtype)
            return T.max_value(dtype) if kind == "min" else T.min_value(dtype)

        def reduce(buffer, out, dim=-1, clear=True, **_):
            (src, s0, sx), (dst, d0, dx) = place(buffer), place(out)
            dim %= len(sx)
            keep = len(dx) == len(sx)
            with T.grid(*dx) as found:
                index = [found] if len(dx) == 1 else list(found)
                target = [corner + i for corner, i in zip(d0, index)]
                if clear:
                    T.buffer_store(dst, first(dst.dtype), target)
                with T.serial(sx[dim]) as r:
                    inner = index[:dim] + [r] + index[dim + keep :]
                    value = src[tuple(corner + i for corner, i in zip(s0, inner))]
                    new = combine(dst[tuple(target)], T.cast(value, dst.dtype))
                    T.buffer_store(dst, new, target)

        return reduce

    def cumsum(src, dst=None, dim=0, reverse=False, **_):
        (a, a0, ax), (b, b0, _) = place(src), place(src if dst is None else dst)
        dim %= len(ax)
        with T.grid(*ax) as found:
            index = [found] if len(ax) == 1 else list(found)
            # Along `dim` the loop must run in the direction of the sum.
            if reverse:
                index[dim] = ax[dim] - 1 - index[dim]
            target = [corner + i for corner, i in zip(b0, index)]
            before = list(target)
            before[dim] = before[dim] + (1 if reverse else -1)
            inside = index[dim] < ax[dim] - 1 if reverse else index[dim] > 0
            value = T.cast(a[tuple(corner + i for corner, i in zip(a0, index))], b.dtype)
            sum_before = T.if_then_else(inside, b[tuple(before)], T.cast(0, b.dtype))
            T.buffer_store(b, value + sum_before, target)

    def loop(start, stop=None, num_stages=0, **_):
        return T.serial(start, stop)

    def maths(name):
        real = getattr(T, name)

        def call(value, *rest):
            if str(getattr(value, "dtype", "")) != "float16":
                return real(value, *rest)
            rest = [T.cast(x, "float32") if hasattr(x, "dtype") else x for x in rest]
            return T.cast(real(T.cast(value, "float32"), *rest), "float16")

        return call

    def no_threads(*_):
        raise NotImplementedError("T.get_thread_binding: on the CPU a block has no threads")

    def absolute(value):
        return T.max(value, -value)

    overrides = {
        "tma_copy": lambda src, dst, **_: T.copy(src, dst),
        "Tensor": tensor,
        "abs": absolute,
        "alloc_shared": tile,
        "alloc_fragment": tile,
        "alloc_local": tile,
        "bfloat16": T.float32,
        "cast": lambda value, dtype, **_: T.cast(value, stored(dtype)),
        "copy": lambda src, dst, **_: T.copy(src, dst),
        "cumsum": cumsum,
        "fma": lambda a, b, c: a * b + c,
        "gemm": gemm,
        "get_thread_binding": no_threads,
        "Kernel": lambda *blocks, threads=None, **_: T.Kernel(*blocks, **versions.on_cpu()),
        "Parallel": lambda *extents, **_: T.grid(*extents),
        "Pipelined": loop,
        "reshape": lambda src, shape: view(src, shape),
        "view": view,
    }
    overrides |= {f"reduce_{kind}": reducer(kind) for kind in REDUCTIONS}
    overrides |= {name: maths(name) for name in MATHS}
    overrides |= {name: lambda *_, **__: None for name in DROPPED_CALLS}
    return StandIn(T, overrides)
