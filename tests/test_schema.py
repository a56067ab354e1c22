"""What editors know of specs: `specs/schema.json` is of the language as it is, and judges specs as gdngen does."""

import copy
import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from small_spec import read
from test_docs import BLOCKS, FRAME, framed

from gdngen.errors import Report
from gdngen.judge import fuzz
from gdngen.language import schema, syntax
from gdngen.model import pipelines

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = (ROOT / "docs/spec.md").read_text()
SHIPPED = sorted((ROOT / "specs").rglob("*.yaml"))
SPECS = [*SHIPPED, *sorted((ROOT / "tests/specs").glob("*.yaml"))]
SCHEMA = schema.schema(REFERENCE)
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)


def refused(text: str) -> list[str]:
    """Where the schema finds mistakes."""
    return sorted({e.json_path for e in VALIDATOR.iter_errors(yaml.safe_load(text))})


def test_the_file_is_what_gdngen_prints():
    assert (ROOT / "specs/schema.json").read_text() == schema.dumps(
        REFERENCE
    ), "to mend it: gdngen schema -o specs/schema.json"


def test_it_is_a_schema():
    jsonschema.Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_shipped_spec_names_it(path):
    line = path.read_text().splitlines()[0]
    where = line.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / where).resolve() == ROOT / "specs/schema.json", line


@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.stem)
def test_it_takes_every_spec(path):
    assert not refused(path.read_text())


def test_it_takes_the_examples_of_the_reference():
    for wrong, block in BLOCKS:
        whole = block.startswith(("kernel:", "pipeline:"))
        if not wrong:
            assert not refused(block if whole else framed(block)), block


def test_it_takes_random_specs():
    for seed in range(100):
        text = fuzz.spec_of(seed)
        assert not refused(text), text


# -- what it refuses ---------------------------------------------------------------------------------

