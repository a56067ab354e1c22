"""The lean planner against brute force, its proof, and the figures that it is known for."""

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timing import quickest, within

from gdngen import driver
from gdngen.devices import device
from gdngen.plan import blocks as building
from gdngen.plan import lean, order, slots, storage
from gdngen.plan.order import Block

ROOT = Path(__file__).parent.parent


def legal_orders(block: Block):
    n = len(block.before)
    for order_ in itertools.permutations(range(n)):
        done = 0
        for unit in order_:
            if block.before[unit] & ~done:
                break
            done |= 1 << unit
        else:
            yield order_


def peaks(block: Block, order_) -> tuple[int, ...] | None:
    """Peak per class of an order, straight from the definition of a live range."""
    place = {u: i for i, u in enumerate(order_)}
    spans = []
    for users in block.users:
        at = [place[u] for u in place if users >> u & 1]
        spans.append((min(at), max(at)))
    most = [0] * block.classes
    for step, unit in enumerate(order_):
        now = list(block.fixed)
        registers = 0
        for (first, last), kind, size in zip(spans, block.kind, block.size):
            if first <= step <= last:
                if kind < 0:
                    registers += size
                else:
                    now[kind] += size
        if registers > block.registers:
            return None
        taken: set[int] = set()
        for source, target in block.inplace[unit]:
            ends = spans[source][1] == step and spans[target][0] == step
            if ends and not {source, target} & taken:
                now[block.kind[target]] -= block.size[target]
                taken |= {source, target}
        now = [a + b for a, b in zip(now, block.inside[unit])]
        most = [max(a, b) for a, b in zip(most, now)]
    return tuple(most)


@st.composite
def blocks(draw, units=st.integers(2, 6)):
    n = draw(units)
    buffers = draw(st.integers(1, 5))
    rng = random.Random(draw(st.integers(0, 10**6)))
    users, writes = [], []
    for _ in range(buffers):
        touching = rng.sample(range(n), rng.randint(1, min(3, n)))
        users.append(sum(1 << u for u in touching))
        writes.append({u for u in touching if u == min(touching) or rng.random() < 0.3})
    before = [
        sum(
            1 << i
            for i in range(u)
            if any(m >> i & 1 and m >> u & 1 and (i in w or u in w) for m, w in zip(users, writes))
        )
        for u in range(n)
    ]
    kind = [rng.choice([0, 0, 1, -1]) for _ in range(buffers)]
    size = [rng.choice([16, 32, 48]) for _ in range(buffers)]
    inplace = []
    for u in range(n):
        touching = [b for b in range(buffers) if users[b] >> u & 1 and kind[b] >= 0]
        pairs = [
            (a, b)
            for a in touching
            for b in touching
            if a != b and kind[a] == kind[b] and size[a] == size[b] and rng.random() < 0.4
        ]
        inplace.append(tuple(pairs[:1]))
    inside = tuple((rng.choice([0, 0, 16]), 0) for _ in range(n))
    return Block(
        tuple(before), tuple(users), tuple(kind), tuple(size), inside, tuple(inplace), (0, 0), 80
    )


@settings(max_examples=150, deadline=None)
@given(blocks())
def test_least_peaks_are_those_of_brute_force(block):
    found = order.least(block)
    every = [sum(p) for o in legal_orders(block) if (p := peaks(block, o)) is not None]
    if not every:
        assert found is None
        return
    assert found.bytes == min(every) and found.proven
    assert sum(peaks(block, found.order)) == found.bytes


@settings(max_examples=60, deadline=None)
@given(blocks(units=st.integers(2, 5)), st.integers(32, 200))
def test_fewest_moves_are_those_of_brute_force(block, ceiling):
    found = order.fewest_moves(block, ceiling)
    fitting = [
        (len(order.moves(o)), sum(p))
        for o in legal_orders(block)
        if (p := peaks(block, o)) is not None and sum(p) <= ceiling
    ]
    if not fitting:
        assert found is None
        return
    assert (len(order.moves(found.order)), found.bytes) == min(fitting)


def test_moves_keeps_the_longest_run():
    assert order.moves((0, 2, 3, 1, 4)) == (1,)
    assert order.moves((0, 1, 2)) == ()


@pytest.fixture(scope="module")
def prepare():
    loaded = driver.load(ROOT / "specs/prepare.yaml")
    return {v.kernel.module: v.kernel for v in loaded.variants}


def planned(kernel, reload=False, target="sm_80"):
    return lean.plan(kernel, lean.Wish(target, device(target), "bytes", reload))


@pytest.mark.parametrize(
    "variant, most, reload",
    [
        ("prepare_c64_k64_v64_float16", 41_472, False),
        ("prepare_c64_k64_v64_float32", 49_664, False),
        ("prepare_c64_k64_v64_float32", 33_280, True),
        ("prepare_c64_k128_v128_float16", 49_664, False),
        ("prepare_c64_k128_v256_float16", 49_664, False),
        ("prepare_c32_k64_v64_float16", 16_640, False),
    ],
)
def test_bytes_at_most(prepare, variant, most, reload):
    made = planned(prepare[variant], reload)
    assert sum(s.bytes for s in made.slots) <= most
    assert made.asked <= most


def test_every_variant_is_proven_optimal(prepare):
    for kernel in prepare.values():
        proof = planned(kernel).proof
        assert proof.exhausted and proof.optimal and proof.live <= proof.bound == proof.bytes


