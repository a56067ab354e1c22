"""The fused prepare kernel with beta in a fragment: what the review called a critical bug."""

import tilelang
import tilelang.language as T


@tilelang.jit
def gated_deltanet_prepare(block_C=64, dim_k=64, dim_v=64, dtype="float16", accum_dtype="float32"):
    batch, head, seq = T.dynamic("batch"), T.dynamic("head"), T.dynamic("seq")
    qk_shape = [batch, head, seq, dim_k]
    v_shape = [batch, head, seq, dim_v]

    @T.prim_func
    def prepare(
        k: T.Tensor(qk_shape, dtype),
        v: T.Tensor(v_shape, dtype),
        g: T.Tensor([batch, head, seq], accum_dtype),
        beta: T.Tensor([batch, head, seq], accum_dtype),
        A: T.Tensor([batch, head, seq, block_C], dtype),
        w: T.Tensor(qk_shape, dtype),
        u: T.Tensor(v_shape, dtype),
    ):
        with T.Kernel(T.ceildiv(seq, block_C), head, batch, threads=128) as (by, hid, bid):
            k_shared = T.alloc_shared([block_C, dim_k], dtype)
            v_shared = T.alloc_shared([block_C, dim_v], dtype)
            g_shared = T.alloc_shared([block_C], accum_dtype)
            beta_shared = T.alloc_fragment([block_C], accum_dtype)
            S_shared = T.alloc_shared([block_C, block_C], accum_dtype)
            P_shared = T.alloc_shared([block_C, block_C], accum_dtype)
            k_beta_shared = T.alloc_shared([block_C, dim_k], accum_dtype)
            v_beta_shared = T.alloc_shared([block_C, dim_v], accum_dtype)
            gram = T.alloc_fragment([block_C, block_C], accum_dtype)
            tmp = T.alloc_fragment([block_C, block_C], accum_dtype)
            w_frag = T.alloc_fragment([block_C, dim_k], accum_dtype)
            u_frag = T.alloc_fragment([block_C, dim_v], accum_dtype)

            T.copy(k[bid, hid, by * block_C : (by + 1) * block_C, :], k_shared)
            T.copy(v[bid, hid, by * block_C : (by + 1) * block_C, :], v_shared)
            T.copy(g[bid, hid, by * block_C : (by + 1) * block_C], g_shared)
            T.copy(beta[bid, hid, by * block_C : (by + 1) * block_C], beta_shared)

            # P = -strictLower(diag(beta) (Gamma * k k^T)), S = I
            T.clear(gram)
            T.gemm(k_shared, k_shared, gram, transpose_B=True)
            for i, j in T.Parallel(block_C, block_C):
                P_shared[i, j] = T.if_then_else(
                    i > j, -gram[i, j] * beta_shared[i] * T.exp(g_shared[i] - g_shared[j]), 0
                )
                S_shared[i, j] = T.if_then_else(i == j, 1, 0)

            # Neumann: S = (I + P) (I + P^2) (I + P^4) ...
            for _ in T.serial(6):
                T.clear(tmp)
                T.gemm(P_shared, S_shared, tmp)
                for i, j in T.Parallel(block_C, block_C):
                    S_shared[i, j] = S_shared[i, j] + tmp[i, j]
                T.clear(tmp)
                T.gemm(P_shared, P_shared, tmp)
                T.copy(tmp, P_shared)
            T.copy(S_shared, A[bid, hid, by * block_C : (by + 1) * block_C, :], disable_tma=True)

            # w = S @ (beta * k)
            for i_s, i_k in T.Parallel(block_C, dim_k):
                k_beta_shared[i_s, i_k] = k_shared[i_s, i_k] * beta_shared[i_s]
            T.clear(w_frag)
            T.gemm(S_shared, k_beta_shared, w_frag)
            T.copy(w_frag, w[bid, hid, by * block_C : (by + 1) * block_C, :], disable_tma=True)

            # u = S @ (beta * v)
            for i, j in T.Parallel(block_C, dim_v):
                v_beta_shared[i, j] = v_shared[i, j] * beta_shared[i]
            T.clear(u_frag)
            T.gemm(S_shared, v_beta_shared, u_frag)
            T.copy(u_frag, u[bid, hid, by * block_C : (by + 1) * block_C, :], disable_tma=True)

    return prepare
