"""Scalars, and copies of ranges that end early: what they mean, and what is refused."""

import ast
import math

import pytest
import torch
from rendering import kernels, module
from small_spec import edited, read

from gdngen.model.model import Assign, Copy
from gdngen.verify import samples, verify
from gdngen.verify.interpret import interpret

# Parts of x lie one behind the other; each is turned to its running sum over at most 32 rows.
PARTS = """\
kernel: parts
dims: [C, D]
runtime: [T, M]
dtypes: {io: null, acc: float32}
options: {given: [true, false]}
variants:
  forall: {C: 32, D: 32, io: [float32, float16], given: [true, false]}
tensors:
  x: {role: in, shape: [T, D], dtype: io}
  cu: {role: in, shape: [M], dtype: int32, sample: offsets, when: given}
  f: {role: in, shape: [2], dtype: acc}
  y: {role: out, shape: [T, D], dtype: io}
grid: {n: "where(given, M - 1, 1)"}
scalars:
  next: n + 1
  start: where(given, cu[n], 0)
  end: where(given, cu[next], T)
  factor: f[0] * 2.0
buffers:
  x_s: {scope: shared, shape: [C, D], dtype: acc}
  y_s: {scope: shared, shape: [C, D], dtype: acc}
stages:
  all:
    - loop: {c: "ceildiv(end - start, C)"}
      do:
        - copy: x[start + c*C:min(start + (c+1)*C, end), :] -> x_s
        - cumsum: x_s -> y_s
          axis: 0
        - map: {i: C, j: D}
          do:
            - y_s[i, j] = y_s[i, j] * factor
        - copy: y_s -> y[start + c*C:min(start + (c+1)*C, end), :]
"""


def parts(io: str = "float32", given: bool = True):
    found = (k for k in kernels(PARTS) if dict(k.dtypes)["io"] == io)
    return next(k for k in found if dict(k.values)["given"] is given)


def test_a_scalar_that_reads_a_tensor_is_read_once():
    kernel = parts()
    found = [(s.name, ast.unparse(s.value), s.dtype) for s in kernel.scalars]
    assert found == [
        ("start", "cu[n]", "int32"),
        ("end", "cu[n + 1]", "int32"),
        ("factor", "f[0] * 2.0", "float32"),
    ]


def test_a_scalar_of_sizes_stands_for_its_expression():
    kernel = parts(given=False)
    assert [s.name for s in kernel.scalars] == ["factor"]
    load, *_, store = kernel.leaves()
    assert isinstance(load, Copy) and isinstance(store, Copy), "the tensor's own end is no other"
    assert ast.unparse(load.src.index[0].start) == "c * C"
    assert kernel.runtime == ("T",) and "cu" not in [t.name for t in kernel.tensors]


def test_a_range_that_ends_early_becomes_a_map():
    load, *_, store = parts("float16").leaves()
    assert isinstance(load, Assign) and isinstance(store, Assign)
    assert [(a.name, a.extent) for a in load.axes] == [("i", 32), ("j", 32)]
    value = "where(start + c * C + i < end, cast(x[start + c * C + i, j], acc), cast(0, acc))"
    assert ast.unparse(load.value) == value and load.covers
    assert ast.unparse(store.guard) == "start + c * C + i < end"
    assert ast.unparse(store.value) == "cast(y_s[i, j], io)"


def test_what_it_means():
    x, cu = torch.randn(100, 32), torch.tensor([0, 70, 70, 100])
    got = interpret(parts(), {"x": x, "cu": cu, "f": torch.tensor([0.5, 9.0])})["y"]
    chunks = [part for a in (x[:70], x[70:]) for part in a.double().split(32)]
    assert torch.allclose(got, torch.cat([part.cumsum(0) for part in chunks]))


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("io", ["float32", "float16"])
def test_it_runs(tmp_path, io, given):
    kernel = parts(io, given)
    path, plans = module(kernel, tmp_path)
    verdict = verify.verify(kernel, path, {})
    assert verdict.ok, verdict.problems()


@pytest.mark.parametrize("io", ["float32", "float16"])
def test_loads_that_end_early_are_unchecked_where_all_their_rows_are_there(io, tmp_path):
    path, _ = module(parts(io), tmp_path)
    text = " ".join(path.read_text().split())
    value = "x[start + c * C + i, j]"
    cast = f"T.cast({value}, acc)" if io != "float32" else value
    assert (
        "if start + c * C >= 0 and start + c * C + C <= end and start + c * C + C <= T_: "
        f"for i, j in T.Parallel(C, D): x_s[i, j] = {cast} else:" in text
    ), text
    assert text.count("start + c * C + i < end, ") == 1


