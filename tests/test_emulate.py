"""Generated kernels emulated: what is checked in is without a fault, and a planted one is blamed on
the right buffer and the right statement."""

import functools
import json
import re
import shutil

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tilelang")

from rendering import SPECS, kernels_of, module, modules  # noqa: E402
from test_generated import GENERATED, MANIFEST, MODULES, PAIRS, of  # noqa: E402

from gdngen import cli, driver, emulator  # noqa: E402
from gdngen.model import analysis  # noqa: E402
from gdngen.model.types import FLOATS  # noqa: E402
from gdngen.plan import plan  # noqa: E402
from gdngen.plan.plan import Wish  # noqa: E402
from gdngen.plan.storage import Slot  # noqa: E402
from gdngen.verify import (
    blame,
    emulate,
    hopper,  # noqa: E402
    lowering,
    marks,
    sweep,
    verify,
    waits,
)  # noqa: E402  # noqa: E402

SOFTMAX = "softmax_r32_n64_float16"
TWO_PASS = "two_pass_bt32_bd64_d128_float16"
PREPARE = "prepare_c32_k64_v64_float16"
MATMUL = "matmul_m64_n64_k64_float16"


@functools.cache
def slots_of(kernel, target="sm_80", policy=plan.DEFAULT):
    return plan.plan(kernel, analysis.analyse(kernel), Wish(policy), target).plan.slots


def slots_in(name, kernel):
    """Slots of a module that is checked in, by the policy and a target that it was planned for."""
    entry = MANIFEST[name]
    return slots_of(kernel, min(entry["targets"]), entry["policy"])


def lines_with(path, text):
    """Numbers of the lines of a file that hold a text."""
    found = {i for i, line in enumerate(path.read_text().splitlines(), 1) if text in line}
    assert found, text
    return found


def damaged(path, edit):
    """CUDA of a module with `edit` done to its list of lines, which stay as many, and its bytes."""
    lowered = lowering.cached_lower(path, "sm_80")
    lines = lowered.source.splitlines()
    count = len(lines)
    edit(lines)
    assert len(lines) == count and lines != lowered.source.splitlines()
    return "\n".join(lines), lowered.dynamic_bytes


# -- what is checked in ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [f"prepare/{PREPARE}", f"examples/matmul/{MATMUL}"])
def test_a_sample_is_without_a_fault(name):
    path = GENERATED / f"{name}.py"
    kernel = of(f"{name}.py")
    done = emulate.emulate(kernel, path, slots_in(f"{name}.py", kernel), sanitize="matmul" in name)
    assert done.ok, done.problems()
    assert done.runs >= 5 and done.barriers and done.comparisons and done.lines > 80
    assert 0 < done.worst() < 3e-3
    assert json.loads(json.dumps(done.json()))["ok"] is True


@pytest.mark.long
@pytest.mark.parametrize("name, target", PAIRS)
def test_every_module_is_without_a_fault(name, target):
    kernel = of(name)
    slots = slots_in(name, kernel)
    done = emulate.emulate(kernel, GENERATED / name, slots, target=emulate.emulated_as(target))
    assert done.ok and done.agreed, done.problems()


