"""Whole forwards and decoding beside peers: the command and the script for a GPU, on a stand-in for one."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from gdngen import cli, runtime
from gdngen.bench import building, gpu, peers, timings, whole
from gdngen.bench.building import Built
from gdngen.bench.timings import Row, Run
from gdngen.bench.whole import Case
from gdngen.errors import GdngenError
from gdngen.verify import recurrence

ROOT = Path(__file__).resolve().parent.parent
SMALL = Case("forward", 1, 1, 2, 70, 64, 64)
STEP = Case("decode", 2, 1, 2, 1, 64, 64, states=True)
PIPELINE = str(ROOT / "specs/gated_delta_rule.yaml")


@pytest.fixture
def on_the_cpu(monkeypatch):
    """A GPU that is the CPU; every call takes a millisecond."""

    def median(calls):
        for call in calls:
            call()
        return 1.0

    monkeypatch.setattr(whole, "DEVICE", "cpu")
    monkeypatch.setattr(gpu, "require", lambda: None)
    monkeypatch.setattr(gpu, "target", lambda: "sm_90")
    monkeypatch.setattr(gpu, "machine", lambda: {"gpu": "a CPU", "l2": 1000})
    monkeypatch.setattr(gpu, "copy_rate", lambda: 1e12)
    monkeypatch.setattr(gpu, "sets", lambda least, l2: 1)
    monkeypatch.setattr(gpu, "median", median)


def fla(case: Case):
    """What stands for FLA: the recurrence, rounded."""

    def rule(q, k, v, g, beta, initial_state=None, output_final_state=False, cu_seqlens=None, **_):
        o, state = recurrence.gated_delta_rule(q, k, v, g, beta, initial_state=initial_state)
        return o.to(v.dtype), state.float() if output_final_state else None

    return rule


@pytest.fixture
def with_fla(monkeypatch):
    other = whole.Other("fla", "fla", "Triton", lambda c: "", fla)
    monkeypatch.setattr(whole, "OTHERS", (other, whole.OTHERS[1]))
    monkeypatch.setattr(peers, "installed", lambda package: package == "fla")


# -- cases -----------------------------------------------------------------------------------------


def test_bytes_that_must_move():
    rows = 2 * 70 * (2 * 64 + 2 * 2 * 64) + 4 * 70 * 2 * 2  # q, k, v and o in 16 bits; g and beta
    assert SMALL.least == rows
    state = 2 * 2 * 2 * 64 * 64 * 4  # in and out
    assert STEP.least == 2 * 2 * (2 * 64 + 2 * 2 * 64) + 4 * 2 * 2 * 2 + state


@pytest.mark.parametrize("numbers", whole.NUMBERS)
@pytest.mark.parametrize("N", [0, 5])
def test_arguments(numbers, N):
    c = Case("forward", 1, 1, 2, 40, 32, 32, "float32", N, states=True, norm=True, numbers=numbers)
    given = whole.inputs(c, device="cpu")
    assert given["v"].shape == (1, 40, 2, 32) and given["q"].dtype == torch.float32
    assert given["initial_state"].shape == (N or 1, 2, 32, 32)
    assert all(x.isfinite().all() for x in given.values() if isinstance(x, torch.Tensor))
    if N:
        ends = given["cu_seqlens"].tolist()
        assert len(ends) == N + 1 and ends == sorted(ends) and (ends[0], ends[-1]) == (0, 40)
    o, state = whole.right(c, given)
    assert o.shape == (1, 40, 2, 32) and state.shape == (N or 1, 2, 32, 32)


def test_how_far_off():
    want = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert whole.off(torch.tensor([3.0, 4.5]), want) == (0.1, 0.125)
    assert whole.off(torch.tensor([3.0, torch.nan]), want) == (float("inf"),) * 2
    assert whole.off(torch.tensor([3.0]), want) == (float("inf"),) * 2


def test_cases_from_the_command_line():
    c = whole.case("decode", {"B": 8, "H": 16, "DK": 64}, "float16")
    assert (c.T, c.HV, c.DV, c.states, c.io) == (1, 16, 64, True, "float16")
    with pytest.raises(GdngenError, match="has no size 'HK'; did you mean"):
        whole.case("forward", {"HK": 1}, "bfloat16")
    with pytest.raises(GdngenError, match="--set io=bfloat"):
        whole.case("forward", {}, "bfloat")


# -- runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [SMALL, STEP], ids=["forward", "decode"])
def test_a_run(case, on_the_cpu, with_fla):
    found = whole.run([case], "all")
    assert [r.who for r in found.rows] == ["gdngen", "fla"]
    for row in found.rows:
        assert not row.wrong and row.rounds == (1.0, 1.0) and row.checked == "everything"
        assert 0 < row.error < 5e-3, row
    (missing,) = found.skipped
    assert missing.who == "flashqla"
    assert timings.loads(timings.dumps(found)) == found
    assert case.variant in timings.table(found)


def test_what_is_wrong_or_fails_is_told(on_the_cpu, with_fla, monkeypatch):
    def double(c):
        return lambda **given: [2 * x for x in fla(c)(**given) if x is not None]

    def crash(c):
        def rule(**_):
            raise RuntimeError("no such kernel\nat all")

        return rule

    for rule, words in ((double, "o is off by 1.0e+00"), (crash, "RuntimeError: no such kernel")):
        monkeypatch.setattr(
            whole, "OTHERS", (whole.Other("fla", "fla", "Triton", lambda c: "", rule),)
        )
        ours, theirs = whole.run([SMALL], "fla").rows
        assert not ours.wrong and words in theirs.wrong


def test_what_is_slower_or_further_off():
    def row(who: str, ms: float, error: float) -> Row:
        return Row("a", "T=1", who, "", (ms,), 1, 1.0, error)

    rows = [row("gdngen", 2.0, 2e-3), row("fla", 1.0, 1e-3), row("flashqla", 0.5, 1.0)]
    assert whole.slower(rows) == ["a at T=1: 2.00 times as long as fla"]
    assert whole.coarser(rows) == ["a at T=1: off by 2.00e-03, fla by 1.00e-03"]
    assert not whole.slower(rows[:1]) and not whole.coarser(rows[:1])


def test_steps(on_the_cpu):
    """Each kernel by itself, and another variant on the same tensors."""
    launches = whole.launches(SMALL, whole.inputs(SMALL))
    assert [launch.spec for launch in launches] == ["prepare_blocked", "forward"]
    built = {launches[0].found.path.stem: Built(Path("p"), 0.0, dynamic=1024, threads=128)}
    rows = whole.steps(SMALL, 1e12, built, {"forward": [{"BV": 64}, {"BV": 32}, {"BV": 48}]})
    assert [bool(r.wrong) for r in rows] == [False, False, False, True]
    assert rows[0].code.asked == 1024 and rows[1].code.asked is None
    assert rows[2].what == "BV=32" and rows[2].error == 0.0 and rows[2].rounds


def test_launches_run_nothing(monkeypatch):
    monkeypatch.setattr(runtime, "_runner", None)
    assert whole.launches(STEP, whole.inputs(STEP, device="cpu"))


# -- the command -----------------------------------------------------------------------------------


def test_bench_times_functions(on_the_cpu, with_fla, capsys, tmp_path):
    sizes = "B=1,H=1,T=70,DK=64"
    code = cli.main(["bench", PIPELINE, "--shape", sizes, "--json", str(tmp_path / "x.json")])
    said = capsys.readouterr().out
    assert code == 0 and "chunk_gated_delta_rule_k64_v64_bfloat16" in said and "fla" in said
    assert len(timings.loads((tmp_path / "x.json").read_text()).rows) == 2


@pytest.mark.parametrize("words", [["--shape", "HK=2"], ["--set", "io=half"], ["--set", "BC=64"]])
def test_mistakes_of_the_command(words, capsys):
    assert cli.main(["bench", PIPELINE, *words]) == 2
    assert words[0] in capsys.readouterr().err


# -- the script ------------------------------------------------------------------------------------


def script():
    found = importlib.util.spec_from_file_location("forward_script", ROOT / "benchmarks/forward.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture
def script_here(on_the_cpu, with_fla, monkeypatch, tmp_path):
    """The script with small cases, whose processes are this one."""
    made = script()
    monkeypatch.setattr(
        building, "build_all", lambda paths, *_: {p: Built(p, 0.0, threads=128) for p in paths}
    )
    small = {
        "errors": (SMALL, STEP),
        "forward": (SMALL,),
        "decode": (STEP,),
        "steps": (STEP,),
        "tune": (STEP,),
        "beside": (STEP,),
    }
    monkeypatch.setattr(made, "CASES", small)

    def child(options, part, stop, first=0):
        inside = made._parser().parse_args(
            [
                "--inside",
                part,
                "--first",
                str(first),
                "--out",
                str(options.out),
                "--parts",
                options.parts,
            ]
        )
        return "" if made._inside(inside) == 0 else "failed"

    def run(*words) -> tuple[int, Path]:
        monkeypatch.setattr(sys, "argv", ["forward.py", "--out", str(tmp_path), *words])
        return made.main(), tmp_path

    monkeypatch.setattr(made, "_child", child)
    made.run = run
    return made


def test_the_script(script_here, capsys):
    code, out = script_here.run("--parts", "errors,forward,decode,steps,tune,beside")
    said = capsys.readouterr().out
    assert code == 0 and "all is well" in said, said
    for part in ("errors", "forward", "decode", "steps", "tune", "beside"):
        assert f"== {part}" in said and timings.loads((out / f"{part}.json").read_text()).rows
    both = timings.loads((out / "whole.json").read_text())
    assert {r.variant for r in both.rows} == {SMALL.variant, STEP.variant}
    off = timings.loads((out / "errors.json").read_text()).rows
    assert [r.who for r in off] == ["gdngen", "gdngen", "fla"] and not any(r.rounds for r in off)
    built = [json.loads(line) for line in (out / "build.jsonl").read_text().splitlines()]
    assert any("decode" in b["built"]["path"] and "bv16" in b["built"]["path"] for b in built)


def test_the_script_goes_on_past_what_ends_its_process(script_here, monkeypatch, capsys):
    whole_child = script_here._child

    def child(options, part, stop, first=0):
        if part == "errors" and first == 0:
            script_here._note(options.out / "errors.jsonl", "begun", 0)
            return "exit code -6: an illegal address"
        return whole_child(options, part, stop, first)

    monkeypatch.setattr(script_here, "_child", child)
    code, out = script_here.run("--parts", "errors")
    said = capsys.readouterr().out
    assert code == 1 and "an illegal address" in said and "1 things are wrong" in said
    rows = timings.loads((out / "errors.json").read_text()).rows
    assert {(r.variant, bool(r.wrong)) for r in rows if r.who == "gdngen"} == {
        (STEP.variant, False),
        (SMALL.variant, True),
    }


def test_the_script_stops_in_time(script_here, capsys):
    code, out = script_here.run("--parts", "forward", "--seconds", "0")
    assert code == 0 and "the time was up" in capsys.readouterr().out


def test_processes_are_watched(tmp_path, monkeypatch):
    """One that says something wrong, one that hangs."""
    made = script()
    options = made._parser().parse_args(["--out", str(tmp_path)])
    monkeypatch.setattr(made, "QUIET", 1)
    for text, why in (("import sys; sys.exit('no luck')", "exit code 1: no luck"),
                      ("import time; time.sleep(60)", "stopped: it took too long"),
                      ("", "")):  # fmt: skip
        file = tmp_path / "child.py"
        file.write_text(text)
        monkeypatch.setattr(made, "__file__", str(file))
        assert made._child(options, "errors", made.time.monotonic() + 100) == why


def test_the_script_knows_its_parts_and_needs_a_gpu(monkeypatch, capsys):
    made = script()
    monkeypatch.setattr(sys, "argv", ["forward.py"])
    if not torch.cuda.is_available():
        assert made.main() == 2 and "NVIDIA GPU" in capsys.readouterr().err
    monkeypatch.setattr(gpu, "require", lambda: None)
    monkeypatch.setattr(sys, "argv", ["forward.py", "--parts", "errors,speed"])
    assert made.main() == 2 and "--parts: speed" in capsys.readouterr().err


def test_the_cases_of_the_script():
    """Shapes that models have, each once; a glob picks some."""
    made = script()
    for part, cases in made.CASES.items():
        assert len(set(cases)) == len(cases), part
        assert all(c.HV % c.H == 0 for c in cases)
    assert [c.B for c in made.picked("decode", ["*k128*bfloat16 *H=32,*"])] == [1, 8, 32, 128]


def test_an_empty_log_is_an_empty_run(tmp_path):
    assert script().read(tmp_path / "none") == Run({}, 1.0, ())
