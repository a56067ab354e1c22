"""Kernels of every kind, emulated: right and without a finding, in all orders and copy models."""

import functools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tilelang")

import emulator_kernels as kernels  # noqa: E402

from gdngen.emulator import build, compare, mutate, run  # noqa: E402

ORDERS = [(0, "early"), (1, "late"), (2, "early"), (3, "late")]
FLOATS = ("float16", "bfloat16", "float32")
FEWER = ("float16", pytest.param("bfloat16", marks=pytest.mark.long), "float32")
# Of the largest value: rounding of an output, and for float32 products the tensor cores' tfloat32.
TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 3e-3}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def random(*shape, dtype="float32"):
    return torch.randn(*shape).to(getattr(torch, dtype))


def blank(*shape, dtype="float32"):
    return torch.full(shape, float("nan")).to(getattr(torch, dtype))


def check(cuda, tensors, grid, reference, tolerance):
    """Runs in every order and copy model, then once with ThreadSanitizer watching."""
    for tsan in (False, True):
        emulated = build(cuda.source, cuda.shared_bytes, tsan=tsan)
        for order, copies in ORDERS[3 * tsan :]:
            result = run(emulated, tensors, grid, order=order, copies=copies)
            assert result.findings == (), (order, copies, tsan)
            assert compare(result.outputs, reference, tolerance) == (), (order, copies, tsan)


@pytest.mark.parametrize("stages", (1, pytest.param(2, marks=pytest.mark.long), 3))
@pytest.mark.parametrize("dtype", FLOATS)
def test_matmul(dtype, stages):
    a, b = random(64, 128, dtype=dtype), random(128, 64, dtype=dtype)
    tensors = {"A": a, "B": b, "C": blank(64, 64)}
    reference = {"C": a.double() @ b.double()}
    cuda = kernels.lower(kernels.matmul(dtype, stages))
    assert "tl::cp_async_wait" in cuda.source
    check(cuda, tensors, (2, 2), reference, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax(dtype):
    x = random(32, 128, dtype=dtype)
    tensors = {"X": x, "Y": blank(32, 128, dtype=dtype)}
    reference = {"Y": torch.softmax(x.double(), dim=1)}
    check(kernels.lower(kernels.softmax(dtype)), tensors, (1,), reference, TOLERANCE[dtype])


def test_sum_across_warps():
    x = random(64, 64, dtype="float16")
    tensors = {"X": x, "Y": blank(64)}
    cuda = kernels.lower(kernels.column_sum("float16"))
    assert "AllReduce" in cuda.source and cuda.shared_bytes
    check(cuda, tensors, (1,), {"Y": x.double().sum(0)}, 1e-5)


@pytest.mark.parametrize("dtype", FEWER)
def test_running_sums(dtype):
    x = random(64, dtype=dtype)
    tensors = {"X": x, "Y": blank(64, dtype=dtype)}
    reference = {"Y": x.double().cumsum(0)}
    tolerance = 8 * TOLERANCE[dtype]  # every partial sum is rounded
    check(kernels.lower(kernels.cumulative_sum(dtype)), tensors, (1,), reference, tolerance)


@pytest.mark.parametrize("dim", (0, 1))
def test_running_sums_of_a_tile(dim):
    x = random(16, 48)
    tensors = {"X": x, "Y": blank(16, 48)}
    cuda = kernels.lower(kernels.cumulative_sum_rows("float32", dim=dim))
    check(cuda, tensors, (1,), {"Y": x.double().cumsum(dim)}, 1e-5)


def test_substitution():
    m = 0.3 * random(64, 16)
    lower = torch.tril(m.double().view(4, 16, 16), -1) + torch.eye(16, dtype=torch.float64)
    reference = {"D": torch.linalg.inv(lower).reshape(64, 16)}
    tensors = {"M": m, "D": blank(64, 16)}
    check(kernels.lower(kernels.substitution()), tensors, (1,), reference, 1e-5)


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))  # TileLang refuses float32 here
def test_fragment_operand(dtype):
    a = 0.2 * random(64, 64)
    a = a.to(getattr(torch, dtype))
    gram = (a.double() @ a.double().T).to(a.dtype).double()
    tensors = {"A": a, "Y": blank(64, 64)}
    cuda = kernels.lower(kernels.fragment_operand(dtype))
    check(cuda, tensors, (1,), {"Y": gram @ a.double()}, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FEWER)
def test_ragged_tail(dtype):
    length = 70
    x = random(length, 64, dtype=dtype)
    padded = torch.zeros(96, 64, dtype=torch.float64)
    padded[:length] = x.double()
    chunks = padded.view(3, 32, 64)
    reference = {"Y": (chunks @ chunks.mT).reshape(96, 32)[:length]}
    tensors = {"X": x, "Y": blank(length, 32), "L": length}
    check(kernels.lower(kernels.ragged(dtype)), tensors, (3,), reference, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FEWER)