POLICIES = [p for p in plan.POLICIES if p != plan.DEFAULT]
SAMPLE = [
    ("prepare", {"BC": "64", "DK": "64", "DV": "64"}),
    ("prepare", {"BC": "64", "DK": "128", "DV": "256", "io": "bfloat16"}),
    ("examples/matmul", {"BM": "64", "BK": "32"}),
    ("examples/softmax", {"N": "64"}),
    ("examples/two_pass", {}),
]


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("spec, settings", SAMPLE)
def test_every_policy_is_without_a_fault(spec, settings, policy, tmp_path):
    loaded = driver.load(SPECS / f"{spec}.yaml", settings)
    jobs = sweep.jobs([loaded], Wish(policy), ["sm_80"], tmp_path)
    assert jobs
    for done in map(emulate._emulated, emulate.tasks(jobs)):
        assert done.ok, (done.module, done.problems())


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODULES)
def test_outputs_are_those_of_a_gpu(name):
    """To rounding: a GPU sums in another order, and may take other instructions than sm_80's."""
    if not verify.on_gpu():
        pytest.skip("needs an NVIDIA GPU")
    kernel, path = of(name), GENERATED / name
    trial = emulate.trials(kernel)[0]
    tensors = emulate.inputs(kernel, trial)
    cuda = emulate.runnable(path, emulate.emulated_as(min(MANIFEST[name]["targets"])))
    emulated = cuda.build()
    outputs = emulator.run(emulated, **cuda.given(kernel, emulated, tensors, trial.sizes)).outputs
    there = {name: tensor.cuda() for name, tensor in tensors.items()}
    lowering.load(path)()(*there.values())
    written = {t.name: there[t.name] for t in kernel.tensors if t.role != "in"}
    assert not emulator.compare(outputs, {n: t.cpu() for n, t in written.items()}, rounding(kernel))


def rounding(kernel):
    """Two units in the last place of the coarsest float; a float32 operand of a product has ten bits."""
    floats = {b.dtype for b in (*kernel.tensors, *kernel.buffers) if b.dtype in FLOATS}
    products = any(type(leaf).__name__ == "Gemm" for leaf in kernel.leaves())
    if "bfloat16" in floats:
        return 2 * 2**-8
    return 2 * 2**-11 if "float16" in floats or products else 1e-5


# -- planted faults --------------------------------------------------------------------------------


def test_a_deleted_barrier_is_a_race_of_the_right_tenants(tmp_path):
    """A tile is stored through before all threads have read the one that it stands on."""
    kernel = kernels_of("examples/two_pass")[TWO_PASS]
    path, plans = modules(kernel, tmp_path)[0]
    slots = plans["sm_80"].slots
    assert ("x_s", "y_out") in [s.tenants for s in slots]

    def without_its_barrier(lines):
        at = [i for i, line in enumerate(lines) if "__syncthreads();" in line]
        lines[at[-1]] = ""

    source, dynamic = damaged(path, without_its_barrier)
    done = emulate.source_emulated(
        kernel, emulate.Runnable(source, dynamic), path, slots, sanitize=False
    )
    assert not done.ok
    races = [f for f in done.faults if f.kind == "race" and f.slots == ("x_s",)]
    assert races and all(f.tenants == ("x_s", "y_out") for f in races)
    stored = max(lines_with(path, "T.copy(x_f, y_out)"))
    read = max(lines_with(path, "in T.Parallel(BT, BD)"))
    assert {p.line for f in races for p in f.places} == {stored, read}
    assert {p.stage for f in races for p in f.places} == {"divide"}
    assert all(f.run.startswith("B=1, T=") for f in races)
    text = str(races[0])
    assert (
        text.startswith("race in slot x_s (x_s, y_out), bytes ")
        and f"line {stored} `T.copy(x_f" in text
    )


def test_two_live_tiles_at_one_address_are_both_blamed(tmp_path):
    kernel = kernels_of("prepare")[PREPARE]
    path, plans = module(kernel, tmp_path)
    slots = plans["sm_80"].slots
    k, v = (next(s for s in slots if name in s.tenants) for name in ("k_s", "v_s"))

    def one_address(lines):
        at = {n: i for i, line in enumerate(lines) for n in re.findall(r"void\* (\w+) =", line)}
        lines[at[v.tenants[-1]]] = lines[at[k.tenants[-1]]].replace(k.tenants[-1], v.tenants[-1])

    source, dynamic = damaged(path, one_address)
    done = emulate.source_emulated(
        kernel, emulate.Runnable(source, dynamic), path, slots, sanitize=False
    )
    races = [f for f in done.faults if f.kind == "race" and f.note == "write after write"]
    k_loads, v_loads = (lines_with(path, f"T.copy({name}[b, h") for name in "kv")
    assert any(
        {"k_s", "v_s"} <= set(f.tenants)
        and {p.line for p in f.places} & k_loads
        and {p.line for p in f.places} & v_loads
        for f in races
    ), done.problems()
    assert any(p.startswith("wrong result: w against") for p in done.problems())


