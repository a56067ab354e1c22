"""The emulator's parts on CUDA written by hand: types, warps, barriers, and what is refused."""

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from gdngen import emulator
from gdngen.emulator import EmulatorError, build, compiling, run
from gdngen.emulator.instructions import SUPPORTED
from gdngen.emulator.source import read_kernel

ROOT = Path(__file__).resolve().parent.parent


def cuda(params, body, threads=32):
    return (
        f'extern "C" __global__ void __launch_bounds__({threads}, 1) kernel({params}) {{\n'
        f"{body}\n}}\n"
    )


def execute(params, body, tensors, threads=32, shared_bytes=0, **options):
    return run(
        build(cuda(params, body, threads), shared_bytes), tensors, **{"grid": (1,), **options}
    )


def kinds(result):
    return {finding.kind for finding in result.findings}


# --- types ----------------------------------------------------------------------------------------


def test_every_half_widens_exactly():
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    body = "for (int i = threadIdx.x; i < 65536; i += 32) y[i] = (float)x[i];"
    tensors = {"x": halves, "y": np.zeros(65536, np.float32)}
    result = execute("const half_t* x, float* y", body, tensors)
    assert np.array_equal(result.outputs["y"], halves.astype(np.float32), equal_nan=True)


def bits_of_interest():
    """Floats around every rounding and range limit of the 16-bit types."""
    edges = [0x33000000, 0x38800000, 0x387FC000, 0x477FE000, 0x477FF000, 0x7F7FFFFF, 0x7F800000]
    near = [edge + step for edge in edges for step in range(-3, 4)]
    rng = np.random.default_rng(0)
    values = np.concatenate([np.array(near), rng.integers(0, 1 << 31, 8000)]).astype(np.uint32)
    return np.concatenate([values, values | 0x80000000]).view(np.float32)


def test_narrowing_rounds_to_nearest_even():
    x = bits_of_interest()
    n = len(x)
    body = f"""for (int i = threadIdx.x; i < {n}; i += 32) {{
      h[i] = half_t(x[i]);
      b[i] = bfloat16_t(x[i]);
    }}"""
    tensors = {"x": x, "h": np.zeros(n, np.float16), "b": np.zeros(n, np.uint16)}
    result = execute("const float* x, half_t* h, bfloat16_t* b", body, tensors)
    with np.errstate(over="ignore"):
        assert np.array_equal(result.outputs["h"], x.astype(np.float16), equal_nan=True)
    finite = ~np.isnan(x)
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    assert np.array_equal(result.outputs["b"][finite], rounded.astype(np.uint16)[finite])


def test_float32_products_lose_the_bits_that_tensor_cores_ignore():
    body = """unsigned a[4] = {0x3f800fff, 0, 0, 0}, b[2] = {0x3f801fff, 0};
    float c[4] = {0, 0, 0, 0};
    tl::mma_sync<tl::DataType::kTensorFloat32, tl::DataType::kTensorFloat32,
                 tl::DataType::kFloat32, 16, 8, 8, false, true>(c, a, b);
    y[threadIdx.x] = c[0];"""
    result = execute("float* y", body, {"y": np.zeros(32, np.float32)})
    assert (result.outputs["y"] == 4.0).all()  # four products of exactly one


# --- warps and barriers ---------------------------------------------------------------------------


