"""beta in a fragment that meets shared tiles only: compiled without a word, and wrong."""

import tilelang
import tilelang.language as T

BC, D = 64, 64


@tilelang.jit
def scale_fragment(dtype="float16"):
    @T.prim_func
    def kernel(
        K: T.Tensor([BC, D], dtype),
        Beta: T.Tensor([BC], "float32"),
        Y: T.Tensor([BC, BC], "float32"),
    ):
        with T.Kernel(1, threads=128) as _:
            k = T.alloc_shared([BC, D], dtype)
            k_beta = T.alloc_shared([BC, D], dtype)
            beta = T.alloc_fragment([BC], "float32")
            y = T.alloc_fragment([BC, BC], "float32")
            T.copy(K, k)
            T.copy(Beta, beta)
            for i, j in T.Parallel(BC, D):
                k_beta[i, j] = k[i, j] * beta[i]
            T.gemm(k_beta, k, y, transpose_B=True, clear_accum=True)
            T.copy(y, Y)

    return kernel
