"""Copies that TMA makes by itself: what is put in between statements, and where."""

from __future__ import annotations

from functools import cache

import pytest
from rendering import kernels_of
from small_spec import edited, read

from gdngen.model.analysis import analyse
from gdngen.model.model import Copy
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

NAME = "prepare_blocked_c64_k128_v128_bfloat16"
VARLEN = "prepare_blocked_c64_k128_v128_bfloat16_layout_bthd_sum_inside_outputs_wu_scores_true_varlen_true"


@cache
def planned(policy: str, target: str = "sm_90"):
    kernel = kernels_of("prepare_blocked")[NAME]
    return plan.plan(kernel, analyse(kernel), plan.Wish(policy), target)


def order(policy: str) -> list:
    made = planned(policy)
    return [s for stage in bulk.timed(made.kernel, made.plan.slots) for s in stage]


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


WRONG = (
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
    assert got.errors[0].where.line == 14
