"""Tiles that see a dead tile's bytes as another dtype, and maps that read past a tile: when, and when not."""

import dataclasses

import pytest
from test_judge import H, X, Y, Z, each, small, tiles

from gdngen.devices import device
from gdngen.judge import fuzz
from gdngen.judge.addresses import addresses
from gdngen.judge.judge import judge
from gdngen.model import analysis
from gdngen.plan import direct, emission, lean
from gdngen.plan import plan as planning
from gdngen.plan import slots as packing
from gdngen.plan.plan import Wish
from gdngen.plan.storage import Slot

APART = (f"copy: {H} -> a", f"copy: a -> {Z}", f"copy: {X} -> b", f"copy: b -> {Y}")
# In a loop, where the compiler's own merging shares nothing.
LOOPED = "loop: {d: 2}\n      do:\n" + "\n".join(f"        - {s}" for s in APART)
VIEWS = Wish("lean", "bytes", allow_views=True)


def planned(kernel, wish=VIEWS, target="sm_80"):
    return planning.plan(kernel, analysis.analyse(kernel), wish, target)


def right(kernel, made) -> bool:
    return judge(kernel, made.kernel, addresses(made.kernel, made.plan)).ok


def halves(*statements: str):
    return small(tiles(a="float16", b="float32"), *(statements or (LOOPED,)))


# -- views -----------------------------------------------------------------------------------------


def test_a_tile_of_another_dtype_takes_a_dead_tiles_bytes():
    kernel = halves()
    assert planned(kernel, Wish("lean", "bytes")).plan.asked == 16 * 16 * (2 + 4)
    made = planned(kernel)
    (slot,) = made.plan.slots
    assert made.plan.asked == slot.bytes == 16 * 16 * 4
    assert slot.dtypes == ("float16", "float32")
    assert (slot.seen("a"), slot.seen("b")) == ((16, 32), (16, 16))
    where = addresses(kernel, made.plan)
    assert (where["a"].strides, where["b"].strides) == ((64, 2), (64, 4))
    assert right(kernel, made)


def test_the_judge_refuses_a_view_of_a_live_tile():
    kernel = halves(APART[0], APART[2], APART[1], APART[3])
    wrong = Slot((16, 32), "float16", ("a", "b"), dtypes=("float16", "float32"))
    plan = planning.realise(kernel, analysis.analyse(kernel), (wrong,), "lean", "sm_80")
    verdict = judge(kernel, kernel, addresses(kernel, plan))
    assert {"clobbered", "differs"} <= {f.kind for f in verdict.faults}


@pytest.mark.parametrize("target", ["sm_90", "sm_100", "sm_120"])
def test_no_views_where_tiles_are_read_by_descriptor(target):
    assert not any(s.dtypes for s in planned(halves(), target=target).plan.slots)
    assert any(s.dtypes for s in planned(halves(), target="gfx942").plan.slots)


def test_no_views_beside_a_pipelined_loop():
    loop = f"pipelined: {{t: 2}}\n      do:\n        - copy: {H} -> a\n        - copy: a -> {Z}"
    kernel = halves(loop, *APART[2:])
    assert not packing.viewable(kernel, "sm_80") and packing.viewable(halves(), "sm_80") == {
        "a",
        "b",
    }
    assert not any(s.dtypes for s in planned(kernel).plan.slots)


@pytest.mark.parametrize(
    "shape, dtype", [((16,), "float32"), ((16, 7), "float16"), ((16, 16), "int32")]
)
def test_what_has_no_views(shape, dtype):
    kernel = halves()
    tile = dataclasses.replace(kernel.buffer("a"), shape=shape, dtype=dtype)
    buffers = tuple(tile if b.name == "a" else b for b in kernel.buffers)
    assert packing.viewable(dataclasses.replace(kernel, buffers=buffers), "sm_80") == {"b"}


def test_no_views_of_what_arms_of_a_branch_touch():
    """TileLang counts a barrier in one arm as passed on the other way too."""
    arm = f"when: c == 0\n      do:\n        - copy: {H} -> a\n        - copy: a -> {Z}"
    assert packing.viewable(halves(arm, *APART[2:]), "sm_80") == {"b"}


def test_a_running_sum_shares_with_no_operand_of_a_gemm():
    """It wants rows, a gemm wants its own layout: TileLang refuses one storage for both."""
    f = "\n  f: {scope: fragment, shape: [16, 16], dtype: float32}"
    kernel = small(
        tiles(a="float32", b="float32") + f,
        f"copy: {X} -> a", "gemm: a @ a.T -> f", f"copy: f -> {Y}",
        f"copy: {X} -> b", "cumsum: b -> b\n      axis: 0", f"copy: b -> {Y}",
    )  # fmt: skip
    for policy in ("share", "widen", "lean"):
        slots = planned(kernel, Wish(policy, "bytes", allow_views=True)).plan.slots
        assert not any({"a", "b"} <= set(s.tenants) for s in slots), policy


def test_tiles_of_two_dtypes_that_live_at_once_share_no_slot():
    """They would lie side by side in one slot, under a wider tile that comes after both."""
    buffers = (
        tiles(a="float16", b="float32") + "\n  d: {scope: shared, shape: [16, 24], dtype: float32}"
    )
    wide = X.replace("0:16", "0:24"), Y.replace("0:16", "0:24")
    both = (f"copy: {H} -> a", f"copy: {X} -> b", f"copy: a -> {Z}", f"copy: b -> {Y}")
    kernel = small(buffers, *both, f"copy: {wide[0]} -> d", f"copy: d -> {wide[1]}")
    found = analysis.analyse(kernel)
    made = packing.pack(kernel, found, views=packing.viewable(kernel, "sm_80"))
    for slot in made:
        assert not (found.interfere("a", "b") and {"a", "b"} <= set(slot.tenants))
    assert sum(s.bytes for s in made) == 16 * (16 * 2 + 24 * 4)


