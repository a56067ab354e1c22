"""A verdict is right: what is right passes, and every planted fault fails."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil

import pytest
import torch
from rendering import kernels, kernels_of, module

from gdngen.plan.storage import Slot
from gdngen.verify import lowering, verify

PREPARE = "prepare_c32_k64_v64_float16"
SOFTMAX = "softmax_r32_n64_float16"


def softmax():
    return kernels_of("examples/softmax")[SOFTMAX]


def changed(path, old: str, new: str) -> None:
    """Plant a fault in a module's text."""
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("io", ["float16", "bfloat16", "float32"])
def test_prepare_is_right(io, tmp_path):
    kernel = kernels_of("prepare")[f"prepare_c32_k64_v64_{io}"]
    path, _ = module(kernel, tmp_path)
    verdict = verify.verify(kernel, path, {})
    assert verdict.ok, verdict.problems()
    assert {c.against for c in verdict.comparisons} == {"wy_prepare", "its meaning"}
    assert {c.output for c in verdict.comparisons} == {"A", "w", "u"}
    assert len({c.trial for c in verdict.comparisons}) == 3
    assert verdict.notes == (
        ("bfloat16 is stored as float32 on the CPU",) if io == "bfloat16" else ()
    )
    assert verdict.worst() < verify.tolerance(kernel, "cpu") / 2
    assert json.loads(json.dumps(verdict.json()))["ok"] is True


def forced(kernel, a: str, b: str) -> tuple[Slot, ...]:
    """Every buffer its own slot, but `b` on `a`."""
    slots = []
    for buffer in kernel.shared():
        tenants = (a, b) if buffer.name == a else (buffer.name,)
        slots += [Slot(buffer.shape, buffer.dtype, tenants)] if buffer.name != b else []
    return tuple(slots)


@pytest.mark.parametrize("a, b", [("S", "P"), ("g_s", "beta_s"), ("k_s", "v_s")])
def test_two_live_tiles_in_one_slot_fail(a, b, tmp_path):
    kernel = kernels_of("prepare")[PREPARE]
    path, _ = module(kernel, tmp_path, slots=forced(kernel, a, b))
    verdict = verify.verify(kernel, path, {})
    assert not verdict.ok
    assert any(c.missing or c.worst > 0.1 for c in verdict.comparisons), verdict.problems()


@pytest.mark.parametrize(
    "old, new",
    [
        ("row[i, j] / sum[i]", "row[i, j] / sum[i] * 1.004"),  # four units of float16
        ("T.reduce_max(row, top, dim=1)", "T.fill(top, T.infinity('float32'))"),  # 0 / 0
        ("T.copy(y_s, y[", "T.copy(y_s[0:16, :], y[r * BR : r * BR + 16, :])  #"),
        ("T.ceildiv(R, BR)", "R // BR"),  # the last rows
        ("def softmax(\n        x", "def softmax(\n        z"),  # not the kernel that was meant
        ("T.copy(x_s, row)", "T.no_such_statement(x_s, row)"),
    ],
)
def test_a_wrong_text_fails(old, new, tmp_path):
    path, _ = module(softmax(), tmp_path)
    changed(path, old, new)
    verdict = verify.verify(softmax(), path, {})
    assert not verdict.ok and verdict.problems()
    assert json.loads(json.dumps(verdict.json()))["ok"] is False


def test_an_unmasked_tail_fails_only_under_strong_decay(tmp_path):
    """Rows past T have a gate of 0: exp(0 - g[j]) is inf, and inf * beta[i] = inf * 0 is NaN."""
    kernel = kernels_of("prepare")[PREPARE]
    path, _ = module(kernel, tmp_path)
    changed(path, " and c * BC + i < T_", "")
    verdict = verify.verify(kernel, path, {})
    wrong = {c.trial for c in verdict.comparisons if not c.ok}
    assert wrong == {"B=1, H=2, T=40, -3 a step"}
    assert any(c.missing and math.isnan(c.error) for c in verdict.comparisons)


def compared(out: torch.Tensor, right: torch.Tensor) -> verify.Comparison:
    kernel = softmax()
    trial, *_ = verify.samples.trials(kernel)
    return verify.compare(kernel, trial, "y", out.half(), "it", right.double())


