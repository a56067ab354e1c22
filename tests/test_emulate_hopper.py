"""Shipped kernels for sm_90, emulated: right by the token recurrence, and wrong where their CUDA is."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tilelang")

from forward_cases import forward_case, ragged_case  # noqa: E402
from rendering import kernels_of, module  # noqa: E402
from test_emulate import slots_of  # noqa: E402

from gdngen import driver, emulator  # noqa: E402
from gdngen.plan.storage import Slot  # noqa: E402
from gdngen.verify import emulate, waits  # noqa: E402
from gdngen.verify.emulate import HOPPER  # noqa: E402

ROOT = Path(__file__).parent.parent
TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2}
RUNS = ((0, "early"), (1, "late"), (2, "late"))


def shipped(name, **wish):
    """A kernel of roles, and where its text is; one of whole sequences if not asked for others."""
    wish = {"varlen": "false", **wish}
    (found,) = driver.load(ROOT / "specs" / f"{name}.yaml", wish).variants
    return found.kernel, ROOT / "generated" / name / f"{found.kernel.module}.py"


def width_of(kernel):
    return dict(kernel.values)["DK"]


def case_of(kernel, *shape, **options):
    """Tensors in the kernel's own types, sizes, and the right outputs."""
    layout = dict(kernel.values)["layout"]
    return typed(kernel, *forward_case(*shape, layout=layout, **options))


def typed(kernel, tensors, sizes, want):
    """The case with tensors in the kernel's own types, and outputs that start as NaN."""
    given = {}
    for t in kernel.tensors:
        like = getattr(torch, t.dtype)
        given[t.name] = (
            tensors[t.name].to(like)
            if t.role == "in"
            else torch.full(want[t.name].shape, torch.nan, dtype=like)
        )
    return given, sizes, want


def off(outputs, want) -> float:
    return max(
        float((outputs[n].double() - want[n]).norm() / want[n].norm()) for n in want if want[n].numel()
    )  # fmt: skip


# Two segments with warm-up and states, each longer than tiles have places, the last ragged; and one with
# an odd number of chunks and without states.
SHAPES = {
    "segments": ((1, 1, 1, 450), 2, {"states": True}),
    "one": ((1, 1, 2, 300), 1, {"states": False}),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "name, wish",
    [
        ("forward_hopper", {"io": "bfloat16", "layout": "bhtd"}),
        pytest.param("forward_hopper", {"io": "float16", "layout": "bthd"}, marks=pytest.mark.long),
        ("forward_hopper_narrow", {"io": "float16", "layout": "bthd"}),
        pytest.param(
            "forward_hopper_narrow", {"io": "bfloat16", "layout": "bhtd"}, marks=pytest.mark.long
        ),
    ],
)
def test_roles_are_the_token_recurrence(name, wish, shape):
    kernel, path = shipped(name, **wish)
    (batch, heads, values, length), segments, options = SHAPES[shape]
    width = width_of(kernel)
    given, sizes, want = case_of(
        kernel, batch, heads, values, length, width, 64, segments, 0.05, -1e9, **options
    )
    cuda = emulate.runnable(path, HOPPER)
    emulated = cuda.build()
    for order, copies in RUNS:
        arguments = cuda.given(kernel, emulated, given, sizes)
        result = emulator.run(emulated, **arguments, order=order, copies=copies)
        assert result.findings == (), (order, copies)
        assert off(result.outputs, want) < TOLERANCE[wish["io"]], (order, copies)


# Of one row, whole, ragged and empty, at either end too; one has more chunks than tiles have places.
LENGTHS = [0, 1, 64, 0, 290, 63, 0]


