"""The meaning of kernels, against torch and against the mathematics."""

from __future__ import annotations

import pytest
import torch
from rendering import kernels, kernels_of

from gdngen import references
from gdngen.verify import samples
from gdngen.verify.interpret import Uninterpretable, bind_sizes, interpret

SPEC = """\
kernel: tiny
runtime: [R]
dims: [N]
variants: {forall: {N: 16}}
tensors:
  x: {role: in, shape: [R, N], dtype: float16}
  n: {role: in, shape: [R, N], dtype: int32}
  y: {role: inout, shape: [R, N], dtype: float32}
grid: {r: "ceildiv(R, 16)"}
threads: 32
buffers:
  s: {scope: shared, shape: [16, N], dtype: float16}
  t: {scope: shared, shape: [16, N], dtype: float32}
  m: {scope: shared, shape: [16, N], dtype: int32}
  f: {scope: fragment, shape: [16, N], dtype: float32}
  v: {scope: shared, shape: [16], dtype: float32}
  p: {scope: fragment, shape: [16, N], dtype: float32}
  q: {scope: fragment, shape: [16], dtype: float32}
stages:
  all:
    - copy: x[r*16:(r+1)*16, :] -> s
    - copy: n[r*16:(r+1)*16, :] -> m
    - fill: 0 -> f
    - fill: 1 -> v
    - fill: 2 -> t
    - copy: t -> p
    - reduce: sum(p) -> q
    - copy: q -> v
"""
STORE = """
    - map: {i: 16, j: N}
      do:
        - y[r*16 + i, j] = %s
"""
ROWS = 21  # one whole block of 16 and a ragged one


def tensors() -> dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 16, generator=source).half()
    n = torch.randint(-20, 20, (ROWS, 16), generator=source, dtype=torch.int32)
    return {"x": x, "n": n, "y": torch.randn(ROWS, 16, generator=source)}


def run(lines: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """y as float64, padded to whole blocks with the zeros that loads outside give; and the inputs."""
    (kernel,) = kernels(SPEC + lines)
    given = tensors()
    kept = {name: data.clone() for name, data in given.items()}
    y = interpret(kernel, given)["y"]
    assert all(torch.equal(given[name], kept[name]) for name in given), "an input was changed"
    return y, {name: data.double() for name, data in given.items()}


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want.double(), rtol=1e-13, atol=1e-13)