def test_shuffles_and_votes():
    body = """int lane = threadIdx.x;
    y[lane] = __shfl_xor_sync(0xffffffff, lane, 1);
    y[32 + lane] = __shfl_up_sync(0xffffffff, lane, 3);
    y[64 + lane] = __shfl_down_sync(0xffffffff, lane, 3, 8);
    y[96 + lane] = __shfl_sync(0xffffffff, lane, 5, 16);
    y[128 + lane] = __ballot_sync(0xffffffff, lane < 4);
    y[160 + lane] = __any_sync(0xffffffff, lane == 7) + 2 * __all_sync(0xffffffff, lane == 7);"""
    result = execute("int* y", body, {"y": np.zeros(192, np.int32)})
    got, lane = result.outputs["y"].reshape(6, 32), np.arange(32)
    assert (got[0] == lane ^ 1).all()
    assert (got[1] == np.where(lane < 3, lane, lane - 3)).all()
    assert (got[2] == np.where(lane % 8 > 4, lane, lane + 3)).all()
    assert (got[3] == lane // 16 * 16 + 5).all()
    assert (got[4] == 15).all() and (got[5] == 1).all() and not result.findings


NEIGHBOUR = """extern __shared__ __align__(1024) int s[];
s[threadIdx.x] = threadIdx.x;
{wait}
y[threadIdx.x] = s[threadIdx.x ^ {partner}];"""


@pytest.mark.parametrize(
    "wait, partner, races",
    [
        ("", 1, True),
        ("__syncwarp();", 1, False),
        ("__syncwarp();", 32, True),
        ("__shfl_sync(0xffffffff, 1, 0);", 1, True),  # meets, but orders no memory
        ("__syncthreads();", 32, False),
        ("tl::__sync_thread_partial(1 + threadIdx.x / 64, 64);", 32, False),
        ("tl::__sync_thread_partial(1 + threadIdx.x / 64, 64);", 64, True),
    ],
)
@pytest.mark.parametrize("order", (0, 1, 2))
def test_which_waits_order_which_threads(wait, partner, races, order):
    body = NEIGHBOUR.format(wait=wait, partner=partner)
    tensors = {"y": np.zeros(128, np.int32)}
    result = execute("int* y", body, tensors, 128, 512, order=order)
    assert ("race" in kinds(result)) == races
    if not races:
        assert (result.outputs["y"] == np.arange(128) ^ partner).all() and not result.findings


def test_arriving_at_a_named_barrier_hands_over():
    body = """extern __shared__ __align__(1024) int s[];
    if (threadIdx.x < 32) {
      s[threadIdx.x] = 7;
      tl::__named_barrier_arrive(1, 64);
    } else {
      tl::__sync_thread_partial(1, 64);
      y[threadIdx.x - 32] = s[threadIdx.x - 32];
    }"""
    for order in (0, 1):
        result = execute("int* y", body, {"y": np.zeros(32, np.int32)}, 64, 128, order=order)
        assert not result.findings and (result.outputs["y"] == 7).all()


def test_equal_values_written_twice_are_no_race():
    body = """extern __shared__ __align__(1024) int s[];
    s[threadIdx.x / 2] = {value};
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x / 2];"""
    for value, races in (("threadIdx.x / 2", False), ("threadIdx.x", True)):
        tensors = {"y": np.zeros(64, np.int32)}
        result = execute("int* y", body.replace("{value}", value), tensors, 64, 128)
        assert kinds(result) == ({"race"} if races else set())


def test_static_shared_arrays():
    body = """__shared__ int s[64];
    s[threadIdx.x] = threadIdx.x;
    y[threadIdx.x] = s[63 - threadIdx.x];"""
    result = execute("int* y", body, {"y": np.zeros(64, np.int32)}, 64)
    assert {f.memory for f in result.findings if f.kind == "race"} == {"static shared"}


def test_threads_that_wait_for_ever():
    body = "if (threadIdx.x < 32) tl::__sync_thread_partial(1, 64);\ny[threadIdx.x] = 1;"
    (finding,) = execute("int* y", body, {"y": np.zeros(64, np.int32)}, 64).findings
    assert finding.kind == "barrier divergence" and finding.line == 2 and "for ever" in finding.note


def test_matrix_instruction_without_the_whole_warp():
    body = """extern __shared__ __align__(1024) half_t s[];
    if (threadIdx.x < 16) { unsigned r[1]; tl::ptx_ldmatrix_x1(s, r); y[0] = r[0]; }"""
    result = execute("int* y", body, {"y": np.zeros(1, np.int32)}, 32, 1024)
    assert [f.line for f in result.findings if f.kind == "barrier divergence"] == [3]


def test_many_threads_many_readers():
    body = """extern __shared__ __align__(1024) float s[];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < 1024; ++i) sum += s[i];
    y[threadIdx.x] = sum;"""
    x = np.arange(1024, dtype=np.float32)
    tensors = {"x": x, "y": np.zeros_like(x)}
    result = execute("const float* x, float* y", body, tensors, 1024, 4096, order=2)
    assert not result.findings and (result.outputs["y"] == x.sum()).all()
    assert result.barriers == 1


def test_blocks_of_three_dimensions():
    body = """int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    y[block * 64 + thread] = block * 100 + thread;"""
    tensors = {"y": np.zeros((24, 64), np.int32)}
    emulated = build(cuda("int* y", body, 64), 0)
    result = run(emulated, tensors, (2, 3, 4), threads=(4, 4, 4))
    assert (result.outputs["y"] == np.arange(24)[:, None] * 100 + np.arange(64)).all()


# --- arguments, refusals, builds ------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement, name",
    [
        ("tl::tma_load_multicast(x, y);", "tl::tma_load_multicast"),
        ("__nanosleep(5);", "__nanosleep"),
        ('asm volatile("bar.sync 0;");', "asm"),
        ("cute::copy(x, y);", "cute::copy"),
        ("f(tl::DataType::kInt8);", "tl::DataType::kInt8"),
    ],
)
def test_unsupported_instructions_are_refused_by_name(statement, name):
    body = f"// tl::ignored(here)\nint x = max(1, 2);\n{statement}"
    with pytest.raises(EmulatorError, match=re.escape(name)) as caught:
        build(cuda("int* y", body.replace("f(", "max(0, ")), 0)
    assert "kernel.cu:4" in str(caught.value)


