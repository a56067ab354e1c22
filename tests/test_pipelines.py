"""Pipeline specs: what is refused and where, and that nothing of a spec runs as code."""

from __future__ import annotations

import ast

import pytest
from rendering import SPECS

from gdngen import driver
from gdngen.errors import Report, SpecError
from gdngen.model import pipelines
from gdngen.render import functions

SMALL = """\
pipeline: small
dtypes: {io: [float16, float32], acc: float32, index: int32}
functions:
  twice:
    doc: y = a x, in pieces.
    arguments:
      x: {shape: [B, T, D], dtype: io, doc: what is scaled}
      a: {number: D ** -0.5}
      ends: {shape: [M], dtype: index, convert: true, optional: true, splits: T}
      fast: {flag: false}
    checks:
      - {that: D % 8 == 0, else: "rows of {D} are no eights"}
    values:
      N: where(ends, M - 1, B)
      BC: {of: [64, 32], fits: scale}
      wide: {all: [{that: sm >= 80, else: "it is sm_{sm}"}, {that: io != float32, else: float32}]}
    tensors:
      least: {number: -2.5}
      pieces: {pieces: ends, of: BC}
      y: {shape: [B, T, D], dtype: io}
      z: {shape: [N, D], dtype: acc, when: fast}
    steps:
      - kernel: scale
        when: fast
        set: {BC: BC, D: D, io: io, mode: quick}
        choose: [{BV: 64, when: N > sms}, {BV: 32}]
        tensors: {x: "x[:, T, D]", a: a, y: y, pieces: pieces}
    returns: [y, z]
    keep: [y]
"""

# What replaces a piece of it, and the words of the error; » stands where it points.
MISTAKES = {
    "unknown key": ("splits: T", "»split: T", "unknown key 'split' in argument; did you mean 'splits'?"),
    "unknown dtype": ("dtype: acc, when", "dtype: »ac, when", "unknown dtype 'ac'; did you mean 'acc'?"),
    "unknown size": ("M - 1, B", "M - 1, »BB", "unknown name 'BB'; did you mean 'B'?"),
    "unknown tensor": ("returns: [y, z]", "returns: [y, »w]", "unknown tensor 'w'"),
    "no tensor": ("y: y, p", "y: »v, p", "unknown name 'v'"),
    "view of a size": ('"x[:, T, D]"', '"»B[:, T, D]"', "an expression of sizes and flags is meant here"),
    "no shape": ("fast: {flag: false}", "»fast: {doc: soon}", "'fast' is a shape, a number or a flag"),
    "two of a name": ("z: {shape: [N", "»x: {shape: [N", "two things share the name 'x'"),
    "braces": ("rows of {D} are", "rows of {D.real} are", "braces of a message hold the name"),
    "function": ("D ** -0.5", "»exp(D)", "'exp' has no place in a size"),
    "attribute": ("M - 1, B", "»M.real, B", "an expression of sizes and flags is meant here"),
    "no kernel": ("kernel: scale\n        when", "when", "a step has no kernel"),
    "a path": ("kernel: scale\n", "kernel: »../scale\n", "'../scale' can't name a spec"),
    "fits nothing": ("fits: scale", "fits: scales", "no step runs 'scales', which 'BC' should fit"),
    "splits nothing": ("splits: T", "splits: K", "'ends' splits an unknown size 'K'"),
    "pieces of nothing": (", of: BC", "", "'pieces' has pieces of no size"),
    "a word of Python": ("twice:", "»lambda:", "'lambda' can't name a function"),
    "a condition of nothing": ("{that: sm >= 80, else", "{else", "a check is a condition and what is wrong else"),
    "a condition of a kernel": ("io != float32", "»half != float32", "unknown name 'half'"),
    "braces of a condition": ("it is sm_{sm}", "it is {io.x}", "braces of a message hold the name"),
    "a value of no kind": ("{of: [64, 32], fits: scale}", "»{of: [64, 32]}", "a value of several says which fits"),
    "a number of nothing": ("number: -2.5", "number: »K + 1", "unknown name 'K'"),
    "no functions": (SMALL[SMALL.index("functions:") :], "", "a pipeline has no 'functions'"),
}  # fmt: skip


def text(spec: str) -> str:
    report = Report()
    found = pipelines.parse(spec, "small.yaml", report)
    report.stop()
    return functions.text(found, "specs/small.yaml")


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake(case):
    old, new, words = MISTAKES[case]
    assert SMALL.count(old) == 1
    spec = SMALL.replace(old, new.replace("»", ""))
    with pytest.raises(SpecError) as caught:
        text(spec)
    found = [d for d in caught.value.diagnostics if words in d.what]
    assert found, str(caught.value)
    if "»" in new:
        at = SMALL.replace(old, new).index("»")
        line = spec[:at].count("\n") + 1
        assert (found[0].where.line, found[0].where.column) == (line, at - spec.rfind("\n", 0, at))


def test_what_it_renders():
    made = text(SMALL)
    lines = [" ".join(line.split()) for line in made.splitlines()]
    for line in (
        '"x", x, "B T D", "io")',
        "has_ends = ends is not None",
        "N = M - 1 if has_ends else B",
        """call.check(D % 8 == 0, 'rows of {D} are no eights', D=D)""",
        'a = call.number("a", D ** (-0.5) if a is None else a)',
        'pieces = call.pieces("ends", BC)',
        'z = call.new([N if fast else 0, D], "acc")',
        "return y, z if fast else None",
        "sm = call.architecture()",
        """wide = call.holds("wide", (sm >= 80, 'it is sm_{sm}', dict(sm=sm)), (call.dtype('io') != 'float32', 'float32', dict()))""",
        'least = call.number("least", -2.5)',
    ):
        assert any(line in have for have in lines), line
    assert "mode='quick'" in made and "x=x.view(len(x), T, D)" in made
    assert "next((BC for BC in [64, 32] if call.fits(" in made


def test_nothing_of_a_spec_is_code():
    evil = '"""; import os; """'
    spec = SMALL.replace("y = a x, in pieces.", f"'{evil}'").replace("what is scaled", f"'{evil}'")
    spec = spec.replace("rows of {D} are no eights", "' + os.system('x') + '")
    tree = ast.parse(text(spec))
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    imported = [
        ast.unparse(n) for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))
    ]
    assert "os" not in names and imported == [
        "from pathlib import Path",
        "from gdngen import runtime",
    ]


def test_the_steps_name_kernels_as_their_specs_do():
    """Dims, options and tensors that a step sets are the kernel's own."""
    report = Report()
    path = SPECS / "gated_delta_rule.yaml"
    for f in pipelines.parse(path.read_text(), path.name, report).functions:
        for step in f.steps:
            outputs = {k: "wu" for k, _ in step.values if k == "outputs"}
            kernel = driver.load(SPECS / f"{step.kernel.text}.yaml", outputs).variants[0].kernel
            spec = (SPECS / f"{step.kernel.text}.yaml").read_text()
            names = {k for k, _ in step.values} | {k for way, _ in step.choose for k, _ in way}
            assert names <= set(dict(kernel.values)) | set(dict(kernel.dtypes))
            given = {k.text for k, _ in step.tensors}
            assert {t.name for t in kernel.tensors} <= given
            assert all(f"  {name}:" in spec for name in given)


def test_a_pipeline_has_no_plan(capsys):
    from gdngen import cli

    for command in ("plan", "verify"):
        assert cli.main([command, str(SPECS / "gated_delta_rule.yaml")]) == 2
        assert "functions, not of a kernel" in capsys.readouterr().err
