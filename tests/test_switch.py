"""Devices whose TileLang can't turn off its own merging: kernels do without the switch."""

from dataclasses import replace
from pathlib import Path

import pytest

from gdngen import devices, driver
from gdngen.plan.plan import Wish

SPEC = Path(__file__).parent.parent / "specs/prepare.yaml"
SETTINGS = {"BC": "64", "DK": "128", "DV": "128", "io": "float16"}
FORWARD = {"BC": "64", "DK": "64", "DV": "64", "BV": "32", "varlen": "false"}


@pytest.fixture
def old():
    row = replace(devices.device("sm_90"), name="sm_90 of old", switch=False)
    devices.devices()[row.name] = row
    yield row.name
    del devices.devices()[row.name]


def modules(device):
    return list(driver.modules(driver.load(SPEC, SETTINGS), Wish(device=device), ["sm_90"]))


def test_nor_the_later_name_of_another_key(old):
    loaded = driver.load(SPEC.with_name("forward.yaml"), FORWARD)
    texts = [m.text for m in driver.modules(loaded, Wish(device=old), ["sm_80"])]
    assert texts and all("PassConfigKey.TIR_USE_ASYNC_COPY: False" in t for t in texts)
    assert not any("tirx" in t for t in texts)


def test_without_the_switch_a_kernel_does_not_name_it(old):
    ours, (theirs,) = modules("sm_90"), modules(old)
    assert "DISABLE_SHARED_MEMORY_REUSE" not in theirs.text
    assert "can't be turned off: these slots are the most it asks for" in theirs.text
    plan = theirs.planned.plan
    # What merging would save there can't be relied on.
    assert not plan.merged and plan.asked >= sum(s.bytes for s in plan.slots)
    assert plan.asked >= ours[0].planned.plan.asked


def test_with_it_nothing_has_changed(old):
    text = modules("sm_90")[0].text
    assert "can't be turned off" not in text
    assert modules("sm_90")[0].planned.plan.switch