def test_what_cannot_be_emulated_is_said(tmp_path, monkeypatch):
    kernel = kernels_of("examples/softmax")[SOFTMAX]
    path, plans = module(kernel, tmp_path)
    lowered = lowering.Lowered(
        0, 0, lowering.cached_lower(path, "sm_80").source + "\nasm volatile();\n", {}
    )
    monkeypatch.setattr(lowering, "cached_lower", lambda *_: lowered)
    done = emulate.emulate(kernel, path, plans["sm_80"].slots)
    assert not done.ok and "unsupported instruction asm" in done.problems()[0]

    def refused(*_):
        raise lowering.LoweringError("no warps cover it")

    monkeypatch.setattr(lowering, "cached_lower", refused)
    done = emulate.emulate(kernel, path, plans["sm_80"].slots)
    assert done.problems() == ("can't be emulated: no warps cover it",)


# -- lines and storages ----------------------------------------------------------------------------

MODULE = """\
@T.prim_func
def f(x: T.Tensor([4], "float32")):
    with T.Kernel(1, threads=128) as (b,):
        x_s = T.alloc_shared([4], "float32")
        y_s = x_s  # dead

        # load
        T.copy(x, x_s)
        for k in T.serial(4):
            T.copy(
                x_s, x
            )
        # store out
        if b == 0:
            for i in T.Parallel(4):
                x[i] = x_s[i]
        else:
            T.clear(y_s)
"""


def test_statements_of_a_module():
    found = [(s.first, s.last, s.stage) for s in marks.statements(MODULE)]
    load, out = "load", "store out"
    assert found == [
        (8, 8, load),
        (9, 9, load),
        (10, 12, load),
        (14, 14, out),
        (15, 16, out),
        (18, 18, out),
    ]
    text = marks.marked(MODULE, tuple(marks.statements(MODULE)))
    assert text.count(marks.MARK) == len(found)
    compile(text, "marked", "exec")


def test_cuda_lines_take_the_statement_of_the_mark_before_them():
    found = {s.first: s for s in marks.statements(MODULE)}
    cuda = "head\na = b;\nfor (int i_7 = 0; i_7 < 4; ++i_7) {\n  a[i_7] = c;\n}\nd;\n"
    same = "head\n  gdngen_line(8);\na = b;\n  gdngen_line(9);\n"
    same += "for (int i_9 = 0; i_9 < 4; ++i_9) {\ngdngen_line(10);\n  a[i_9] = c;\n}\nd;\n"
    exact = marks.aligned(cuda, same, found)
    assert exact.exact
    assert [s and s.first for s in map(exact.of, range(1, 7))] == [None, 8, 9, 10, 10, 10]
    other = marks.aligned(cuda, same.replace("\nd;", "\ne;"), found)
    assert not other.exact and other.of(6).first == 10


@pytest.mark.parametrize(
    "offsets, want",
    [
        ((0, 256), [("a", 0, 256), ("b", 256, 512)]),
        ((0, 0), [("a", 0, 256), ("b", 0, 256)]),  # the compiler's own merging
        ((128, 0), [("a", 128, 512), ("b", 0, 256)]),
    ],
)
def test_storages(offsets, want):
    slots = [Slot((64,), "float32", ("x", "a")), Slot((64,), "float32", ("b",))]
    lines = [f"  void* {n} = ((void*)((char*)buf_dyn_shmem + {o}));" for n, o in zip("ab", offsets)]
    found = blame.storages("\n".join(lines), slots, 512)
    assert [(s.name, s.low, s.high) for s in found] == want
    assert [s.slot.name for s in found] == ["x", "b"]


def test_the_only_storage():
    (found,) = blame.storages(
        "  extern __shared__ __align__(1024) half_t a[];", [Slot((64,), "float16", ("a",))], 128
    )
    assert (found.low, found.high, found.slot.tenants) == (0, 128, ("a",))


