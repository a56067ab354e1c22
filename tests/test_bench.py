"""What a benchmark is made of, as far as no GPU is needed; and whole runs on a stand-in for one."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
import time
import types
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rendering import SPECS, kernels_of, module

from gdngen import cli, driver
from gdngen.bench import (
    bench,
    building,
    chart,
    chunks,
    contenders,
    gpu,
    peers,
    sanitize,
    shapes,
    timings,
)
from gdngen.bench.building import Built, Job
from gdngen.bench.timings import Code, Row, Run, Skipped
from gdngen.catalog import GENERATED
from gdngen.errors import GdngenError
from gdngen.plan.plan import Wish
from gdngen.verify import cpu

ROOT = Path(__file__).resolve().parent.parent
PREPARE = "prepare_c32_k64_v64_float16"


def prepare():
    return kernels_of("prepare")[PREPARE]


RUN = Run(
    {"gpu": "A GPU & more", "l2": 50 << 20},
    4.3e12,
    (
        Row("a", "B=2,T=8", "gdngen", "a.py", (0.2, 0.21), 4300000, 0.1, 1e-3, 2e-3, "the last B",
            Code(1024, 1024, 128, 0, 128, 4, "counted by the driver")),
        Row("a", "B=2,T=8", "fla", "Triton", (0.4, 0.42), 4300000, 0.1, 1e-3, math.nan, "the last B"),
        Row("b<c>", "T=9", "gdngen", "b.py", (), 43000, 0.001, wrong="RuntimeError: it crashed"),
    ),
    (Skipped("a", "B=2,T=8", "flashqla", "it serves others"),),
)  # fmt: skip


# -- bytes, floor, shapes --------------------------------------------------------------------------


def test_bytes_that_must_move():
    row = 2 * (64 + 64 + 32 + 64 + 64) + 2 * 4  # k, v, A, w, u in 16 bits, g and beta in 32
    assert timings.least_bytes(prepare(), {"B": 2, "H": 3, "T": 100}) == 2 * 3 * 100 * row
    assert timings.floor(4_300_000_000, 4.3e12) == pytest.approx(1.0)


def test_what_is_read_and_written_counts_twice():
    kernel = prepare()
    inout = replace(kernel.tensor("A"), role="inout")
    both = replace(kernel, tensors=tuple(inout if t.name == "A" else t for t in kernel.tensors))
    sizes = {"B": 1, "H": 1, "T": 10}
    more = timings.least_bytes(both, sizes) - timings.least_bytes(kernel, sizes)
    assert more == 10 * 32 * 2


def test_shapes():
    assert shapes.parse("B=2,H=32,T=8192") == {"B": 2, "H": 32, "T": 8192}
    assert shapes.sizes(prepare(), {"T": 100}) == {"B": 2, "H": 32, "T": 100}
    assert set(shapes.sizes(next(iter(kernels_of("examples/matmul").values())), {}).values()) == {
        4096
    }
    assert shapes.text({"B": 2, "T": 3}) == "B=2,T=3"


@pytest.mark.parametrize("text", ["B", "B=", "=2", "B=0", "B=-1", "B=2,B=3", "B=2,,T=1", "B=²", ""])
def test_wrong_shapes(text):
    with pytest.raises(GdngenError, match="--shape"):
        shapes.parse(text)


def test_a_shape_names_runtime_sizes():
    with pytest.raises(GdngenError, match="no runtime size|no kernel here has a runtime size 'BB'"):
        shapes.check_names([{"BB": 1}], [prepare()])


def test_input_sets_exceed_the_cache():
    l2 = 50 << 20
    assert gpu.sets(1 << 30, l2) == 2
    assert gpu.sets(10 << 20, l2) == 15
    assert gpu.sets(1, l2) == gpu.MOST_SETS


def test_the_part_that_is_checked():
    found = bench.part(prepare(), {"B": 2, "H": 3, "T": 100})
    assert found.sizes == {"B": 1, "H": 1, "T": 100} and found.text == "the last B H"
    k = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    assert torch.equal(found.cut("k", k), k[1:, 2:])
    assert bench.part(prepare(), {"B": 1, "H": 1, "T": 10**7}) is None  # too large to work on
    assert bench.part(next(iter(kernels_of("examples/matmul").values())), {}) is None  # no counts


# -- the table, JSON, the chart, the page ----------------------------------------------------------


def test_the_table_tells_everything():
    text = timings.table(RUN)
    lines = text.splitlines()
    assert lines[0].split()[:6] == ["variant", "shape", "who", "ms", "again", "floor"]
    assert lines[1].split() == (
        "a B=2,T=8 gdngen 0.2000 0.2100 0.1000 2.05 1.00 0.02 1.0e-03 2.0e-03 1,024 128 0 4".split()
    )
    assert lines[2].split()[7] == "2.00" and "nan" in lines[2]
    assert lines[3].split()[3:5] == ["-", "-"]
    assert "not timed: flashqla beside a: it serves others" in text
    assert "wrong: b<c> at T=9, gdngen: RuntimeError: it crashed" in text


def test_json_is_strict_and_comes_back():
    text = timings.dumps(RUN)
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    back = timings.loads(text)
    assert timings.dumps(back) == text
    assert math.isnan(back.rows[1].worst) and back.rows[0] == RUN.rows[0]
    for wrong in (
        "{}",
        "[]",
        "null",
        '{"machine": {}, "copy_rate": 1, "rows": [{}], "skipped": []}',
    ):
        with pytest.raises(ValueError):
            timings.loads(wrong)


def test_failed():
    assert [r.variant for r in bench.failed(RUN)] == ["b<c>"]


def test_the_chart_is_xml_and_always_the_same():
    text = chart.svg(RUN)
    assert text == chart.svg(timings.loads(timings.dumps(RUN)))
    root = ElementTree.fromstring(text)
    tag = "{http://www.w3.org/2000/svg}"
    bars = [e for e in root.iter(tag + "rect") if e.get("class") in ("ours", "peer")]
    assert [b.get("class") for b in bars] == ["ours", "peer"]
    ours, fla = (float(b.get("width")) for b in bars)
    assert fla / ours == pytest.approx(2, rel=0.01)
    (floor,) = [e for e in root.iter(tag + "line") if e.get("class") == "floor"]
    left = float(bars[0].get("x"))
    assert (float(floor.get("x1")) - left) / ours == pytest.approx(0.1 / 0.205, rel=0.01)
    assert "prefers-color-scheme: dark" in text
    said = [e.text for e in root.iter(tag + "text")]
    assert "0.205 ms, 2.05x" in said and "fla" in said


@pytest.mark.parametrize("most", [0.003, 0.07, 0.1, 0.99, 1.0, 3.7, 250.0])
def test_the_grid_is_of_round_times(most):
    step = chart._step(most)
    assert 4 <= most / step <= 10.5 and f"{step:g}"[-1] in "125 0"


def test_a_chart_of_nothing():
    assert "nothing was timed" in chart.svg(replace(RUN, rows=()))
    ElementTree.fromstring(chart.svg(replace(RUN, rows=())))


def script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_page_is_what_the_results_say(tmp_path):
    report = script("report")
    for path in report.PAGES:
        page = path.read_text()
        assert report.rendered(page, report.RESULTS) == page, "run python benchmarks/report.py"
    (tmp_path / "h.json").write_text(timings.dumps(RUN))
    blocks = "x\n<!-- measured: {} -->\nold\n<!-- end -->\ny\n"
    full = report.rendered(blocks.format("h.json a*"), tmp_path)
    assert full.startswith("x\n<!-- measured: h.json a* -->\n| variant | shape |")
    assert "| a | B=2,T=8 | fla | 0.4000 |" in full and "b<c>" not in full and "old" not in full
    assert full == report.rendered(full, tmp_path)
    assert "Not measured yet." in report.rendered(blocks.format("none.json"), tmp_path)


# -- without a GPU ---------------------------------------------------------------------------------


needs_none = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@needs_none
def test_without_a_gpu_it_says_so(capsys):
    assert cli.main(["bench", str(ROOT / "specs/prepare.yaml")]) == 2
    said = capsys.readouterr()
    assert "bench times kernels on an NVIDIA GPU" in said.err and not said.out


@needs_none
def test_the_script_for_a_gpu_says_so_too():
    command = [sys.executable, str(ROOT / "benchmarks/gpu.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "NVIDIA GPU" in done.stderr


@pytest.mark.parametrize("words", [["--peers", "flaa"], ["--shape", "T"]])
def test_mistakes_are_told_before_a_gpu_is_asked_for(words, capsys):
    assert cli.main(["bench", *words]) == 2
    assert words[0] in capsys.readouterr().err


# -- the script for a GPU --------------------------------------------------------------------------


@pytest.fixture
def script_here(monkeypatch, tmp_path):
    """The script, on a machine that says it has a GPU."""
    made = script("gpu")
    monkeypatch.setattr(gpu, "require", lambda: None)
    monkeypatch.setattr(gpu, "target", lambda: "sm_90")
    monkeypatch.setattr(building, "build_all", lambda *_: {})
    monkeypatch.setattr(made.shutil, "which", lambda name: name)

    def run(*words) -> tuple[int, Path]:
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path), *words])
        return made.main(), tmp_path

    made.run = run
    return made


def test_the_script_goes_on_past_what_fails(script_here, monkeypatch, capsys):
    right = {"problems": [], "worst": 1e-3, "code": {"planned": 1024, "asked": 1024}}
    says = iter([f"print('noise')\nprint({json.dumps(right)!r})", "import os\nos.abort()"])
    monkeypatch.setattr(script_here, "_child", lambda part, job: [sys.executable, "-c", next(says)])
    code, out = script_here.run("--parts", "verify", "--select", "prepare/*", "--limit", "2")
    said = capsys.readouterr().out
    assert code == 1 and "1 of 2 kernels are right" in said and "exit code -6" in said
    results = json.loads((out / "verify.json").read_text())
    assert [bool(r["problems"]) for r in results.values()] == [False, True]
    assert "1,024" in (out / "summary.txt").read_text()


SANITIZER = """
import json, sys
words = sys.argv[1:]
tool = words[words.index("--tool") + 1]
if words[-1] == "stray" or words[-1].endswith("planted"):  # the two kernels that must be found
    print("========= ERROR SUMMARY: 1 error" if BLIND != tool else "========= ERROR SUMMARY: 0 errors")
    sys.exit(77 if BLIND != tool else 0)
