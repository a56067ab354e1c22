"""Copies that TMA makes by itself: what is put in between statements, and where."""

from __future__ import annotations

from functools import cache

import pytest
from rendering import SPECS, kernels_of
from small_spec import edited, read

from gdngen import driver
from gdngen.language import expr
from gdngen.model.analysis import analyse
from gdngen.model.model import Branch, Copy, Loop
from gdngen.plan import bulk, plan
from gdngen.plan.emission import Guarded
from gdngen.roles.sync import (
    AsyncLoad,
    AsyncStore,
    BarrierArrive,
    BarrierWait,
    Drain,
    Fence,
    Together,
)
from gdngen.verify import cpu, hard

NAME = "prepare_blocked_c64_k128_v128_bfloat16"
VARLEN = "prepare_blocked_c64_k128_v128_bfloat16_layout_bthd_sum_inside_outputs_wu_scores_true_varlen_true"


@cache
def planned(policy: str, target: str = "sm_90"):
    kernel = kernels_of("prepare_blocked")[NAME]
    return plan.plan(kernel, analyse(kernel), plan.Wish(policy), target)


def order(policy: str) -> list:
    made = planned(policy)
    return [s for stage in bulk.timed(made.kernel, made.plan.slots).stages for s in stage]


def test_only_devices_with_tma_copy_so():
    assert planned("lean").plan.bulk
    assert not planned("lean", "sm_80").plan.bulk
    assert not bulk.wanted(kernels_of("prepare_blocked")[VARLEN], "sm_90")


@pytest.mark.parametrize("policy", ["separate", "share", "lean"])
def test_a_tile_is_touched_only_when_it_is_there(policy):
    made = planned(policy)
    place = {t: s.name for s in made.plan.slots for t in s.tenants}
    coming: dict[str, str] = {}
    waits = 0
    for s in order(policy):
        if isinstance(s, AsyncLoad):
            coming[place[s.copy.dst.name]] = s.barrier.name
        elif isinstance(s, BarrierWait):
            assert s.barrier.name in coming.values()
            coming = {k: v for k, v in coming.items() if v != s.barrier.name}
            waits += 1
        elif not isinstance(s, BarrierArrive | Drain | Fence | Together):
            touched, _ = bulk._storages(s.copy if isinstance(s, AsyncStore) else s, place)
            assert not touched & coming.keys()
    assert waits == 2 and not coming


@pytest.mark.parametrize("policy", ["separate", "share", "lean"])
def test_storage_is_written_again_only_when_stores_have_read_it(policy):
    made = planned(policy)
    place = {t: s.name for s in made.plan.slots for t in s.tenants}
    leaving: set[str] = set()
    for s in order(policy):
        if isinstance(s, AsyncStore):
            leaving |= bulk._storages(s.copy, place)[0]
        elif isinstance(s, Drain):
            leaving.clear()
        elif not isinstance(s, BarrierWait | BarrierArrive | Fence | Together):
            writes = bulk._storages(s.copy if isinstance(s, AsyncLoad) else s, place)[1]
            assert not writes & leaving
    assert not leaving, "a block ends before its stores have read their tiles"


@pytest.mark.parametrize("policy", ["share", "lean"])
def test_what_threads_wrote_is_seen_before_tma_reads_or_overwrites_it(policy):
    steps = order(policy)
    used: set[str] = set()
    made = planned(policy)
    place = {t: s.name for s in made.plan.slots for t in s.tenants}
    for at, s in enumerate(steps):
        if isinstance(s, AsyncStore):
            assert isinstance(steps[at - 2], Fence) and isinstance(steps[at - 1], Together)
        elif isinstance(s, AsyncLoad) and place[s.copy.dst.name] in used:
            before = steps[at - 3 : at]
            assert any(isinstance(x, Fence) for x in before) and isinstance(before[-1], Together)
        if not isinstance(s, BarrierWait | BarrierArrive | Drain | Fence | Together):
            inner = s.copy if isinstance(s, AsyncLoad | AsyncStore) else s
            used |= bulk._storages(inner, place)[0]


def test_what_is_copied_so_has_no_bounds_checks():
    guarded = [s for s in order("lean") if isinstance(s, Guarded)]
    copied = {c.dst.name for g in guarded for c in g.loads}
    assert copied == {"beta_s", "g_s"}
    assert not any(isinstance(s, Copy) and s.dst.name == "k_s" for s in order("lean"))


def test_blocks_are_counted_in_the_order_of_the_layout():
    kernels = kernels_of("prepare_blocked")
    assert [name for name, _ in kernels[NAME].grid] == ["c", "h", "b"]
    assert [name for name, _ in kernels[f"{NAME}_layout_bthd"].grid] == ["h", "c", "b"]