@pytest.mark.parametrize(
    "name, io",
    [
        ("forward_hopper", "bfloat16"),
        pytest.param("forward_hopper", "float16", marks=pytest.mark.long),
        ("forward_hopper_narrow", "float16"),
        pytest.param("forward_hopper_narrow", "bfloat16", marks=pytest.mark.long),
    ],
)
def test_sequences_one_behind_the_other(name, io):
    """Right in whatever order blocks come; slots that are nobody's hold NaN and are not read."""
    kernel, path = shipped(name, io=io, varlen="true")
    case = ragged_case(LENGTHS, 1, 1, width_of(kernel), 64, 0.1)
    given, sizes, want = typed(kernel, *case)
    cuda = emulate.runnable(path, HOPPER)
    emulated = cuda.build()
    for order, copies in RUNS:
        arguments = cuda.given(kernel, emulated, given, sizes)
        result = emulator.run(emulated, **arguments, order=order, copies=copies)
        assert result.findings == (), (order, copies)
        assert off(result.outputs, want) < TOLERANCE[io], (order, copies)


MASKS = {
    "a ragged chunk is stored whole": (r"if \(\(\(j \* 64\) \+ 64\) <= rows\)", "if (true)"),
    "a row too many is stored": (r"< \(rows \+ 128\)", "< (rows + 129)"),
    "a ragged chunk is not stored": (r"if \(rows < \(\(j \* 64\) \+ 64\)\)", "if (false)"),
}  # fmt: skip


@pytest.mark.parametrize("fault", MASKS)
def test_a_wrong_mask_of_rows_shows(fault):
    kernel, path = shipped("forward_hopper", io="bfloat16", varlen="true")
    given, sizes, want = typed(kernel, *ragged_case([70, 70], 1, 1, 128, 64, 0.1))
    cuda = emulate.runnable(path, HOPPER)
    old, new = MASKS[fault]
    source, changed = re.subn(old, new, cuda.source)
    assert changed
    broken = emulate.Runnable(source, cuda.dynamic, cuda.maps, HOPPER)
    emulated = broken.build()
    arguments = broken.given(kernel, emulated, given, sizes)
    errors = [  # what a block writes of the next one's rows stays where that one came first
        off(emulator.run(emulated, **arguments, order=order, copies=copies).outputs, want)
        for order, copies in RUNS
    ]
    assert not all(error < TOLERANCE["bfloat16"] for error in errors), errors


def test_roles_are_tried_on_more_than_they_have_room_for():
    """Two segments of more chunks than tiles have places, the second one with a warm-up."""
    kernel, _ = shipped("forward_hopper", io="bfloat16", layout="bhtd")
    trial, *others = emulate.trials(kernel)
    sizes = trial.sizes
    assert [sizes[n] for n in ("NC", "P", "SEG", "HV", "B")] == [13, 2, 7, 1, 1]
    assert 12 * 64 < sizes["T"] < 13 * 64 and len(others) == 2
    given = emulate.inputs(kernel, trial)
    bound, steps = float(given["cutoff"][0]), given["gl"][0, 0, 0]
    assert float(steps.sum()) < bound < float(steps.max())
    narrow, _ = shipped("forward_hopper_narrow", io="float16", layout="bthd")
    assert emulate.trials(narrow)[0].sizes["P"] == 2


def test_a_pipelined_kernel_for_sm_90():
    wish = {"BC": "64", "DK": "64", "DV": "64", "io": "bfloat16", "layout": "bhtd", "EACH": "1"}
    (found,) = driver.load(ROOT / "specs" / "prepare_blocked.yaml", wish).variants
    path = ROOT / "generated" / "prepare_blocked" / f"{found.kernel.module}_sm_90.py"
    done = emulate.emulate(found.kernel, path, (), sanitize=False, target=HOPPER)
    assert done.ok and done.target == HOPPER and done.runs > 5, done.problems()
    cuda = emulate.runnable(path, HOPPER).source
    assert all(name in cuda for name in ("tl::tma_load", "tl::tma_store", "tl::wgmma_rs"))