kernels = [words[i + 1] for i, word in enumerate(words) if word == "--kernel"]
for k in kernels:
    if "k96" in k and tool == "memcheck":
        print("CUDA error: an illegal address")
        sys.exit(1)  # and the rest of the group never runs
    print(json.dumps({"ran": k, "seconds": 0.5}))
hazards = sum("k256" in k or "v256" in k for k in kernels) * (tool == "racecheck")
print(f"========= RACECHECK SUMMARY: {hazards} hazards displayed ({hazards} errors, 0 warnings)")
sys.exit(77 if hazards else 0)
"""


@pytest.fixture
def sanitizer(script_here, monkeypatch, tmp_path):
    """The script with a compute-sanitizer that says what it is told to, and nothing compiled."""

    def install(blind: str = "") -> None:
        tool = tmp_path / "compute-sanitizer"
        tool.write_text(f"#!{sys.executable}\nBLIND = {blind!r}\n{SANITIZER}")
        tool.chmod(0o755)
        known = {"compute-sanitizer": str(tool), "nvcc": "true"}
        monkeypatch.setattr(sanitize.shutil, "which", known.get)
        monkeypatch.setattr(sanitize, "warm", lambda jobs, setup: {})

    install()
    return install


def test_every_kernel_is_sanitized_in_groups(script_here, sanitizer, capsys):
    code, out = script_here.run("--parts", "sanitize", "--select", "prepare/*")
    said = capsys.readouterr()
    rows = json.loads((out / "sanitize.json").read_text())
    jobs = building.checked_in("prepare/*", "sm_90")
    names = {job.path.relative_to(GENERATED).as_posix() for job in jobs}
    assert len(jobs) > 8 and {(r["kernel"], r["tool"]) for r in rows} == {
        (n, t) for n in names for t in sanitize.TOOLS
    }
    assert len(rows) == 2 * len(jobs)
    for r in rows:
        racy, crashes = "v256" in r["kernel"], "k96" in r["kernel"]
        clean = not (racy if r["tool"] == "racecheck" else crashes)
        assert r["clean"] is clean, r
        assert r["hazards"] == (0 if clean else 1 if r["tool"] == "racecheck" else None)
        assert clean or "1 found" in r["what"] or "illegal address" in r["what"]
    bad = sum(not r["clean"] for r in rows)
    assert code == 1 and bad == sum(("v256" in n) + ("k96" in n) for n in names) and bad >= 4
    assert "both tools find what is planted" in said.err and "[1/" in said.err
    assert f"{len(jobs) - bad} of {len(jobs)} kernels: nothing found" in said.out


def test_what_is_clean_is_said_to_be(script_here, sanitizer, capsys):
    code, out = script_here.run("--parts", "sanitize", "--select", "prepare/*c32*")
    count = len(building.checked_in("prepare/*c32*", "sm_90"))
    assert code == 0 and f"{count} of {count} kernels: nothing found" in capsys.readouterr().out
    assert {r["hazards"] for r in json.loads((out / "sanitize.json").read_text())} == {0}


@pytest.mark.parametrize("tool", ["racecheck", "memcheck"])
def test_a_sanitizer_that_sees_nothing_is_not_believed(script_here, sanitizer, capsys, tool):
    sanitizer(blind=tool)
    code, out = script_here.run("--parts", "sanitize", "--select", "prepare/*c32*")
    assert code == 1 and f"{tool} does not find what is planted" in capsys.readouterr().out
    assert not (out / "sanitize.json").exists()


def test_kernels_that_do_not_compile_are_told(script_here, sanitizer, monkeypatch, capsys):
    monkeypatch.setattr(sanitize, "warm", lambda jobs, _: {jobs[0].path: "ValueError: no"})
    code, out = script_here.run("--parts", "sanitize", "--select", "prepare/*c32*")
    wrong = [r for r in json.loads((out / "sanitize.json").read_text()) if not r["clean"]]
    assert code == 1 and [r["what"] for r in wrong] == ["not compiled: ValueError: no"] * 2


def test_no_sanitizing_after_its_time(script_here, sanitizer, monkeypatch):
    monkeypatch.setattr(sanitize, "blind", lambda *_: "")
    code, out = script_here.run(
        "--parts", "sanitize", "--select", "prepare/*c32*", "--seconds", "0"
    )
    rows = json.loads((out / "sanitize.json").read_text())
    assert code == 1 and {r["what"] for r in rows} == {"not run: the time was up"}


def test_a_process_that_hangs_is_stopped_with_what_it_started(tmp_path):
    pid = tmp_path / "pid"
    hang = f"import subprocess, sys; p = subprocess.Popen(['sleep', '60']); open({str(pid)!r}, 'w').write(str(p.pid)); print('begun', flush=True); p.wait()"
    began = time.monotonic()
    found = sanitize.ran([sys.executable, "-c", hang], 6, began + 100)
    assert found.code is None and "begun" in found.output and "too long" in found.output
    assert time.monotonic() - began < 30 and not found.clean and found.hazards is None
    for _ in range(50):
        state = Path(f"/proc/{pid.read_text()}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            break
        time.sleep(0.1)
    else:
        raise AssertionError("what it started still runs")


def test_inside_the_sanitizer_each_kernel_runs_once(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(sanitize.lowering, "load", lambda path: lambda: lambda *t: seen.append(t))
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    jobs = building.checked_in("prepare/*c32_k64*", "sm_90")
    sanitize.inside(jobs)
    took = sanitize.times("noise\n" + capsys.readouterr().out + "========= ERROR SUMMARY: 0 errors")
    assert list(took) == [job.path.relative_to(GENERATED).as_posix() for job in jobs]
    assert len(seen) == len(jobs)
    for k, *_ in seen:
        assert k.shape[2] > 32 and k.shape[2] % 32, "a whole tile, and part of one"


def test_groups_hold_every_kernel_once():
    for count in (0, 1, 5, 8, 63, 200):
        made = sanitize.groups(list(range(count)), 8)
        assert sorted(n for g in made for n in g) == list(range(count))
        assert all(0 < len(g) <= sanitize.GROUP for g in made)
    assert len(sanitize.groups(list(range(9)), 8)) == 4, "no process idle"


def test_the_script_stops_in_time(script_here, capsys):
    code, _ = script_here.run("--parts", "verify,bench", "--limit", "1", "--seconds", "0")
    assert code == 1 and capsys.readouterr().out.count("the time was up") == 2


def test_the_script_knows_its_parts(script_here, capsys):
    assert script_here.run("--parts", "verify,dance")[0] == 2
    assert "dance" in capsys.readouterr().err


# -- kernels to time -------------------------------------------------------------------------------


def test_checked_in_files_are_taken_and_others_rendered(tmp_path):
    path = ROOT / "specs/prepare.yaml"
    plain = driver.load(path, {"BC": "32", "io": "float16"})
    for job in building.jobs([plain], Wish(), "sm_90", tmp_path):
        assert job.path.is_relative_to(GENERATED)
    for wish, settings in ((Wish("separate"), {"io": "float16"}), (Wish(), {"DK": "32"})):
        loaded = driver.load(path, {"BC": "32", "DV": "64", **settings})
        found = building.jobs([loaded], wish, "sm_90", tmp_path)
        assert [job.kernel.module for job in found] == [v.kernel.module for v in loaded.variants]
        assert found and all(job.path.is_relative_to(tmp_path) for job in found)
        compile(found[0].path.read_text(), "it", "exec")


def test_files_of_generated_by_a_glob():
    found = building.checked_in("prepare/*c32_k64*_float16*", "sm_90")
    assert [job.kernel.module for job in found] == [PREPARE]
    assert found[0].planned == found[0].plan().asked > 0
    assert not building.checked_in("*", "sm_1")


def test_a_kernel_that_does_not_compile_is_a_refusal(tmp_path):
    (tmp_path / "bad.py").write_text("import tilelang\n")
    found = building.build(tmp_path / "bad.py", "sm_90")
    assert "not one" in found.refusal and found.code is None


def test_the_entry_of_a_source():
    text = 'extern "C" __global__ void f_kernel(int B);\n'
    text += 'extern "C" __global__ void __launch_bounds__(128, 1) f_kernel(int B) {'
    assert building.ENTRY.findall(text) == [("128", "f_kernel")]


# -- peers -----------------------------------------------------------------------------------------


def by_name(name: str):
    return next(peer for peer in peers.PEERS if peer.name == name)


def test_peers_by_name():
    assert peers.chosen("all") == peers.PEERS and peers.chosen("none") == ()
    assert [p.name for p in peers.chosen("neumann,fla,fla")] == ["neumann", "fla"]


def test_peers_are_skipped_with_a_reason(monkeypatch):
    monkeypatch.setattr(peers, "installed", lambda name: not name)
    kernel = prepare()
    assert peers.contender(by_name("fla"), kernel, "sm_90") == "the package fla is not installed"
    assert "no w and u" in peers.contender(by_name("flashqla"), kernel, "sm_90")
    assert "this very kernel" in peers.contender(by_name("neumann"), kernel, "sm_90")
    wide = kernels_of("prepare")["prepare_c32_k64_v64_float32"]
    assert "16-bit keys, not float32" in peers.contender(by_name("fla"), wide, "sm_90")
    softmax = next(iter(kernels_of("examples/softmax").values()))
    for peer in peers.PEERS:
        assert isinstance(peers.contender(peer, softmax, "sm_90"), str)


def test_a_package_that_fails_to_import_is_a_reason(monkeypatch):
    monkeypatch.setattr(peers, "installed", lambda name: True)
    monkeypatch.setitem(
        sys.modules, "fla.backends", types.SimpleNamespace(_DISPATCH_DISABLED=False)
    )
    why = peers.contender(by_name("fla"), prepare(), "sm_90")
    assert "fla was imported before FLA_DISABLE_BACKEND_DISPATCH was set" in why


def intra(k, v, g, beta, chunk_size):
    """FLA's convention, written apart: [B, T, H, D], g in powers of two, w with the gate in it."""
    rows = {"w": [], "u": [], "A": []}
    for at in range(0, k.shape[1], chunk_size):
        cut = [t[:, at : at + chunk_size].double().transpose(1, 2) for t in (k, v, g, beta)]
        kc, vc, gc, bc = cut
        kc = kc.repeat_interleave(vc.shape[1] // kc.shape[1], 1)
        lower = (kc @ kc.mT * bc[..., None] * 2 ** (gc[..., None] - gc[..., None, :])).tril(-1)
        A = torch.linalg.inv(torch.eye(kc.shape[2]).double() + lower)
        rows["w"].append(A @ (kc * (bc * 2**gc)[..., None]))
        rows["u"].append(A @ (vc * bc[..., None]))
        rows["A"].append(torch.nn.functional.pad(A, (0, chunk_size - A.shape[-1])))
    return tuple(torch.cat(rows[n], 2).transpose(1, 2).to(k.dtype) for n in ("w", "u", "A"))


@pytest.fixture
def with_fla(monkeypatch):
    """A stand-in for FLA in its modules' places."""
    found = types.SimpleNamespace(chunk_gated_delta_rule_fwd_intra=intra)
    monkeypatch.setenv(peers.FLA_SWITCH, "0")
    monkeypatch.setitem(sys.modules, "fla.backends", types.SimpleNamespace(_DISPATCH_DISABLED=True))
    monkeypatch.setitem(sys.modules, "fla.ops.gated_delta_rule.chunk_fwd", found)
    monkeypatch.setattr(peers, "installed", lambda name: True)


def test_chunk_gates():
    g = -torch.rand(2, 70, 3)
    steps = chunks.chunk_gates(g, 32, summed=False, log2=False)
    assert torch.allclose(steps[:, 32:64], g[:, 32:64].cumsum(1))
    assert torch.equal(chunks.chunk_gates(g, 32, summed=True, log2=False), g)
    assert torch.allclose(chunks.chunk_gates(g / chunks.LN2, 32, False, True), steps, atol=1e-5)


@pytest.mark.parametrize("heads_first", [True, False])
def test_layouts(heads_first):
    means = chunks.Terms(heads_first, 32, True, False)
    t = torch.randn(2, 3, 4)
    assert torch.equal(means.heads(t), t if heads_first else t.mT)
    assert torch.equal(means.length_first(t), t.mT if heads_first else t)


@pytest.mark.parametrize("heads_first", [True, False])
def test_what_is_right_for_fla_with_grouped_heads(heads_first):
    given = {"k": torch.randn(1, 40, 2, 8), "v": torch.randn(1, 40, 4, 8)}
    given |= {"g": -torch.rand(1, 40, 4).cumsum(1), "beta": torch.rand(1, 40, 4)}
    given["k"] /= given["k"].norm(dim=-1, keepdim=True)
    wanted = intra(
        given["k"].double(), given["v"].double(), given["g"] / chunks.LN2, given["beta"], 32
    )
    means = chunks.Terms(heads_first, 32, True, False)
    ours = {n: means.turned(t) if heads_first else t for n, t in given.items()}
    found = means.right(ours, "fla")
    for name, out in zip(("w", "u", "A"), wanted):
        assert torch.allclose(means.length_first(found[name]), out, atol=1e-6), name


def test_the_blocked_kernel_meets_its_peers(with_fla):
    found = kernels_of("prepare_blocked")
    both = (
        found["prepare_blocked_c64_k64_v64_bfloat16"],
        found["prepare_blocked_c64_k64_v64_bfloat16_layout_bthd"],
    )
    for kernel, heads_first in zip(both, (True, False)):
        assert chunks.terms(kernel) == chunks.Terms(heads_first, 64, True, False)
        assert peers.contender(by_name("fla"), kernel, "sm_90").who == "fla"
        old = peers.contender(by_name("neumann"), kernel, "sm_90")
        assert old.path.name.startswith("prepare_c64_k64_v64_bfloat16")


# -- a whole run on a stand-in ---------------------------------------------------------------------


@pytest.fixture
def on_the_cpu(monkeypatch):
    """A GPU that is the CPU: kernels run by way of target c, every call takes a millisecond."""

    def compiled(path):
        kernel = cpu.compile(path)
        names = [p.name for p in kernel.params]
        return lambda *tensors: kernel.run(dict(zip(names, tensors)))

    def median(calls):
        for call in calls:
            call()
        return 1.0

    monkeypatch.setattr(bench, "DEVICE", "cpu")
    monkeypatch.setattr(contenders, "compiled", compiled)
    monkeypatch.setattr(peers, "compiled", compiled)
    monkeypatch.setattr(gpu, "machine", lambda: {"gpu": "a CPU", "l2": 1000})
    monkeypatch.setattr(gpu, "copy_rate", lambda: 1e12)
    monkeypatch.setattr(gpu, "median", median)
    monkeypatch.setattr(gpu, "target", lambda: "sm_90")
    monkeypatch.setattr(
        building,
        "build_all",
        lambda paths, target, workers: {
            p: Built(p, 0.0, dynamic=1024, entry="f", threads=128, registers=64, spills=0)
            for p in paths
        },
    )


def test_a_run(on_the_cpu, with_fla, tmp_path):
    kernel = prepare()
    path, _ = module(kernel, tmp_path)
    told, kept = [], []
    job = Job(kernel, path, "sm_90", 1024, 0)
    found = bench.run(
        [job], [{"B": 1, "H": 2, "T": 70}], peers.PEERS, told.append, None, kept.append
    )
    assert [r.who for r in found.rows] == ["gdngen", "fla"]
    for row in found.rows:
        assert not row.wrong and row.rounds == (1.0, 1.0), row.wrong
        assert row.checked == "the last B H" and 0 < row.error < 2e-3
        assert row.bytes == timings.least_bytes(kernel, {"B": 1, "H": 2, "T": 70})
    ours, fla = found.rows
    assert (ours.code.planned, ours.code.asked, ours.code.registers) == (1024, 1024, 64)
    assert ours.code.blocks > 0 and "computed" in ours.code.how
    assert fla.code == Code() and [s.who for s in found.skipped] == ["flashqla", "neumann"]
    assert kept == [found] and "compiling 1 kernels" in told
    timings.table(found), chart.svg(found), timings.dumps(found)
    assert not bench.failed(found)


@pytest.mark.parametrize("layout", ["", pytest.param("_layout_bthd", marks=pytest.mark.long)])
def test_a_run_beside_everything(layout, on_the_cpu, with_fla, tmp_path):
    kernel = kernels_of("prepare_blocked")[f"prepare_blocked_c64_k64_v64_float16{layout}"]
    path, _ = module(kernel, tmp_path)
    job = Job(kernel, path, "sm_90", 1024, 0)
    found = bench.run([job], [{"B": 1, "H": 2, "T": 70}], peers.PEERS)
    assert [r.who for r in found.rows] == ["gdngen", "fla", "neumann"]
    for row in found.rows:
        assert not row.wrong and 0 < row.error < 3e-3, row.wrong
    name = layout.removeprefix("_layout_") or "bhtd"
    settings = {"BC": "64", "DK": "64", "DV": "64", "io": "float16", "layout": name, "G": "2"}
    variant, *_ = driver.load(SPECS / "prepare_blocked.yaml", settings).variants
    path, _ = module(variant.kernel, tmp_path)
    job = Job(variant.kernel, path, "sm_90", 1024, 0)
    grouped = bench.run([job], [{"B": 1, "H": 1, "T": 70}], peers.PEERS)
    assert [r.who for r in grouped.rows] == ["gdngen", "fla"]
    assert not any(r.wrong for r in grouped.rows)
    assert {s.who for s in grouped.skipped} == {"neumann", "flashqla"}


def test_a_wrong_kernel_is_timed_and_told(on_the_cpu, tmp_path):
    kernel = prepare()
    path, _ = module(kernel, tmp_path)
    text = path.read_text()
    path.write_text(text.replace("* beta_s[i]", "* beta_s[i] * 1.1"))
    assert path.read_text() != text
    found = bench.run([Job(kernel, path, "sm_90", 1, 0)], [{"B": 1, "H": 1, "T": 40}], ())
    assert found.rows[0].rounds and "against float64" in found.rows[0].wrong
    assert bench.failed(found)


def test_what_crashes_stops_nothing_else(on_the_cpu, with_fla, monkeypatch, tmp_path):
    kernel = prepare()
    path, _ = module(kernel, tmp_path)

    def refused(paths, target, workers):
        return {p: Built(p, 0.0, "LoweringError: no") for p in paths}

    monkeypatch.setattr(building, "build_all", refused)
    found = bench.run(
        [Job(kernel, path, "sm_90", 1, 0)], [{"B": 1, "H": 1, "T": 40}], peers.chosen("fla")
    )
    assert found.rows[0].wrong.endswith("LoweringError: no") and not found.rows[0].rounds
    assert found.rows[1].rounds and not found.rows[1].wrong


def test_a_kernel_without_counts_is_checked_on_a_small_run(on_the_cpu, tmp_path):
    kernel = next(k for n, k in kernels_of("examples/matmul").items() if n.endswith("float16"))
    path, _ = module(kernel, tmp_path)
    found = bench.run([Job(kernel, path, "sm_90", 1, 0)], [dict.fromkeys("MNK", 64)], ())
    assert not found.rows[0].wrong and found.rows[0].checked.startswith("M=")
