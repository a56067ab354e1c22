"""Random specs under every policy, judged; and plans broken on purpose, all of which the judge refuses."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gdngen.judge import fuzz, fuzzspec, mutants, planted
from gdngen.judge.addresses import addresses
from gdngen.judge.judge import judge, trial_sizes
from gdngen.model.model import Branch, Loop
from gdngen.plan import plan as planning
from gdngen.plan.plan import Wish

IN_ORDER = tuple(p for p in planning.POLICIES if p != "lean")
LEAN_TILES = 40  # of a spec that `lean` plans here
FEW_TILES = 12  # of a spec that is planned with everything allowed
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@st.composite
def specs(draw) -> str:
    return fuzzspec.write(lambda n: draw(st.integers(0, n - 1)))


@settings(
    max_examples=200, deadline=None, derandomize=True, database=None, suppress_health_check=QUIET
)
@given(specs())
def test_plans_of_random_specs(text):
    assert fuzz.check(text, IN_ORDER) == []


def test_a_random_spec_has_a_tensor():
    """Number 403928 had none, since all that it does stands in a branch."""
    assert "ceildiv(T, 32)" in fuzz.spec_of(403928) and fuzz.check(fuzz.spec_of(403928)) == []


def test_lean_plans_of_random_specs():
    done = 0
    for seed in range(80):
        text = fuzz.spec_of(seed)
        if len(fuzz.load(text).kernel.shared()) <= LEAN_TILES:
            assert fuzz.check(text, ("lean",)) == [], f"spec {seed}"
            done += 1
    assert done > 30


def test_plans_with_everything_allowed():
    """Second loads, reads past a tile, views of other dtypes."""
    done = views = 0
    for seed in range(90):
        text = fuzz.spec_of(seed)
        v = fuzz.load(text)
        if len(v.kernel.shared()) <= FEW_TILES:
            assert fuzz.check(text, ("freest",)) == [], f"spec {seed}"
            made = planning.plan(v.kernel, v.found, fuzz.FREEST, "sm_80")
            done, views = done + 1, views + any(s.dtypes for s in made.plan.slots)
    assert done > 30 and views > 3


def test_lean_never_asks_for_more():
    """Than any policy, or the compiler merging every tile of the order that lean chose."""
    done = 0
    for seed in range(70):
        v = fuzz.load(fuzz.spec_of(seed))
        if len(v.kernel.shared()) > FEW_TILES:
            continue
        made = planning.plan(v.kernel, v.found, Wish("lean", "bytes"), "sm_80")
        order = planning.plan(made.kernel, made.found, Wish("separate"), "sm_80").plan.asked
        own = [planning.plan(v.kernel, v.found, Wish(p), "sm_80").plan.asked for p in IN_ORDER]
        assert made.plan.asked <= min(order, *own), f"spec {seed}"
        done += 1
    assert done > 40


def broken(seeds) -> tuple[Counter, list]:
    """How many mutants of each kind there were, and those that the judge let through."""
    found = list(planted.in_random(seeds))
    return Counter(p.kind for p in found), [p for p in found if not p.caught]


def test_the_judge_refuses_every_mutant():
    count, missed = broken(range(50))
    assert not missed
    assert set(count) == set(mutants.KINDS) and min(count.values()) > 10


def test_side_by_side_is_fine_where_an_overlap_by_a_column_is_not():
    done = 0
    for seed in range(30):
        v = fuzz.load(fuzz.spec_of(seed))
        apart = addresses(
            v.kernel, planning.plan(v.kernel, v.found, Wish("separate"), "sm_80").plan
        )
        pairs = sorted(mutants.doomed(v.kernel, trial_sizes(v.kernel)))
        for x, y in [p for p in pairs if mutants.is_alike(v.kernel, *p)][:2]:
            assert judge(v.kernel, v.kernel, mutants.side_by_side(v.kernel, apart, x, y, 0)).ok
            assert not judge(v.kernel, v.kernel, mutants.side_by_side(v.kernel, apart, x, y, 1)).ok
            done += 1
    assert done > 10


def test_specs_are_varied_and_reproducible():
    assert fuzz.spec_of(7) == fuzz.spec_of(7) != fuzz.spec_of(8)
    seen, sizes = Counter(), set()
    for seed in range(60):
        kernel = fuzz.load(fuzz.spec_of(seed)).kernel
        sizes.add(len(kernel.buffers))
        seen.update(b.dtype for b in kernel.buffers)
        todo = list(kernel.statements())
        while todo:
            s = todo.pop()
            seen[s.kind if isinstance(s, Loop) else type(s).__name__] += 1
            todo += (
                s.body if isinstance(s, Loop) else s.then + s.other if isinstance(s, Branch) else ()
            )
    wanted = {
        "repeat",
        "loop",
        "pipelined",
        "Branch",
        "Assign",
        "Gemm",
        "Copy",
        "Reduce",
        "Cumsum",
        "Raw",
        "Fill",
    }
    assert wanted | {"float16", "bfloat16", "float32"} <= set(seen)
    assert min(sizes) <= 3 and max(sizes) >= 30


@pytest.mark.long
def test_ten_thousand_specs(capsys):
    in_order = [word for p in IN_ORDER for word in ("--policy", p)]
    few = ["--policy", "lean", "--tiles", str(LEAN_TILES)]
    freest = ["--policy", "freest", "--tiles", str(FEW_TILES)]
    for options in (in_order, few, freest):
        assert fuzz.main(["--examples", "10000", *options]) == 0, capsys.readouterr().out


@pytest.mark.long
def test_the_judge_refuses_thousands_of_mutants():
    count, missed = broken(range(1000))
    assert not missed and set(count) == set(mutants.KINDS)