def test_comparisons():
    right = torch.randn(40, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact = compared(right, right)
    assert exact.ok and 0 < exact.error < 4e-4 and exact.worst < 4e-4
    assert not compared(right * 1.003, right).ok
    for value in (math.nan, math.inf, 0.0):
        out = right.clone()
        out[3, 5] = value
        one = compared(out, right)
        assert not one.ok and one.missing == (value != 0)
    nothing = compared(torch.full_like(right, math.nan), torch.full_like(right, math.nan))
    assert not nothing.ok and nothing.missing == right.numel()
    assert compared(torch.zeros(2, 2), torch.zeros(2, 2)).ok
    one_wrong = torch.ones(1000, 1000)
    one_wrong[0, 0] = 1.01
    only = compared(one_wrong, torch.ones(1000, 1000))
    assert only.error < 1e-4 and not only.ok, "one wrong element among many shows"


def test_raw_statements_need_a_reference(tmp_path):
    (kernel,) = kernels("""\
kernel: raw
runtime: [R]
tensors: {y: {role: out, shape: [R, 32], dtype: float32}}
grid: {r: "ceildiv(R, 16)"}
buffers: {f: {scope: fragment, shape: [16, 32], dtype: float32}}
stages:
  all:
    - raw: T.fill(f, 3.0)
      writes: [f]
    - copy: f -> y[r*16:(r+1)*16, :]
""")
    path, _ = module(kernel, tmp_path)
    verdict = verify.verify(kernel, path, {})
    assert not verdict.ok
    assert "nothing to compare it with; name a reference" in verdict.problems()[0]


def test_bytes_are_compared_with_the_plan(tmp_path, monkeypatch):
    kernel = softmax()
    path, plans = module(kernel, tmp_path)
    asked = lowering.Lowered(plans["sm_80"].asked, 0, "", {})
    monkeypatch.setattr(lowering, "cached_lower", lambda *_: asked)
    assert verify.verify(kernel, path, plans, trials=()).ok
    monkeypatch.setattr(
        lowering, "cached_lower", lambda *_: dataclasses.replace(asked, static_bytes=16)
    )
    verdict = verify.verify(kernel, path, plans, trials=())
    assert "sm_90: 4,096 bytes planned, 4,112 asked for" in verdict.problems()

    def refused(*_):
        raise lowering.LoweringError("no warps cover it")

    monkeypatch.setattr(lowering, "cached_lower", refused)
    verdict = verify.verify(kernel, path, plans, trials=())
    assert "sm_80: 4,096 bytes planned, no warps cover it" in verdict.problems()


@pytest.mark.gpu
@pytest.mark.skipif("not __import__('gdngen.verify.verify', fromlist=['on_gpu']).on_gpu()")
@pytest.mark.parametrize("io", ["float16", "bfloat16", "float32"])
def test_prepare_is_right_on_a_gpu(io, tmp_path):
    kernel = kernels_of("prepare")[f"prepare_c64_k64_v64_{io}"]
    path, _ = module(kernel, tmp_path)
    verdict = verify.verify(kernel, path, {}, device="cuda")
    assert verdict.ok, verdict.problems()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_registers_and_spills_are_told_where_nvcc_is_at_hand(tmp_path):
    kernel = kernels_of("prepare")[PREPARE]
    path, plans = module(kernel, tmp_path)
    assert verify.verify(kernel, path, plans, trials=()).code == ()
    (code,) = verify.verify(kernel, path, {"sm_80": plans["sm_80"]}, trials=(), compiled=True).code
    assert code.target == "sm_80" and 32 <= code.registers <= 255 and code.spills == 0
    assert str(code) == f"{code.registers} registers on sm_80"
    assert str(dataclasses.replace(code, spills=48)).endswith(" and 48 bytes of spills on sm_80")


def test_nothing_is_told_of_registers_for_hip_or_without_nvcc(tmp_path, monkeypatch):
    kernel = kernels_of("prepare")[PREPARE]
    path, _ = module(kernel, tmp_path)
    assert verify._code(path, "gfx942") is None
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert verify._code(path, "sm_80") is None
