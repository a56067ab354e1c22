"""`gdngen explain`: the sentences and figures of plans whose values are known."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from gdngen import cli, driver
from gdngen.devices import device
from gdngen.plan.plan import Wish
from gdngen.show import explain

ROOT = Path(__file__).parent.parent
NAME = "prepare_c64_k64_v64_float16"
BYTES = Wish(objective="bytes")
MOST = Wish(objective="bytes", allow_reload=True, allow_views=True)


@pytest.fixture(scope="module")
def prepare():
    return driver.load(ROOT / "specs/prepare.yaml")


@pytest.fixture(scope="module")
def variant(prepare):
    return next(v for v in prepare.variants if v.kernel.module == NAME)


def told(variant, buffer, wish=BYTES):
    return explain.story(variant, wish, "sm_80", device("sm_80"), buffer)


def relation(story, other):
    (found,) = [r for r in story.relations if r.other == other]
    return found


def test_the_plan_of_prepare(prepare, variant):
    e = explain.explained(prepare, variant, BYTES, "sm_80", device("sm_80"))
    assert (e.asked, e.separate, e.limit) == (41_472, 82_432, 166_912)
    assert (e.peak.live, e.peak.line, e.peak.stage, e.peak.alike) == (41_216, 60, "gate", 9)
    assert e.peak.statement == "map of S"
    assert [(x.name, x.bytes, x.until, x.peak_without) for x in e.peak.living] == [
        ("P", 16_384, 69, 41_216),
        ("S", 16_384, 84, 25_088),
        ("k_s", 8_192, 75, 41_216),
        ("beta_s", 256, 82, 40_960),
    ]
    assert [[t.name for t in turns] for turns in e.slots] == [
        ["k_s", "v_s", "u_out"],
        ["g_s"],
        ["beta_s"],
        ["S"],
        ["P", "k_beta", "v_beta"],
    ]
    assert e.slots[0][1].start == ("apply_k", 50) and e.slots[0][1].end == ("scale_v", 82)
    assert [(c.kind, c.saves, c.costs) for c in e.changes] == [
        ("moved", 8_192, 0),
        ("staged", 0, 0),
    ]
    assert e.frees == (
        ("--policy lean --objective bytes --allow-reload --allow-views", 33_280),
        ("--set BC=32", 12_544),
        ("--set DK=32", 37_376),
    )


def test_the_next_kilobyte(prepare, variant):
    e = explain.explained(prepare, variant, BYTES, "sm_80", device("sm_80"))
    assert (e.room.blocks, e.room.before_a_block, e.room.to_limit) == (2, 41_472, 125_440)
    on = device("sm_80")
    most = e.asked + e.room.before_a_block
    assert on.blocks_per_sm(most, 128) == 2 and on.blocks_per_sm(most + 1, 128) == 1
    assert dict(e.room.idle) == {
        "load": 32_768,
        "kkt": 32_768,
        "store_A": 16_640,
        "apply_v": 8_704,
    }
    text = "\n".join(explain.lines(e))
    assert "would cost no block: sm_80 holds 2 blocks per SM up to 82,944 bytes" in text


@pytest.mark.parametrize(
    "limits, said",
    [
        ({"block": 41_500}, "The next kilobyte would not fit sm_80, which gives a block 41,500."),
        ({"block": 41_000}, "It does not fit sm_80, which gives a block 41,000: 472 too many."),
        (
            {"sm_shared": 84},  # KiB: two blocks of 41,984 and the 1,024 that each costs besides
            "The next kilobyte would cost a block: sm_80 holds 2 blocks per SM up to 41,984 bytes.",
        ),
    ],
)
def test_the_next_kilobyte_where_there_is_little(prepare, variant, limits, said):
    on = replace(device("sm_80"), **limits)
    assert said in explain.lines(explain.explained(prepare, variant, BYTES, "sm_80", on))


def test_a_buffer_that_shares(variant):
    s = told(variant, "k_beta")
    assert (s.first, s.bytes, s.slot, s.line) == (25_088, 16_384, "P", 40)
    assert s.lives == (
        "lives from line 75 (map of k_beta, stage 'scale_k') to line 77 "
        "(gemm S @ k_beta -> w_f, stage 'apply_k'), which reads it last"
    )
    kinds = {r.other: (r.kind, r.line) for r in s.relations}
    assert kinds == {
        "P": ("shares", 69),
        "v_beta": ("shares", 77),
        "S": ("interferes", 75),
        "k_s": ("interferes", 75),
        "beta_s": ("interferes", 75),
        "v_s": ("interferes", 50),
        "g_s": ("class", 0),
        "u_out": ("class", 0),
    }
    assert relation(s, "S").why == (
        "both live at line 75 (map of k_beta, stage 'scale_k'); S is needed until line 84 "
        "(gemm S @ v_beta -> u_f)"
    )
    assert relation(s, "P").why == (
        "P is dead after line 69 (copy tmp -> P), k_beta starts at line 75 (map of k_beta)"
    )
    assert (
        "--allow-views" in relation(s, "u_out").why
        and "[64, 64] and [64]" in relation(s, "g_s").why
    )


def test_two_that_the_authors_order_keeps_apart(variant):
    why = relation(told(variant, "v_s"), "k_s").why
    assert why.endswith("in the author's order both lived at line 50 (copy v -> v_s)")
    s = told(variant, "v_s", Wish("share"))
    assert relation(s, "k_s").kind == "interferes" and relation(s, "k_s").line == 50
    assert [c.kind for c in told(variant, "v_s").changes] == ["moved"]


def test_tiles_in_place_and_gone_and_in_registers(variant):
    (forty,) = driver.load(ROOT / "tests/specs/forty.yaml").variants
    s = told(forty, "d0", Wish())
    assert relation(s, "a0").kind == "in place"
    assert relation(s, "a0").why == "d0 is computed in place of a0 at line 66 (map of d0)"
    assert relation(s, "b0").kind == "interferes" and relation(s, "a1").kind == "free"
    gone = told(variant, "v_s", MOST)
    assert gone.first is None and "no such tile" in explain.story_lines(gone)[1]
    assert [(c.kind, c.saves) for c in gone.changes] == [("direct", 8_192)]
    gram = told(variant, "gram")
    assert gram.first is None and "registers" in explain.story_lines(gram)[2]
    assert "54" in gram.lives and "59" in gram.lives


def test_tiles_of_a_pipelined_loop_and_of_roles():
    loop = driver.load(ROOT / "specs/forward.yaml").variants[0]
    s = told(loop, "d_s", Wish())
    assert "throughout the pipelined loop of lines 90 to 134" in s.lives
    assert {r.kind for r in s.relations} == {"interferes"}
    roles = driver.load(ROOT / "specs/forward_hopper.yaml").variants[0]
    s = explain.story(roles, Wish(), "sm_90", device("sm_90"), "k_s")
    assert {r.kind for r in s.relations} == {"roles"} and s.bytes == 49_152


def test_what_the_compilers_merging_puts_together():
    blocked = driver.load(ROOT / "specs/prepare_blocked.yaml").variants
    v = next(v for v in blocked if v.kernel.module == "prepare_blocked_c64_k128_v128_bfloat16")
    s = told(v, "D", Wish())
    assert (relation(s, "A_s").kind, relation(s, "Q").kind) == ("merged", "shares")


def test_relations_are_the_analysis(variant):
    """Whoever is said to interfere does, and nobody else; who shares has bytes in common."""
    from gdngen.plan import plan as planning

    p = planning.plan(variant.kernel, variant.found, BYTES, "sm_80")
    for b in p.kernel.shared():
        s = told(variant, b.name)
        for r in s.relations:
            meets = p.found.interfere(b.name, r.other)
            assert meets == (r.kind in ("interferes", "private", "in place")), (b.name, r)
            same = p.plan.slot_of(b.name) == p.plan.slot_of(r.other)
            assert same == (r.kind in ("shares", "in place", "beside")), (b.name, r)


# -- the command line ----------------------------------------------------------------------------


def run(*args):
    return cli.main(["explain", str(ROOT / "specs/prepare.yaml"), *args])


@pytest.mark.parametrize(
    "args, said",
    [
        (["k_bta", "--variant", NAME], "no buffer is called 'k_bta'; did you mean 'k_beta'?"),
        (["k", "--variant", NAME], "'k' is a tensor, in global memory: no buffer"),
        (["--variant", NAME[:-1] + "5"], f"did you mean '{NAME}'?"),
        ([], "an explanation is of one variant, and there are 21"),
        (["--variant", NAME, "--device", "sm_81"], "unknown device 'sm_81'"),
    ],
)
def test_mistakes(capsys, args, said):
    assert run(*args) == 2
    got = capsys.readouterr()
    (error,) = re.findall(r"^error: .*", got.err, re.M)  # beside what the spec's author warns of
    assert said in error and not got.out


def test_the_command_prints_sentences_and_data(capsys):
    options = ["--variant", NAME, "--objective", "bytes"]
    assert run(*options) == 0
    text = capsys.readouterr().out
    assert text.startswith(
        f"{NAME} (sm_80, policy lean) asks for 41,472 bytes; every tile in storage of its own would "
        "take 82,432.\n"
    )
    assert "without it 8,192 bytes more" in text
    assert run(*options, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["peak"]["line"] == 60 and data["changes"][0]["saves"] == 8_192
    assert run("k_beta", *options, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["first"] == 25_088 and data["relations"][0]["other"] == "k_s"
    assert run("k_beta", *options) == 0
    text = capsys.readouterr().out
    assert "It lies at bytes 25,088 .. 41,471, in the slot of P." in text
    assert run("--set", "BC=64", "--set", "DK=32", "--set", "DV=32", "--set", "io=float16") == 0
    assert "prepare_c64_k32_v32_float16" in capsys.readouterr().out
