"""Planted faults and TileLang's own miscompilations: the emulator must find every one."""

import re

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tilelang")

import emulator_kernels as kernels  # noqa: E402
from test_emulator import TOLERANCE, blank, neumann_case, random  # noqa: E402

from gdngen.emulator import build, compare, mutate, run  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def line_of(cuda, text, nth=0):
    lines = [i for i, line in enumerate(cuda.source.splitlines(), start=1) if text in line]
    return lines[nth]


def without(cuda, line):
    """The source with one line blanked, so that the others keep their numbers."""
    lines = cuda.source.splitlines()
    lines[line - 1] = ""
    return kernels.Cuda("\n".join(lines), cuda.shared_bytes)


def find(cuda, tensors, grid=(1,), **options):
    result = run(build(cuda.source, cuda.shared_bytes), tensors, grid, **options)
    return result, {finding.kind for finding in result.findings}


# --- TileLang 0.1.15 miscompiles these ------------------------------------------------------------


def test_miscompile_fragment_beside_shared_tiles():
    """A barrier inside a divergent `if`: half of the threads wait elsewhere, or never."""
    cuda = kernels.lower(kernels.beta_fragment())
    k, beta = random(64, 64, dtype="float16"), torch.rand(64)
    tensors = {"k": k, "beta": beta, "Y": blank(64, 64)}
    scaled = k.double() * beta.double()[:, None]
    for order in (0, 1, 2):
        result, kinds = find(cuda, tensors, order=order)
        assert {"barrier divergence", "race"} <= kinds
        inside = line_of(cuda, "__syncthreads", 1)
        divergences = [f for f in result.findings if f.kind == "barrier divergence"]
        assert any(inside in (f.line, f.other_line) for f in divergences)
    result, kinds = find(cuda, tensors, order=0)
    assert "uninitialised shared read" in kinds and not torch.isfinite(result.outputs["Y"]).all()
    assert compare(result.outputs, {"Y": scaled @ scaled.T}, 5e-3)


def test_miscompile_loop_carried_tile_under_aggressive_merging():
    w, x = random(64, 64, dtype="float16"), random(3, 64, 64, dtype="float16")
    tensors = {"W": w, "X": x, "Y": blank(3, 64, 64, dtype="float16")}
    reference = {"Y": (w.double() + x.double()).mT}
    sound = kernels.lower(kernels.loop_carried())
    broken = kernels.lower(kernels.loop_carried(), enable_aggressive_shared_memory_merge=True)
    assert broken.shared_bytes < sound.shared_bytes
    result, kinds = find(sound, tensors)
    assert not kinds and not compare(result.outputs, reference, 1e-3)
    result, _ = find(broken, tensors)
    assert [f.kind for f in compare(result.outputs, reference, 1e-3)] == ["wrong result"]


def test_miscompile_tiles_of_divergent_threads_under_aggressive_merging():
    cuda = kernels.lower(kernels.divergent_tiles(), enable_aggressive_shared_memory_merge=True)
    x = random(2, 64)
    reference = {"Y": x.view(2, 32, 2).flip(2).reshape(2, 64)}
    for order in (0, 1):
        result, kinds = find(cuda, {"X": x, "Y": blank(2, 64)}, order=order)
        assert kinds == {"race"} and compare(result.outputs, reference, 0)
        lines = line_of(cuda, "low)[((int)threadIdx.x)] ="), line_of(cuda, "high)[(((int)")
        (clash,) = [f for f in result.findings if {f.line, f.other_line} == set(lines)]
        assert (clash.memory, clash.low, clash.high) == ("shared", 0, 256)
        assert (clash.thread < 64) != (clash.other_thread < 64)


# --- planted --------------------------------------------------------------------------------------


def test_two_live_tiles_in_one_slot():
    """By name: TileLang sees one buffer and orders every access, so only the results are wrong."""
    tensors, reference = neumann_case()
    cuda = kernels.lowered_neumann(one_slot=True)
    result, kinds = find(cuda, tensors, (2,))
    assert not kinds
    assert {f.memory for f in compare(result.outputs, reference, 2e-3)} == {"A", "w", "u"}


