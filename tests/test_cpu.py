"""Tiny kernels, run as their own text on the CPU, against torch."""

from __future__ import annotations

import sys
import textwrap

import pytest
import torch

from gdngen.verify import cpu

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


def source(signature: str, body: str, grid: str = "1", blocks: str = "_", dims: str = "") -> str:
    """The text of a module like a generated one: symbolic N and M, one factory, one prim_func."""
    indent = " " * 12
    return f"""\
import tilelang
import tilelang.language as T

{textwrap.dedent(dims)}

@tilelang.jit(pass_configs={{"tl.disable_shared_memory_reuse": True}})
def tiny():
    N = T.dynamic("N")
    M = T.dynamic("M")

    @T.prim_func
    def kernel({signature}):
        with T.Kernel({grid}, threads=128) as ({blocks}):
{textwrap.indent(textwrap.dedent(body), indent)}

    return kernel
"""


@pytest.fixture
def build(tmp_path):
    def build(*args, **kwargs):
        path = tmp_path / "tiny.py"
        path.write_text(source(*args, **kwargs))
        return cpu.compile(path)

    return build


def randn(*shape, dtype="float32", seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(getattr(torch, dtype))


def close(got, want, dtype="float32"):
    bound = TOLERANCE[dtype]
    torch.testing.assert_close(got.float(), want.float(), rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_signature_and_every_block(build, dtype):
    kernel = build(
        "x: T.Tensor([N, M, 8], io), y: T.Tensor([N, M, 8], io)",
        """
        t = T.alloc_shared([4, 8], io)
        T.copy(x[b, c * 4 : (c + 1) * 4, :], t)
        for i, j in T.Parallel(4, 8):
            t[i, j] = t[i, j] * 2 + b
        T.copy(t, y[b, c * 4 : (c + 1) * 4, :], disable_tma=True)
        """,
        grid="T.ceildiv(M, 4), N",
        blocks="c, b",
        dims=f'io = "{dtype}"',
    )
    assert kernel.name == "tiny"
    assert [param.name for param in kernel.params] == ["x", "y"]
    assert kernel.params[0].shape == ("N", "M", "8")
    assert kernel.params[0].dtype == dtype
    assert kernel.bf16_as_float32 == (dtype == "bfloat16")
    x = randn(3, 10, 8, dtype=dtype)  # the last block has two rows of four
    y = torch.full_like(x, 7)
    kernel(x=x, y=y)
    close(y, x * 2 + torch.arange(3).view(3, 1, 1), dtype)


def test_wrong_tensors_are_refused(build):
    kernel = build("x: T.Tensor([N], 'float32')", "x[0] = 1.0")
    with pytest.raises(TypeError, match="takes"):
        kernel(y=torch.zeros(3))
    with pytest.raises(TypeError, match="x is float32"):
        kernel(x=torch.zeros(3, dtype=torch.float16))
    with pytest.raises(TypeError, match="x is float32"):
        kernel(x=torch.zeros(3, 3))


def test_a_non_contiguous_output_is_written(build):
    kernel = build("x: T.Tensor([N, M], 'float32')", "x[1, 0] = 5.0")
    x = torch.zeros(2, 3).t()
    kernel(x=x)
    assert x[1, 0] == 5 and x.sum() == 5


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("clear", [False, True])
def test_gemm(build, dtype, transpose_a, transpose_b, clear):
    a_shape = [48, 32] if transpose_a else [32, 48]
    b_shape = [16, 48] if transpose_b else [48, 16]
    kernel = build(
        "a: T.Tensor(A, io), b: T.Tensor(B, io), c: T.Tensor([32, 16], 'float32')",
        f"""
        a_s = T.alloc_shared(A, io)
        b_s = T.alloc_shared(B, io)
        acc = T.alloc_fragment([32, 16], "float32")
        T.copy(a, a_s)
        T.copy(b, b_s)
        T.fill(acc, 1.0)
        T.gemm(a_s, b_s, acc, transpose_A={transpose_a}, transpose_B={transpose_b},
               clear_accum={clear}, policy=T.GemmWarpPolicy.FullRow)
        T.copy(acc, c)
        """,
        dims=f'io, A, B = "{dtype}", {a_shape}, {b_shape}',
    )
    a, b = randn(*a_shape, dtype=dtype), randn(*b_shape, dtype=dtype, seed=1)
    c = torch.zeros(32, 16)
    kernel(a=a, b=b, c=c)
    a, b = (a.t() if transpose_a else a).float(), (b.t() if transpose_b else b).float()
    close(c, a @ b + (not clear), "float16")


def test_slices_as_operands_and_destinations(build):
    kernel = build(
        "a: T.Tensor([32, 32], 'float32'), c: T.Tensor([32, 64], 'float32')",
        """
        arena = T.alloc_shared([2, 32, 64], "float32")
        wide = T.alloc_fragment([32, 64], "float32")
        T.clear(arena)
        T.fill(arena[1, :, 32:64], 2.0)
        T.copy(a, arena[0, :, :32])
        for d in T.serial(2):
            T.gemm(arena[0, :, :32], arena[0, :, :32], wide[:, d * 32 : (d + 1) * 32],
                   transpose_B=True, clear_accum=True)
        for d in T.unroll(2):
            T.copy(wide[:, d * 32 : (d + 1) * 32], arena[0, :, d * 32 : (d + 1) * 32])
        for i, j in T.Parallel(32, 64):
            c[i, j] = arena[0, i, j] + arena[1, i, j]
        """,
    )
    a, c = randn(32, 32), torch.zeros(32, 64)
    kernel(a=a, c=c)
    gram = a @ a.t()
    close(c, torch.cat([gram, gram + 2], 1))


@pytest.mark.parametrize("source_dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("target_dtype", ["float32", "float16", "bfloat16"])
def test_copies_between_every_two_scopes(build, source_dtype, target_dtype):
    kernel = build(
        "x: T.Tensor([N, 8], P), y: T.Tensor([N, 8], Q), z: T.Tensor([N, 8], Q)",
        """
        s = T.alloc_shared([4, 8], P)
        f = T.alloc_fragment([4, 8], Q)
        s2 = T.alloc_shared([4, 8], Q)
        f2 = T.alloc_fragment([4, 8], Q)
        T.copy(x[c * 4, 0], s)
        T.copy(s, f)
        T.copy(f, s2)
        T.copy(s2, y[c * 4 : c * 4 + 4, :])
        T.copy(y[c * 4 : c * 4 + 4, :], f2)
        T.copy(f2, z[c * 4 : c * 4 + 4, :])
        """,
        grid="T.ceildiv(N, 4)",
        blocks="c",
        dims=f'P, Q = "{source_dtype}", "{target_dtype}"',
    )
    x = randn(6, 8, dtype=source_dtype)
    y = torch.zeros(6, 8, dtype=getattr(torch, target_dtype))
    z = torch.zeros_like(y)
    kernel(x=x, y=y, z=z)
    torch.testing.assert_close(y, x.to(y.dtype))
    torch.testing.assert_close(z, y)


def test_a_ragged_tail_reads_zero_and_stores_nothing(build):
    kernel = build(
        "x: T.Tensor([N, M], 'float32'), y: T.Tensor([N, M], 'float32'), "
        "rows: T.Tensor([8], 'float32')",
        """
        s = T.alloc_shared([8, 8], "float32")
        T.copy(x[0:8, 0:8], s)
        for i in T.serial(8):
            rows[i] = s[i, 3]
        for i, j in T.Parallel(8, 8):
            y[i - 1, j] = s[i, j] + x[i + 1, j]
        """,
    )
    whole = torch.full((9, 8), 3.0)
    x, y, rows = whole.clone()[2:7], torch.full((7, 8), 9.0), torch.full((8,), 4.0)
    inner = y[1:6]
    inner.zero_()
    kernel(x=x, y=inner, rows=rows)
    assert rows.tolist() == [3.0] * 5 + [0.0] * 3
    assert (y[0] == 9).all() and (y[6] == 9).all()
    assert inner[:, 0].tolist() == [6.0, 6.0, 6.0, 3.0, 0.0]


REDUCE = {
    "sum": lambda x, dim: x.sum(dim),
    "abssum": lambda x, dim: x.abs().sum(dim),
    "max": lambda x, dim: x.amax(dim),
    "absmax": lambda x, dim: x.abs().amax(dim),
    "min": lambda x, dim: x.amin(dim),
}


@pytest.mark.parametrize("kind", REDUCE)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("scope", ["alloc_shared", "alloc_fragment"])
def test_reduce(build, kind, dim, scope):
    length = 4 if dim else 8
    clear = "" if kind == "abssum" else ", clear=False"
    kernel = build(
        f"x: T.Tensor([4, 8], 'float32'), y: T.Tensor([2, {length}], 'float32')",
        f"""
        s = T.{scope}([4, 8], "float32")
        one = T.alloc_fragment([{length}], "float32")
        two = T.alloc_shared([{length}], "float32")
        T.copy(x, s)
        T.reduce_{kind}(s, one, dim={dim})
        T.fill(two, 1.0)
        T.reduce_{kind}(s, two, dim={dim}{clear})
        for i in T.Parallel({length}):
            y[0, i] = one[i]
            y[1, i] = two[i]
        """,
    )
    x, y = randn(4, 8), torch.zeros(2, length)
    kernel(x=x, y=y)
    want = REDUCE[kind](x, dim)
    close(y[0], want)
    ones = torch.ones_like(want)
    kept = {"sum": want + 1, "abssum": want, "min": torch.minimum(want, ones)}
    close(y[1], kept.get(kind, torch.maximum(want, ones)))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("in_place", [False, True])
def test_cumsum(build, reverse, dim, in_place):
    target = "s" if in_place else "t"
    call = "s" if in_place else "s, t"
    kernel = build(
        "x: T.Tensor([4, 8], 'float32'), y: T.Tensor([4, 8], 'float32'), g: T.Tensor([5], 'float32')",
        f"""
        s = T.alloc_shared([4, 8], "float32")
        t = T.alloc_shared([4, 8], "float32")
        v = T.alloc_fragment([5], "float32")
        T.copy(x, s)
        T.cumsum({call}, dim={dim}, reverse={reverse})
        T.copy({target}, y)
        T.copy(g, v)
        T.cumsum(v, reverse={reverse})
        T.copy(v, g)
        """,
    )
    x, y, g = randn(4, 8), torch.zeros(4, 8), randn(5)

    def cumsum(tensor, dim):
        return tensor.flip(dim).cumsum(dim).flip(dim) if reverse else tensor.cumsum(dim)

    want = cumsum(g, 0)
    kernel(x=x, y=y, g=g)
    close(y, cumsum(x, dim))
    close(g, want)


MATHS = {
    "T.exp(a)": torch.exp,
    "T.exp2(a)": torch.exp2,
    "T.log(T.abs(a) + 1)": lambda a: torch.log(a.abs() + 1),
    "T.log2(T.abs(a) + 1)": lambda a: torch.log2(a.abs() + 1),
    "T.sqrt(T.abs(a))": lambda a: a.abs().sqrt(),
    "T.rsqrt(T.abs(a) + 1)": lambda a: (a.abs() + 1).rsqrt(),
    "T.tanh(a)": torch.tanh,
    "T.sigmoid(a)": torch.sigmoid,
    "T.sin(a) + T.cos(a)": lambda a: a.sin() + a.cos(),
    "T.floor(a)": torch.floor,
    "T.max(a, 0.25)": lambda a: a.clamp(min=0.25),
    "T.min(a, i)": lambda a: torch.minimum(a, torch.arange(16)),
    "T.Select(i > 3, a, -a)": lambda a: torch.where(torch.arange(16) > 3, a, -a),
    "T.if_then_else(i > 3, a, 0)": lambda a: torch.where(torch.arange(16) > 3, a, 0),
    "T.if_then_else(i > 3 and i < 9, a, 1)": lambda a: torch.where(
        (torch.arange(16) > 3) & (torch.arange(16) < 9), a, 1
    ),
    "a / 3 + i // 3 + i % 5": lambda a: a / 3 + torch.arange(16) // 3 + torch.arange(16) % 5,
    "-a * a": lambda a: -a * a,
    "T.cast(T.cast(a, 'float16'), 'float32')": lambda a: a.half().float(),
    "T.cast(T.cast(a, 'bfloat16'), 'float32')": lambda a: a,
    "T.max(a, -T.infinity('float32'))": lambda a: a,
    "T.pow(T.abs(a), 2.0)": lambda a: a * a,
}


def test_maths(build):
    lines = "\n".join(f"    y[{n}, i] = {text}" for n, text in enumerate(MATHS))
    kernel = build(
        "x: T.Tensor([16], 'float32'), y: T.Tensor([N, 16], 'float32')",
        f"for i in T.Parallel(16):\n    a = x[i]\n{lines}",
    )
    x, y = randn(16), torch.zeros(len(MATHS), 16)
    kernel(x=x, y=y)
    for row, (text, function) in zip(y, MATHS.items()):
        torch.testing.assert_close(row, function(x), rtol=1e-5, atol=1e-5, msg=text)


def test_half_maths_round_to_nearest(build):
    kernel = build(
        "x: T.Tensor([N], 'float16'), y: T.Tensor([N], 'float16'), z: T.Tensor([N], 'float16')",
        """
        for i in T.Parallel(128):
            y[i] = T.exp(x[i])
            z[i] = T.cast(x[i], "float32") * 1.2345
        """,
    )
    x = randn(100, dtype="float16")
    y, z = torch.zeros_like(x), torch.zeros_like(x)
    kernel(x=x, y=y, z=z)
    torch.testing.assert_close(y, x.exp(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(z, (x.float() * 1.2345).half(), rtol=0, atol=0)


def test_loops_branches_and_scalars(build):
    kernel = build(
        "x: T.Tensor([N, 4], 'float32'), y: T.Tensor([N, 4], 'float32')",
        """
        T.use_swizzle(4)
        s = T.alloc_shared([4], "float32")
        T.annotate_layout({s: T.Layout([4], lambda i: i)})
        r = T.alloc_local([4], "float32")
        total = T.alloc_var("float32")
        total = 0.0
        T.clear(r)
        for k in T.Pipelined(3, num_stages=2):
            T.copy(x[b, :], s)
            for i in T.Parallel(4):
                r[i] = r[i] + s[i] * k
        for _ in T.serial(6):
            total = total + 0.5
        for k in T.Pipelined(1, 3, num_stages=1):
            total = total + k
        T.sync_threads()
        if b % 2 == 0:
            for i in T.Parallel(4):
                y[b, i] = r[i] + total
        else:
            for i in T.Parallel(4):
                y[b, i] = -r[i]
        """,
        grid="N",
        blocks="b",
    )
    x, y = randn(5, 4), torch.zeros(5, 4)
    kernel(x=x, y=y)
    even = (torch.arange(5) % 2 == 0)[:, None]
    close(y, torch.where(even, 3 * x + 6, -3 * x))


def test_substitution_in_private_storage(build):
    kernel = build(
        "l: T.Tensor([32, 32], 'float32'), y: T.Tensor([32, 32], 'float32')",
        """
        L = T.alloc_shared([32, 32], "float32")
        D = T.alloc_shared([32, 32], "float32")
        x = T.alloc_local([16], "float32")
        T.copy(l, L)
        T.clear(D)
        for col in T.Parallel(32):
            for i in T.unroll(16):
                x[i] = T.if_then_else(i == col % 16, 1.0, 0.0)
                for m in T.unroll(i):
                    x[i] = x[i] - L[(col // 16) * 16 + i, (col // 16) * 16 + m] * x[m]
            for i in T.unroll(16):
                D[(col // 16) * 16 + i, col] = x[i]
        T.copy(D, y)
        """,
    )
    lower, y = torch.tril(randn(32, 32), -1) * 0.1, torch.zeros(32, 32)
    kernel(l=lower, y=y)
    for s in (slice(0, 16), slice(16, 32)):
        close(y[s, s], torch.linalg.inv(torch.eye(16) + lower[s, s]))
    assert not y[:16, 16:].any() and not y[16:, :16].any()


def test_threads_are_refused(build):
    with pytest.raises(NotImplementedError, match="no threads"):
        build("y: T.Tensor([4], 'float32')", "tx = T.get_thread_binding()\ny[tx] = 1.0")


def test_two_names_are_one_storage(build):
    kernel = build(
        "y: T.Tensor([4], 'float32')",
        """
        P = T.alloc_shared([4], "float32")
        beta = P
        T.fill(P, 1.0)
        T.fill(beta, 2.0)
        T.copy(P, y)
        """,
    )
    y = torch.zeros(4)
    kernel(y=y)
    assert y.tolist() == [2.0] * 4


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_a_view_shares_its_tile(build, narrow):
    kernel = build(
        "x: T.Tensor([4, 16], io), y: T.Tensor([4, 16], io), z: T.Tensor([8, 4], 'float32')",
        """
        S = T.alloc_shared([4, 8], "float32")
        k = T.view(S, [4, 16], io)
        T.fill(S, 3.0)
        flat = T.reshape(S, [8, 4])
        T.copy(flat, z)
        T.copy(x, k)
        for i in T.serial(1):
            S[0, 0] = 1.0
        T.copy(k, y)
        """,
        dims=f'io = "{narrow}"',
    )
    x, z = randn(4, 16, dtype=narrow), torch.zeros(8, 4)
    y = torch.zeros_like(x)
    kernel(x=x, y=y, z=z)
    assert (z == 3).all()
    torch.testing.assert_close(y[1:], x[1:])
    assert y[0, 0] != x[0, 0] or y[0, 1] != x[0, 1]


def test_a_read_before_a_write_shows(build):
    kernel = build(
        "y: T.Tensor([4], 'float32')",
        """
        P = T.alloc_shared([4], "float32")
        T.copy(P, y)
        """,
    )
    y = torch.zeros(4)
    kernel(y=y)
    assert y.isnan().all()


def test_nothing_outside_the_module_changes(build):
    before = {name: sys.modules.get(name) for name in ("tilelang", "tilelang.language")}
    with pytest.raises(Exception):
        build("y: T.Tensor([4], 'float32')", "T.no_such_operation(y)")
    assert before == {name: sys.modules.get(name) for name in before}
