"""Lowering a tiny kernel: bytes, the merge setting, the cache, ptxas's report and errors."""

from __future__ import annotations

import shutil

import pytest

from gdngen.verify import lowering

TEXT = """import tilelang
import tilelang.language as T


@tilelang.jit(pass_configs={"tl.disable_shared_memory_reuse": True})
def tiny():
    N = T.dynamic("N")

    @T.prim_func
    def kernel(x: T.Tensor([N, 64], "float32"), y: T.Tensor([N, 64], "float32")):
        with T.Kernel(T.ceildiv(N, 64), threads=THREADS) as c:
            a = T.alloc_shared([64, 64], "float32")
            b = T.alloc_shared([64, 64], "float32")
            acc = T.alloc_fragment([64, 64], "float32")
            T.copy(x[c * 64 : (c + 1) * 64, :], a)
            T.gemm(a, a, acc, clear_accum=True)
            T.copy(acc, b)
            T.copy(b, y[c * 64 : (c + 1) * 64, :])

    return kernel
"""


@pytest.fixture
def path(tmp_path):
    pytest.importorskip("tilelang")
    path = tmp_path / "tiny.py"
    path.write_text(TEXT.replace("THREADS", "128"))
    return path


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_bytes_and_merging(path, target):
    low = lowering.lower(path, target)
    assert (low.dynamic_bytes, low.static_bytes, low.bytes) == (32768, 0, 32768)
    assert "kernel" in low.source
    assert lowering.asked_bytes(path, target) == 32768
    assert lowering.asked_bytes(path, target, "off") == 32768
    assert lowering.asked_bytes(path, target, "default") == 16384


def test_results_are_remembered(path, tmp_path, monkeypatch):
    monkeypatch.setenv("GDNGEN_CACHE", str(tmp_path / "cache"))
    first = lowering.cached_lower(path, "sm_80")
    monkeypatch.setattr(lowering, "_lower", None)
    assert lowering.cached_lower(path, "sm_80") == first
    with pytest.raises(TypeError):
        lowering.cached_lower(path, "sm_90")
    (entry,) = (tmp_path / "cache").iterdir()
    entry.write_text("{}")
    with pytest.raises(TypeError):
        lowering.cached_lower(path, "sm_80")


def test_a_refusal_says_why(path):
    path.write_text(TEXT.replace("THREADS", "1024").replace("64", "16"))
    with pytest.raises(lowering.LoweringError, match="tiny.py: sm_80: .*warp"):
        lowering.lower(path, "sm_80")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_registers(path):
    found = lowering.registers(lowering.lower(path, "sm_80").source, "sm_80")
    assert 32 <= found.registers <= 255
    assert (found.spill_stores, found.static_bytes) == (0, 0)
    with pytest.raises(lowering.LoweringError):
        lowering.registers("__global__ void f() { nonsense; }", "sm_80")


def test_static_arrays_are_counted():
    source = """
      extern __shared__ __align__(1024) uchar buf_dyn_shmem[];
      __shared__ __align__(16) uint64_t mbarrier_mem[6];
      __shared__ __align__(16) float red_buf[4][32];
      __shared__ signed char flags[16];
    """
    assert lowering.static_bytes(source) == 48 + 512 + 16