def test_overlapping_storages_are_told_apart_by_their_lines():
    """Where the compiler merges, bytes alone do not say whose they are."""
    slots = [Slot((64,), "float32", ("x", "a")), Slot((64,), "float32", ("b",))]
    cuda = [f"  void* {n} = ((void*)((char*)buf + 0));" for n in "ab"] + [
        "((float*)a)[0] = 1;",
        "t;",
    ]
    storages = blame.storages("\n".join(cuda), slots, 256)
    python = ("T.copy(x, y)", "T.copy(z, a)")
    statements = (marks.Statement(1, 1, "s"), marks.Statement(2, 2, "s"))
    lines = marks.Lines({3: statements[0]}, True)
    found = blame.Blame("m.py", python, tuple(cuda), storages, lines, statements)
    fault = found.fault(emulator.Finding("race", "shared", 0, 4, line=3))
    assert (fault.slots, fault.tenants, fault.places[0].line) == (("x",), ("x",), 1)
    fault = found.fault(emulator.Finding("race", "shared", 0, 4, line=4))
    assert (fault.slots, fault.tenants) == (("x", "b"), ("x", "a", "b"))
    assert str(fault) == "race in slot x, b (x, a, b), bytes 0:4: CUDA line 4"
    fault = found.fault(emulator.Finding("out of bounds", "y", 8, 12, line=3, note="read"), "T=9")
    assert str(fault) == (
        "out of bounds y[8:12]: line 1 `T.copy(x, y)` (s; CUDA line 3) (read; first at T=9)"
    )


NAMED = [f"examples/matmul/{MATMUL}.py", f"examples/two_pass/{TWO_PASS}.py"]
REST = [pytest.param(m, marks=pytest.mark.long) for m in MODULES if m not in NAMED]


@pytest.mark.parametrize("name", NAMED + REST)
def test_the_statement_of_every_access_names_a_tenant_of_its_slot(name):
    """What marks say of lines is guessed where they change the CUDA: here every guess is right."""
    path, kernel = GENERATED / name, of(name)
    slots = slots_in(name, kernel)
    lowered = lowering.cached_lower(path, "sm_80")
    found = blame.blame(path, lowered.source, slots, lowered.dynamic_bytes, "sm_80")
    accesses = [
        (number, s)
        for number, line in enumerate(found.cuda, 1)
        for s in found.storages
        if re.search(rf"\b{s.name}\b", line) and "__shared__" not in line and "void*" not in line
    ]
    assert len(accesses) >= 4
    for number, storage in accesses:
        words = set(found._words(found.statement(number)))
        assert words & set(found.names(storage)), (number, storage.name, found.place(number))


# -- sm_90 -----------------------------------------------------------------------------------------


def test_miscompile_pipelined_tiles_in_one_slot_on_sm_90(tmp_path):
    """TileLang lowers two tiles of one pipelined loop in one storage; the producer overwrites one."""
    kernel = kernels_of("examples/matmul")[MATMUL]
    sound = slots_of(kernel, "sm_90")
    path, _ = module(kernel, tmp_path, slots=sound)
    lowered = lowering.cached_lower(path, "sm_90")
    assert hopper.applies(kernel, "sm_90") and not hopper.applies(kernel, "sm_80")
    assert len(list(hopper.loads_in_loops(lowered.source))) == 2
    assert hopper.problems(kernel, sound, lowered) == ()
    shared = (Slot((64, 64), "float16", ("a_s", "b_s")),)
    path, plans = module(kernel, tmp_path, slots=shared)
    with pytest.raises(lowering.LoweringError, match="writes to overlapping buffer regions"):
        lowering.cached_lower(path, "sm_80")
    assert len(hopper.in_plan(kernel, shared)) == 2
    found = hopper.in_source(lowering.cached_lower(path, "sm_90"), shared, kernel.threads)
    assert len(found) == 2 and all("are those of a_s, b_s" in line for line in found)
    verdict = verify.verify(kernel, path, {"sm_90": plans["sm_90"]}, trials=())
    assert set(found) <= set(verdict.problems())


