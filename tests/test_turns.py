"""The judge of roles: right programs pass, and every fault planted in one is refused."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from gdngen import driver
from gdngen.judge import planted, turns, unruly
from gdngen.judge.addresses import addresses
from gdngen.judge.judge import trial_sizes
from gdngen.plan.plan import Wish
from gdngen.roles import handover

SPECS = Path(__file__).parent.parent / "specs"
NAMES = ["forward_hopper", "forward_hopper_narrow"]


@pytest.fixture(scope="module", params=NAMES)
def variant(request):
    wish = {"io": "float16", "layout": "bthd"}
    return driver.load(SPECS / f"{request.param}.yaml", wish).variants[0]


@pytest.fixture(scope="module")
def made(variant):
    return driver.plans(variant, Wish())[0]


def test_a_right_plan_passes(variant, made):
    verdict = turns.judge(variant.kernel, made.kernel, addresses(made.kernel, made.plan))
    assert verdict.ok, verdict.faults
    assert verdict.blocks >= 3


def test_trials_take_every_branch(variant):
    """A first block, which starts from a state; a warm-up; a sequence's end; more rounds than places."""
    sizes = trial_sizes(variant.kernel)
    found = [dict(t.env) for t in turns.trials(variant.kernel, sizes, 0)]
    assert any(env["nw"] == env["c0"] == 0 for env in found)
    assert any(0 < env["nw"] <= env["c0"] for env in found)
    assert any(env["c0"] + env["count"] == env["NC"] for env in found)
    places = max(b.stages for b in variant.kernel.buffers)
    assert any(env["count"] > 2 * places for env in found)


def test_every_planted_fault_is_refused(variant):
    found = list(planted.planted(variant, variant.kernel.module))
    sown = Counter(p.kind for p in found)
    assert set(sown) == set(unruly.KINDS)
    assert not [p for p in found if not p.caught]


def test_turns_show_most_faults_without_the_proof(variant, made):
    """Both say the same of what breaks; a fence alone shows in no order of turns."""
    where, sizes = addresses(made.kernel, made.plan), trial_sizes(variant.kernel)
    shown = Counter()
    for m in unruly.mutants(handover.of(made.kernel), where):
        if m.kind in ("unsaid", "stacked"):
            assert turns.played(variant.kernel, m.parted, m.addresses, sizes, 0), m.names
        if m.kind == "unwaited":
            shown[bool(turns.played(variant.kernel, m.parted, m.addresses, sizes, 0))] += 1
    assert shown[True] > 3 * shown[False]


def test_another_program_than_the_authors_is_refused(variant, made):
    """A plan may not change what is computed."""
    where = addresses(made.kernel, made.plan)
    stages = [s for s in made.kernel.stages if s.name == "state"]
    (stage,) = stages
    lacking = replace(stage, body=stage.body[1:-1])  # neither cleared nor written at the end
    changed = tuple(lacking if s is stage else s for s in made.kernel.stages)
    verdict = turns.judge(variant.kernel, replace(made.kernel, stages=changed), where)
    assert not verdict.ok
