"""TileLang kernels lowered for sm_90 and emulated, and what TileLang 0.1.15 makes wrong of one."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tilelang")

import emulator_kernels as kernels  # noqa: E402
from test_emulator import TOLERANCE, blank, random  # noqa: E402

from gdngen.emulator import build, compare, run  # noqa: E402

RUNS = [(0, "early"), (1, "late"), (2, "late")]
OVERTAKEN = "overtaken wait"  # by every loop that TileLang splits


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def results(cuda, tensors, grid=(1,)):
    """Results of all runs, and the kinds of fault in any."""
    emulated = build(cuda.source, cuda.shared_bytes)
    wanted = {p.name for p in emulated.kernel.params} | {m.tensor for m in cuda.maps.values()}
    given = {name: value for name, value in tensors.items() if name in wanted}
    return [
        run(emulated, given, grid, order=order, copies=copies, maps=cuda.maps)
        for order, copies in RUNS
    ]


@pytest.mark.parametrize(
    "dtype, turned_a, turned_b, width",
    [
        ("float16", False, False, 64),
        ("float16", True, True, 64),
        ("bfloat16", False, True, 32),
        ("float32", False, True, 64),
        pytest.param("float16", True, False, 16, marks=pytest.mark.long),
        pytest.param("float16", False, False, 128, marks=pytest.mark.long),
        pytest.param("bfloat16", True, False, 256, marks=pytest.mark.long),
    ],
)
def test_matmul(dtype, turned_a, turned_b, width):
    a, b = random(64, 64, dtype=dtype), random(64, width, dtype=dtype)
    reference = {"C": a.double() @ b.double()}
    tensors = {"A": a.T.contiguous() if turned_a else a, "B": b.T.contiguous() if turned_b else b}
    cuda = kernels.lower(kernels.turned_matmul(dtype, turned_a, turned_b, width), "sm_90")
    assert ("tl::wgmma_ss" in cuda.source) == (dtype != "float32")  # that is mma.sync's there too
    for result in results(cuda, {**tensors, "C": blank(64, width)}):
        assert result.findings == ()
        assert compare(result.outputs, reference, TOLERANCE[dtype]) == ()


def test_a_pipeline_that_is_split():
    a, b = random(64, 128, dtype="float16"), random(128, 64, dtype="float16")
    cuda = kernels.lower(kernels.matmul("float16", 2, block=64, threads=128), "sm_90")
    assert "tl::tma_load" in cuda.source and "__launch_bounds__(256" in cuda.source
    for result in results(cuda, {"A": a, "B": b, "C": blank(64, 64)}):
        assert {f.kind for f in result.findings} == {OVERTAKEN}
        assert compare(result.outputs, {"C": a.double() @ b.double()}, TOLERANCE["float16"]) == ()


def test_miscompile_a_tile_loaded_beside_tma_on_sm_90():
    """It waits for another tile's barrier, and is overwritten where that one is done with earlier: seen
    on an H200 as a wrong result."""
    cuda = kernels.lower(kernels.loaded_beside_tma(), "sm_90")
    lines = cuda.source.splitlines()
    a, b, s = random(64, 64, dtype="float16"), random(256, 64, dtype="float16"), random(256)
    for result in results(cuda, {"A": a, "B": b, "S": s, "C": blank(64, 64)}):
        (race,) = (f for f in result.findings if f.kind == "race")
        assert race.note == "write after read" and "tl::cp_async_gs<4>" in lines[race.line - 1]
        assert "s_s" in lines[race.other_line - 1]