def test_kernels_without_a_producer_are_let_pass():
    kernel = kernels_of("examples/softmax")[SOFTMAX]
    assert not hopper.applies(kernel, "sm_90")
    source = "__launch_bounds__(128, 1) f() {\nfor (;;) {\n tl::tma_load(d, m, a);\n}\ntl::tma_load(d);\n}"
    slots = [Slot((64,), "float16", ("a", "b"))]
    assert [n for n, _ in hopper.loads_in_loops(source)] == [3]
    assert hopper.in_source(lowering.Lowered(128, 0, source, {}), slots, 128) == ()


# -- every wait ------------------------------------------------------------------------------------


def test_every_wait_of_a_kernel(tmp_path):
    kernel = kernels_of("examples/softmax")[SOFTMAX]
    path, plans = module(kernel, tmp_path)
    done = waits.delete_each(kernel, path, plans["sm_80"].slots)
    (wait,) = done.waits  # each thread reads back what it wrote itself
    assert done.ok and not wait.caught and wait.shown
    assert wait.reason.startswith("redundant: threads came by ")
    assert wait.reason.endswith("ThreadSanitizer agrees") and "T.copy(row, y_s)" in wait.place
    assert waits.total([done]) == (
        "1 waits deleted: 0 caught, 1 shown redundant, 0 neither (100% accounted for)"
    )
    kernel = kernels_of("examples/two_pass")[TWO_PASS]
    path, plans = modules(kernel, tmp_path)[0]
    done = waits.delete_each(kernel, path, plans["sm_80"].slots)
    assert done.ok and len(done.waits) == done.caught == 5
    assert all("race" in w.reason and "x_s" in w.slots for w in done.waits)
    assert "caught" in waits.lines(done)[-1]


def test_a_wait_that_no_thread_meets_is_not_shown_redundant():
    wait = waits._uncaught(None, None, emulator.source.Site(0, 1, "__syncthreads();"), "", 4, 0)
    assert not wait.caught and not wait.shown
    assert not waits.Waits("m", (wait,)).ok


def test_one_variant_of_each_dtype_is_chosen():
    (one,) = waits.chosen([driver.load(SPECS / "prepare.yaml")])
    assert [dict(v.kernel.dtypes)["io"] for v in one.variants] == ["float16", "bfloat16", "float32"]


@pytest.mark.long
def test_every_wait_is_caught_or_shown_redundant(tmp_path):
    paths = sorted(SPECS.rglob("*.yaml"))
    jobs = waits.jobs(waits.chosen(map(driver.load, paths)), Wish(), tmp_path)
    done = list(waits.sweep(jobs))
    print("\n".join(line for one in done for line in waits.lines(one)), waits.total(done), sep="\n")
    every = [w for one in done for w in one.waits]
    assert all(one.ok for one in done) and len(every) > 60
    assert sum(w.caught for w in every) >= 0.5 * len(every)


# -- the command line ------------------------------------------------------------------------------


def test_verify_emulate(capsys):
    command = [
        "verify",
        "--emulate",
        str(SPECS / "examples/softmax.yaml"),
        "--set",
        "N=64",
        "--set",
        "io=float16",
    ]
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    assert f"/2] ok  {SOFTMAX}" in out
    assert "2 of 2 kernels are right and without a race, emulated as for sm_80 and sm_90" in out
    assert cli.main([*command, "--device", "cuda"]) == 2
    assert "--emulate runs on the CPU" in capsys.readouterr().err


@pytest.mark.parametrize("command", (["verify", "--emulate"], ["mutate"]))
def test_no_compiler(command, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    emulator.compiling.compiler.cache_clear()
    try:
        assert cli.main([*command, str(SPECS / "examples/softmax.yaml")]) == 2
    finally:
        emulator.compiling.compiler.cache_clear()
    assert (
        "error: the emulator needs a C++20 compiler: install g++ or set CXX"
        in capsys.readouterr().err
    )