def test_a_loop_that_tilelang_splits(tmp_path):
    """Right, but three warps of its producer wait where nobody waits for them; and wrong where two tiles
    that the producer loads share a slot."""
    kernel = kernels_of("examples/matmul")["matmul_m64_n64_k64_float16"]
    path, _ = module(kernel, tmp_path, slots=slots_of(kernel, HOPPER))
    done = emulate.emulate(kernel, path, (), sanitize=False, target=HOPPER)
    assert done.ok and [f.kind for f in done.cautions] == [emulate.SUSPICIOUS], done.problems()
    shared = (Slot((64, 64), "float16", ("a_s", "b_s")),)
    path, _ = module(kernel, tmp_path, slots=shared)
    done = emulate.emulate(kernel, path, shared, sanitize=False, target=HOPPER)
    (race,) = (f for f in done.faults if f.kind == "race")
    assert race.slots == ("a_s",) and race.note == "write after write"
    assert any(p.startswith("wrong result: c against") for p in done.problems())


# -- planted faults --------------------------------------------------------------------------------

STATE = r"(?s)(tl::warpgroup_reg_alloc<160>.*?)"  # of the first role
FAULTS = {
    "a tile is freed while it is read": (
        r"if \(0 < j\) \{(\s*tl::tma_store_wait<0, true>\(\);\s*)load_free\[.*\]\.arrive\(\);",
        r"if (0 <= j) {\1load_free[((nw + j) % 3)].arrive();",
        "race",
    ),
    "a tile in use is not waited for": (
        r"load_free\[\(i_(\d+) % 3\)\]\.wait\(\(\(\(i_\1 / 3\) \+ 1\) & 1\)\);", "", "race"
    ),
    "bytes are not announced": (r"load_full\[\(i_\d+ % 3\)\]\.expect_transaction\(768\);", "", "deadlock"),
    "more bytes are announced than come": (r"expect_transaction\(768\)", "expect_transaction(1024)", "deadlock"),
    "more arrivals are awaited than come": (r"h_t_full\[0\]\.init\(256\)", "h_t_full[0].init(320)", "deadlock"),
    "too few arrivals are awaited": (r"h_t_full\[0\]\.init\(256\)", "h_t_full[0].init(128)", "deadlock"),
    "a parity is turned": (r"h_t_full\[0\]\.wait\(\(j & 1\)\)", "h_t_full[0].wait(((j + 1) & 1))", "deadlock"),
    "a copy of the state is not fenced": (
        STATE + r"tl::fence_proxy_async\(\);\s*(h_t_full)", r"\1\2", "missing proxy fence"
    ),
    "a product's operand is changed under it": (
        r"tl::wait_wgmma<1>\(\);(\s*h_t_free\[0\]\.arrive\(\);)", r"\1", "race"
    ),
    "another box is loaded": (r"(tl::tma_load\(a_desc.* \+ i_\d+\)) - nw\)", r"\1 - nw + 1)", "wrong result"),
    "a descriptor's stride is wrong": (r"descriptor<1, 512, 64>", "descriptor<1, 256, 64>", "wrong result"),
    "registers that are not there": (r"reg_alloc<168>", "reg_alloc<240>", "deadlock"),
    "a store is not waited for": (
        r"if \(0 < j\) \{\s*tl::tma_store_wait<0, true>\(\);", "if (0 < j) {", "race"
    ),
    "the block ends before its last store": (
        r"tl::tma_store_wait<0, true>\(\);(\s*\} else \{\s*tl::warpgroup_reg_dealloc)", r"\1", "race"
    ),
    "warps of a role are not waited for": (r"tl::__sync_thread_partial\(3, 128\);", "", "race"),
}  # fmt: skip


@pytest.fixture(scope="module")
def hopper():
    """The kernel's CUDA, tensors for one segment of seven chunks, and a judge of its outputs."""
    kernel, path = shipped("forward_hopper", io="bfloat16", layout="bhtd")
    given, sizes, want = case_of(kernel, 1, 1, 1, 430, 128, 64, 1, 0.05, -1e9, states=True)
    return kernel, emulate.runnable(path, HOPPER), given, sizes, want