WRONG = {  # a change to the frame of test_docs.py, and where the schema sees it
    "unknown key": ("grid:", "gird:", "$"),
    "unknown key of a tensor": ("k: {role: in, shape", "k: {role: in, shap", "$.tensors.k"),
    "no kernel": ("kernel: frame\n", "", "$"),
    "a kernel that is no name": ("kernel: frame", "kernel: 2nd", "$.kernel"),
    "a dim that is no name": ("dims: [C, D]", "dims: [C, D, 3]", "$.dims[2]"),
    "a dim of two words": ("dims: [C, D]", "dims: [C, D, 'a b']", "$.dims[2]"),
    "unknown role": ("role: in,", "role: input,", "$.tensors.k.role"),
    "unknown scope": ("scope: shared, shape: [C, 16]", "scope: share, shape: [C, 16]", "$.buffers.M.scope"),
    "a shape without sides": ("shape: [B, H, T, D]", "shape: []", "$.tensors.k.shape"),
    "a shape that is no list": ("shape: [B, H, T, D]", "shape: B", "$.tensors.k.shape"),
    "four block indices": ("h: H, b: B}", "h: H, b: B, z: 1}", "$.grid"),
    "unknown sample": ("dtype: io}\n  y", "dtype: io, sample: norml}\n  y", "$.tensors.k.sample"),
    "unknown target": ("grid:", "targets: [sm80]\ngrid:", "$.targets[0]"),
    "a target twice": ("grid:", "targets: [sm_80, sm_80]\ngrid:", "$.targets"),
    "unknown reference": ("grid:", "reference: softmx\ngrid:", "$.reference"),
    "an option without choices": ("masked: [true, false]", "masked: []", "$.options.masked"),
    "a lifetime of three": ("[C, C], dtype: acc}\n  P", "[C, C], dtype: acc, live: a .. b .. c}\n  P", "$.buffers.S.live"),
    "unknown statement": ("fill: 0 -> S", "fil: 0 -> S", "$.stages.load[2]"),
    "two statements in one": ("- fill: 0 -> S", "- fill: 0 -> S\n      copy: S -> P", "$.stages.load[2]"),
    "no arrow": ("fill: 0 -> S", "fill: 0", "$.stages.load[2]"),
    "two arrows": ("fill: 0 -> S", "fill: 0 -> S -> P", "$.stages.load[2]"),
    "a fill that adds": ("fill: 0 -> S", "fill: 0 +> S", "$.stages.load[2]"),
    "a key of another statement": ("- fill: 0 -> S", "- fill: 0 -> S\n      axis: 0", "$.stages.load[2]"),
    "a product of one": ("fill: 0 -> S", "gemm: S -> gram", "$.stages.load[2]"),
    "unknown reduction": ("fill: 0 -> S", "reduce: mean(S) -> g_s", "$.stages.load[2]"),
    "a map with nothing to do": ("- fill: 0 -> S", "- map: {i: C}", "$.stages.load[2]"),
    "a map without indices": ("- fill: 0 -> S", "- map: {}\n      do: ['g_s[i] = 0']", "$.stages.load[2]"),
    "a statement in a map": ("- fill: 0 -> S", "- map: {i: C}\n      do: [{fill: 0 -> S}]", "$.stages.load[2]"),
    "a loop of two indices": ("- fill: 0 -> S", "- loop: {d: 2, e: 2}\n      do: [{fill: 0 -> S}]", "$.stages.load[2]"),
    "a solve without a block": ("fill: 0 -> S", "solve: M -> P", "$.stages.load[2]"),
    "a when with nothing to do": ("fill: 0 -> S", "when: c == 0", "$.stages.load[2]"),
    "a stage that is no list": ("  work: []", "  work: {fill: 0 -> S}", "$.stages.work"),
    "a layout of three axes": ("grid:", "layouts: [{swap: [0, 1, 2]}]\ngrid:", "$.layouts[0].swap"),
    "a layout without axes": ("grid:", "layouts: [{when: true}]\ngrid:", "$.layouts[0]"),
    "a role without warps": ("grid:", "roles: {load: {registers: 24}}\ngrid:", "$.roles.load"),
    "a role of both": ("grid:", "roles: {load: {warps: 4, warpgroups: 1}}\ngrid:", "$.roles.load"),
    "a walk without an end": ("grid:", "scalars: {n: {sum: t, over: t, most: 4}}\ngrid:", "$.scalars.n"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_it_refuses_what_gdngen_refuses(kind):
    old, new, where = WRONG[kind]
    assert FRAME.count(old) >= 1 and not refused(FRAME)
    text = FRAME.replace(old, new, 1)
    assert refused(text) == [where]
    assert read(text).errors


def without(value: dict, key: str) -> str:
    return yaml.safe_dump({k: v for k, v in value.items() if k != key}, sort_keys=False)


def test_what_it_needs_gdngen_needs():
    whole = yaml.safe_load(FRAME)
    for key in SCHEMA["definitions"]["spec"]["required"]:
        text = without(whole, key)
        assert refused(text) and read(text).errors, key
    for level, owner in (("tensor", "tensors"), ("buffer", "buffers")):
        for key in SCHEMA["definitions"][level]["required"]:
            spec = copy.deepcopy(whole)
            first = next(iter(spec[owner]))
            del spec[owner][first][key]
            text = yaml.safe_dump(spec, sort_keys=False)
            assert refused(text) == [f"$.{owner}.{first}"]
            assert any(f"'{first}' has no {key}" in e.what for e in read(text).errors)


def test_what_it_needs_of_functions_gdngen_needs():
    (text,) = [block for _, block in BLOCKS if block.startswith("pipeline:")]
    whole = yaml.safe_load(text)
    places = {  # a part of each level, and where it is
        "pipeline": ("$", lambda p: p),
        "check": ("$.functions.scaled_rows.checks[0]", lambda p: f(p)["checks"][0]),
        "step": ("$.functions.scaled_rows.steps[0]", lambda p: f(p)["steps"][0]),
    }

    def f(p):
        return p["functions"]["scaled_rows"]

    for wrong in ({"fits": "scale"}, {"of": [64, 32]}, {}):
        spec = copy.deepcopy(whole)
        f(spec)["values"]["BC"] = wrong
        text, report = yaml.safe_dump(spec, sort_keys=False), Report()
        pipelines.parse(text, "bad.yaml", report)
        assert refused(text) and report.errors(), wrong

    needing = [n for n in pipelines.OWN_KEYS if SCHEMA["definitions"][n]["required"]]
    assert needing == list(places)
    for level, (where, part) in places.items():
        for key in SCHEMA["definitions"][level]["required"]:
            if (level, key) == ("pipeline", "pipeline"):
                continue  # it is what tells a pipeline from a kernel
            spec = copy.deepcopy(whole)
            del part(spec)[key]
            text = yaml.safe_dump(spec, sort_keys=False)
            report = Report()
            pipelines.parse(text, "bad.yaml", report)
            assert refused(text) == [where] and report.errors(), (level, key)


# -- what it says ------------------------------------------------------------------------------------


def test_every_key_has_what_the_reference_says_of_it():
    tables = syntax.KEYS | pipelines.OWN_KEYS
    levels = SCHEMA["definitions"]
    kinds = {s["required"][0]: s for s in levels["statement"]["anyOf"]}
    assert {*levels} - {"expression", "name", "statement"} | {*kinds} == {*tables}
    rows = " ".join(re.sub(r"^\|", "", REFERENCE, flags=re.M).split())
    for level, keys in tables.items():
        properties = (kinds | levels)[level]["properties"]
        assert [k for k in properties if k != "when" or "when" in keys.split()] == keys.split()
        for key, form in properties.items():
            said = form["description"].split("\n\n")[0]
            assert said and f"| {said}" in rows, (level, key)


def test_words_are_explained():
    role = SCHEMA["definitions"]["tensor"]["properties"]["role"]
    assert dict(zip(role["enum"], role["enumDescriptions"])) == {
        "in": "reads it", "out": "writes it", "inout": "does both",
    }  # fmt: skip
    said = SCHEMA["definitions"]["statement"]["anyOf"][0]["properties"]["copy"]["description"]
    assert "-> k_s" in said, "hovering over a statement shows an example"


def test_a_key_that_the_reference_lacks_is_noticed():
    for lacking in ("| `resident` |", "| `axis` |", "| `gemm` |", "| a step | `kernel` |"):
        assert lacking in REFERENCE
        with pytest.raises(KeyError):
            schema.schema(re.sub(rf"^{re.escape(lacking)}.*\n", "", REFERENCE, flags=re.M))


def test_it_is_the_same_every_time():
    assert json.loads(schema.dumps(REFERENCE)) == SCHEMA
    assert schema.dumps(REFERENCE) == schema.dumps(REFERENCE)
