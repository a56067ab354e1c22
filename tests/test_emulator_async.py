"""What sm_90 has beside sm_80, on CUDA written by hand: tensor maps, mbarriers, warpgroup products."""

import re

import numpy as np
import pytest

from gdngen.emulator import EmulatorError, TensorMap, build, mutate, run, tensor_map
from gdngen.emulator.maps import row_major

MAP = "__grid_constant__ const CUtensorMap"
BARRIERS = """
  __shared__ __align__(16) uint64_t full_mem[2];
  auto full = reinterpret_cast<Barrier*>(full_mem);
  if (threadIdx.x == 0) { full[0].init(1); full[1].init(1); }
  __syncthreads();
"""


def cuda(params, body, threads=128):
    return (
        f'extern "C" __global__ void __launch_bounds__({threads}, 1) kernel({params}) {{\n'
        f"  extern __shared__ __align__(1024) uchar memory[];\n{body}\n}}\n"
    )


def execute(params, body, tensors, maps=None, threads=128, shared_bytes=65536, **options):
    emulated = build(cuda(params, body, threads), shared_bytes)
    return run(emulated, tensors, (1,), maps=maps, **options)


def both(*arguments, **options):
    """The run where asynchronous operations take place late, and is as the one where they are early."""
    early, late = (execute(*arguments, copies=c, **options) for c in ("early", "late"))
    for name, value in early.outputs.items():
        assert np.array_equal(value, late.outputs[name], equal_nan=True), name
    return late


def kinds(result):
    return {finding.kind for finding in result.findings}