def test_branches(dtype):
    x = random(3, 64, 64, dtype=dtype)
    reference = torch.stack([x[0].T.flip(0), x[1], x[2].T.flip(0)])
    tensors = {"X": x, "Y": blank(3, 64, 64, dtype=dtype), "R": 3}
    check(kernels.lower(kernels.branches(dtype)), tensors, (3,), {"Y": reference}, 0)


@pytest.mark.parametrize("dtype", FEWER)
def test_several_chunks_a_block(dtype):
    x = random(3, 32, 32, dtype=dtype)
    reference = {"Y": (x.double().mT @ x.double()).cumsum(0)}
    tensors = {"X": x, "Y": blank(3, 32, 32, dtype=dtype)}
    check(kernels.lower(kernels.chunk_loop(dtype)), tensors, (1,), reference, TOLERANCE[dtype])


def test_atomic_add_by_several_blocks():
    x = random(64, 32)
    tensors = {"X": x, "Y": torch.zeros(32)}
    check(kernels.lower(kernels.atomic_sum()), tensors, (2,), {"Y": x.double().sum(0)}, 1e-5)


def test_part_of_the_block():
    x = random(64)
    tensors = {"X": x, "Y": blank(64)}
    check(kernels.lower(kernels.partial_threads()), tensors, (1,), {"Y": x.flip(0)}, 0)


def test_threads_apart():
    x = random(2, 64)
    tensors = {"X": x, "Y": blank(2, 64)}
    cuda = kernels.lower(kernels.divergent_tiles())
    assert "__sync_thread_partial" in cuda.source
    reference = {"Y": x.view(2, 32, 2).flip(2).reshape(2, 64)}
    check(cuda, tensors, (1,), reference, 0)


@functools.cache
def neumann_case(length=100):
    """Inputs of `kernels.neumann` and its float64 reference."""
    k = torch.nn.functional.normalize(torch.randn(length, 64), dim=-1).half()
    v = torch.randn(length, 64).half()
    g = -0.1 * torch.rand(length).cumsum(0)
    beta = torch.rand(length)
    outputs = {name: blank(length, 64, dtype="float16") for name in "Awu"}
    reference = {name: torch.zeros(length, 64, dtype=torch.float64) for name in "Awu"}
    for start in range(0, length, 64):
        rows = slice(start, min(start + 64, length))
        kc, vc, gc, bc = (x[rows].double() for x in (k, v, g, beta))
        gram = kc @ kc.T * bc[:, None] * torch.exp(gc[:, None] - gc[None, :])
        inverse = torch.linalg.inv(torch.eye(len(bc), dtype=torch.float64) + torch.tril(gram, -1))
        reference["A"][rows, : len(bc)] = inverse
        reference["w"][rows] = inverse @ (kc * bc[:, None])
        reference["u"][rows] = inverse @ (vc * bc[:, None])
    return {"k": k, "v": v, "g": g, "beta": beta, "L": length, **outputs}, reference


def test_fused_prepare_stage():
    tensors, reference = neumann_case()
    check(kernels.lowered_neumann(), tensors, (2,), reference, 2e-3)


def test_half_accumulator_and_static_shared_memory():
    a, b = random(64, 64, dtype="float16"), random(64, 64, dtype="float16")
    tensors = {"A": a, "B": b, "C": blank(64, 64, dtype="float16")}
    cuda = kernels.lower(kernels.half_accumulator())
    check(cuda, tensors, (1,), {"C": a.double().T @ b.double()}, 4e-3)


# --- the long sweep: every function and every wait ------------------------------------------------

T = kernels.T
FUNCTIONS = {
    "exp": (T.exp, torch.exp),
    "exp2": (T.exp2, torch.exp2),
    "log": (lambda x: T.log(x * x + 1.0), lambda x: torch.log(x * x + 1)),
    "sigmoid": (T.sigmoid, torch.sigmoid),
    "tanh": (T.tanh, torch.tanh),
    "rsqrt": (lambda x: T.rsqrt(x * x + 1), lambda x: torch.rsqrt(x * x + 1)),
    "sqrt": (lambda x: T.sqrt(x * x), torch.abs),
    "abs": (T.abs, torch.abs),
    "maximum": (lambda x: T.max(x, 0), lambda x: x.clamp(min=0)),
    "minimum": (lambda x: T.min(x, 0.5), lambda x: x.clamp(max=0.5)),
    "clamp": (lambda x: T.clamp(x, -1, 1), lambda x: x.clamp(-1, 1)),
    "where": (lambda x: T.if_then_else(x > 0, x, 0), lambda x: x.clamp(min=0)),
    "negate": (lambda x: -x, torch.neg),
    "divide": (lambda x: 1 / (x * x + 1), lambda x: 1 / (x * x + 1)),
    "subtract": (lambda x: x - x * x, lambda x: x - x * x),
    "floor": (T.floor, torch.floor),
    "round": (T.round, torch.round),
    "truncate": (lambda x: T.cast(T.cast(x, "int32"), x.dtype), torch.trunc),
    "power": (lambda x: T.pow(x * x + 1, 1.5), lambda x: (x * x + 1) ** 1.5),
    "sine": (T.sin, torch.sin),
}
REDUCTIONS = {
    "sum": (T.reduce_sum, lambda x, dim: x.sum(dim)),
    "max": (T.reduce_max, lambda x, dim: x.amax(dim)),
    "min": (T.reduce_min, lambda x, dim: x.amin(dim)),
    "abssum": (T.reduce_abssum, lambda x, dim: x.abs().sum(dim)),
    "absmax": (T.reduce_absmax, lambda x, dim: x.abs().amax(dim)),
}


