"""What a parallel loop may do with a fragment: patterns, what TileLang 0.1.15 makes of each, and what
gdngen says.

Every body stands in `FRAME`, behind the loads of its tiles: x_s, y_s shared, xf a copy of X, g a
product, bf a copy of B. It leaves its result in Y.
"""

from dataclasses import dataclass

N = 64
FRAME = """\
import tilelang
import tilelang.language as T

N = 64
f16, f32 = "float16", "float32"


@tilelang.jit
def pattern():
    @T.prim_func
    def kernel(X: T.Tensor([N, N], f32), B: T.Tensor([N], f32), Y: T.Tensor([N, N], f32)):
        with T.Kernel(1, threads={threads}) as _:
            x_s = T.alloc_shared([N, N], f16)
            y_s = T.alloc_shared([N, N], f32)
            xf = T.alloc_fragment([N, N], f32)
            bf = T.alloc_fragment([N], f32)
            g = T.alloc_fragment([N, N], f32)
            h = T.alloc_fragment([N, N], f32)
            own = T.alloc_local([N], f32)
            T.copy(X, x_s)
            T.copy(X, xf)
            T.copy(B, bf)
            T.copy(X, y_s)
            T.gemm(x_s, x_s, g, transpose_B=True, clear_accum=True)
{body}
    return kernel
"""
TWO = "for i, j in T.Parallel(N, N):\n    "
GRAM = "T.gemm(x_s, x_s, g, transpose_B=True, clear_accum=True)\nT.copy(g, Y)"
OUT = "T.copy(y_s, Y)"


@dataclass(frozen=True)
class Pattern:
    """`truth` is what TileLang does: right, wrong, or refused; `said` what gdngen says of it."""

    body: str
    truth: str
    said: str | None
    threads: int = 128

    @property
    def text(self) -> str:
        lines = "".join(f"            {line}\n" for line in self.body.splitlines())
        return FRAME.format(threads=self.threads, body=lines)


