"""Attention with an online softmax, as FlashAttention has it, in macros."""

import tilelang
import tilelang.language as T

pass_configs = {tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True}


@tilelang.jit(out_idx=[3], pass_configs=pass_configs)
def flashattn(batch, heads, seq_len, dim, is_causal=False, block_M=64, block_N=64, num_stages=1):
    scale = (1.0 / dim) ** 0.5 * 1.44269504
    shape = [batch, seq_len, heads, dim]
    dtype = T.float16
    accum_dtype = T.float32

    @T.macro
    def scores(K, Q_shared, K_shared, acc_s, k, bx, by, bz):
        T.copy(K[bz, k * block_N : (k + 1) * block_N, by, :], K_shared)
        if is_causal:
            for i, j in T.Parallel(block_M, block_N):
                acc_s[i, j] = T.if_then_else(
                    bx * block_M + i >= k * block_N + j, 0, -T.infinity(acc_s.dtype)
                )
        else:
            T.clear(acc_s)
        T.gemm(Q_shared, K_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)

    @T.macro
    def softmax(acc_s, acc_s_cast, top, before, factor, total, logsum):
        T.copy(top, before)
        T.fill(top, -T.infinity(accum_dtype))
        T.reduce_max(acc_s, top, dim=1, clear=False)
        for i in T.Parallel(block_M):
            factor[i] = T.exp2(before[i] * scale - top[i] * scale)
        for i, j in T.Parallel(block_M, block_N):
            acc_s[i, j] = T.exp2(acc_s[i, j] * scale - top[i] * scale)
        T.reduce_sum(acc_s, total, dim=1)
        for i in T.Parallel(block_M):
            logsum[i] = logsum[i] * factor[i] + total[i]
        T.copy(acc_s, acc_s_cast)

    @T.prim_func
    def main(
        Q: T.Tensor(shape, dtype),
        K: T.Tensor(shape, dtype),
        V: T.Tensor(shape, dtype),
        Output: T.Tensor(shape, dtype),
    ):
        with T.Kernel(T.ceildiv(seq_len, block_M), heads, batch, threads=128) as (bx, by, bz):
            Q_shared = T.alloc_shared([block_M, dim], dtype)
            K_shared = T.alloc_shared([block_N, dim], dtype)
            V_shared = T.alloc_shared([block_N, dim], dtype)
            O_shared = T.alloc_shared([block_M, dim], dtype)
            acc_s = T.alloc_fragment([block_M, block_N], accum_dtype)
            acc_s_cast = T.alloc_fragment([block_M, block_N], dtype)
            acc_o = T.alloc_fragment([block_M, dim], accum_dtype)
            top = T.alloc_fragment([block_M], accum_dtype)
            before = T.alloc_fragment([block_M], accum_dtype)
            factor = T.alloc_fragment([block_M], accum_dtype)
            total = T.alloc_fragment([block_M], accum_dtype)
            logsum = T.alloc_fragment([block_M], accum_dtype)

            T.copy(Q[bz, bx * block_M : (bx + 1) * block_M, by, :], Q_shared)
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(top, -T.infinity(accum_dtype))

            last = (
                T.ceildiv((bx + 1) * block_M, block_N) if is_causal else T.ceildiv(seq_len, block_N)
            )
            for k in T.Pipelined(last, num_stages=num_stages):
                scores(K, Q_shared, K_shared, acc_s, k, bx, by, bz)
                softmax(acc_s, acc_s_cast, top, before, factor, total, logsum)
                for i, j in T.Parallel(block_M, dim):
                    acc_o[i, j] *= factor[i]
                T.copy(V[bz, k * block_N : (k + 1) * block_N, by, :], V_shared)
                T.gemm(acc_s_cast, V_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_M, dim):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, O_shared)
            T.copy(O_shared, Output[bz, bx * block_M : (bx + 1) * block_M, by, :])

    return main
