"""The policies' figures, the author's aliasing, and what a plan says of itself."""

from pathlib import Path

import pytest

from gdngen import driver
from gdngen.devices import device
from gdngen.errors import SpecError
from gdngen.plan import plan, registers
from gdngen.plan.plan import Wish
from gdngen.show import tables

ROOT = Path(__file__).parent.parent
PREPARE = ROOT / "specs/prepare.yaml"


@pytest.fixture(scope="module")
def variants():
    return {v.kernel.module: v for v in driver.load(PREPARE).variants}


def planned(v, policy, target="sm_80"):
    return plan.plan(v.kernel, v.found, Wish(policy), target)


def stored(v, policy):
    return sum(s.bytes for s in planned(v, policy).plan.slots)


@pytest.mark.parametrize(
    "variant, policy, bytes_",
    [
        ("prepare_c64_k64_v64_float16", "separate", 82_432),
        ("prepare_c64_k64_v64_float16", "match", 49_664),
        ("prepare_c64_k64_v64_float16", "share", 49_664),
        ("prepare_c64_k64_v64_float16", "widen", 49_664),
        ("prepare_c32_k64_v64_float16", "match", 33_024),
        ("prepare_c32_k64_v64_float16", "share", 24_832),
        ("prepare_c64_k64_v64_float32", "share", 66_048),
        ("prepare_c64_k128_v128_float16", "widen", 82_432),
    ],
)
def test_storage_of_policies(variants, variant, policy, bytes_):
    assert stored(variants[variant], policy) == bytes_


@pytest.mark.parametrize("policy", ["match", "share"])
def test_beta_tiles_go_onto_P(variants, policy):
    slots = planned(variants["prepare_c64_k64_v64_float16"], policy).plan.slots
    assert ("P", "k_beta", "v_beta") in [s.tenants for s in slots]


def test_beta_tiles_stay_apart_where_shapes_differ(variants):
    slots = planned(variants["prepare_c32_k64_v64_float16"], "match").plan.slots
    assert all(len(s.tenants) == 1 for s in slots)


def test_widen_is_the_reviewers_shape(variants):
    p = planned(variants["prepare_c64_k128_v128_float16"], "widen").plan
    assert p.slot_of("k_beta").shape == (64, 128) and p.slot_of("k_beta").name == "P"


def test_tenants_of_a_slot_never_live_at_once(variants):
    for v in variants.values():
        for policy in plan.POLICIES:
            p = planned(v, policy)
            for slot in p.plan.slots:
                for i, a in enumerate(slot.tenants):
                    for b in slot.tenants[i + 1 :]:
                        apart = abs(slot.column(a) - slot.column(b)) >= min(
                            p.kernel.buffer(t).shape[-1] for t in (a, b)
                        )
                        both = [s for s in p.found.live.values() if {a, b} <= s]
                        assert apart or len(both) <= 1  # one: the statement that updates in place


def test_the_compilers_merging_stays_on_only_where_it_asks_for_less(variants):
    for v in variants.values():
        for policy in plan.POLICIES:
            p = planned(v, policy).plan
            assert p.merged == (p.asked < sum(s.bytes for s in p.slots)) or p.target != "sm_80"


def edited(tmp_path, old, new):
    text = PREPARE.read_text()
    assert old in text
    path = tmp_path / "edited.yaml"
    path.write_text(text.replace(old, new))
    return path


def test_reuse_of_a_live_tile_names_both_lines(tmp_path):
    path = edited(
        tmp_path, "live: scale_k .. apply_k, reuse: P}", "live: scale_k .. apply_k, reuse: S}"
    )
    with pytest.raises(SpecError) as e:
        driver.load(path)
    lines = {
        i
        for i, line in enumerate(path.read_text().splitlines(), 1)
        if "k_beta:" in line or " S: " in line
    }
    text = str(e.value)
    assert "can't share storage" in text and all(f"line {n}" in text for n in lines)


def test_plan_that_does_not_fit_explains_its_peak(variants):
    v = variants["prepare_c64_k128_v256_float32"]
    loaded = driver.load(PREPARE)
    p = plan.plan(v.kernel, v.found, Wish("share", device="metax-c500"), "sm_80")
    lines = tables.peak_lines(p, device("metax-c500"), loaded, v, Wish("share"))
    text = "\n".join(lines)
    assert "2,048 reserved" in text and "live at once" in text and "k_beta" in text
    assert "  help: --policy lean --objective bytes --allow-reload asks for 33,280 bytes" in lines


def test_policy_blocks_are_within_the_devices_limits(variants):
    for v in variants.values():
        row = tables.plan_row(v, {p: planned(v, p) for p in plan.POLICIES}, Wish(), device("sm_80"))
        held = row["blocks_per_sm"] * (row["asked"] + 1024)
        assert row["fits"] and held <= 164 * 1024


def test_spills_that_were_recorded_are_told(variants, monkeypatch):
    v = variants["prepare_c64_k64_v64_float16"]
    plans = tables.overview(v, Wish(), "sm_80")
    row = tables.plan_row(v, plans, Wish(), device("sm_80"))
    assert row["registers_recorded"] and row["spills"] == 0
    assert not any("spills" in line for line in tables.sentences([row]))
    spilling = {v.kernel.module: {"sm_80": {"registers": 255, "spills": 48}}}
    monkeypatch.setattr(registers, "table", lambda: spilling)
    row = tables.plan_row(v, plans, Wish(), device("sm_80"))
    assert (row["registers"], row["spills"], row["blocks_per_sm"]) == (255, 48, 2)
    assert any("spills: 48 bytes a thread" in line for line in tables.sentences([row]))
    monkeypatch.setattr(registers, "table", dict)
    row = tables.plan_row(v, plans, Wish(), device("sm_80"))
    assert not row["registers_recorded"] and row["spills"] is None


def test_roles_share_out_the_registers_of_one_block():
    """An estimate from fragments would have every thread hold the tiles of all roles."""
    kernel = driver.load(ROOT / "specs/forward_hopper.yaml", {"io": "float16"}).variants[0].kernel
    found = registers.registers(kernel, "sm_90").count
    asked = sum((r.registers * r.copies * -(-r.threads // 128)) for r in kernel.roles)
    assert found * kernel.threads >= asked * 128
    assert device("sm_90").blocks_per_sm(1, kernel.threads, found) == 1