def test_a_map_is_split_where_its_tiles_see_one_anothers_bytes():
    """One loop's threads run in any order: element [i, j] of one dtype is not the bytes of the other's."""
    both = (
        "map: {i: 16, j: 16}\n      do:\n        - d[i, j] = a[i, j]\n        - b[i, j] = d[i, j]"
    )
    kernel = small(
        tiles(a="float16", b="float32", d="float32"), f"copy: {H} -> a", both, f"copy: b -> {Y}"
    )
    apart = {n: (n, ("", 0)) for n in "abd"}
    onto = emission.homes([Slot((16, 32), "float16", ("a", "b"), dtypes=("float16", "float32"))])
    body = kernel.stages[0].body
    assert [len(s) for s in emission.fused(body, apart) if isinstance(s, tuple)] == [2]
    assert [len(s) for s in emission.fused(body, {**apart, **onto}) if isinstance(s, tuple)] == [
        1,
        1,
    ]


def test_views_never_cost_bytes():
    for seed in range(40):
        v = fuzz.load(fuzz.spec_of(seed))
        if len(v.kernel.shared()) <= 12:
            without = planned(v.kernel, Wish("lean", "bytes")).plan
            assert planned(v.kernel).plan.asked <= without.asked, f"spec {seed}"


def test_a_fragment_leaves_through_a_tile_of_another_dtype():
    f = "\n  f: {scope: fragment, shape: [16, 16], dtype: float32}"
    kernel = small(tiles(a="float32") + f, f"copy: {X} -> a", "copy: a -> f", f"copy: f -> {Z}")
    made = planned(kernel)
    assert [c.kind for c in made.plan.changes] == ["staged"]
    (slot,) = made.plan.slots
    assert slot.dtypes == ("float32", "float16") and right(kernel, made)
    assert not planned(kernel, Wish("lean", "bytes")).plan.changes


# -- reads past a tile -----------------------------------------------------------------------------

RELOAD = Wish("lean", "bytes", allow_reload=True)
TWICE = each("b[i, j] = a[i, j] * 2")


def test_a_map_reads_the_tensor_itself():
    kernel = halves(f"copy: {H} -> a", TWICE, f"copy: b -> {Y}")
    (read,) = direct.reads(kernel)
    assert not read.rest
    made = planned(kernel, RELOAD)
    assert [c.kind for c in made.plan.changes] == ["direct"]
    assert made.plan.asked == 16 * 16 * 4 and made.kernel.buffer("a") is None
    assert right(kernel, made)
    assert not planned(kernel, Wish("lean", "bytes")).plan.changes, "only where it is allowed"


def test_the_tile_stays_for_what_else_reads_it():
    kernel = halves(f"copy: {H} -> a", f"copy: a -> {Z}", TWICE, f"copy: b -> {Y}")
    (read,) = direct.reads(kernel)
    assert read.rest
    program = direct.read_directly(kernel, read)
    assert program.buffer("a") is not None
    assert judge(kernel, program, addresses(program, planned(program, Wish("separate")).plan)).ok
    assert "512 bytes more traffic" in direct.said(read, kernel).text


@pytest.mark.parametrize(
    "statements",
    [
        (
            f"copy: {H} -> a",
            each("b[i, j] = a[j, i] * 2"),
            f"copy: b -> {Y}",
        ),  # not its own element
        (f"copy: {H} -> a", TWICE, f"copy: a -> {Z}", f"copy: b -> {Y}"),  # a copy reads it later
        (
            f"copy: {H} -> a",
            "fill: 1 -> a",
            TWICE,
            f"copy: b -> {Y}",
        ),  # it is another value by then
        (f"copy: {X} -> a", TWICE, f"copy: b -> {Y}"),  # rounded to the tile's dtype
    ],
)
def test_maps_that_need_their_tile(statements):
    assert not list(direct.reads(halves(*statements)))


def test_a_tensor_that_the_kernel_writes_is_read_once():
    kernel = halves(f"copy: {H} -> a", f"copy: a -> {Z}", TWICE, f"copy: b -> {Y}")
    tensors = tuple(
        dataclasses.replace(t, role="inout") if t.name == "h" else t for t in kernel.tensors
    )
    store = dataclasses.replace(kernel.stages[0].body[1], id=99)
    back = dataclasses.replace(store, dst=dataclasses.replace(store.dst, name="h"))
    stage = dataclasses.replace(kernel.stages[0], body=(*kernel.stages[0].body, back))
    changed = dataclasses.replace(kernel, tensors=tensors, stages=(stage,))
    assert list(direct.reads(kernel)) and not list(direct.reads(changed))


def test_lean_goes_as_low_with_either():
    """Everything allowed is never more than what is allowed alone."""
    kernel = halves(f"copy: {H} -> a", f"copy: a -> {Z}", TWICE, f"copy: b -> {Y}")
    asked = {
        (reload, views): lean.plan(
            kernel, lean.Wish("sm_80", device("sm_80"), "bytes", reload, None, views)
        ).asked
        for reload in (False, True)
        for views in (False, True)
    }
    assert asked[True, True] == min(asked.values()) < asked[False, False]
