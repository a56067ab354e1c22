"""The wheel works by itself: built from the sdist, installed, and used in an empty folder."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

import gdngen

ROOT = Path(__file__).resolve().parent.parent


def run(*args, cwd: Path, **env) -> subprocess.CompletedProcess:
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [*map(str, args)], cwd=cwd, env=clean | env, capture_output=True, text=True
    )


def done(*args, cwd: Path, **env) -> str:
    got = run(*args, cwd=cwd, **env)
    assert got.returncode == 0, got.stdout + got.stderr
    return got.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of a virtual environment that has the wheel, and no way to the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(
        ROOT, source, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info")
    )
    build = "from setuptools import build_meta; build_meta.build_sdist('..')"
    done(sys.executable, "-c", build, cwd=source)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(folder, filter="data")
    shutil.rmtree(source)
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    pip, offline = [sys.executable, "-m", "pip", "-q"], ["--no-deps", "--no-index"]
    done(*pip, "wheel", ".", *offline, "--no-build-isolation", "-w", "..", cwd=unpacked)
    shutil.rmtree(unpacked)
    done(sys.executable, "-m", "venv", "--without-pip", "env", cwd=folder)
    python = folder / "env/bin/python"
    (wheel,) = folder.glob("*.whl")
    done(*pip, "--python", python, "install", *offline, wheel, cwd=folder)
    # What gdngen needs comes from the tests' own environment: a line of a .pth file adds its folder,
    # but does not read the .pth files there, so the checkout stays out of sight.
    (site,) = folder.glob("env/lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def rendered(folder: Path) -> dict[str, bytes]:
    files = (p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}


def test_it_is_the_wheel_that_is_used(python, tmp_path):
    found = done(python, "-c", "import gdngen; print(gdngen.__file__)", cwd=tmp_path)
    assert Path(found.strip()).is_relative_to(python.parent.parent)
    assert (
        done(python, "-m", "gdngen", "--version", cwd=tmp_path) == f"gdngen {gdngen.__version__}\n"
    )
    code = "from importlib.metadata import version; print(version('gdngen'))"
    assert done(python, "-c", code, cwd=tmp_path).strip() == gdngen.__version__


def test_nothing_but_the_package_is_at_the_top(python):
    (site,) = python.parent.parent.glob("lib/python*/site-packages")
    names = {p.name for p in site.iterdir()} - {"others.pth", "__pycache__"}
    assert names == {"gdngen", f"gdngen-{gdngen.__version__}.dist-info"}


def test_it_carries_what_is_generated(python):
    (site,) = python.parent.parent.glob("lib/python*/site-packages")
    for name in ("generated", "specs", "templates"):
        theirs = rendered(site / "gdngen/_data" / name)
        ours = {k: v for k, v in rendered(ROOT / name).items() if "__pycache__" not in k}
        assert {k: v for k, v in theirs.items() if "__pycache__" not in k} == ours


@pytest.mark.parametrize("spec", ["specs/examples/softmax.yaml", "specs/gated_delta_rule.yaml"])
def test_it_renders_what_the_checkout_renders(python, tmp_path, spec):
    copy = tmp_path / spec
    copy.parent.mkdir(parents=True)
    shutil.copyfile(ROOT / spec, copy)
    done(python.parent / "gdngen", "render", spec, cwd=tmp_path)
    made = rendered(tmp_path / "generated")
    kernels = [name for name in made if name not in ("manifest.json", "__init__.py")]
    assert kernels
    for name in kernels:
        assert made[name] == (ROOT / "generated" / name).read_bytes(), name


CALL = """
import torch
import gdngen
from gdngen import resources, runtime
from gdngen.kernels.gated_delta_rule import chunk_gated_delta_rule as rule

factory = gdngen.kernel("prepare", BC=64, DK=64, DV=64, io="float16", target="sm_80")
assert factory.func.__code__.co_filename.startswith(str(resources.GENERATED))
from gdngen.kernels.prepare import prepare_c64_k64_v64_float16

