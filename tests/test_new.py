"""`gdngen new`: a spec to start from, which is right as it is."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gdngen import cli, new, resources
from gdngen.errors import GdngenError

ROOT = Path(__file__).resolve().parent.parent


def gdngen(*args, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "gdngen", *map(str, args)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def mine(tmp_path):
    got = gdngen("new", "mine", cwd=tmp_path)
    assert got.returncode == 0 and not got.stderr, got.stderr
    return tmp_path / "mine.yaml"


def test_it_renders_without_a_word_of_warning(mine):
    got = gdngen("render", "mine.yaml", "-o", "out", cwd=mine.parent)
    assert got.returncode == 0 and not got.stderr, got.stderr
    files = sorted(p.name for p in (mine.parent / "out/mine").iterdir())
    assert files == ["__init__.py", "mine_t64_d64_bfloat16.py", "mine_t64_d64_float16.py"]
    assert gdngen("check", "mine.yaml", "-o", "out", cwd=mine.parent).returncode == 0


def test_its_lifetimes_are_exact_and_its_plan_shares(mine):
    """What it shows of the planner is there to be seen."""
    got = gdngen("plan", "mine.yaml", "--target", "sm_80", cwd=mine.parent)
    assert got.returncode == 0 and not got.stderr, got.stderr
    assert "shared: z_s, y_out on x_s" in got.stdout


def test_verify_passes_at_once(mine):
    pytest.importorskip("tilelang")
    got = gdngen("verify", "mine.yaml", "--set", "io=float16", cwd=mine.parent)
    assert got.returncode == 0, got.stdout + got.stderr
    assert "1 of 1 kernels are right on cpu" in got.stdout


@pytest.mark.parametrize("like", sorted(new.shipped()))
def test_a_copy_of_a_shipped_spec_differs_in_its_name_alone(like, tmp_path):
    ours = new.shipped()[like].read_text().splitlines()
    theirs = new.files("mine", tmp_path, like)[tmp_path / "mine.yaml"].splitlines()
    changed = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    assert ["kernel: mine"] == [b for _, b in changed if not b.startswith("#")]


def test_like_is_a_word_of_the_command_line(tmp_path):
    assert gdngen("new", "mine", "--like", "softmax", "-o", "specs", cwd=tmp_path).returncode == 0
    got = gdngen("check", "specs/mine.yaml", cwd=tmp_path)
    assert got.returncode == 1 and "mine_r32_n64_float16.py" in got.stdout


def test_it_never_overwrites(mine):
    before = mine.read_bytes()
    got = gdngen("new", "mine", cwd=mine.parent)
    assert got.returncode == 2 and "is there already" in got.stderr
    assert mine.read_bytes() == before


@pytest.mark.parametrize(
    "name, said",
    [
        ("2nd", "can't name a kernel"),
        ("lambda", "can't name a kernel"),
        ("a/b", "-o DIR says where"),
        ("mine.yaml", "mine, without .yaml"),
        ("x: 1\ny", "can't name a kernel"),
        ("exp", "the language has that name"),
        ("x_s", "share the name 'x_s'"),
        ("B", "share the name 'B'"),
    ],
)
def test_what_can_not_be_its_name(name, said, tmp_path):
    with pytest.raises(GdngenError) as e:
        new.files(name, tmp_path)
    assert said in str(e.value)
    got = gdngen("new", name, cwd=tmp_path)
    assert got.returncode == 2 and said in got.stderr and "Traceback" not in got.stderr
    assert not list(tmp_path.iterdir())


def test_an_unknown_spec_to_start_from(tmp_path):
    got = gdngen("new", "mine", "--like", "softmx", cwd=tmp_path)
    assert got.returncode == 2 and "did you mean 'softmax'?" in got.stderr


def schema_of(spec: Path) -> Path:
    line = spec.read_text().splitlines()[0]
    return spec.parent / line.removeprefix("# yaml-language-server: $schema=")


def test_editors_find_the_schema(mine):
    """Beside it, where there is none yet; above it in a folder such as specs/examples."""
    packed = (resources.SPECS / "schema.json").read_text()
    assert schema_of(mine).read_text() == packed
    for folder, files in ((".", ["other.yaml"]), ("deeper", ["other.yaml"])):
        made = new.files("other", mine.parent / folder)
        assert [p.name for p in made] == files
        (mine.parent / folder).mkdir(exist_ok=True)
        spec, text = next(iter(made.items()))
        spec.write_text(text)
        assert schema_of(spec).samefile(mine.parent / "schema.json")


def test_another_schema_stays_as_it_is(tmp_path):
    (tmp_path / "schema.json").write_text("{}\n")
    assert gdngen("new", "mine", cwd=tmp_path).returncode == 0
    assert (tmp_path / "schema.json").read_text() == "{}\n"
    assert schema_of(tmp_path / "mine.yaml").name == "gdngen-schema.json"
    assert '"gdngen spec"' in schema_of(tmp_path / "mine.yaml").read_text()


def test_docs_prints_the_reference(tmp_path):
    assert gdngen("docs", cwd=tmp_path).stdout == (ROOT / "docs/spec.md").read_text()


def test_schema_prints_or_writes_the_same(tmp_path):
    text = (ROOT / "specs/schema.json").read_text()
    assert gdngen("schema", cwd=tmp_path).stdout == text
    assert gdngen("schema", "-o", "s.json", cwd=tmp_path).returncode == 0
    assert (tmp_path / "s.json").read_text() == text


# -- by somebody who has never seen it ---------------------------------------------------------------


def test_the_rendered_kernel_is_called_from_python(mine):
    pytest.importorskip("tilelang")
    import gdngen as package

    for folder in ("one", "two"):  # the same name in two folders is two kernels
        assert gdngen("render", "mine.yaml", "-o", folder, cwd=mine.parent).returncode == 0
        made = package.kernel("mine", folder=mine.parent / folder, io="float16")
        file = mine.parent / folder / "mine/mine_t64_d64_float16.py"
        assert made.func.__code__.co_filename == str(file)
    with pytest.raises(LookupError, match="no manifest.json"):
        package.kernel("mine", folder=mine.parent)


def test_without_a_spec_it_says_how_to_get_one(tmp_path):
    got = gdngen("plan", cwd=tmp_path)
    assert got.returncode == 2 and "gdngen new NAME" in got.stderr
    (tmp_path / "empty.yaml").write_text("- 1\n")
    got = gdngen("plan", "empty.yaml", cwd=tmp_path)
    assert got.returncode == 2 and "gdngen new NAME" in got.stderr and "gdngen docs" in got.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["verify", "mine.yaml"],
        ["verify", "mine.yaml", "--emulate"],
        ["mutate", "mine.yaml"],
        ["plan", "mine.yaml", "--compare-compiler"],
    ],
)
def test_what_is_not_installed_is_named(args, mine, monkeypatch, capsys):
    monkeypatch.chdir(mine.parent)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(args) == 2
    assert "needs torch and tilelang: pip install 'gdngen[run]'" in capsys.readouterr().err
    assert cli.main(["verify", "mine.yaml", "--judge-only"]) == 0
    assert cli.main(["plan", "mine.yaml", "--compare-compiler", "--no-lower"]) == 0
