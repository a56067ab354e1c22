"""Texts of roles, run on the CPU: right in any order of turns, and wrong where a barrier is wrong."""

from pathlib import Path

import pytest
import torch
from forward_cases import forward_case

from gdngen import driver
from gdngen.judge.interleave import Deadlock
from gdngen.verify import coroutines, verify

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "generated" / "forward_hopper"


@pytest.fixture(scope="module")
def kernel():
    wish = {"io": "float16", "layout": "bhtd", "varlen": "false"}
    return driver.load(ROOT / "specs" / "forward_hopper.yaml", wish).variants[0].kernel


@pytest.fixture(scope="module")
def case():
    """Two segments, each longer than tiles have places, the last ragged, with warm-up."""
    tensors, _, want = forward_case(1, 1, 2, 450, 128, 64, 2, 0.05, -2.0, states=True)
    return tensors, want


def off(kernel, path, case, seed=0) -> float:
    """The error of a text's outputs; tensors are cast to what it takes."""
    tensors, want = case
    given = {
        t.name: tensors[t.name].to(getattr(torch, t.dtype))
        for t in kernel.tensors
        if t.role == "in"
    }
    given["o"] = torch.full(want["o"].shape, torch.nan, dtype=torch.float16)
    given["final"] = torch.full(want["final"].shape, torch.nan)
    coroutines.run(kernel, path, given, seed)
    return max(float((given[n].double() - want[n]).norm() / want[n].norm()) for n in want)


def exact(case):
    """The case with a cutoff that nothing decays to."""
    return {**case[0], "cutoff": torch.tensor([-torch.inf])}, case[1]


def test_the_text_is_the_token_recurrence_in_any_order_of_turns(kernel, case):
    path = FOLDER / f"{kernel.module}.py"
    for seed in range(2):
        assert off(kernel, path, exact(case), seed) < 2e-3


def test_so_is_the_text_of_narrow_heads():
    """Two warpgroups make outputs of every other chunk: seven of them, an odd number."""
    tensors, _, want = forward_case(1, 1, 2, 430, 64, 64, 1, 0.05, -1e9, states=True, layout="bthd")
    wish = {"io": "float16", "layout": "bthd", "varlen": "false"}
    (found,) = driver.load(ROOT / "specs" / "forward_hopper_narrow.yaml", wish).variants
    path = ROOT / "generated" / "forward_hopper_narrow" / f"{found.kernel.module}.py"
    for seed in range(2):
        assert off(found.kernel, path, (tensors, want), seed) < 2e-3


def test_a_warm_up_cut_short_is_as_wrong_as_its_cutoff_says(kernel, case):
    """e^-2 of what lies before is missing, at most: more than rounding, less than that."""
    found = off(kernel, FOLDER / f"{kernel.module}.py", case)
    assert 2e-3 < found < 2.72**-2


FAULTS = {
    "a wait too few": ("                    T.barrier_wait(h_t_full[0], j % 2)\n", ""),
    "a parity turned": ("T.barrier_wait(h_t_free[0], (i - nw + 1) % 2)", "T.barrier_wait(h_t_free[0], (i - nw) % 2)"),
    "an arrival too few": ("            T.barrier_arrive(load_free[i % 3])\n        if", "        if"),
    "more arrivals than threads": ("v_t_free = T.alloc_barrier(arrive_count=[128])", "v_t_free = T.alloc_barrier(arrive_count=[256])"),
    "a product not waited for": ("            T.wgmma_gemm(x_b, a_s[i % 3, :, :], v_f, transpose_B=True)\n            T.wait_wgmma(0)\n", "            T.wgmma_gemm(x_b, a_s[i % 3, :, :], v_f, transpose_B=True)\n"),
    "a store not waited for": ("                        T.tma_store_wait(0)\n                        T.barrier_arrive", "                        T.barrier_arrive"),
    "threads that are another role's": ("elif thread < 384:", "elif thread < 256:"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_text_shows(kernel, case, fault, tmp_path):
    old, new = FAULTS[fault]
    text = (FOLDER / f"{kernel.module}.py").read_text()
    assert text.count(old) == 1, fault
    path = tmp_path / "broken.py"
    path.write_text(text.replace(old, new))
    try:
        found = [off(kernel, path, exact(case), seed) for seed in range(4)]
    except Deadlock:
        return
    assert not all(error < 2e-3 for error in found), found


def test_a_verdict_says_how_roles_were_run(kernel):
    found = verify.verify(kernel, FOLDER / f"{kernel.module}.py", {}, trials=())
    assert any("coroutines" in note for note in found.notes)