I, J = torch.arange(ROWS)[:, None], torch.arange(16)[None, :]
VALUES = {
    "s[i, j] + m[i, j] / 2.0": lambda x, n: x + n / 2,
    "s[i, j] / 3": lambda x, n: x / 3,
    "i * 0.1 + j": lambda x, n: (I % 16).double() * 0.1 + J,
    "m[i, j] // 3 + m[i, j] % 5": lambda x, n: n // 3 + n % 5,
    "-abs(s[i, j]) ** 2": lambda x, n: -(x.abs() ** 2),
    "where(i > j and not i == 5, s[i, j], 7)": lambda x, n: torch.where(
        (I % 16 > J) & (I % 16 != 5), x, 7.0
    ),
    "select(0 <= j < 4 or i >= 12, 1, s[i, j])": lambda x, n: torch.where(
        (J < 4) | (I % 16 >= 12), 1.0, x
    ),
    "where(j < N - 1, s[i, min(j + 1, N - 1)], 0)": lambda x, n: torch.cat(
        [x[:, 1:], torch.zeros(ROWS, 1)], 1
    ),
    "where(j > 0, s[i, j - 1], 0)": lambda x, n: torch.cat([torch.zeros(ROWS, 1), x[:, :-1]], 1),
    "max(s[i, j], 0.5, m[i, j])": lambda x, n: x.clamp(min=0.5).maximum(n),
    "exp(s[i, j]) + exp2(m[i, j]) + tanh(s[i, j])": lambda x, n: x.exp() + n.exp2() + x.tanh(),
    "log(2) + sqrt(abs(s[i, j])) + sigmoid(s[i, j])": lambda x, n: (
        torch.tensor(2.0).double().log() + x.abs().sqrt() + x.sigmoid()
    ),
    "cast(cast(s[i, j] * 10, int32), float32)": lambda x, n: (x * 10).trunc(),
    "cast(cast(s[i, j] / 3, float16), float32)": lambda x, n: x / 3,  # a cast rounds nothing
    "ceildiv(R, N) + ceil_log2(N) + r": lambda x, n: (2 + 4 + I // 16 + 0 * J).double(),
    "x[r*16 + i + 1, j]": lambda x, n: torch.cat([x[1:], torch.zeros(1, 16)]),
}


@pytest.mark.parametrize("text", VALUES)
def test_expressions(text):
    y, given = run(STORE % text)
    close(y, VALUES[text](given["x"], given["n"]))


STATEMENTS = {
    "gemm: s @ s -> f": lambda s: s @ s,
    "gemm: s.T @ s -> f": lambda s: s.mT @ s,
    "gemm: s @ s.T +> f": lambda s: s @ s.mT,
    "fill: 1.5 -> f": lambda s: torch.full_like(s, 1.5),
    "copy: s -> f": lambda s: s,
}


def blocks(x: torch.Tensor) -> torch.Tensor:
    """[ROWS, 16] as [2, 16, 16], 0 where a block reaches past the end."""
    return torch.cat([x, torch.zeros(32 - ROWS, 16)]).view(2, 16, 16).double()


@pytest.mark.parametrize("text", STATEMENTS)
def test_statements(text):
    y, given = run(f"    - {text}" + STORE % "f[i, j]")
    close(y, STATEMENTS[text](blocks(given["x"])).reshape(32, 16)[:ROWS])


REDUCTIONS = {
    "sum": lambda s, d: s.sum(d),
    "max": lambda s, d: s.amax(d),
    "min": lambda s, d: s.amin(d),
    "absmax": lambda s, d: s.abs().amax(d),
    "abssum": lambda s, d: s.abs().sum(d),
}
FOLD = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("arrow", ["->", "+>"])
def test_reductions(op, axis, arrow):
    lines = f"    - fill: 0.25 -> v\n    - reduce: {op}(s) {arrow} v\n      axis: {axis}"
    y, given = run(lines + STORE % "v[i]")
    want = REDUCTIONS[op](blocks(given["x"]), axis + 1)
    want = want if arrow == "->" else FOLD[op.removeprefix("abs")](want, torch.tensor(0.25))
    close(y, want.reshape(32, 1).expand(32, 16)[:ROWS])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(axis, reverse):
    lines = f"    - cumsum: s -> s\n      axis: {axis}\n      reverse: {str(reverse).lower()}"
    y, given = run(lines + STORE % "s[i, j]")
    x = blocks(given["x"])
    want = x.flip(axis + 1).cumsum(axis + 1).flip(axis + 1) if reverse else x.cumsum(axis + 1)
    close(y, want.reshape(32, 16)[:ROWS])


def test_parts_of_tiles_and_guards():
    y, given = run("""
    - copy: s[0, 4:8] -> t[3, 0:4]
    - map: {i: 16, j: N}
      if: j < 2
      do:
        - t[i, j] = i
""" + STORE % "t[i, j]")
    want = torch.full((2, 16, 16), 2.0).double()
    want[:, 3, :4] = blocks(given["x"])[:, 0, 4:8]
    want[:, :, :2] = torch.arange(16)[None, :, None]
    close(y, want.reshape(32, 16)[:ROWS])


def test_loops_and_branches():
    y, given = run("""
    - repeat: 3
      do:
        - map: {i: 16, j: N}
          do:
            - f[i, j] = f[i, j] + 1
    - loop: {d: "ceildiv(R, N)"}
      do:
        - map: {i: 16, j: N}
          do:
            - f[i, j] = f[i, j] + 10 * d
    - when: r == 0
      do:
        - copy: s -> p
      else:
        - fill: -1 -> p
""" + STORE % "f[i, j] + p[i, j]")
    want = blocks(given["x"])
    want[1] = -1
    close(y, want.reshape(32, 16)[:ROWS] + 13)


def test_stores_reach_only_what_they_name():
    y, given = run("    - copy: s[0:2, :] -> y[r*16 + 3:r*16 + 5, :]")
    want = given["y"].clone()
    want[3:5], want[19:21] = given["x"][:2], given["x"][16:18]
    close(y, want)


def test_what_is_never_written_is_nan():
    (kernel,) = kernels(SPEC.replace("role: inout", "role: out") + "    - copy: s[0, :] -> y[r, :]")
    y = interpret(kernel, {name: tensors()[name] for name in ("x", "n")})["y"]
    assert not y[:2].isnan().any() and y[2:].isnan().all()


def test_raw_lines_are_refused():
    raw = "    - raw: T.clear(f)\n      writes: [f]" + STORE % "f[i, j]"
    (kernel,) = kernels(SPEC + raw)
    with pytest.raises(Uninterpretable, match=r"test.yaml:\d+:\d+: a raw statement"):
        interpret(kernel, tensors())


def test_sizes_come_from_shapes():
    (kernel,) = kernels(SPEC + STORE % "s[i, j]")
    given = tensors()
    assert bind_sizes(kernel, given) == {"R": ROWS}
    for wrong, said in (
        ({"n": given["n"][:4]}, "'n' has 4 along axis 0, which is R; 'x' makes it 21"),
        ({"n": given["n"][:, :4]}, r"'n' should be \(21, 16\); got a shape of \(21, 4\)"),
        ({"n": given["n"][0]}, r"'n' is \[R, N\]; got a shape of \(16,\)"),
        ({"z": given["n"]}, "tiny has no tensor 'z'; its tensors are x, n, y"),
    ):
        with pytest.raises(ValueError, match=said):
            bind_sizes(kernel, given | wrong)
    with pytest.raises(ValueError, match="no tensor given has 'R' as a side"):
        bind_sizes(kernel, {})
    with pytest.raises(ValueError, match="no tensor given for n, y"):
        interpret(kernel, {"x": given["x"]})


@pytest.mark.parametrize(
    "name", ["prepare", "examples/matmul", "examples/softmax", "examples/two_pass"]
)
def test_specs_mean_what_their_references_say(name):
    for kernel in list(kernels_of(name).values())[::3]:
        for trial in samples.trials(kernel):
            given = samples.inputs(kernel, trial.sizes, step=trial.step)
            reference = references.get(kernel.reference)
            right = reference(given, {**dict(kernel.values), **trial.sizes})
            found = interpret(kernel, given, trial.sizes)
            assert set(found) == set(right) >= set(reference.gives) - reference.optional
            for output in right:
                torch.testing.assert_close(found[output], right[output], rtol=1e-10, atol=1e-12)


# -- references: against the recurrence, one token at a time ---------------------------------------


def prepared(gated: bool) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Inputs of one chunk of 24 rows (the tile has 32), and the reference's outputs."""
    kernel = kernels_of("prepare")["prepare_c32_k64_v64_float32"]
    given = samples.inputs(kernel, {"B": 1, "H": 1, "T": 24}, step=None if gated else 0.0)
    x = {name: data[0, 0].double() for name, data in given.items()}
    right = references.get("wy_prepare")(given, dict(kernel.values))
    return x, {name: data[0, 0] for name, data in right.items()}


def recurrence(x: dict[str, torch.Tensor], state: torch.Tensor) -> torch.Tensor:
    """The gated delta rule: S_t = e^(a_t) S_(t-1) + beta_t k_t (v_t - k_t e^(a_t) S_(t-1))."""
    before = torch.zeros((), dtype=torch.float64)
    for k, v, g, beta in zip(x["k"], x["v"], x["g"], x["beta"]):
        state = (g - before).exp() * state
        state = state + beta * torch.outer(k, v - k @ state)
        before = g
    return state


def test_u_holds_the_values_that_the_recurrence_writes():
    x, right = prepared(gated=True)
    end = recurrence(x, torch.zeros(64, 64, dtype=torch.float64))
    written = ((x["g"][-1] - x["g"]).exp()[:, None] * x["k"]).mT @ right["u"]
    torch.testing.assert_close(written, end, rtol=1e-10, atol=1e-12)


def test_w_takes_away_what_the_state_already_says():
    """Without a gate; with one, w alone (not beta * e^g * k under A) is not the recurrence's."""
    x, right = prepared(gated=False)
    start = torch.randn(64, 64, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    end = start + x["k"].mT @ (right["u"] - right["w"] @ start)
    torch.testing.assert_close(end, recurrence(x, start), rtol=1e-10, atol=1e-12)


def test_rows_of_w_and_u_follow_from_the_rows_before():
    """Row by row: w_r = beta_r (k_r - sum of exp(g_r - g_i) (k_r . k_i) w_i over i < r); u alike."""
    x, right = prepared(gated=True)
    for name, source in (("w", "k"), ("u", "v")):
        rows: list[torch.Tensor] = []
        for r in range(24):
            row = x[source][r].clone()
            for i in range(r):
                row -= (x["g"][r] - x["g"][i]).exp() * (x["k"][r] @ x["k"][i]) * rows[i]
            rows.append(x["beta"][r] * row)
        torch.testing.assert_close(right[name], torch.stack(rows), rtol=1e-10, atol=1e-12)


# -- samples ---------------------------------------------------------------------------------------


def test_trials_are_ragged_and_of_two_batch_sizes():
    kernel = kernels_of("prepare")["prepare_c64_k64_v64_float16"]
    mild, longer, strong = samples.trials(kernel)
    assert mild.sizes == {"B": 1, "H": 2, "T": 40} and longer.sizes == {"B": 2, "H": 2, "T": 100}
    assert strong.sizes == mild.sizes and str(strong) == "B=1, H=2, T=40, -3 a step"
    assert samples.sizes(kernel, ragged=False) == {"B": 1, "H": 2, "T": 64}
    for kernel in kernels_of("examples/matmul").values():
        tiles = samples.tiles(kernel)
        assert list(tiles) == ["M", "N", "K"]
        for trial in samples.trials(kernel):
            assert all(size % tiles[name] for name, size in trial.sizes.items())


def test_samples_are_what_the_spec_asks_for():
    kernel = kernels_of("prepare")["prepare_c64_k64_v64_bfloat16"]
    sizes = {"B": 2, "H": 3, "T": 70}
    x = samples.inputs(kernel, sizes, seed=3)
    assert {n: tuple(t.shape) for n, t in x.items() if n in "kgA"} == {
        "k": (2, 3, 70, 64), "g": (2, 3, 70), "A": (2, 3, 70, 64)
    }  # fmt: skip
    assert x["k"].dtype == torch.bfloat16 and x["g"].dtype == torch.float32
    torch.testing.assert_close(x["k"].float().norm(dim=-1), torch.ones(2, 3, 70), rtol=1e-2, atol=0)
    assert (x["g"].diff(dim=-1) <= 0).all() and (x["g"] < 0).all()
    assert (x["beta"] >= 0).all() and (x["beta"] <= 1).all()
    assert all(x[name].isnan().all() for name in "Awu")
    again = samples.inputs(kernel, sizes, seed=3)
    assert all(torch.equal(x[name], again[name]) for name in ("k", "v", "g", "beta"))
    assert not torch.equal(x["v"], samples.inputs(kernel, sizes, seed=4)["v"])
    assert (samples.inputs(kernel, sizes, step=3.0)["g"].diff(dim=-1) == -3).all()