def run_once(cuda, tensors, grid, reference, tolerance):
    result = run(build(cuda.source, cuda.shared_bytes), tensors, grid)
    assert result.findings + compare(result.outputs, reference, tolerance) == ()


@pytest.mark.long
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, dtype):
    function, reference = FUNCTIONS[name]
    x = random(64, 64, dtype=dtype)
    tensors = {"X": x, "Y": blank(64, 64, dtype=dtype)}
    cuda = kernels.lower(kernels.elementwise(dtype, function))
    run_once(cuda, tensors, (1,), {"Y": reference(x.double())}, 2 * TOLERANCE[dtype])


@pytest.mark.long
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scope", ("fragment", "shared"))
@pytest.mark.parametrize("dim", (0, 1))
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, dim, scope, dtype):
    reduce, reference = REDUCTIONS[name]
    x = random(64, 64, dtype=dtype)
    tensors = {"X": x, "Y": blank(64, dtype=dtype)}
    cuda = kernels.lower(kernels.reduction(dtype, reduce, dim, scope))
    run_once(cuda, tensors, (1,), {"Y": reference(x.double(), dim)}, 8 * TOLERANCE[dtype])


def sweep_cases():
    """Kernels with barriers, by name: (lowered, tensors, grid)."""
    for dtype in FLOATS:
        a, b = random(64, 128, dtype=dtype), random(128, 64, dtype=dtype)
        for stages in (1, 2, 3):
            tensors = {"A": a, "B": b, "C": blank(64, 64)}
            yield kernels.lower(kernels.matmul(dtype, stages)), tensors, (2, 2)
        x = random(3, 64, 64, dtype=dtype)
        tensors = {"X": x, "Y": blank(3, 64, 64, dtype=dtype), "R": 3}
        yield kernels.lower(kernels.branches(dtype)), tensors, (3,)
        x = random(3, 32, 32, dtype=dtype)
        tensors = {"X": x, "Y": blank(3, 32, 32, dtype=dtype)}
        yield kernels.lower(kernels.chunk_loop(dtype)), tensors, (1,)
        tensors = {"X": random(70, 64, dtype=dtype), "Y": blank(70, 32), "L": 70}
        yield kernels.lower(kernels.ragged(dtype)), tensors, (3,)
    tensors = {"X": random(16, 48), "Y": blank(16, 48)}
    yield kernels.lower(kernels.cumulative_sum_rows("float32")), tensors, (1,)
    tensors = {"M": 0.3 * random(64, 16), "D": blank(64, 16)}
    yield kernels.lower(kernels.substitution()), tensors, (1,)
    yield kernels.lowered_neumann(), neumann_case()[0], (2,)


@pytest.mark.long
def test_every_wait_is_caught_or_redundant():
    """What the race detector lets pass is right in every order, and ThreadSanitizer agrees."""
    caught = total = 0
    for cuda, tensors, grid in sweep_cases():
        emulated, watched = (build(cuda.source, cuda.shared_bytes, tsan) for tsan in (False, True))
        expected = {
            name: value
            for name, value in run(emulated, tensors, grid).outputs.items()
            if value.isfinite().all()
        }
        orders = (0, 1, 2)
        check = functools.partial(compare, reference=expected, tolerance=1e-6)
        own = mutate(emulated, tensors, grid, check, orders)
        barriers = [m.site for m in own if "cp_async" not in m.site.statement]
        theirs = {m.site: m for m in mutate(watched, tensors, grid, check, orders, barriers)}
        for mutant in own:
            total += 1
            caught += mutant.caught
            assert mutant.caught == ("race" in mutant.reason), mutant  # never only a wrong result
            if mutant.site in theirs:
                assert mutant.caught == theirs[mutant.site].caught, mutant
    assert total >= 80 and caught >= 0.9 * total
    print(f"{caught} of {total} waits needed, the others redundant")
