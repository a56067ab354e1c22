"""Statement `solve`, layouts, and words that expressions choose: their meaning and their mistakes."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from rendering import SPECS, kernels, module
from small_spec import BASE, edited, read

from gdngen import driver
from gdngen.judge import field, judge
from gdngen.judge.addresses import addresses, together
from gdngen.model import analysis
from gdngen.plan import plan
from gdngen.plan.plan import Wish
from gdngen.verify import cpu
from gdngen.verify.interpret import interpret

SPEC = """\
kernel: inverse
dims: [N, S]
runtime: [B]
variants: {forall: {N: 32, S: [4, 16, 32]}}
tensors:
  x: {role: in, shape: [B, N, S], dtype: float32}
  y: {role: out, shape: [B, N, N], dtype: float16}
grid: {b: B}
threads: 64
buffers:
  M: {scope: shared, shape: [N, S], dtype: float32}
  D: {scope: shared, shape: [N, N], dtype: float16}
stages:
  all:
    - copy: x[b, :, :] -> M
    - solve: M -> D
      block: S
    - copy: D -> y[b, :, :]
"""


def inverse(x: torch.Tensor, block: int) -> torch.Tensor:
    """blockdiag((I + strictLower(B))^-1) of the blocks in x [n, block], by torch, in float64."""
    systems = x.double().view(-1, block, block).tril(-1) + torch.eye(block)
    return torch.block_diag(*torch.linalg.inv(systems))


@pytest.mark.parametrize("block", [4, 16, 32])
def test_the_meaning_is_the_inverse(block):
    kernel = next(k for k in kernels(SPEC) if dict(k.values)["S"] == block)
    x = torch.randn(2, 32, block, generator=torch.Generator().manual_seed(0))
    found = interpret(kernel, {"x": x})["y"]
    for one, right in zip(found, x):
        torch.testing.assert_close(one, inverse(right, block), rtol=1e-9, atol=1e-9)


def test_the_kernel_solves_and_ignores_what_is_not_below_the_diagonal(tmp_path):
    kernel = next(k for k in kernels(SPEC) if dict(k.values)["S"] == 16)
    path, _ = module(kernel, tmp_path)
    x = torch.randn(2, 32, 16, generator=torch.Generator().manual_seed(0)) / 2
    marked = x.view(2, 2, 16, 16).tril(-1) + torch.full((16, 16), 7e4).triu()
    y = torch.empty(2, 32, 32, dtype=torch.float16)
    cpu.compile(path).run({"x": marked.view(2, 32, 16).contiguous(), "y": y})
    for one, right in zip(y, x):
        want = inverse(right, 16)
        assert float((one.double() - want).norm() / want.norm()) < 5e-4


def test_the_judge_solves_in_its_field():
    with np.errstate(over="ignore"):
        x = field.drawn("x", 0, (32, 16), "float32")
    found = field.inverse(x, 16)
    for first in (0, 16):
        here = slice(first, first + 16)
        system = np.tril(x[here], -1) + np.eye(16, dtype=np.int64)
        assert (field.product(system, found[here, here]) == np.eye(16, dtype=np.int64)).all()
    assert not found[:16, 16:].any() and not found[16:, :16].any()


# -- the blocked kernel's plans --------------------------------------------------------------------


@pytest.mark.parametrize("io", ["bfloat16", "float32"])
def test_the_judge_finds_nothing_wrong_with_the_blocked_plans(io):
    settings = {"BC": "32", "DK": "64", "DV": "64", "io": io, "layout": "bthd", "G": "2"}
    variants = driver.load(SPECS / "prepare_blocked.yaml", settings).variants
    assert any(dict(v.kernel.values)["scores"] for v in variants)
    for one, target in itertools.product(variants, ("sm_80", "sm_90")):
        planned = plan.plan(one.kernel, one.found, Wish(), target)
        places = addresses(planned.kernel, planned.plan)
        loops = together(planned.kernel, planned.plan)
        verdict = judge.judge(one.kernel, planned.kernel, places, together=loops)
        assert verdict.ok, verdict.faults


# -- layouts ---------------------------------------------------------------------------------------

LAYOUT = "layouts:\n  - {when: \"mode == 'fast'\", swap: [0, 1], tensors: [x, y]}\ngrid: {c"


def test_a_layout_turns_shapes_and_indices():
    plain = {k.module: k for k, _ in read(edited(("grid: {c", LAYOUT))).kernels}
    text = edited(("grid: {c", LAYOUT), ("io: float16}", "io: float16, mode: fast}"))
    turned = {k.module: k for k, _ in read(text).kernels}
    for name, kernel in plain.items():
        other = turned[f"{name}_mode_fast"]
        x = torch.randn(2, 64, dict(kernel.values)["M"], dtype=torch.float64)
        g = torch.randn(2, 64, dtype=torch.float64)
        a = interpret(kernel, {"x": x, "g": g})["y"]
        b = interpret(other, {"x": x.transpose(0, 1), "g": g})["y"]
        assert torch.equal(a, b.transpose(0, 1))


@pytest.mark.parametrize(
    "layout, words, hint",
    [
        ("{swap: [0]}", "a layout swaps two axes", "swap: [1, 2]"),
        ("{swap: [0, 7]}", "a layout swaps two axes", "swap: [1, 2]"),
        ("{swap: [0, 2]}", "'g' has 2 axes, 0 to 1; this layout swaps 2", "tensors:"),
        ("{swap: [0, 1], tensors: [z]}", "unknown tensor 'z' in a layout", "tensors: x g y"),
        ("{swop: [0, 1]}", "unknown key 'swop' in layout; did you mean 'swap'?", "keys: when swap"),
        ("{when: nope == 1, swap: [0, 1]}", "unknown name 'nope'", ""),
    ],
)
def test_mistakes_in_a_layout(layout, words, hint):
    text = edited(("grid: {c", f"layouts:\n  - {layout}\ngrid: {{c"))
    error = read(text).errors[0]
    assert words in error.what and hint in (error.hint or "")
    line = text.splitlines()[error.where.line - 1]
    assert line.strip().startswith("- {") and error.where.column > 1


def test_two_layouts_of_one_tensor():
    two = "layouts:\n  - {swap: [0, 1], tensors: [x]}\n  - {swap: [1, 2], tensors: [x]}\ngrid: {c"
    (error,) = read(edited(("grid: {c", two))).errors
    assert error.what == "two layouts hold for 'x'"


# -- words and numbers that expressions give -------------------------------------------------------


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("acc: float32}", 'acc: "where(io == float16, 3, float32)"}', "in a dtype: '3' is no dtype"),
        ("acc: float32}", 'acc: "where(M == 64, float32, oat)"}', "in a dtype: 'oat' has no value"),
        ("scope: fragment", "scope: \"where(M > 64, 'shared', 'glob')\"", "unknown scope 'glob'"),
        ("role: in, shape: [B, T]", "sample: \"where(M > 64, 'unit', 'x')\", role: in, shape: [B, T]",
         "unknown sample 'x'"),
        ("threads: 128", "threads: 128\nresident: 99", "resident is 99; a whole number from 1 to 32"),
    ],
)  # fmt: skip
def test_a_word_that_is_none(old, new, words):
    errors = read(edited((old, new))).errors
    assert any(words in e.what for e in errors), errors


def test_a_dtype_follows_from_another_and_is_not_named_after_it():
    names = {}
    for io in ("float16", "float32"):
        text = BASE.replace("acc: float32}", 'acc: "where(io == float32, float32, float32)"}')
        first, *_ = read(text.replace("io: float16", f"io: {io}")).kernels
        names[io] = first[0].module
    assert names == {io: f"s_n64_m64_{io}" for io in names}


def test_resident_is_what_the_bytes_of_a_target_leave_room_for():
    kernel = read(edited(("threads: 128", "threads: 128\nresident: 4"))).kernels[0][0]
    found = analysis.analyse(kernel)
    planned = {t: plan.plan(kernel, found, Wish(), t).plan for t in ("sm_80", "sm_86", "gfx942")}
    assert planned["sm_80"].resident == 4
    assert 1 <= planned["sm_86"].resident < 4  # 100 KiB an SM
    assert planned["gfx942"].resident == 1  # another launch bound there


def test_scratch_of_a_solve_counts_as_registers(tmp_path: Path):
    from gdngen.plan.registers import fragment_registers

    sizes = {dict(k.values)["S"]: fragment_registers(k) for k in kernels(SPEC)}
    assert sizes == {4: 8, 16: 32, 32: 64}
