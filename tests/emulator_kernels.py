"""TileLang kernels that the emulator's tests lower and run: one for each thing a kernel may do.

Every function returns a `prim_func`; sizes that a test does not vary are written out. `lower` turns
one into CUDA for sm_80, or another target, without a GPU.
"""

import functools
from dataclasses import dataclass, field

import tilelang
import tilelang.language as T
from tvm.target import Target

from gdngen.emulator import tensor_map
from gdngen.verify import lowering

ACC = "float32"


@dataclass(frozen=True)
class Cuda:
    """Lowered CUDA source, the dynamic shared bytes that its launch asks for, and its tensor maps."""

    source: str
    shared_bytes: int
    maps: dict = field(default_factory=dict)


def lower(prim_func, arch="sm_80", **pass_configs) -> Cuda:
    """Lower for `arch`; `pass_configs` are TileLang's, without the leading `tl.`."""
    target = Target({"kind": "cuda", "arch": arch})
    configs = {f"tl.{name}": value for name, value in pass_configs.items()}
    with tilelang.tvm.transform.PassContext(opt_level=3, config=configs), target:
        artifact = tilelang.lower(prim_func, target=target)
    (function,) = artifact.device_mod.functions.values()
    attributes = function.attrs or {}
    calls = lowering._maps(artifact.host_mod)
    maps = {name: tensor_map(call, {}) for name, call in calls.items()}
    return Cuda(artifact.kernel_source, int(attributes.get("dyn_shared_memory_buf", 0)), maps)


@functools.cache
def lowered_neumann(**options) -> Cuda:
    """`neumann`, lowered once a session: it takes seconds."""
    return lower(neumann(**options))


