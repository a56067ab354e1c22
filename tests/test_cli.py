"""The command line as a user meets it: files, exit codes, messages."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from timing import slowness

from gdngen import cli

ROOT = Path(__file__).parent.parent


def gdngen(*args, cwd=ROOT, **env):
    return subprocess.run(
        [sys.executable, "-m", "gdngen.cli", *map(str, args)],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def project(tmp_path):
    """A project of its own: one small spec, rendered."""
    specs = tmp_path / "specs"
    specs.mkdir()
    text = (ROOT / "specs/prepare.yaml").read_text()
    text = re.sub(
        r"  forall: .*\n",
        "  forall: {BC: [32], DK: [64], DV: [64], io: [float16, float32]}\n",
        text,
    )
    text = re.sub(r"  also:\n(    - .*\n)+", "", text)
    (specs / "prepare.yaml").write_text(text)
    assert gdngen("render", cwd=tmp_path).returncode == 0
    return tmp_path


def test_check_passes_after_render(project):
    assert gdngen("check", "--full", cwd=project).returncode == 0
    assert gdngen("check", cwd=project).returncode == 0


def test_one_edited_character_fails_check_with_a_diff(project):
    path = next((project / "generated/prepare").glob("*float16.py"))
    path.write_text(path.read_text().replace("threads=128", "threads=129"))
    for flags in ((), ("--full",)):
        got = gdngen("check", *flags, cwd=project)
        assert got.returncode == 1
        assert "threads=129" in got.stdout and "threads=128" in got.stdout
        assert "gdngen render" in got.stdout


def test_missing_and_orphaned_files_fail_check(project):
    folder = project / "generated/prepare"
    kept = next(folder.glob("*float16.py"))
    (folder / "old.py").write_text(kept.read_text())
    (folder / "mine.py").write_text("x = 1\n")
    kept.unlink()
    got = gdngen("check", cwd=project)
    assert got.returncode == 1
    assert "missing:" in got.stdout and got.stdout.count("orphan:") == 2
    assert gdngen("render", cwd=project).returncode == 0
    assert kept.exists() and not (folder / "old.py").exists()
    assert (folder / "mine.py").exists(), "a file without our header is never deleted"


def test_render_writes_only_what_changed(project):
    files = {p: p.stat().st_mtime_ns for p in (project / "generated").rglob("*.py")}
    got = gdngen("render", cwd=project)
    assert "0 files changed" in got.stdout
    assert files == {p: p.stat().st_mtime_ns for p in files}


def test_line_ends_are_not_drift(project):
    path = next((project / "generated/prepare").glob("*float16.py"))
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert gdngen("check", "--full", cwd=project).returncode == 0


def test_five_mistakes_are_found_in_one_run_and_nothing_is_written(project):
    spec = project / "specs/prepare.yaml"
    text = spec.read_text()
    for old, new in (
        ("threads: 128", "thread: 128"),
        ("beta_s[i] * exp", "bta_s[i] * exp"),
        ("gemm: S @ k_beta -> w_f", "gemm: S @ k_beta.T -> w_f"),
        ("fragment, shape: [BC, DV], dtype: acc", "fragmnt, shape: [BC, DV], dtype: acc"),
        ("- copy: S -> A", "- cpoy: S -> A"),
    ):
        assert old in text
        text = text.replace(old, new, 1)
    spec.write_text(text)
    before = {p: p.read_bytes() for p in (project / "generated").rglob("*") if p.is_file()}
    got = gdngen("render", cwd=project)
    assert got.returncode == 2 and "Traceback" not in got.stderr
    assert len(re.findall(r"^specs/prepare\.yaml:\d+:\d+: error: ", got.stderr, re.M)) == 5
    assert before == {p: p.read_bytes() for p in (project / "generated").rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    "args",
    [
        ("render", "nowhere.yaml"),
        ("render", "specs"),
        ("render", "specs/prepare.yaml", "--set", "BC=64"),  # without -o
        ("render", "specs/prepare.yaml", "--policy", "share"),
        ("plan", "specs/prepare.yaml", "--device", "h100"),
        ("plan", "specs/prepare.yaml", "--set", "BX=64"),
        ("plan", "specs/prepare.yaml", "--set", "io=float17"),
        ("plan", "specs/prepare.yaml", "--set", "BC=64", "--set", "BC=32"),
        ("plan", "specs/prepare.yaml", "--target", "sm_1"),
        ("plan", "specs/prepare.yaml", "--policy", "best"),
    ],
)
def test_mistakes_on_the_command_line_exit_2(project, args):
    got = gdngen(*args, cwd=project)
    assert got.returncode == 2 and got.stderr and "Traceback" not in got.stderr


def test_set_renders_what_is_not_checked_in(project):
    got = gdngen(
        "render",
        "specs/prepare.yaml",
        "--set",
        "BC=64",
        "--set",
        "io=bfloat16",
        "-o",
        "-",
        cwd=project,
    )
    assert got.returncode == 0 and "BC, DK, DV = 64, 64, 64" in got.stdout
    got = gdngen("render", "specs/prepare.yaml", "--policy", "match", "-o", "out", cwd=project)
    assert got.returncode == 0
    assert sorted(p.name for p in (project / "out/prepare").glob("*_match.py"))


def test_two_hash_seeds_give_the_same_bytes(project):
    texts = [
        gdngen("render", "specs/prepare.yaml", "-o", "-", cwd=project, PYTHONHASHSEED=seed).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] and texts[0] == texts[1]
    plans = [
        gdngen("plan", "--json", cwd=project, PYTHONHASHSEED=seed).stdout for seed in ("1", "2")
    ]
    assert plans[0] == plans[1]


def test_plan_as_data_and_as_a_table(project):
    rows = json.loads(gdngen("plan", "--json", cwd=project).stdout)
    assert {r["variant"] for r in rows} == {
        "prepare_c32_k64_v64_float16",
        "prepare_c32_k64_v64_float32",
    }
    assert all(r["proof"]["exhausted"] for r in rows)
    table = gdngen("plan", cwd=project).stdout
    assert "33,024" in table and "lower bound" in table


def test_a_plan_that_does_not_fit_is_refused(tmp_path):
    args = ("specs/prepare.yaml", "--device", "metax-c500", "--policy", "share")
    got = gdngen("plan", *args)
    assert got.returncode == 1 and "does not fit metax-c500" in got.stdout
    got = gdngen("render", *args, "-o", tmp_path / "out")
    assert got.returncode == 1 and "does not fit" in got.stderr and not (tmp_path / "out").exists()


def test_the_plan_of_the_issue():
    got = gdngen("plan", "specs/prepare.yaml", "--policy", "match")
    row = next(r for r in got.stdout.splitlines() if r.startswith("prepare_c64_k64_v64_float16"))
    assert "82,432" in row and "49,664" in row
    row = next(r for r in got.stdout.splitlines() if r.startswith("prepare_c32_k64_v64_float16"))
    assert "33,024" in row


def test_render_plan_and_check_import_neither_torch_nor_tilelang(project):
    code = (
        "import sys; from gdngen import cli\n"
        "for args in (['plan'], ['check', '--full'], ['render']): assert cli.main(args) == 0\n"
        "assert not {'torch', 'tilelang', 'numpy'} & set(sys.modules)"
    )
    got = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True)
    assert got.returncode == 0, got.stderr


def test_import_gdngen_is_quick():
    code = "import time; t = time.process_time(); import gdngen; print(time.process_time() - t)"
    times = [
        float(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT)) for _ in range(3)
    ]
    assert min(times) < 0.15 * slowness()


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as e:
        cli.main(["--help"])
    assert e.value.code == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("render", "plan", "check", "verify"))


def test_the_judge_needs_neither_torch_nor_tilelang(project):
    code = (
        "import sys; from gdngen import cli\n"
        "assert cli.main(['verify', '--judge-only']) == 0\n"
        "assert not {'torch', 'tilelang'} & set(sys.modules)"
    )
    got = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True)
    assert got.returncode == 0, got.stderr
    assert "plans are right, says the judge" in got.stdout


def test_a_variant_may_name_a_policy_of_its_own(project):
    spec = project / "specs/prepare.yaml"
    text = spec.read_text().replace(
        "  where: DK == DV\n",
        "  where: DK == DV\n  also:\n    - {BC: 32, DK: 64, DV: 64, io: float16, policy: match}\n",
    )
    spec.write_text(text)
    assert gdngen("render", cwd=project).returncode == 0
    names = {p.stem for p in (project / "generated/prepare").glob("prepare_*.py")}
    assert "prepare_c32_k64_v64_float16_match" in names and "prepare_c32_k64_v64_float16" in names
    spec.write_text(text.replace("policy: match", "policy: mach"))
    got = gdngen("plan", cwd=project)
    assert got.returncode == 2 and "did you mean 'match'" in got.stderr


def test_plans_are_compared(project):
    got = gdngen("plan", "--compare-compiler", "--no-lower", "--objective", "bytes", cwd=project)
    assert got.returncode == 0 and "none" in got.stdout
    got = gdngen("plan", "--diff", "separate", "match", cwd=project)
    assert got.returncode == 0 and "separate 33,024 bytes" in got.stdout
    assert re.search(r"; \d+ blocks per SM, \d+ \([+-]\d+\)", got.stdout)
    got = gdngen("plan", "--all-devices", cwd=project)
    assert got.returncode == 0 and "metax-c500" in got.stdout


def test_variants_with_a_policy_of_their_own_are_compared_as_what_they_are(project):
    spec = project / "specs/prepare.yaml"
    more = "  where: DK == DV\n  also:\n    - {BC: 32, DK: 64, DV: 64, io: float16, policy: separate}\n"
    spec.write_text(spec.read_text().replace("  where: DK == DV\n", more))
    name = "prepare_c32_k64_v64_float16"
    devices = gdngen("plan", "--all-devices", cwd=project).stdout.splitlines()
    lean, apart = (
        [row for row in devices if row.startswith(n)] for n in (f"{name} ", f"{name} (sep")
    )
    assert len(apart) == 1 and len(lean) == 2 and lean[0].split()[1:] != apart[0].split()[2:]
    for args in (("--compare-compiler", "--no-lower"), ("--diff", "separate", "lean")):
        rows = gdngen("plan", *args, "--target", "sm_80", cwd=project).stdout.splitlines()
        assert sum(row.startswith(f"{name} ") for row in rows) == 1


def test_faults_planted_in_plans_are_listed(project):
    got = gdngen("mutate", "--plans", "--random", "8", cwd=project)
    assert got.returncode == 0
    kinds = {line.split()[0]: line.split()[-2:] for line in got.stdout.splitlines()[1:]}
    assert set(kinds) == {"merged", "swapped", "overlapped", "shortened", "moved", "early"}
    assert all(planted == caught != "0" for planted, caught in kinds.values())
    found = json.loads(gdngen("mutate", "--plans", "--json", cwd=project).stdout)
    assert all(p["caught"] for p in found) and {p["kernel"] for p in found} >= {
        "prepare_c32_k64_v64_float16"
    }


@pytest.mark.parametrize("args", [("verify", "--judge-only"), ("mutate", "--plans")])
def test_roles_share_nothing_that_could_be_judged(args):
    got = gdngen(*args, "specs/forward_hopper.yaml")
    assert got.returncode == 0 and not got.stderr


def test_who_looks_at_a_kernel_is_warned_of_it(tmp_path, monkeypatch, capsys):
    """Repeated squaring: plan and verify say where it must not be used, render does not."""
    one = ["specs/prepare.yaml", "--set", "BC=32", "--set", "DK=64", "--set", "io=float16"]
    said = {}
    monkeypatch.chdir(ROOT)
    for command in (["plan"], ["verify", "--judge-only"], ["render", "-q", "-o", str(tmp_path)]):
        assert cli.main([*command, *one]) == 0
        said[command[0]] = capsys.readouterr().err
    line = "specs/prepare.yaml:88:3: warning: repeated squaring ends in NaN or far off"
    assert line in said["plan"] and line in said["verify"] and "warning" not in said["render"]
    cli.main(["plan", "specs/prepare_blocked.yaml", "--set", "BC=64", "--set", "io=float16"])
    assert "warning" not in capsys.readouterr().err
