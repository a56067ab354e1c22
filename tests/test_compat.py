"""The README's table of versions is what `make compat` found, and what pyproject.toml claims."""

import json
import re
import tomllib

import compat
import pytest

KNOWN = json.loads(compat.RECORD.read_text())
PROJECT = tomllib.loads((compat.ROOT / "pyproject.toml").read_text())["project"]


def claimed():
    (least,) = (
        re.fullmatch(r"tilelang>=([\d.]+)", need)[1]
        for need in PROJECT["optional-dependencies"]["run"]
        if need.startswith("tilelang")
    )
    return least


def test_the_table_in_the_readme_is_what_was_found():
    text = compat.README.read_text()
    (shown,) = re.findall(r"<!-- compat -->\n(.*?)\n<!-- end -->", text, re.S)
    assert shown == compat.table(KNOWN), "run python tests/compat.py"


def test_every_version_was_tried_on_every_kernel_of_the_sample():
    assert set(KNOWN) == set(compat.VERSIONS)
    names = {name for names in compat.SAMPLE.values() for name in names}
    for version, rows in KNOWN.items():
        assert names <= set(rows), version


def test_the_oldest_and_the_newest_that_are_claimed_are_among_them():
    pinned = re.search(r"^tilelang==(\S+)", (compat.ROOT / "constraints.txt").read_text(), re.M)[1]
    assert {claimed(), pinned} <= set(KNOWN)


@pytest.mark.parametrize("version", KNOWN)
def test_claims_hold(version):
    """From the oldest claimed on, results are right; of the newest, bytes are the plan's too."""
    rows = KNOWN[version]
    if version not in compat.NO_SWITCH:
        assert all("right" in row["c"] for row in rows.values())
    if version == list(compat.VERSIONS)[-1]:
        found = [f for row in rows.values() for f in row.values() if "planned" in f]
        assert all(f.get("asked") == f["planned"] for f in found)


def test_a_table_says_what_was_refused():
    rows = {
        "0.1.12": {
            "a": {"digest": "x", "sm_80": {"planned": 8, "asked": 8}, "c": {"right": True}},
            "b": {
                "digest": "y",
                "sm_80": {"planned": 8, "refused": "no | such"},
                "c": {"right": True},
            },
        },
        "0.1.9": {"a": {"digest": "x", "sm_80": {"planned": 8, "asked": 4}, "c": {"refused": "w"}}},
    }
    assert compat.table(rows).splitlines() == [
        "| TileLang | sm_80 | run on the CPU |",
        "| --- | --- | --- |",
        "| 0.1.9 | 1 of 1 lowered, 1 in what is planned or less | 0 of 1 right |",
        "| 0.1.12 | 1 of 2 lowered, 1 in just what is planned | 2 of 2 right |",
        "",
        "- 0.1.9, c: w (a)",
        "- 0.1.12, sm_80: no   such (b)",
    ]