def test_errors_of_the_cpp_compiler_are_short():
    with pytest.raises(EmulatorError, match=r"refused this kernel:\nkernel.cu:2:\d+: error"):
        build(cuda("int* y", "y = nothing;"), 0)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"tensors": {}}, "takes y"),
        ({"tensors": {"y": np.zeros(32, np.float64)}}, "y is int in the kernel, got float64"),
        ({"threads": 64}, "built for 32 threads"),
        ({"grid": (1, 1, 1, 1)}, "one to three"),
        ({"copies": "never"}, "early or late"),
    ],
)
def test_arguments_that_do_not_fit(change, message):
    emulated = build(cuda("int* y", "y[threadIdx.x] = 1;"), 0)
    arguments = {"tensors": {"y": np.zeros(32, np.int32)}, "grid": (1,), **change}
    with pytest.raises(EmulatorError, match=message):
        run(emulated, **arguments)


def test_a_kernel_that_never_ends():
    emulated = build(cuda("int* y", "while (y[0] == 0) y[1] = 1;"), 0)
    with pytest.raises(EmulatorError, match="ran for more than"):
        run(emulated, {"y": np.zeros(2, np.int32)}, (1,), timeout=0.5)


def test_no_compiler(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    compiling.compiler.cache_clear()
    with pytest.raises(EmulatorError, match="needs a C\\+\\+20 compiler"):
        build(cuda("int* y", ""), 0)
    compiling.compiler.cache_clear()


def test_builds_are_kept_by_content(tmp_path, monkeypatch):
    build(cuda("int* y", "y[0] = 1;"), 0)
    (machine,) = compiling.cache_directory().glob(f"machine-{compiling._machine_hash()}")
    shutil.copytree(machine, tmp_path / "emulator" / machine.name)  # which takes a while to build
    monkeypatch.setenv("GDNGEN_CACHE", str(tmp_path))
    first = build(cuda("int* y", "y[0] = 1;"), 0)
    made = first.program.stat().st_mtime_ns
    assert build(cuda("int* y", "y[0] = 1;"), 0).program.stat().st_mtime_ns == made
    assert build(cuda("int* y", "y[0] = 2;"), 0).program != first.program
    assert tmp_path in first.program.parents
    assert not list(tmp_path.rglob("tmp*"))


def test_lines_are_kept():
    source = cuda("int* y", "#include <x>\n__syncthreads();\n\ny[0] = *(int*)(y + 1);")
    kernel = read_kernel(source)
    assert kernel.text.count("\n") == source.count("\n")
    assert [(site.line, site.statement) for site in kernel.sites] == [(3, "__syncthreads();")]


def test_every_supported_name_is_defined_and_documented():
    headers = "".join(path.read_text() for path in (ROOT / "gdngen/emulator/cuda").iterdir())
    document = (ROOT / "docs/emulator.md").read_text()
    standard = set("abs fabs exp exp2 log log2 pow sqrt fmax fmin floor ceil round trunc".split())
    for name in SUPPORTED:
        bare = name.rpartition("::")[2]
        # Float functions of the C library are taken from it; shapes and kinds are pasted together.
        pasted = re.sub(r"_x\d", "_x##tiles", bare).replace("_trans", "##_trans")
        made = re.sub(r"make_(\w+?)\d", r"make_##name##\\d", bare)
        known = bare in headers or pasted in headers or "make_##name##" in made
        assert known or re.fullmatch(r"[a-z0-9]+f?", bare) or bare in standard, name
        assert f"`{name}`" in document, name


def test_importing_needs_neither_torch_nor_tilelang():
    import subprocess

    code = "import sys, gdngen.emulator; print({'torch', 'tilelang', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
    assert emulator.__all__