def test_two_live_tiles_at_one_address():
    """By address: nothing orders the two loads, and the race has the slot's bytes."""
    tensors, reference = neumann_case()
    cuda = kernels.lowered_neumann()
    lines = cuda.source.splitlines()
    (k_s,) = [line for line in lines if "void* k_s =" in line]
    (v_s,) = [line for line in lines if "void* v_s =" in line]
    offset = int(k_s.split("+")[1].strip(" );"))
    broken = kernels.Cuda(cuda.source.replace(v_s, k_s.replace("k_s", "v_s")), cuda.shared_bytes)
    result, kinds = find(broken, tensors, (2,))
    assert "race" in kinds and compare(result.outputs, reference, 2e-3)
    race = next(f for f in result.findings if f.note == "write after write")
    assert offset <= race.low < race.high <= offset + 64 * 64 * 2


def test_deleted_barrier_is_a_race_with_both_lines():
    x = random(64)
    cuda = kernels.lower(kernels.partial_threads())
    broken = without(cuda, line_of(cuda, "__syncthreads"))
    result, kinds = find(broken, {"X": x, "Y": blank(64)}, order=1)
    assert "race" in kinds
    write, read = line_of(cuda, "= X["), line_of(cuda, "Y[((")
    races = [f for f in result.findings if f.kind == "race"]
    assert {frozenset((f.line, f.other_line)) for f in races} == {frozenset((write, read))}


def test_thread_sanitizer_agrees_on_a_deleted_barrier():
    cuda = kernels.lower(kernels.partial_threads())
    broken = without(cuda, line_of(cuda, "__syncthreads"))
    emulated = build(broken.source, broken.shared_bytes, tsan=True)
    findings = run(emulated, {"X": random(64), "Y": blank(64)}, (1,)).findings
    write, read = line_of(cuda, "= X["), line_of(cuda, "Y[((")
    assert findings and {f.kind for f in findings} == {"race"}
    assert all({f.line, f.other_line} == {write, read} and f.memory == "shared" for f in findings)


@pytest.mark.parametrize("stages", (2, 3))
def test_missing_wait_after_an_asynchronous_copy(stages):
    a, b = random(64, 128, dtype="float16"), random(128, 64, dtype="float16")
    tensors = {"A": a, "B": b, "C": blank(64, 64)}
    cuda = kernels.lower(kernels.matmul("float16", stages))
    for nth in range(cuda.source.count("cp_async_wait")):
        broken = without(cuda, line_of(cuda, "cp_async_wait", nth))
        result, kinds = find(broken, tensors, (2, 2), copies="early")
        assert kinds == {"race"}, nth  # although the data happened to be there
        assert "an asynchronous copy was not waited for" in {f.note for f in result.findings}
        assert not compare(result.outputs, {"C": a.double() @ b.double()}, 1e-3)
        result, _ = find(broken, tensors, (2, 2), copies="late")
        assert compare(result.outputs, {"C": a.double() @ b.double()}, 1e-3), nth


@pytest.mark.parametrize("shift", (2, 4, 8))
def test_unaligned_tile(shift):
    tensors, _ = neumann_case()
    cuda = kernels.lowered_neumann()
    (k_s,) = [line for line in cuda.source.splitlines() if "void* k_s =" in line]
    offset = int(k_s.split("+")[1].strip(" );"))
    moved = cuda.source.replace(k_s, k_s.replace(str(offset), str(offset + shift)))
    result, kinds = find(kernels.Cuda(moved, cuda.shared_bytes + 16), tensors, (2,))
    assert kinds == {"misaligned"}
    (finding,) = result.findings
    assert finding.memory == "shared" and finding.low % 16 and finding.line


def test_access_outside_the_dynamic_allocation():
    tensors, _ = neumann_case()
    cuda = kernels.lowered_neumann()
    short = kernels.Cuda(cuda.source, cuda.shared_bytes - 64)
    result, kinds = find(short, tensors, (2,))
    assert kinds == {"out of bounds"}
    for finding in result.findings:
        assert finding.memory == "shared" and finding.high > short.shared_bytes and finding.line


