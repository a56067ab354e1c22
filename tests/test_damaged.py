"""Damaged specs: either kernels come out, or located mistakes; never another exception, and soon."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_spec import BASE, read
from timing import within

SPECS = Path(__file__).parent.parent / "specs"
TEXTS = [
    (SPECS / "prepare.yaml").read_text(),
    (SPECS / "examples" / "two_pass.yaml").read_text(),
    BASE,
]
SECONDS = 2.0

TOKENS = re.findall(r"[A-Za-z_]\w*|\d+|->|\+>|\S", "".join(TEXTS))
ODD = (
    "\t \0 \ufeff \u2028 : , [ ] { } ( ) ' \" | > & * ! % @ ` # - ? ~ = + / // % ** @ .T -> +> .. 0 1 -1 9**9**9 "
    "1e999 99999999999999999999 null true inf T lambda __import__ <<: when: raw: reads: where( exp( [i,j] [: :] 64:"
).split(" ")
WORDS = sorted(set(TOKENS)) + ODD


@st.composite
def damaged(draw) -> str:
    """A spec with a few characters, tokens or lines deleted, doubled, swapped or replaced."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 6))):
        text = draw(st.sampled_from([_characters, _tokens, _lines, _numbers]))(text, draw)
    return text


def _edit(parts: list[str], new: list[str], draw) -> list[str]:
    """One edit of a list of parts: delete, double, swap, insert or replace."""
    if not parts:
        return new
    at, other = draw(st.integers(0, len(parts) - 1)), draw(st.integers(0, len(parts) - 1))
    kind = draw(st.sampled_from("delete double swap insert replace".split()))
    if kind == "delete":
        parts[at : at + draw(st.integers(1, 3))] = []
    elif kind == "double":
        parts.insert(other, parts[at])
    elif kind == "swap":
        parts[at], parts[other] = parts[other], parts[at]
    elif kind == "insert":
        parts[at:at] = new
    else:
        parts[at : at + 1] = new
    return parts


def _characters(text: str, draw) -> str:
    return "".join(_edit(list(text), [draw(st.characters())], draw))


def _tokens(text: str, draw) -> str:
    parts = re.split(r"(\w+|->|\+>|[^\w\s])", text)
    return "".join(_edit(parts, [draw(st.sampled_from(WORDS))], draw))


def _lines(text: str, draw) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(_edit(lines, [draw(st.sampled_from(lines or [""]))], draw))


def _numbers(text: str, draw) -> str:
    numbers = list(re.finditer(r"\d+", text))
    if not numbers:
        return text
    at = draw(st.sampled_from(numbers))
    new = draw(st.sampled_from([0, 1, 3, 7, 16, 31, 63, 96, 1000, 65537, 2**31, 2**63, 10**30]))
    return text[: at.start()] + str(new) + text[at.end() :]


def check(text: str) -> None:
    with within(SECONDS):
        got = read(text)
    assert got.errors or got.kernels
    for found in got.errors + got.warnings:
        assert found.where.line >= 1 and found.where.column >= 1
        assert "\n" not in found.what and len(found.what) < 1000


SETTINGS = dict(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@settings(max_examples=300, **SETTINGS)
@given(damaged())
def test_a_damaged_spec_gives_kernels_or_mistakes(text):
    check(text)


@pytest.mark.long
@settings(max_examples=10_000, **SETTINGS | {"derandomize": False})
@given(damaged())
def test_many_damaged_specs(text):
    check(text)


@settings(max_examples=200, **SETTINGS)
@given(st.text(max_size=200) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_any_text_is_refused_in_words(text):
    got = read(text)
    assert got.errors