def halves(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


# -- copies ----------------------------------------------------------------------------------------

LOAD = BARRIERS + """
  if (threadIdx.x == 0) {
    full[0].expect_transaction(BYTES);
    tl::tma_load(x_desc, full[0], memory, AT);
    full[0].arrive();
  }
  full[0].wait(0);
  for (int i = threadIdx.x; i < BYTES / 2; i += 128) y[i] = ((ushort*)memory)[i];
"""


def load(x, box, at, **options):
    """The shared bytes that a box of x makes, as 16-bit numbers; `box` and `at` begin with the outermost."""
    count = int(np.prod(box))
    body = LOAD.replace("BYTES", str(2 * count)).replace("AT", ", ".join(map(str, reversed(at))))
    maps = {"x_desc": row_major("x", x.shape, 2, box, **options)}
    tensors = {"x": x, "y": np.zeros(count, np.uint16)}
    result = both(f"{MAP} x_desc, ushort* y", body, tensors, maps)
    assert not result.findings
    return result.outputs["y"].view(x.dtype).reshape(box)


def test_boxes_of_many_dimensions():
    x = halves(3, 4, 5, 6, 16)
    assert np.array_equal(load(x, (2, 1, 3, 2, 8), (1, 2, 1, 3, 8)), x[1:3, 2:3, 1:4, 3:5, 8:])


@pytest.mark.parametrize("at", [(40, 0), (-3, 0), (0, 24), (0, -8), (100, 0)])
def test_outside_of_the_tensor_are_zeros(at):
    x = halves(50, 32)
    padded = np.zeros((250, 96), np.float16)
    padded[100:150, 32:64] = x
    row, column = at[0] + 100, at[1] + 32
    assert np.array_equal(load(x, (16, 16), at), padded[row : row + 16, column : column + 16])


def test_outside_of_the_tensor_may_be_nan():
    filled = load(halves(4, 8), (8, 8), (0, 0), nan_outside=True)
    assert np.isfinite(filled[:4]).all() and np.isnan(filled[4:]).all()


@pytest.mark.parametrize("swizzle", (1, 2, 3))
def test_a_swizzle_permutes_units_within_a_row(swizzle):
    """Row r's unit u lies where u XOR r stands, of the 128-byte rows that r counts."""
    units = 1 << swizzle
    x = halves(32, units * 8)
    want = np.empty_like(x).reshape(32, units, 8)
    for row in range(32):
        for unit in range(units):
            want[row, unit ^ (row * units // 8) % units] = x[row, 8 * unit : 8 * unit + 8]
    got = load(x, x.shape, (0, 0), swizzle=swizzle)
    assert np.array_equal(got, want.reshape(x.shape))


STORE = """
  for (int i = threadIdx.x; i < 512; i += 128) ((half_t*)memory)[i] = half_t(float(i));
  tl::fence_proxy_async();
  __syncthreads();
  if (tl::tl_shuffle_elect<128>()) {
    tl::tma_store(y_desc, memory, 0, 8);
    tl::tma_store_arrive();
  }
  tl::tma_store_wait<0, true>();
"""


def stored(body=STORE, **options):
    """A box of [16, 32] put at row 8 of 20."""
    maps = {"y_desc": row_major("y", (20, 32), 2, (16, 32))}
    y = np.full((20, 32), -1, np.float16)
    return execute(f"{MAP} y_desc", body, {"y": y}, maps, **options)


@pytest.mark.parametrize("copies", ("early", "late"))
def test_stores_leave_out_what_is_outside(copies):
    result = stored(copies=copies)
    want = np.full((20, 32), -1.0)
    want[8:] = np.arange(512).reshape(16, 32)[:12]
    assert not result.findings and np.array_equal(result.outputs["y"], want)


def test_faults_of_a_store():
    assert kinds(stored(STORE.replace("tl::fence_proxy_async();", ""))) == {"missing proxy fence"}
    unordered = stored(STORE.replace("__syncthreads();", "__syncwarp();"), order=1)
    assert kinds(unordered) == {"race"}
    (left,) = stored(STORE.replace("tl::tma_store_wait<0, true>();", "")).findings
    assert left.note == "the block ends while the copy is under way"
    early = (
        "__syncthreads();\n  ((half_t*)memory)[threadIdx.x] = half_t(0.f);\n  tl::tma_store_wait"
    )
    assert kinds(stored(STORE.replace("tl::tma_store_wait", early))) == {"race"}
    moved = STORE.replace("memory, 0, 8", "memory + 64, 0, 8")
    assert kinds(stored(moved)) == {"misaligned"}


def test_bytes_in_a_row():
    body = BARRIERS + """
  if (threadIdx.x == 0) {
    full[1].arrive_and_expect_tx(512);
    tl::tma_load((void*)memory, x, full[1], 512);
    full[1].wait(0);
    tl::tma_store((void*)y, memory, 512);
    tl::tma_store_arrive();
    tl::tma_store_wait<0, false>();
  }
"""
    x = halves(256)
    result = both("half_t* x, half_t* y", body, {"x": x, "y": np.zeros_like(x)})
    assert not result.findings and np.array_equal(result.outputs["y"], x)


# -- barriers --------------------------------------------------------------------------------------


def loaded_by(body, **options):
    """A box of [16, 8] loaded by a body of its own."""
    x = halves(16, 8)
    maps = {"x_desc": row_major("x", x.shape, 2, x.shape)}
    tensors = {"x": x, "y": np.zeros((16, 8), np.float16)}
    return x, execute(f"{MAP} x_desc, half_t* y", body, tensors, maps, **options)


READ = LOAD.replace("BYTES / 2", "128").replace("BYTES", "256").replace("AT", "0, 0")
READ = READ.replace("ushort*", "half_t*")


@pytest.mark.parametrize("copies", ("early", "late"))
@pytest.mark.parametrize(
    "old, new, kind",
    [
        ("full[0].wait(0);", "__syncthreads();", "race"),
        ("full[0].wait(0);", "full[0].wait(1);", None),
        ("full[0].arrive();", "", "deadlock"),
        ("full[0].expect_transaction(256);", "full[0].expect_transaction(512);", "deadlock"),
        ("full[0].arrive();", "full[0].arrive(); full[0].arrive();", None),
        ("__syncthreads();", "", "race"),
        ("full[0].init(1);", "", "uninitialised shared read"),
        ("memory, 0, 0", "memory + 16, 0, 0", "misaligned"),
    ],
)
def test_faults_of_a_load(old, new, kind, copies):
    assert old in READ
    x, result = loaded_by(READ, copies=copies)
    assert not result.findings and np.array_equal(result.outputs["y"], x)
    _, result = loaded_by(READ.replace(old, new), copies=copies)
    assert result.findings if kind is None else kind in kinds(result), result.findings


def test_bytes_that_nobody_expects():
    """Early they come before the arrival, and keep the phase from ending; late, after its end."""
    body = READ.replace("full[0].expect_transaction(256);", "")
    assert "deadlock" in kinds(loaded_by(body)[1])
    assert "race" in kinds(loaded_by(body, copies="late")[1])


def test_a_deadlock_tells_the_state_of_barriers():
    _, result = loaded_by(READ.replace("full[0].arrive();", ""))
    (stuck,) = (f for f in result.findings if f.kind == "deadlock")
    assert stuck.note == (
        "128 threads wait for ever: full[0] at parity 0, in phase 0 with 1 of 1 arrivals and 0 bytes to come"
    )


PIPELINE = """
  __shared__ __align__(16) uint64_t full_mem[2];
  auto full = reinterpret_cast<Barrier*>(full_mem);
  __shared__ __align__(16) uint64_t free_mem[2];
  auto free_ = reinterpret_cast<Barrier*>(free_mem);
  if (threadIdx.x == 0)
    for (int i = 0; i < 2; ++i) { full[i].init(1); free_[i].init(128); }
  __syncthreads();
  float* tile = (float*)memory;
  if (threadIdx.x >= 128) {
    if (threadIdx.x == 128) {
      for (int i = 0; i < 7; ++i) {
        free_[i % 2].wait((i / 2 + 1) % 2);
        full[i % 2].arrive_and_expect_tx(512);
        tl::tma_load(x_desc, full[i % 2], tile + i % 2 * 128, 0, i);
      }
    }
  } else {
    float sum = 0;
    for (int i = 0; i < 7; ++i) {
      full[i % 2].wait(i / 2 % 2);
      sum += tile[i % 2 * 128 + (threadIdx.x ^ 1)];
      free_[i % 2].arrive();
    }
    y[threadIdx.x ^ 1] = sum;
  }
"""


def pipelined(body, threads=160, **options):
    x = np.random.default_rng(0).standard_normal((7, 128)).astype(np.float32)
    maps = {"x_desc": row_major("x", x.shape, 4, (1, 128))}
    tensors = {"x": x, "y": np.zeros(128, np.float32)}
    params = f"{MAP} x_desc, float* y"
    return x, execute(params, body, tensors, maps, threads=threads, **options)


@pytest.mark.parametrize("copies", ("early", "late"))
@pytest.mark.parametrize("order", (0, 1, 2))
def test_a_pipeline(order, copies):
    x, result = pipelined(PIPELINE, order=order, copies=copies)
    assert not result.findings
    assert np.allclose(result.outputs["y"], x.sum(0), atol=1e-5)


def test_a_tile_that_is_freed_early():
    read = "      sum += tile[i % 2 * 128 + (threadIdx.x ^ 1)];\n"
    arrive = "      free_[i % 2].arrive();\n"
    for order in (0, 1):
        _, result = pipelined(PIPELINE.replace(read + arrive, arrive + read), order=order)
        (race,) = result.findings
        assert race.kind == "race" and (race.memory, race.low, race.high) == ("shared", 0, 1024)


def test_a_wait_that_nobody_waits_for_may_be_overtaken():
    """A second warp that waits for places and does nothing else: the next phase may end without it."""
    body = PIPELINE.replace("    if (threadIdx.x == 128) {\n      for", "    {\n      for").replace(
        "        full[i % 2].arrive_and",
        "        if (threadIdx.x != 128) continue;\n        full[i % 2].arrive_and",
    )
    assert body.count("continue") == 1
    x, result = pipelined(body)
    assert not result.findings and np.allclose(result.outputs["y"], x.sum(0), atol=1e-5)
    x, result = pipelined(body, threads=192)
    (found,) = result.findings
    assert (found.kind, found.thread // 32, found.count) == ("overtaken wait", 5, 7)


def test_an_arrival_that_may_come_a_phase_early():
    """A warp that passes tiles on unread need not look at them, but has to wait until they are full."""
    body = PIPELINE.replace("init(128)", "init(160)").replace(
        "  if (threadIdx.x >= 128) {",
        "  if (threadIdx.x >= 160) {\n"
        "    for (int i = 0; i < 7; ++i) {\n"
        "      full[i % 2].wait(i / 2 % 2);\n"
        "      free_[i % 2].arrive();\n"
        "    }\n"
        "  } else if (threadIdx.x >= 128) {",
    )
    x, result = pipelined(body, threads=192)
    assert not result.findings and np.allclose(result.outputs["y"], x.sum(0), atol=1e-5)
    broken = body.replace("      full[i % 2].wait(i / 2 % 2);\n", "", 1)
    found = [kinds(pipelined(broken, threads=192, order=order)[1]) for order in (0, 1, 2)]
    assert "early arrival" in found[0], found
    assert all(one & {"early arrival", "deadlock"} for one in found), found


def test_every_wait_of_a_pipeline_is_missed():
    x, _ = pipelined(PIPELINE)
    maps = {"x_desc": row_major("x", x.shape, 4, (1, 128))}
    tensors = {"x": x, "y": np.zeros(128, np.float32)}
    emulated = build(cuda(f"{MAP} x_desc, float* y", PIPELINE, 160), 65536)
    found = mutate(emulated, tensors, (1,), maps=maps, orders=(0,))
    assert [m.site.statement.partition("(")[0] for m in found] == [
        "__syncthreads", "wait", "wait", "arrive",
    ]  # fmt: skip
    assert all(m.caught for m in found), found


# -- products --------------------------------------------------------------------------------------

PRODUCT = BARRIERS + """
  if (threadIdx.x == 0) {
    full[0].expect_transaction(TOTAL);
LOADS
    full[0].arrive();
  }
  full[0].wait(0);
  half_t a_r[16];
  float c[32];
REGISTERS
  {
    tl::GmmaDescriptor a, b;
    tl::initialize_wgmma_descriptor<LAYOUT, A_LEADING, A_STRIDE>(a, (&(((half_t*)memory)[0])));
    tl::initialize_wgmma_descriptor<LAYOUT, B_LEADING, B_STRIDE>(b, (&(((half_t*)memory)[16384])));
    tl::warpgroup_arrive();
    for (int k = 0; k < DEPTH / 16; ++k)
      PRODUCT_CALL
    tl::warpgroup_commit_batch();
  }
  tl::wait_wgmma<0>();
  for (int i = 0; i < 32; ++i)
    y[(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8) * 64 + i / 4 * 8 +
      threadIdx.x % 4 * 2 + i % 2] = c[i];
"""
FRAGMENT = """
  for (int i = 0; i < DEPTH / 2; ++i)
    a_r[i] = a_global[(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8) * DEPTH +
                      i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2];
"""


def operand(name, stored, swizzle, across, at):
    """How an operand of [mn, k] or, `across`, [k, mn] is loaded: its map, calls, and descriptor's strides
    (in units of 16 bytes) and step along k."""
    width = 8 << swizzle
    rows, columns = stored.shape
    panels = columns // width
    loads = "".join(
        f"    tl::tma_load({name}_desc, full[0], (half_t*)memory + {at + i * rows * width},"
        f" {i * width}, 0);\n"
        for i in range(panels)
    )
    units = rows * width // 8  # of a panel
    if swizzle:
        strides = (units if across else 1), width
        step = 2 * width if across else 2
    else:
        strides = (8, units) if across else (units, 8)
        step = 16 if across else 2 * units
    return row_major(name, stored.shape, 2, (rows, width), swizzle=swizzle), loads, strides, step


def multiplied(swizzle, a_across, b_across, registers=False, edit=lambda body: body, **options):
    """c = a b for a of [64, depth] and b of [depth, 64], each stored as its `across` says."""
    depth = max(8 << swizzle, 16) if not (a_across and b_across) else 32
    a, b = halves(64, depth), halves(depth, 64, seed=1)
    stored_a, stored_b = (a.T.copy() if a_across else a), (b if b_across else b.T.copy())
    a_map, a_loads, a_strides, a_step = operand("a", stored_a, swizzle, a_across, 0)
    b_map, b_loads, b_strides, b_step = operand("b", stored_b, swizzle, b_across, 16384)
    types = "tl::DataType::kFloat16, tl::DataType::kFloat16, tl::DataType::kFloat32, 64, 64, 16"
    flags = f"{str(a_across).lower()}, {str(b_across).lower()}, 1, 1"
    tail = f"uint64_t(b + k * {b_step}), (uint32_t*)c, k > 0);"
    call = (
        f"tl::wgmma_rs<{types}, {flags}>((const uint32_t*)(a_r + k * 8), {tail}"
        if registers
        else f"tl::wgmma_ss<{types}, {flags}>(uint64_t(a + k * {a_step}), {tail}"
    )
    body = PRODUCT
    for old, new in {
        "TOTAL": 2 * (a.size + b.size), "LOADS": a_loads + b_loads, "PRODUCT_CALL": call,
        "REGISTERS": FRAGMENT if registers else "", "DEPTH": depth,
        "LAYOUT": {0: 0, 1: 3, 2: 2, 3: 1}[swizzle],
        "A_LEADING": a_strides[0], "A_STRIDE": a_strides[1],
        "B_LEADING": b_strides[0], "B_STRIDE": b_strides[1],
    }.items():  # fmt: skip
        body = body.replace(old, str(new))
    tensors = {"a": stored_a, "b": stored_b, "y": np.full((64, 64), np.nan, np.float32)}
    tensors["a_global"] = a
    params = f"{MAP} a_desc, {MAP} b_desc, const half_t* a_global, float* y"
    result = execute(params, edit(body), tensors, {"a_desc": a_map, "b_desc": b_map}, **options)
    return result, a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize("copies", ("early", "late"))
@pytest.mark.parametrize("swizzle", (0, 1, 2, 3))
@pytest.mark.parametrize("a_across, b_across", [(False, False), (True, True), (False, True)])
def test_products_of_shared_operands(swizzle, a_across, b_across, copies):
    result, want = multiplied(swizzle, a_across, b_across, copies=copies)
    assert not result.findings
    assert np.allclose(result.outputs["y"], want, atol=1e-4)


@pytest.mark.parametrize("b_across", (False, True))
def test_products_of_an_operand_in_registers(b_across):
    for copies in ("early", "late"):
        result, want = multiplied(2, False, b_across, registers=True, copies=copies)
        assert not result.findings and np.allclose(result.outputs["y"], want, atol=1e-4)


WAIT = "tl::wait_wgmma<0>();"
COMMIT = "tl::warpgroup_commit_batch();"


@pytest.mark.parametrize(
    "old, new, note",
    [
        (WAIT, "", "a result that was not waited for"),
        (WAIT, "c[3] = 0.f; tl::wait_wgmma<0>();", "a result that was not waited for"),
        (WAIT, "tl::wait_wgmma<1>();", "a result that was not waited for"),
        (WAIT, "a_r[3] = half_t(0.f);" + WAIT, "an operand of a product that was not waited for"),
        (WAIT, f"((half_t*)memory)[16384] = half_t(1.f); {WAIT}", "write after read"),
        ("tl::warpgroup_arrive();", "", "a warpgroup's product without warpgroup_arrive before it"),
    ],
)
def test_faults_of_a_product(old, new, note):
    assert note in {
        f.note
        for f in multiplied(3, False, False, True, lambda body: body.replace(old, new))[0].findings
    }


def test_what_threads_write_needs_a_fence_before_a_product():
    write = "full[0].wait(0);\n  ((half_t*)memory)[16384 + threadIdx.x] = half_t(0.f); FENCE __syncthreads();"
    for fence, want in (("tl::fence_proxy_async();", set()), ("", {"missing proxy fence"})):
        body = write.replace("FENCE", fence)
        result, _ = multiplied(3, False, False, edit=lambda b: b.replace("full[0].wait(0);", body))
        assert kinds(result) == want
    # After the barrier it does as well, for whoever issues the product.
    body = write.replace("FENCE", "").replace(
        "__syncthreads();", "__syncthreads(); tl::fence_proxy_async();"
    )
    result, _ = multiplied(3, False, False, edit=lambda b: b.replace("full[0].wait(0);", body))
    assert not result.findings


def test_late_products_show_in_results():
    """A result that is read early is NaN where products come late."""
    body = {"edit": lambda b: b.replace(WAIT, "float first = c[0];" + WAIT + "c[0] = first;")}
    early, want = multiplied(3, False, False, **body)
    late, _ = multiplied(3, False, False, copies="late", **body)
    assert np.allclose(early.outputs["y"], want, atol=1e-4)
    assert np.isnan(late.outputs["y"]).sum() == 128


def test_part_of_a_warpgroup():
    half = {
        "edit": lambda b: re.sub(r"(for \(int k = 0; k < \d+ / 16)", r"if (threadIdx.x < 64) \1", b)
    }
    result, _ = multiplied(3, False, False, **half)
    assert "warps of one warpgroup take part in different products" in {
        f.note for f in result.findings
    }


def test_registers_are_all_there_are():
    y = {"y": np.zeros(1, np.float32)}
    shared_out = "if (threadIdx.x < 128) tl::warpgroup_reg_alloc<232>(); else tl::warpgroup_reg_dealloc<24>();"
    assert not execute("float* y", shared_out, y, threads=256).findings
    assert kinds(execute("float* y", "tl::warpgroup_reg_alloc<240>();", y, threads=384)) == {
        "deadlock"
    }


WIDE = """
  if (threadIdx.x == 0) {
    full[0].arrive_and_expect_tx(64 * 32 * 4 * 2);
    tl::tma_load(a_desc, full[0], memory, 0, 0);
    tl::tma_load(b_desc, full[0], memory + 8192, 0, 0);
  }
  full[0].wait(0);
  float c[32];
  tl::GmmaDescriptor a, b;
  tl::initialize_wgmma_descriptor<1, 1, 64>(a, memory);
  tl::initialize_wgmma_descriptor<1, 1, 64>(b, memory + 8192);
  tl::warpgroup_arrive();
  for (int k = 0; k < 4; ++k)
    tl::wgmma_ss<tl::DataType::kTensorFloat32, tl::DataType::kTensorFloat32, tl::DataType::kFloat32,
                 64, 64, 8, false, false, 1, -1>(uint64_t(a + k * 2), uint64_t(b + k * 2),
                                                 (uint32_t*)c, k > 0);
  tl::warpgroup_commit_batch();
  tl::warpgroup_wait<0>();
  for (int i = 0; i < 32; ++i)
    y[(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8) * 64 + i / 4 * 8 +
      threadIdx.x % 4 * 2 + i % 2] = c[i];
"""


def test_products_of_tfloat32():
    """Ten bits of each operand count; this one has a sign of its own, too."""
    a, b = (halves(64, 32, seed=i).astype(np.float32) for i in (0, 1))
    maps = {f"{n}_desc": row_major(n, (64, 32), 4, (64, 32), swizzle=3) for n in "ab"}
    tensors = {"a": a * (1 + 2**-12), "b": b, "y": np.zeros((64, 64), np.float32)}
    params = f"{MAP} a_desc, {MAP} b_desc, float* y"
    result = both(params, BARRIERS + WIDE, tensors, maps)
    assert not result.findings and np.allclose(result.outputs["y"], -a @ b.T, atol=1e-5)


# -- maps ------------------------------------------------------------------------------------------


def test_maps_from_the_calls_of_a_host():
    call = [9, 3, "k", 64, "T", "H", 2, 128, "(T * 128)", 64, 32, 1, 1, 1, 1, 0, 3, 2, 0]
    made = tensor_map(call, {"T": 100, "H": 3})
    assert made == TensorMap("k", 2, (64, 100, 3), (2, 128, 12800), (64, 32, 1), swizzle=3)
    with pytest.raises(EmulatorError, match="not known: T"):
        tensor_map(call, {"H": 3})


@pytest.mark.parametrize(
    "options, message",
    [
        ({"box": (300, 8)}, "boxes of 1 to 256"),
        ({"shape": (10, 9)}, "strides in units of 16 bytes"),
        ({"box": (8, 4)}, "a box of whole units"),
        ({"shape": (10, 128), "box": (8, 128), "swizzle": 3}, "a box within the swizzled bytes"),
    ],
)
def test_maps_that_a_driver_refuses(options, message):
    given = {"shape": (10, 8), "box": (8, 8), **options}
    with pytest.raises(EmulatorError, match=message):
        row_major("x", given.pop("shape"), 2, given.pop("box"), **given)


def test_maps_that_are_not_given():
    emulated = build(cuda(f"{MAP} x_desc", ""), 0)
    with pytest.raises(EmulatorError, match="takes x_desc; got x"):
        run(emulated, {"x": halves(8, 8)}, (1,))