# -- rounds of a loop ------------------------------------------------------------------------------

PREPARE = (SPECS / "forward_prepare.yaml").read_text()
NEXT = """        - copy: k[b, hk, row + (n + 1)*BC:row + (n + 2)*BC, :] -> k_s    # of the next round
          when: n + 1 < count
"""
FIRST = "    - copy: k[b, hk, row:row + BC, :] -> k_s\n"
GRAM = "        - gemm: k_s @ k_s.T -> s\n"
OWN = "        - copy: k[b, hk, row + n*BC:row + (n + 1)*BC, :] -> k_s\n"
assert PREPARE.count(NEXT) == PREPARE.count(FIRST) == PREPARE.count(GRAM) == 1


def rounds_of(text: str, tmp_path, policy: str = "lean"):
    """A kernel of a loop over rounds, planned."""
    path = tmp_path / "forward_prepare.yaml"
    path.write_text(text)
    wish = {"io": "bfloat16", "DK": "128", "layout": "bhtd"}
    (found,) = driver.load(path, wish).variants
    kernel = found.kernel
    return plan.plan(kernel, analyse(kernel), plan.Wish(policy), "sm_90")


def unrolled(made, count: int) -> list:
    """What `timed` says, with so many rounds of its loop run out: statement, and n."""
    out = []
    timed = bulk.timed(made.kernel, made.plan.slots)
    if timed.loop:
        body = [s for stage in timed.stages for s in stage]
        rounds = [(s, n) for n in range(count) for s in body]
        steps = [(s, 0) for s in timed.before] + rounds + [(s, 0) for s in timed.behind]
        for s, n in steps:
            started = isinstance(s, Branch) and isinstance(s.then[0], AsyncLoad)
            out += [(x, n) for x in s.then if n + 1 < count] if started else [(s, n)]
        return out
    for stage in bulk.timed(made.kernel, made.plan.slots).stages:
        for s in stage:
            if not isinstance(s, Loop):
                out.append((s, 0))
                continue
            for n in range(count):
                for x in s.body:
                    if isinstance(x, Branch):
                        assert len(x.then) == 2 and not x.other
                        out += [(y, n) for y in x.then if n + 1 < count]
                    else:
                        out.append((x, n))
    return out


def check_rounds(steps: list, place) -> tuple[int, int]:
    """Loads and stores of a run; everything waits for what it needs, in whatever round."""
    loads, coming, leaving, used, seen = {}, {}, set(), set(), [0, 0]
    fenced = together = True
    for s, n in steps:
        if isinstance(s, AsyncLoad):
            (storage,) = bulk._storages(s.copy, place)[1]
            assert storage not in coming and storage not in leaving
            assert storage not in used or (fenced and together)
            coming[storage] = s.barrier.name
            assert expr.evaluate(s.round, {"n": n}) == loads.get(s.barrier.name, 0)
            loads[s.barrier.name] = loads.get(s.barrier.name, 0) + 1
            seen[0] += 1
        elif isinstance(s, BarrierWait):
            assert expr.evaluate(s.round, {"n": n}) == loads[s.barrier.name] - 1
            coming = {k: v for k, v in coming.items() if v != s.barrier.name}
        elif isinstance(s, AsyncStore):
            assert fenced and together
            leaving |= bulk._storages(s.copy, place)[0]
            seen[1] += 1
        elif isinstance(s, Drain):
            leaving.clear()
            together = False
        elif isinstance(s, Fence):
            fenced, together = True, False
        elif isinstance(s, Together):
            together = True
        elif not isinstance(s, BarrierArrive):
            touches, writes = bulk._storages(s, place)
            assert not touches & coming.keys() and not writes & leaving
            used |= touches
            fenced = together = False
    assert not coming and not leaving, "a block ends while something is under way"
    return tuple(seen)


ROUNDS = {
    "of the next round": (PREPARE, True),
    "of its own round": (PREPARE.replace(NEXT, "").replace(FIRST, "").replace(GRAM, OWN + GRAM), True),
    "of the round after the next": (PREPARE.replace("n + 1 < count", "n + 2 < count"), False),
    "before its use": (PREPARE.replace(NEXT, "").replace(GRAM, NEXT + GRAM), False),
    "in every round": (PREPARE.replace("          when: n + 1 < count\n", ""), False),
    "not before the loop": (PREPARE.replace(FIRST, "    - fill: 0 -> k_s\n"), False),
}  # fmt: skip