def matmul(dtype, stages, M=64, N=64, K=128, block=32, threads=64):
    """C = A @ B, tiled, loads pipelined over `stages` buffers (asynchronous copies from 2 on)."""

    @T.prim_func
    def kernel(A: T.Tensor([M, K], dtype), B: T.Tensor([K, N], dtype), C: T.Tensor([M, N], ACC)):
        with T.Kernel(N // block, M // block, threads=threads) as (bx, by):
            a_s = T.alloc_shared([block, block], dtype)
            b_s = T.alloc_shared([block, block], dtype)
            c_f = T.alloc_fragment([block, block], ACC)
            T.clear(c_f)
            for ko in T.Pipelined(K // block, num_stages=stages):
                T.copy(A[by * block, ko * block], a_s)
                T.copy(B[ko * block, bx * block], b_s)
                T.gemm(a_s, b_s, c_f)
            T.copy(c_f, C[by * block, bx * block])

    return kernel


def softmax(dtype, rows=32, columns=128, threads=128):
    """Row softmax through fragments, with `reduce_max` and `reduce_sum`."""

    @T.prim_func
    def kernel(X: T.Tensor([rows, columns], dtype), Y: T.Tensor([rows, columns], dtype)):
        with T.Kernel(1, threads=threads) as _:
            x = T.alloc_fragment([rows, columns], ACC)
            top = T.alloc_fragment([rows], ACC)
            total = T.alloc_fragment([rows], ACC)
            T.copy(X, x)
            T.reduce_max(x, top, dim=1)
            for i, j in T.Parallel(rows, columns):
                x[i, j] = T.exp(x[i, j] - top[i])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(rows, columns):
                x[i, j] = x[i, j] / total[i]
            T.copy(x, Y)

    return kernel


def column_sum(dtype, rows=64, columns=64, threads=128):
    """Sum over rows: the reduction crosses warps, through shared memory."""

    @T.prim_func
    def kernel(X: T.Tensor([rows, columns], dtype), Y: T.Tensor([columns], ACC)):
        with T.Kernel(1, threads=threads) as _:
            x = T.alloc_fragment([rows, columns], ACC)
            total = T.alloc_fragment([columns], ACC)
            T.copy(X, x)
            T.reduce_sum(x, total, dim=0)
            T.copy(total, Y)

    return kernel


def cumulative_sum(dtype, length=64, threads=128):
    """Running sum of a shared row."""

    @T.prim_func
    def kernel(X: T.Tensor([length], dtype), Y: T.Tensor([length], dtype)):
        with T.Kernel(1, threads=threads) as _:
            x = T.alloc_shared([length], dtype)
            T.copy(X, x)
            T.cumsum(x, dim=0)
            T.copy(x, Y)

    return kernel


def cumulative_sum_rows(dtype, rows=16, columns=48, threads=128, dim=1):
    """Running sums of a shared tile along one dimension."""

    @T.prim_func
    def kernel(X: T.Tensor([rows, columns], dtype), Y: T.Tensor([rows, columns], dtype)):
        with T.Kernel(1, threads=threads) as _:
            x = T.alloc_shared([rows, columns], dtype)
            T.copy(X, x)
            T.cumsum(x, dim=dim)
            T.copy(x, Y)

    return kernel


def substitution(n=16, blocks=4, threads=64):
    """Inverses of unit lower triangular blocks, one thread a column."""

    @T.prim_func
    def kernel(M: T.Tensor([blocks * n, n], ACC), D: T.Tensor([blocks * n, n], ACC)):
        with T.Kernel(1, threads=threads) as _:
            m_s = T.alloc_shared([blocks * n, n], ACC)
            d_s = T.alloc_shared([blocks * n, n], ACC)
            x = T.alloc_local([n], ACC)
            T.copy(M, m_s)
            for column in T.Parallel(blocks * n):
                for i in T.unroll(n):
                    x[i] = T.if_then_else(i == column % n, 1.0, 0.0)
                    for m in T.unroll(i):
                        x[i] = x[i] - m_s[(column // n) * n + i, m] * x[m]
                for i in T.unroll(n):
                    d_s[(column // n) * n + i, column % n] = x[i]
            T.copy(d_s, D)

    return kernel


def fragment_operand(dtype, n=64, threads=128):
    """Y = (A @ A^T) @ A with the first product kept in registers as an operand."""

    @T.prim_func
    def kernel(A: T.Tensor([n, n], dtype), Y: T.Tensor([n, n], ACC)):
        with T.Kernel(1, threads=threads) as _:
            a_s = T.alloc_shared([n, n], dtype)
            gram = T.alloc_fragment([n, n], ACC)
            operand = T.alloc_fragment([n, n], dtype)
            y = T.alloc_fragment([n, n], ACC)
            T.copy(A, a_s)
            rows = T.GemmWarpPolicy.FullRow  # a register operand needs whole rows in one warp
            T.gemm(a_s, a_s, gram, transpose_B=True, clear_accum=True, policy=rows)
            T.copy(gram, operand)
            T.gemm(operand, a_s, y, clear_accum=True, policy=rows)
            T.copy(y, Y)

    return kernel


def ragged(dtype, width=64, block=32, threads=128):
    """Y = X X^T within each chunk of a length known only at launch; the last chunk is partial."""
    L = T.dynamic("L")

    @T.prim_func
    def kernel(X: T.Tensor([L, width], dtype), Y: T.Tensor([L, block], ACC)):
        with T.Kernel(T.ceildiv(L, block), threads=threads) as c:
            x_s = T.alloc_shared([block, width], dtype)
            gram = T.alloc_fragment([block, block], ACC)
            T.copy(X[c * block : (c + 1) * block, :], x_s)
            T.gemm(x_s, x_s, gram, transpose_B=True, clear_accum=True)
            T.copy(gram, Y[c * block : (c + 1) * block, :])

    return kernel


def branches(dtype, n=64, threads=128):
    """A branch on a value known only at launch; a later barrier is for both of its arms."""
    R = T.dynamic("R")

    @T.prim_func
    def kernel(X: T.Tensor([R, n, n], dtype), Y: T.Tensor([R, n, n], dtype)):
        with T.Kernel(R, threads=threads) as r:
            x_s = T.alloc_shared([n, n], dtype)
            y_s = T.alloc_shared([n, n], dtype)
            T.copy(X[r, :, :], x_s)
            if r % 2 == 0:
                for i, j in T.Parallel(n, n):
                    y_s[i, j] = x_s[j, i]
            else:
                for i, j in T.Parallel(n, n):
                    y_s[i, j] = x_s[n - 1 - i, j]
            for i, j in T.Parallel(n, n):
                Y[r, i, j] = y_s[n - 1 - i, j]

    return kernel


def chunk_loop(dtype, chunks=3, n=32, threads=64):
    """Several chunks a block: a running state S += X_c^T X_c, written out after every chunk."""

    @T.prim_func
    def kernel(X: T.Tensor([chunks, n, n], dtype), Y: T.Tensor([chunks, n, n], dtype)):
        with T.Kernel(1, threads=threads) as _:
            x_s = T.alloc_shared([n, n], dtype)
            out_s = T.alloc_shared([n, n], dtype)
            state = T.alloc_fragment([n, n], ACC)
            T.clear(state)
            for c in T.serial(chunks):
                T.copy(X[c, :, :], x_s)
                T.gemm(x_s, x_s, state, transpose_A=True)
                T.copy(state, out_s)
                T.copy(out_s, Y[c, :, :])

    return kernel


def atomic_sum(rows=64, columns=32, threads=64):
    """Column sums of blocks of rows, added into one output by every block."""

    @T.prim_func
    def kernel(X: T.Tensor([rows, columns], ACC), Y: T.Tensor([columns], ACC)):
        with T.Kernel(2, threads=threads) as b:
            for i, j in T.Parallel(rows // 2, columns):
                T.atomic_add(Y[j], X[b * (rows // 2) + i, j])

    return kernel


def elementwise(dtype, function, n=64, threads=128):
    """Y = function(X), computed in the tensors' own dtype."""

    @T.prim_func
    def kernel(X: T.Tensor([n, n], dtype), Y: T.Tensor([n, n], dtype)):
        with T.Kernel(1, threads=threads) as _:
            x = T.alloc_fragment([n, n], dtype)
            T.copy(X, x)
            for i, j in T.Parallel(n, n):
                x[i, j] = function(x[i, j])
            T.copy(x, Y)

    return kernel


def reduction(dtype, reduce, dim, scope, n=64, threads=128):
    """One of TileLang's reductions of a tile along `dim`, from a fragment or a shared tile."""
    allocate = {"fragment": T.alloc_fragment, "shared": T.alloc_shared}[scope]

    @T.prim_func
    def kernel(X: T.Tensor([n, n], dtype), Y: T.Tensor([n], dtype)):
        with T.Kernel(1, threads=threads) as _:
            x = allocate([n, n], dtype)
            y = T.alloc_fragment([n], dtype)
            T.copy(X, x)
            reduce(x, y, dim=dim)
            T.copy(y, Y)

    return kernel


def half_accumulator(n=64, threads=128):
    """C = A^T @ B summed in float16, one operand in static shared memory."""

    @T.prim_func
    def kernel(
        A: T.Tensor([n, n], "float16"),
        B: T.Tensor([n, n], "float16"),
        C: T.Tensor([n, n], "float16"),
    ):
        with T.Kernel(1, threads=threads) as _:
            a_s = T.alloc_shared([n, n], "float16", scope="shared")
            b_s = T.alloc_shared([n, n], "float16")
            c_f = T.alloc_fragment([n, n], "float16")
            T.copy(A, a_s)
            T.copy(B, b_s)
            T.gemm(a_s, b_s, c_f, transpose_A=True, clear_accum=True)
            T.copy(c_f, C)

    return kernel


def partial_threads(n=64, threads=128):
    """Half of the threads work through shared memory on their own, so the barrier is partial."""

    @T.prim_func
    def kernel(X: T.Tensor([n], ACC), Y: T.Tensor([n], ACC)):
        with T.Kernel(1, threads=threads) as _:
            x_s = T.alloc_shared([n], ACC)
            tx = T.get_thread_binding(0)
            if tx < n:
                x_s[tx] = X[tx]
                Y[tx] = x_s[n - 1 - tx]

    return kernel


def neumann(dtype="float16", n=64, threads=128, k_beta_in_P=True, one_slot=False):
    """A fused prepare stage: gram matrix, gates, inverse by doubling, two products.

    `one_slot` puts `v_s` on `k_s` while both live: a planted fault.
    """
    L = T.dynamic("L")

    @T.prim_func
    def kernel(
        k: T.Tensor([L, n], dtype),
        v: T.Tensor([L, n], dtype),
        g: T.Tensor([L], ACC),
        beta: T.Tensor([L], ACC),
        A: T.Tensor([L, n], dtype),
        w: T.Tensor([L, n], dtype),
        u: T.Tensor([L, n], dtype),
    ):
        with T.Kernel(T.ceildiv(L, n), threads=threads) as c:
            k_s = T.alloc_shared([n, n], dtype)
            v_s = k_s if one_slot else T.alloc_shared([n, n], dtype)
            g_s = T.alloc_shared([n], ACC)
            beta_s = T.alloc_shared([n], ACC)
            S = T.alloc_shared([n, n], ACC)
            P = T.alloc_shared([n, n], ACC)
            k_beta = P if k_beta_in_P else T.alloc_shared([n, n], ACC)
            v_beta = P
            gram = T.alloc_fragment([n, n], ACC)
            tmp = T.alloc_fragment([n, n], ACC)
            T.copy(k[c * n : (c + 1) * n, :], k_s)
            T.copy(v[c * n : (c + 1) * n, :], v_s)
            T.copy(g[c * n : (c + 1) * n], g_s)
            T.copy(beta[c * n : (c + 1) * n], beta_s)
            T.gemm(k_s, k_s, gram, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(n, n):
                P[i, j] = T.if_then_else(
                    i > j and c * n + i < L,
                    -gram[i, j] * beta_s[i] * T.exp(g_s[i] - g_s[j]),
                    0,
                )
                S[i, j] = T.if_then_else(i == j, 1, 0)
            for _ in T.serial(6):
                T.gemm(P, S, tmp, clear_accum=True)
                for i, j in T.Parallel(n, n):
                    S[i, j] = S[i, j] + tmp[i, j]
                T.gemm(P, P, tmp, clear_accum=True)
                T.copy(tmp, P)
            T.copy(S, A[c * n : (c + 1) * n, :])
            for i, j in T.Parallel(n, n):
                k_beta[i, j] = k_s[i, j] * beta_s[i]
            T.gemm(S, k_beta, tmp, clear_accum=True)
            T.copy(tmp, w[c * n : (c + 1) * n, :])
            for i, j in T.Parallel(n, n):
                v_beta[i, j] = v_s[i, j] * beta_s[i]
            T.gemm(S, v_beta, gram, clear_accum=True)
            T.copy(gram, u[c * n : (c + 1) * n, :])

    return kernel


def beta_fragment(dtype="float16", n=64, threads=128):
    """`beta` as a fragment, read only beside shared tiles: TileLang 0.1.15 miscompiles it."""

    @T.prim_func
    def kernel(k: T.Tensor([n, n], dtype), beta: T.Tensor([n], ACC), Y: T.Tensor([n, n], ACC)):
        with T.Kernel(1, threads=threads) as _:
            k_s = T.alloc_shared([n, n], dtype)
            k_beta = T.alloc_shared([n, n], ACC)
            beta_f = T.alloc_fragment([n], ACC)
            y = T.alloc_fragment([n, n], ACC)
            T.copy(k, k_s)
            T.copy(beta, beta_f)
            for i, j in T.Parallel(n, n):
                k_beta[i, j] = k_s[i, j] * beta_f[i]
            T.gemm(k_beta, k_beta, y, transpose_B=True, clear_accum=True)
            T.copy(y, Y)

    return kernel


def loop_carried(dtype="float16", chunks=3, n=64, threads=128):
    """A tile loaded in the first iteration and read in all, before each loads another tile.

    Right by default; `enable_aggressive_shared_memory_merge` overwrites the carried tile.
    """

    @T.prim_func
    def kernel(
        W: T.Tensor([n, n], dtype),
        X: T.Tensor([chunks, n, n], dtype),
        Y: T.Tensor([chunks, n, n], dtype),
    ):
        with T.Kernel(1, threads=threads) as _:
            w_s = T.alloc_shared([n, n], dtype)
            x_s = T.alloc_shared([n, n], dtype)
            y = T.alloc_fragment([n, n], dtype)
            for c in T.serial(chunks):
                if c == 0:
                    T.copy(W, w_s)
                for i, j in T.Parallel(n, n):
                    y[i, j] = w_s[j, i]
                T.copy(X[c, :, :], x_s)
                for i, j in T.Parallel(n, n):
                    Y[c, i, j] = y[i, j] + x_s[j, i]

    return kernel


def divergent_tiles(n=64, threads=128):
    """Each half of the threads with a tile of its own, both live at once.

    `enable_aggressive_shared_memory_merge` puts the two into one storage.
    """

    @T.prim_func
    def kernel(X: T.Tensor([2, n], ACC), Y: T.Tensor([2, n], ACC)):
        with T.Kernel(1, threads=threads) as _:
            low = T.alloc_shared([n], ACC)
            high = T.alloc_shared([n], ACC)
            tx = T.get_thread_binding(0)
            if tx < n:
                low[tx] = X[0, tx]
                T.sync_warp()
                Y[0, tx] = low[tx ^ 1]
            else:
                high[tx - n] = X[1, tx - n]
                T.sync_warp()
                Y[1, tx - n] = high[(tx - n) ^ 1]

    return kernel


def turned_matmul(dtype, turned_a, turned_b, width=64, k=64):
    """C = op(A) @ op(B), one tile: operands along k or across it, in rows of `width` elements."""
    a_shape, b_shape = [k, 64] if turned_a else [64, k], [width, k] if turned_b else [k, width]

    @T.prim_func
    def kernel(
        A: T.Tensor(a_shape, dtype), B: T.Tensor(b_shape, dtype), C: T.Tensor([64, width], ACC)
    ):
        with T.Kernel(1, threads=128) as _:
            a_s = T.alloc_shared(a_shape, dtype)
            b_s = T.alloc_shared(b_shape, dtype)
            c_f = T.alloc_fragment([64, width], ACC)
            T.copy(A, a_s)
            T.copy(B, b_s)
            T.clear(c_f)
            T.gemm(a_s, b_s, c_f, transpose_A=turned_a, transpose_B=turned_b)
            T.copy(c_f, C)

    return kernel


def loaded_beside_tma(rounds=4):
    """C = sum over tiles of (A @ B[tile]) * S[tile]; the numbers S are loaded without TMA."""

    @T.prim_func
    def kernel(
        A: T.Tensor([64, 64], "float16"),
        B: T.Tensor([64 * rounds, 64], "float16"),
        S: T.Tensor([64 * rounds], ACC),
        C: T.Tensor([64, 64], ACC),
    ):
        with T.Kernel(1, threads=128) as _:
            a_s = T.alloc_shared([64, 64], "float16")
            b_s = T.alloc_shared([64, 64], "float16")
            s_s = T.alloc_shared([64], ACC)
            c_f = T.alloc_fragment([64, 64], ACC)
            d_f = T.alloc_fragment([64, 64], ACC)
            T.copy(A, a_s)
            T.clear(c_f)
            for ko in T.Pipelined(rounds, num_stages=2):
                T.copy(B[ko * 64 : (ko + 1) * 64, :], b_s)
                for i in T.Parallel(64):
                    s_s[i] = S[ko * 64 + i]
                T.gemm(a_s, b_s, d_f, clear_accum=True)
                for i, j in T.Parallel(64, 64):
                    c_f[i, j] += d_f[i, j] * s_s[j]
            T.copy(c_f, C)

    return kernel