PATTERNS = {
    # one element, its own
    "own": Pattern(f"{TWO}g[i, j] = g[i, j] * 2\nT.copy(g, Y)", "right", None),
    "beside shared": Pattern(f"{TWO}y_s[i, j] = g[i, j] * x_s[i, j]\n{OUT}", "right", None),
    "turned": Pattern(f"{TWO}y_s[i, j] = g[j, i]\n{OUT}", "right", None),
    "turned loop": Pattern(
        f"for j, i in T.Parallel(N, N):\n    y_s[i, j] = g[i, j]\n{OUT}", "right", None
    ),
    "turned beside a copy": Pattern(f"{TWO}y_s[i, j] = g[i, j] + xf[j, i]\n{OUT}", "right", "warning"),
    "turned beside a product": Pattern(
        f"T.gemm(x_s, x_s, h, clear_accum=True)\n{TWO}y_s[i, j] = g[i, j] + h[j, i]\n{OUT}",
        "refused",
        "error",
    ),
    "turned beside its like": Pattern(
        f"{TWO}xf[i, j] = xf[i, j] + g[i, j]\n{TWO}y_s[i, j] = g[i, j] + xf[j, i]\n{OUT}",
        "refused",
        "error",
    ),
    "turned beside its copy": Pattern(
        f"T.copy(g, xf)\n{TWO}y_s[i, j] = xf[j, i] + g[i, j]\n{OUT}", "refused", "error"
    ),
    "both ways": Pattern(f"{TWO}y_s[i, j] = g[i, j] + g[j, i]\n{OUT}", "refused", "error"),
    # a row of a statistic
    "row beside a product": Pattern(f"{TWO}g[i, j] = g[i, j] * bf[i]\nT.copy(g, Y)", "right", None),
    "row beside a copy": Pattern(f"{TWO}xf[i, j] = xf[i, j] * bf[i]\nT.copy(xf, Y)", "right", None),
    "column beside a product": Pattern(f"{TWO}g[i, j] = g[i, j] * bf[j]\nT.copy(g, Y)", "right", None),
    "row and column": Pattern(f"{TWO}g[i, j] = g[i, j] * bf[i] * bf[j]\nT.copy(g, Y)", "refused", "error"),
    "row, then column": Pattern(
        f"{TWO}g[i, j] = g[i, j] * bf[i]\n{TWO}g[i, j] = g[i, j] * bf[j]\nT.copy(g, Y)", "refused", "error"
    ),
    "row beside shared": Pattern(f"{TWO}x_s[i, j] = x_s[i, j] * bf[i]\n{GRAM}", "wrong", "error"),
    "row beside shared, twice": Pattern(
        f"{TWO}x_s[i, j] = x_s[i, j] * bf[i]\n{TWO}y_s[i, j] = x_s[i, j] * bf[j]\n{OUT}", "wrong", "error"
    ),
    "row beside shared, threads fit": Pattern(
        f"{TWO}x_s[i, j] = x_s[i, j] * bf[i]\n{GRAM}", "right", "warning", threads=64
    ),
    "a row written here, beside shared": Pattern(
        f"for i in T.Parallel(N):\n    bf[i] = B[i]\n{TWO}x_s[i, j] = x_s[i, j] * bf[i]\n{GRAM}",
        "wrong",
        "error",
    ),
    "column beside shared": Pattern(f"{TWO}x_s[i, j] = x_s[i, j] * bf[j]\n{GRAM}", "right", None),
    "row beside a product, then shared": Pattern(
        f"{TWO}g[i, j] = g[i, j] * bf[i]\nT.copy(g, y_s)\n{TWO}x_s[i, j] = x_s[i, j] * bf[i]\n{GRAM}",
        "right",
        "warning",
    ),
    "sixteen rows share": Pattern(f"{TWO}g[i, j] = g[i, j] * bf[i // 16]\nT.copy(g, Y)", "right", None),
    "a row is written by many": Pattern(f"{TWO}bf[i] = g[i, j]\nT.copy(bf, Y[0, :])", "refused", "error"),
    # a row of a sum
    "sum beside its product": Pattern(
        f"T.reduce_sum(g, bf, dim=1)\n{TWO}g[i, j] = g[i, j] * bf[i]\nT.copy(g, Y)", "right", None
    ),
    "sum beside another": Pattern(
        f"T.reduce_sum(g, bf, dim=1)\n{TWO}xf[i, j] = xf[i, j] * bf[i]\nT.copy(xf, Y)", "right", None
    ),
    "sum beside shared": Pattern(
        f"T.reduce_sum(g, bf, dim=1)\n{TWO}x_s[i, j] = x_s[i, j] * bf[i] * 0.01\n{GRAM}", "right", None
    ),
    "sum of columns as rows": Pattern(
        f"T.reduce_sum(g, bf, dim=0)\n{TWO}g[i, j] = g[i, j] * bf[i]\nT.copy(g, Y)", "refused", "error"
    ),
    "sum of rows as columns": Pattern(
        f"T.reduce_sum(g, bf, dim=1)\n{TWO}g[i, j] = g[i, j] * bf[j]\nT.copy(g, Y)", "refused", "error"
    ),
    # other elements
    "next column": Pattern(f"{TWO}y_s[i, j] = g[i, (j + 1) % N]\n{OUT}", "refused", "error"),
    "next": Pattern("for i in T.Parallel(N):\n    Y[0, i] = bf[(i + 1) % N]", "refused", "error"),
    "own and next": Pattern(
        "for i in T.Parallel(N):\n    Y[0, i] = bf[i] + bf[(i + 1) % N]", "refused", "error"
    ),
    "two halves": Pattern(
        f"for i, j in T.Parallel(N, 32):\n    y_s[i, j] = g[i, j] + g[i, j + 32]\n{OUT}", "refused", "error"
    ),
    "first column": Pattern(f"{TWO}y_s[i, j] = g[i, 0]\n{OUT}", "refused", "error"),
    "a fixed one": Pattern(f"{TWO}y_s[i, j] = x_s[i, j] * bf[5]\n{OUT}", "refused", "error"),
    "the first": Pattern(f"{TWO}y_s[i, j] = x_s[i, j] * bf[0]\n{OUT}", "right", None),
    "by a loop inside": Pattern(
        "for i in T.Parallel(N):\n    for k in T.serial(N):\n        Y[i, k] = g[i, k]", "refused", "error"
    ),
    "by a loop around": Pattern(
        "for k in T.serial(N):\n    for i in T.Parallel(N):\n        Y[i, k] = g[i, k]", "refused", "error"
    ),
    "no parallel loop": Pattern(
        "for i in T.serial(N):\n    for j in T.serial(N):\n        Y[i, j] = g[i, j]", "wrong", "error"
    ),
    "no parallel loop, a row": Pattern(
        f"{TWO}g[i, j] = g[i, j] * bf[i]\nT.copy(g, y_s)\nfor i in T.serial(N):\n    Y[0, i] = bf[i]",
        "refused",
        "error",
    ),
    "a part of a product": Pattern(f"T.copy(g[:, 32:64], y_s[:, 0:32])\n{OUT}", "right", None),
    "a part of a copy": Pattern(f"T.copy(xf[:, 32:64], y_s[:, 0:32])\n{OUT}", "refused", "warning"),
    "by a loop inside, a copy": Pattern(
        "for i in T.Parallel(N):\n    for k in T.unroll(N):\n        Y[i, k] = xf[i, k]",
        "right",
        "warning",
    ),
    "by a loop around, a copy": Pattern(
        "for k in T.unroll(N):\n    for i in T.Parallel(N):\n        Y[i, k] = xf[i, k]",
        "refused",
        "warning",
    ),
    "strips of a product": Pattern(
        f"for k in T.serial(4):\n    for i, j in T.Parallel(N, 16):\n        y_s[i, j] = g[i, k * 16 + j]\n{OUT}",
        "wrong",
        "error",
    ),
    "strips of a statistic": Pattern(
        "for k in T.serial(4):\n    for i, j in T.Parallel(N, 16):\n"
        f"        y_s[i, j] = x_s[i, j] * bf[k * 16 + j]\n{OUT}",
        "right",
        "warning",
    ),
    "pairs of a product": Pattern(
        "for i, j in T.Parallel(N, N // 2):\n    for v in T.vectorized(2):\n"
        f"        y_s[i, j * 2 + v] = g[i, j * 2 + v]\n{OUT}",
        "right",
        None,
    ),
    "pairs of a copy": Pattern(
        "for i, j in T.Parallel(N, N // 2):\n    for v in T.vectorized(2):\n"
        f"        y_s[i, j * 2 + v] = xf[i, j * 2 + v]\n{OUT}",
        "refused",
        "warning",
    ),
    "a row summed by hand": Pattern(
        f"T.clear(bf)\n{TWO}bf[i] = bf[i] + x_s[i, j]\nT.copy(bf, Y[0, :])", "right", None
    ),
    "a row summed by hand, of a product": Pattern(
        f"T.clear(bf)\n{TWO}bf[i] = bf[i] + g[i, j]\nT.copy(bf, Y[0, :])", "refused", "error"
    ),
    "every second": Pattern(f"{TWO}y_s[i, j] = x_s[i, j] * bf[j % 2]\n{OUT}", "right", None),
    # not fragments
    "a thread's own": Pattern(
        "for i in T.Parallel(N):\n    own[i] = B[i]\nfor i in T.Parallel(N):\n    Y[0, i] = own[i]",
        "refused",
        "error",
    ),
    "a race": Pattern(f"{TWO}y_s[i, j] = y_s[j, i]\n{OUT}", "wrong", "error"),
    "running sum": Pattern("T.cumsum(bf, dim=0)\nT.copy(bf, Y[0, :])", "right", None),
}  # fmt: skip