@pytest.mark.parametrize("policy", ["separate", "lean"])
@pytest.mark.parametrize("case", ROUNDS)
def test_rounds_of_a_loop_wait_for_what_they_need(case, policy, tmp_path):
    """A load of the loop is made by TMA where each is used once before the next, else as any copy is."""
    text, by_tma = ROUNDS[case]
    made = rounds_of(text, tmp_path, policy)
    place = {t: s.name for s in made.plan.slots for t in s.tenants}
    inside = [c for c in bulk.loads(made.kernel) if made.kernel.statements().count(c) == 0]
    assert bool(inside) == by_tma
    if by_tma:
        for count in (1, 2, 5):
            assert check_rounds(unrolled(made, count), place) == (count, count)


@pytest.mark.parametrize("policy", ["separate", "share", "lean"])
@pytest.mark.parametrize("outputs", ["Awu", "wu"])
def test_a_block_that_takes_several_waits_for_what_it_needs(policy, outputs):
    """k and v of the next round are on their way as soon as their storage is free; A, w and u leave."""
    wish = {"BC": "64", "DK": "64", "DV": "64", "io": "bfloat16", "G": "1", "sum": "given"}
    wish |= {
        "layout": "bthd",
        "EACH": "3",
        "outputs": outputs,
        "scores": "false",
        "varlen": "false",
    }
    (found,) = driver.load(SPECS / "prepare_blocked.yaml", wish).variants
    kernel = found.kernel
    made = plan.plan(kernel, analyse(kernel), plan.Wish(policy), "sm_90")
    assert kernel.rounds == ("c", 3) and len(bulk.timed(kernel, made.plan.slots).before) == 4
    place = {t: s.name for s in made.plan.slots for t in s.tenants}
    stores = sum(isinstance(s, AsyncStore) for s, _ in unrolled(made, 1))
    assert stores == len(outputs) or policy != "lean"  # others store fragments as they are
    for count in (1, 2, 3):
        assert check_rounds(unrolled(made, count), place) == (2 * count, stores * count)


def test_a_load_into_storage_that_is_in_use_waits_for_its_own_round():
    """With q, v lies where q lay: it cannot come before q of its round is done with."""
    wish = {"BC": "64", "DK": "64", "DV": "64", "io": "bfloat16", "G": "1", "sum": "inside"}
    wish |= {"layout": "bthd", "EACH": "2", "outputs": "wu", "scores": "true", "varlen": "false"}
    (found,) = driver.load(SPECS / "prepare_blocked.yaml", wish).variants
    kernel = found.kernel
    made = plan.plan(kernel, analyse(kernel), plan.Wish("lean"), "sm_90")
    assert any({"q_s", "v_s"} <= set(s.tenants) for s in made.plan.slots)
    place = {t: s.name for s in made.plan.slots for t in s.tenants}
    before = [
        s.copy.dst.name
        for s in bulk.timed(kernel, made.plan.slots).before
        if isinstance(s, AsyncLoad)
    ]
    assert sorted(before) == ["k_s", "q_s"]
    assert check_rounds(unrolled(made, 2), place)[0] == 6


@pytest.mark.parametrize("tokens", [1, 64, 200, 320])
def test_a_block_that_takes_several_is_right(tokens):
    """Whole blocks, and ones whose last round is missing or ragged, against a float64 solve."""
    kernel = kernels_of("prepare_blocked")[
        "prepare_blocked_c64_k64_v64_bfloat16_layout_bthd_each_2"
    ]
    path = SPECS.parent / "generated" / "prepare_blocked" / f"{kernel.module}_sm_90.py"
    case = hard.Case(length=lambda chunk: tokens)
    tensors = hard.inputs(case, kernel)
    cpu.compile(path).run(tensors)
    assert max(hard.errors(kernel, tensors).values()) < 6e-3


WRONG = (
    ("async: true\nrounds: {b: 2, c: 2}", "'rounds' names one block index and a number"),
    ("async: true\nrounds: {d: 2}", "unknown block index 'd'"),
    ("async: true\nrounds: {c: 0}", "how many a block takes is 0"),
    ("rounds: {c: 2}", "async is not true"),
    ("async: 3", "'async' is 3; true or false is meant"),
    ("fast_math: N", "'fast_math' is 64; true or false is meant"),
    ("async: c > 0", "'c' is known only when the kernel runs"),
    (
        "layouts: [{swap: [0, 1], tensors: [g], grid: [b, x]}]",
        "a layout's grid names every block index once: c b",
    ),
)


@pytest.mark.parametrize("line, said", WRONG)
def test_mistakes_are_told_where_they_stand(line, said):
    got = read(edited(("threads: 128", f"threads: 128\n{line}")))
    assert len(got.errors) == 1 and said in str(got.errors[0])
    assert got.errors[0].where.line == 14 + line.count("\n")