def call(D):
    q, k, v = (torch.randn(1, 70, 2, D, dtype=torch.bfloat16) for _ in range(3))
    g, beta = -torch.rand(1, 70, 2), torch.rand(1, 70, 2)
    return [one.found.path for one in runtime.launches(rule, q, k, v, g, beta)]

listed, made = call(64), call(32)
assert listed and all(p.is_relative_to(resources.GENERATED) for p in listed), listed
assert made and not any(p.is_relative_to(resources.GENERATED) for p in made), made
print(resources.GENERATED)
"""


def test_python_finds_the_kernels_in_it(python, tmp_path):
    """Those that are there, and those that are made from the specs in it when a call needs them."""
    pytest.importorskip("tilelang")
    where = done(python, "-c", CALL, cwd=tmp_path).splitlines()[-1]
    assert Path(where).is_relative_to(python.parent.parent)


# -- templates of one's own --------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path):
    """A folder with one template: fills say so in a comment."""
    text = (ROOT / "templates/statements.jinja").read_text()
    start = "{% macro fill(s) %}\n"
    assert start in text
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "statements.jinja").write_text(text.replace(start, start + "# filled, by us\n"))
    return folder


def here(*args, cwd: Path) -> subprocess.CompletedProcess:
    return run(sys.executable, "-m", "gdngen", *args, cwd=cwd, PYTHONPATH=str(ROOT))


MATMUL = ROOT / "specs/examples/matmul.yaml"


def test_a_template_of_ones_own_stands_for_gdngens(own, tmp_path):
    text = here("render", MATMUL, "--templates", "mine", "-o", "-", cwd=tmp_path)
    assert text.returncode == 0, text.stderr
    assert "# filled, by us" in text.stdout and "T.gemm(" in text.stdout
    assert here("render", MATMUL, "--templates", "mine", "-o", "out", cwd=tmp_path).returncode == 0
    assert here("check", MATMUL, "--templates", "mine", "-o", "out", cwd=tmp_path).returncode == 0
    assert here("check", MATMUL, "-o", "out", cwd=tmp_path).returncode == 1


@pytest.mark.parametrize(
    "fault, said",
    [
        (
            "{{ s.nothing }}\n",
            r"mine/statements.jinja:{line}: error: 'dict object' has no attribute",
        ),
        ("{% if %}\n", "mine/statements.jinja:{line}: error: "),
        (
            "{{ 1 // 0 }}\n",
            "mine/statements.jinja:{line}: error: integer division or modulo by zero",
        ),
        ("for for for\n", "what the templates make is not Python"),
    ],
)
def test_a_fault_in_one_is_located(own, tmp_path, fault, said):
    page = own / "statements.jinja"
    text = page.read_text()
    line = text[: text.index("# filled, by us\n")].count("\n") + 1
    page.write_text(text.replace("# filled, by us\n", fault))
    got = here("render", MATMUL, "--templates", "mine", "-o", "out", cwd=tmp_path)
    assert got.returncode == 2 and said.format(line=line) in got.stderr, got.stderr
    assert "Traceback" not in got.stderr and not (tmp_path / "out").exists()


def test_a_folder_without_a_template_is_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/statement.jinja").write_text("")
    got = here("render", MATMUL, "--templates", "mine", "-o", "-", cwd=tmp_path)
    assert got.returncode == 2 and "statements.jinja" in got.stderr


def test_generated_is_never_rendered_by_ones_own(own, tmp_path):
    (tmp_path / "specs").mkdir()
    shutil.copyfile(MATMUL, tmp_path / "specs/matmul.yaml")
    got = here("render", "--templates", "mine", cwd=tmp_path)
    assert got.returncode == 2 and "-o DIR" in got.stderr
    assert not (tmp_path / "generated").exists()
