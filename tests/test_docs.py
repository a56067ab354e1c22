"""The reference of the language is true: its examples read, and its tables list what the code has."""

import re
import textwrap
from pathlib import Path

import pytest
import yaml
from small_spec import read

from gdngen.errors import Report
from gdngen.language import expr, source, syntax, tree
from gdngen.model import bounds, context, gemms, model, pipelines
from gdngen.render import functions

TEXT = (Path(__file__).parent.parent / "docs" / "spec.md").read_text()
BLOCKS = re.findall(r"^```yaml( wrong)?\n(.*?)^```", TEXT, re.M | re.S)

# What pieces of a spec are put into; every tile holds something when an example starts.
FRAME = """\
kernel: frame
dims: [C, D]
runtime: [B, H, T]
dtypes: {io: null, acc: float32}
options: {order: [early, late], masked: [true, false]}
variants:
  forall: {C: 64, D: 64, io: float16}
tensors:
  k: {role: in, shape: [B, H, T, D], dtype: io}
  y: {role: out, shape: [B, H, T, C], dtype: io}
grid: {c: "ceildiv(T, C)", h: H, b: B}
buffers:
  k_s: {scope: shared, shape: [C, D], dtype: io}
  v_s: {scope: shared, shape: [C, D], dtype: io}
  S: {scope: shared, shape: [C, C], dtype: acc}
  P: {scope: shared, shape: [C, C], dtype: acc}
  M: {scope: shared, shape: [C, 16], dtype: acc}
  g_s: {scope: shared, shape: [C], dtype: acc}
  beta_s: {scope: shared, shape: [C], dtype: acc}
  gram: {scope: fragment, shape: [C, C], dtype: acc}
  top: {scope: fragment, shape: [C], dtype: acc}
stages:
  load:
    - copy: k[b, h, c*C:(c+1)*C, :] -> k_s
    - fill: 0 -> v_s
    - fill: 0 -> S
    - fill: 0 -> P
    - fill: 0 -> M
    - fill: 0 -> g_s
    - fill: 0 -> beta_s
    - fill: 0 -> gram
    - fill: 0 -> top
  work: []
  store:
    - copy: S -> y[b, h, c*C:(c+1)*C, :]
    - copy: gram -> y[b, h, c*C:(c+1)*C, :]
"""


def framed(piece: str) -> str:
    """A whole spec around a piece: statements go into a stage, other keys add to the frame's."""
    if piece.startswith("- "):
        return FRAME.replace("  work: []\n", "  work:\n" + textwrap.indent(piece, "    "))
    spec, more = yaml.safe_load(FRAME), yaml.safe_load(piece)
    for key, value in more.items():
        if key in ("tensors", "buffers"):
            spec[key] |= value
            spec["stages"]["load"] += [
                {"fill": f"0 -> {name}"} for name in value if key == "buffers"
            ]
        else:
            spec[key] = value
    return yaml.safe_dump(spec, sort_keys=False, width=1000)


@pytest.mark.parametrize("block", [b for wrong, b in BLOCKS if not wrong])
def test_an_example_reads(block):
    if block.startswith("pipeline:"):
        report = Report()
        found = pipelines.parse(block, "docs.yaml", report)
        report.stop()
        compile(functions.text(found, "specs/docs.yaml"), "docs.py", "exec")
        return
    whole = block.startswith("kernel:")
    got = read(block if whole else framed(block))
    errors = [e for e in got.errors if whole or "is never used" not in e.what]
    assert not errors, "\n".join(map(str, errors))
    assert not whole or (got.kernels and not got.warnings)


def test_the_mistakes_shown_are_what_gdngen_finds():
    ((_, block),) = [b for b in BLOCKS if b[0]]
    before, after = TEXT.split(block)
    listed, shown = re.findall(r"^```text\n(.*?)^```", after, re.M | re.S)
    tiles = re.search(r"buffers:\n((  .*\n)+)", FRAME)[1]
    others = FRAME[: FRAME.index("buffers:")]
    text, moved = block.replace("buffers:\n", "buffers:\n" + tiles, 1) + others, tiles.count("\n")
    errors = read(text).errors
    for line in listed.strip().splitlines():
        words = re.sub(
            r"line (\d+)", lambda m: f"line {int(m[1]) + moved}", line.removeprefix("error: ")
        )
        assert any(words == e.what for e in errors), (words, [e.what for e in errors])
    header, *_, hint = shown.strip().splitlines()
    line, column, what = re.fullmatch(r"specs/gram.yaml:(\d+):(\d+): error: (.*)", header).groups()
    assert any(
        (e.where.line - moved, e.where.column, e.what, f"  help: {e.hint}")
        == (int(line), int(column), what, hint)
        for e in errors
    )