# A build each: `make test` takes one of a kind.
SLOW = (
    "more bytes are announced than come", "more arrivals are awaited than come",
    "too few arrivals are awaited", "a descriptor's stride is wrong", "registers that are not there",
    "the block ends before its last store", "a tile in use is not waited for",
)  # fmt: skip


@pytest.mark.parametrize(
    "fault", [pytest.param(f, marks=[pytest.mark.long] * (f in SLOW)) for f in FAULTS]
)
def test_a_fault_in_the_cuda_shows(hopper, fault):
    kernel, cuda, given, sizes, want = hopper
    old, new, kind = FAULTS[fault]
    source = re.sub(old, new, cuda.source)
    assert source != cuda.source, fault
    broken = emulate.Runnable(source, cuda.dynamic, cuda.maps, HOPPER)
    emulated = broken.build()
    result = emulator.run(emulated, **broken.given(kernel, emulated, given, sizes), copies="late")
    found = {f.kind for f in result.findings}
    if not off(result.outputs, want) < TOLERANCE["bfloat16"]:
        found.add("wrong result")
    assert kind in found, (result.findings, off(result.outputs, want))


@pytest.mark.long
@pytest.mark.parametrize("name", ("forward_hopper", "forward_hopper_narrow"))
def test_every_wait_of_roles(name):
    kernel, path = shipped(name, io="bfloat16", layout="bhtd")
    done = waits.delete_each(kernel, path, (), HOPPER)
    assert done.ok and len(done.waits) > 40, done.failures
    assert sum(not w.caught for w in done.waits) < 4, [w for w in done.waits if not w.caught]


def test_states_go_from_segment_to_segment_with_all_their_digits():
    """Heads whose segments are slow, some of them slow, and fast, M near I as where little is written.

    In tf32, whose products drop digits toward 0, the last of eight states is off by 2.7e-3. What is not
    needed is NaN, and stays out of what is.
    """
    (found,) = driver.load(ROOT / "specs" / "forward_join.yaml").variants
    path = ROOT / "generated" / "forward_join" / f"{found.kernel.module}.py"
    HV, P = 3, 8
    torch.manual_seed(0)
    M = torch.eye(128) + 0.002 * torch.randn(HV, P, 128, 128)
    b, first = 0.1 * torch.randn(HV, P, 128, 128), 4 * torch.randn(1, HV, 128, 128)
    slow = torch.zeros(HV, P, dtype=torch.bool)
    slow[0, :-1] = slow[1, 2] = slow[1, 4:6] = True
    summed = slow | torch.nn.functional.pad(slow[:, 1:-1], (0, 2))  # b is needed before a slow one
    multiplied = slow & (torch.arange(P) > 0)
    parts = torch.stack([b, M], 2)
    parts[~torch.stack([summed, multiplied], -1)] = torch.nan
    given = dict(far=slow[None].float(), parts=parts[None], first=first)
    given["starts"] = torch.full((1, HV, P, 128, 128), torch.nan)
    cuda = emulate.runnable(path, HOPPER)
    emulated = cuda.build()
    for order, copies in RUNS[:2]:
        arguments = cuda.given(found.kernel, emulated, given, dict(S=1, B=1, HV=HV, P=P))
        result = emulator.run(emulated, **arguments, order=order, copies=copies)
        assert result.findings == ()
        for h in range(HV):
            state = first[0, h].double()
            for s in range(P - 1):
                kept = M[h, s].double() @ state if multiplied[h, s] else 0.0
                state = kept + (b[h, s].double() if summed[h, s] else torch.nan)
                if slow[h, s]:
                    got = result.outputs["starts"][0, h, s + 1].double()
                    assert torch.linalg.norm(got - state) < 5e-5 * torch.linalg.norm(state)