def test_lean_never_takes_more_than_the_other_policies(prepare):
    from gdngen.model import analysis
    from gdngen.plan import plan

    for kernel in prepare.values():
        found = analysis.analyse(kernel)
        best = min(
            plan.plan(kernel, found, plan.Wish(p), "sm_80").plan.asked for p in plan.POLICIES[:-1]
        )
        assert planned(kernel).asked <= best


def test_fragments_are_not_stretched(prepare):
    for kernel in prepare.values():
        made = planned(kernel)
        own = building.block_of(kernel).registers
        block = building.block_of(made.kernel)
        assert block.registers <= own


def test_in_place_chain_ends_in_one_tile():
    loaded = driver.load(ROOT / "tests/specs/chain.yaml")
    for v in loaded.variants:
        made = planned(v.kernel)
        assert len(made.slots) == 1


def test_columns_of_side_by_side_tenants():
    tiles = [
        slots.Tile(("a",), 64, frozenset({0, 1}), 0),
        slots.Tile(("b",), 64, frozenset({1, 2}), 1),
        slots.Tile(("c",), 128, frozenset({3}), 3),
    ]
    columns = slots._columns(tiles)
    assert max(c + t.width for c, t in zip(columns, tiles)) == 128


def tall_block(units: int, buffers: int, seed: int) -> Block:
    """Many buffers of a few sizes, each written once and read a few times later."""
    rng = random.Random(seed)
    users = [
        sum(1 << u for u in rng.sample(range(units), rng.randint(2, 4))) for _ in range(buffers)
    ]
    writes = [users_ & -users_ for users_ in users]
    before = [
        sum(
            1 << i
            for i in range(u)
            if any(w >> i & 1 and m >> u & 1 for w, m in zip(writes, users))
        )
        for u in range(units)
    ]
    kind = [rng.choice([0, 0, 1]) for _ in range(buffers)]
    size = [rng.choice([4096, 8192, 16384]) for _ in range(buffers)]
    return Block(
        tuple(before), tuple(users), tuple(kind), tuple(size), ((0, 0),) * units, ((),) * units, (0, 0), 1 << 62
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_sixteen_buffers_are_proven_in_two_seconds(seed):
    block = tall_block(24, 16, seed)
    with within(2):
        found = order.least(block)
    assert found.proven and found.bound == found.bytes == sum(peaks(block, found.order))


def test_forty_buffers_are_planned_in_two_seconds_with_the_gap():
    kernel = driver.load(ROOT / "tests/specs/forty.yaml").variants[0].kernel
    with within(2):
        proof = planned(kernel).proof
    assert not proof.exhausted and 0 < proof.bound <= proof.bytes
    assert proof.optimal == (proof.bound == proof.bytes)


@settings(max_examples=150, deadline=None)
@given(blocks(), st.integers(1, 40))
def test_floors_hold_where_a_search_was_cut_short(block, limit):
    """Whatever the limit, no legal order goes below what is said to be the least."""
    found = order.least(block, limit)
    every = [sum(p) for o in legal_orders(block) if (p := peaks(block, o)) is not None]
    if every and found is not None:
        assert found.bound <= min(every) <= found.bytes == sum(peaks(block, found.order))
        assert not found.proven or found.bytes == min(every)


def test_a_floor_is_raised_by_searches_below_it():
    """Cut short, the search knows less than all; what it knows is more than any one statement needs."""
    raised = 0
    for seed in range(6):
        block = tall_block(40, 26, seed)
        found = order.least(block, 4_000)
        floor = order._floor(block, order._Costs(block))
        assert floor <= found.bound <= found.bytes
        raised += found.bound > floor
    assert raised


def test_shipped_variants_are_proven_in_twenty_milliseconds(prepare):
    for kernel in prepare.values():
        assert quickest(lambda: planned(kernel)) < 0.02


@pytest.mark.parametrize("objective", lean.OBJECTIVES)
def test_nothing_is_planned_that_hopper_refuses(prepare, objective):
    """Say a part of a tile that TMA can't move: a store through it waits for a whole one, or is not."""
    for kernel in prepare.values():
        made = lean.plan(kernel, lean.Wish("sm_90", device("sm_90"), objective))
        assert not made.refused
        assert not storage.compiled(made.kernel, made.slots, "sm_90").refused


def test_a_refused_store_through_a_slice_is_the_reason(prepare):
    """The slot that u leaves through on sm_80 is one of which TMA would have to move a part."""
    kernel = prepare["prepare_c32_k64_v64_float16"]
    made = planned(kernel)
    assert any(c.kind == "staged" for c in made.changes)
    assert storage.compiled(made.kernel, made.slots, "sm_90").refused
    assert not storage.compiled(made.kernel, made.slots, "sm_80").refused


def test_stores_through_tiles_cost_no_bytes_where_bytes_come_first(prepare):
    """On sm_90 what TMA stores is aligned; where blocks come first that may cost bytes, and is told."""
    for name, kernel in prepare.items():
        made = planned(kernel, target="sm_90")
        assert made.asked <= planned(kernel).asked, name
        assert not any(c.costs for c in made.changes)
    kernel = prepare["prepare_c64_k64_v64_float32"]
    eased = lean.plan(kernel, lean.Wish("sm_90", device("sm_90")))
    costs = [c.costs for c in eased.changes if c.kind == "staged"]
    own = lean.plan(kernel, lean.Wish("sm_80", device("sm_80")))
    assert sum(costs) == eased.asked - own.asked > 0