# -- tables --------------------------------------------------------------------------------------


def table(header: str) -> dict[str, list[str]]:
    """Rows of the table whose first line is `header`: first cell without backticks -> the others."""
    (rows,) = re.findall(
        rf"^\| {re.escape(header)}.*\|\n\|[-|]+\|\n((?:\|.*\|\n)+)", TEXT, re.M
    ) or [""]
    cells = [[c.strip() for c in row.strip("|").split("|")] for row in rows.splitlines()]
    return {c[0].strip("`"): c[1:] for c in cells}


def keys(section: str) -> list[str]:
    """Keys in the table of a section."""
    body = TEXT.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = body.split("| key | holds |\n|---|---|\n")[1].split("\n\n")[0]
    return re.findall(r"^\| `(\w+)`", rows, re.M)


@pytest.mark.parametrize(
    "section, level",
    [
        ("Keys of a spec", "spec"),
        ("Variants", "variants"),
        ("Tensors", "tensor"),
        ("Buffers", "buffer"),
        ("Layouts", "layout"),
        ("Roles", "role"),
    ],
)
def test_keys(section, level):
    assert keys(section) == syntax.KEYS[level].split()


def test_keys_of_functions():
    assert list(table("key of a function | holds")) == pipelines.OWN_KEYS["function"].split()


def test_kinds_and_their_keys():
    rows = table("kind | keys | does")
    assert set(rows) == {*syntax.KINDS, "when"}
    for kind, (more, _) in rows.items():
        assert [kind, *re.findall(r"`(\w+)`", more)] == syntax.KEYS[kind].split()
        assert f"\n### {kind}" in TEXT or kind in TEXT.split("\n### repeat")[1].split("\n")[0]


def test_functions_and_constants():
    rows = table("function | gives")
    assert [r.split("(")[0] for r in rows] == list(expr.FUNCTIONS)
    for row in rows:
        given = row.split("(")[1].rstrip(")").split(", ")
        least, most = expr.FUNCTIONS[row.split("(")[0]].arity
        assert len(given) == least or (given[-1] == "..." and len(given) - 1 == least < most)
    assert set(table("constant | is")) == set(expr.CONSTANTS)


def test_words():
    assert tuple(table("role | the kernel")) == syntax.ROLES
    assert tuple(table("sample | values")) == syntax.SAMPLES
    assert tuple(table("scope | where it is")) == syntax.SCOPES
    assert tuple(table("reduction | gives")) == syntax.REDUCTIONS


def test_dtypes():
    rows = table("dtype | bytes | in a gemm, summed in")
    assert tuple(rows) == syntax.DTYPES
    for dtype, (size, sums) in rows.items():
        assert int(size) == model.BYTES[dtype]
        assert tuple(sums.split(", ") if sums else ()) == gemms.SUMS.get(dtype, ())


def test_limits():
    rows = table("limit |")
    assert {row: int(cells[0].replace(",", "")) for row, cells in rows.items()} == {
        "characters of a spec": tree.MAX_CHARS,
        "values of a spec": tree.MAX_NODES,
        "levels of nesting": tree.MAX_DEPTH,
        "variants": syntax.MAX_VARIANTS,
        "statements": syntax.MAX_STATEMENTS,
        "characters of an expression": source.MAX_TEXT,
        "levels of an expression": source.MAX_DEPTH,
        "bits of a whole number": expr.MAX_BITS,
        "indices of a map": syntax.MAX_AXES,
        "points of a map tried one by one": bounds.MAX_POINTS,
        "elements of a tile": context.MAX_ELEMENTS,
        "stages in flight": 8,
    }