WRONG = {
    "unknown name": ("half: »cc // 2", "unknown name 'cc'"),
    "unknown tensor": ("half: »xx[0, 0, 0]", "unknown name 'xx'"),
    "two of a name": ("b: c // 2", "a scalar and a block index share the name 'b'"),
    "of a tile": ("half: »g_s[0]", "unknown name 'g_s'"),
    "of a word": ("half: »mode", "'mode' is a word"),
    "of 16 bits": (
        "half: »x[b, c, 0]",
        "'half' is float16; what a block reads is int32 or float32",
    ),
    "outside the language": ("half: »lambda x", "not an expression"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_scalar(case):
    line, words = WRONG[case]
    text = edited(("threads: 128\n", f"threads: 128\nscalars:\n  {line.replace('»', '')}\n"))
    errors = read(text).errors
    assert any(words in e.what for e in errors), [e.what for e in errors]
    at = next(e.where for e in errors if words in e.what)
    if "»" in line:
        assert text.splitlines()[at.line - 1] == "  " + line.replace("»", "")
        assert at.column == len("  ") + line.index("»") + 1


def test_an_alias_is_blamed_where_it_stands():
    text = edited(
        ("threads: 128\n", "threads: 128\nscalars: {late: c + 1}\n"),
        ("t_s[i, j] = p_f[i, j] * g_s[i]", "t_s[i, j] = p_f[i, j] * g_s[late]"),
    )
    (error,) = read(text).errors
    line = text.splitlines()[error.where.line - 1]
    assert line[error.where.column - 1 :].startswith("late"), error


LOAD = "copy: x[b, c*N:(c+1)*N, :] -> x_s"
CLIPS = {
    "of a tile": (LOAD, "copy: x_s[c:min(c + N, M), :] -> x_s", "a range that ends early is of a tensor"),
    "unknown size": (
        LOAD,
        "copy: x[b, c*N:min(c*M + T, T - 1), :] -> x_s",
        "the size of the range is not known when rendering",
    ),
    "another shape": (
        LOAD,
        "copy: x[b, c*N:min(c*N + 32, T - 1), :] -> x_s",
        "a copy between [32, 64] of a tensor and [64, 64]",
    ),
    "both sides": (
        LOAD,
        "copy: x[b, c*N:min(c*N + N, T - 1), :] -> y[b, c*N:min(c*N + N, T - 1), :]",
        "a copy between two ranges that end early",
    ),
    "of an input": (
        "copy: t_s -> y[b, c*N:(c+1)*N, :]",
        "copy: t_s -> x[b, c*N:min(c*N + N, T - 1), :]",
        "'x' is an input; it can't be written",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CLIPS)
def test_a_wrong_range(case):
    old, new, words = CLIPS[case]
    errors = read(edited((old, new))).errors
    assert any(words in e.what for e in errors), [e.what for e in errors]


# -- what divides by a size known only at run time, and conditions known in part -------------------

HALVES = edited(
    ("grid: {c:", "scalars: {half: b // T, twice: c * 2, last: T}\ngrid: {c:"),
    ("x[b, c*N:(c+1)*N, :]", "x[half, c*N:(c+1)*N, :]"),
    ("g[b, c*N:(c+1)*N]", "g[half, c*N:(c+1)*N]"),
)


def rendered(text: str, folder) -> str:
    """The first variant's kernel."""
    path, _ = module(kernels(text)[0], folder)
    return path.read_text()


def test_what_divides_at_run_time_is_worked_out_once(tmp_path):
    """A name in TileLang's script is its expression wherever it is read: a variable is not."""
    text = rendered(HALVES, tmp_path)
    assert text.count("b // T_") == 1
    assert 'half = T.alloc_var("int32")\n            half = b // T_\n' in text
    assert "x[half, c * BC" in text or "x[half, c * N" in text
    assert "twice" not in text, "what is cheap stands in place of its name"


@pytest.mark.parametrize(
    "when, left",
    [
        ("mode == 'fast' and c > 0", None),
        ("mode == 'plain' and c > 0", "c > 0"),
        ("mode == 'plain' or c > 0", ""),
        ("mode == 'fast' or c > 0", "c > 0"),
        ("not (mode == 'plain') or c > 0", "c > 0"),
    ],
)
def test_parts_of_a_condition_are_decided_when_rendering(when, left, tmp_path):
    """None: the statement is gone; '': it has no condition; else what is left of one."""
    body = "- map: {i: N, j: N}\n      do:\n        - t_s[i, j] = p_f[i, j] * g_s[i]\n"
    more = f"    - map: {{i: N}}\n      when: {when}\n      do:\n        - g_s[i] = g_s[i] * 2.0\n"
    text = rendered(edited((body, body + more)), tmp_path)
    assert ("g_s[i] * 2.0" in text) == (left is not None)
    assert ("if c > 0:" in text) == bool(left)
    assert "mode ==" not in text and "if True" not in text and " or " not in text.split("@T")[1]


# -- outputs that a kernel leaves in part as they were ---------------------------------------------


def test_only_what_is_written_may_be_partly():
    (error,) = read(edited(("x: {role: in,", "x: {partly: true, role: in,"))).errors
    assert "'x' is only read" in str(error)


@pytest.mark.parametrize(
    "partly, out, missing",
    [
        (True, [1.0, math.nan], 0),  # neither wrote it
        (True, [1.0, 5.0], 1),  # the kernel wrote what nobody should
        (True, [math.nan, math.nan], 1),  # the kernel left out what it should have written
        (False, [1.0, math.nan], 1),
    ],
)
def test_what_nobody_should_write_nobody_has_written(partly, out, missing):
    text = edited(("y: {role: out,", "y: {partly: true, role: out,")) if partly else edited()
    kernel = kernels(text)[0]
    trial = samples.Trial({}, 0)
    right = torch.tensor([1.0, math.nan] if partly else [1.0, 2.0])
    found = verify.compare(kernel, trial, "y", torch.tensor(out), "its meaning", right)
    assert found.missing == missing