def test_access_outside_a_tensor():
    tensors = {"X": random(70, 64, dtype="float16"), "Y": blank(70, 32), "L": 96}
    result, kinds = find(kernels.lower(kernels.ragged("float16")), tensors, (3,))
    assert kinds == {"out of bounds"}
    assert {f.memory for f in result.findings} == {"X", "Y"}
    assert all(f.low >= 70 * 128 for f in result.findings)


def test_access_far_outside_everything():
    tensors = {"X": random(3, 64, 64), "Y": blank(3, 64, 64), "R": 3}
    cuda = kernels.lower(kernels.branches("float32"))
    source = cuda.source.replace("*(float4*)(X + (", "*(float4*)(X + 1000000000000 + (")
    assert source != cuda.source
    result, kinds = find(kernels.Cuda(source, cuda.shared_bytes), tensors)
    assert kinds == {"out of bounds"}


def test_reading_what_nothing_wrote():
    cuda = kernels.lower(kernels.partial_threads())
    source = cuda.source.replace("< 64) {", "< 60) {", 1)
    result, _ = find(kernels.Cuda(source, cuda.shared_bytes), {"X": random(64), "Y": blank(64)})
    (finding,) = result.findings
    assert finding.kind == "uninitialised shared read"
    assert (finding.memory, finding.low, finding.high) == ("shared", 240, 256)


def test_blocks_that_write_the_same_output():
    cuda = kernels.lower(kernels.atomic_sum())
    source = re.sub(r"AtomicAdd\(\(&\((.*?)\)\), (.*)\);", r"\1 = \2;", cuda.source)
    tensors = {"X": random(64, 32), "Y": torch.zeros(32)}
    result, kinds = find(kernels.Cuda(source, 0), tensors, (2,))
    assert kinds == {"race"}
    assert {f.memory for f in result.findings} == {"Y"}
    assert any(f.note.startswith("another block") for f in result.findings)


# --- every wait deleted in turn -------------------------------------------------------------------


def mutants_of(cuda, tensors, grid, reference, tolerance):
    emulated = build(cuda.source, cuda.shared_bytes)
    return mutate(emulated, tensors, grid, lambda out: compare(out, reference, tolerance))


def test_mutants_of_a_pipelined_matmul():
    a, b = random(64, 128, dtype="float16"), random(128, 64, dtype="float16")
    tensors = {"A": a, "B": b, "C": blank(64, 64)}
    reference = {"C": a.double() @ b.double()}
    cuda = kernels.lower(kernels.matmul("float16", 2))
    mutants = mutants_of(cuda, tensors, (2, 2), reference, TOLERANCE["float16"])
    assert len(mutants) == cuda.source.count("__syncthreads") + cuda.source.count("async_wait")
    assert all(mutant.caught for mutant in mutants if "wait" in mutant.site.statement)
    assert all("race" in mutant.reason for mutant in mutants if mutant.caught)


def test_mutants_of_the_fused_prepare_stage():
    """Eight of ten barriers are needed; TileLang puts one before each gemm, needed or not."""
    tensors, reference = neumann_case()
    cuda = kernels.lowered_neumann()
    mutants = mutants_of(cuda, tensors, (2,), reference, 2e-3)
    assert [mutant.caught for mutant in mutants].count(True) == 8
    for mutant in mutants:
        assert mutant.caught == ("race" in mutant.reason) != mutant.reason.startswith("redundant")


@pytest.mark.long
def test_thread_sanitizer_agrees_on_every_mutant():
    tensors, reference = neumann_case()
    cuda = kernels.lowered_neumann()
    own = mutants_of(cuda, tensors, (2,), reference, 2e-3)
    emulated = build(cuda.source, cuda.shared_bytes, tsan=True)
    theirs = mutate(emulated, tensors, (2,), orders=(0, 1, 2))
    assert [mutant.caught for mutant in own] == [mutant.caught for mutant in theirs]
