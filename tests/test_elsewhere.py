"""HIP, and everything that `lean` may do: bytes asked are bytes planned, and results are right.

Bytes of a text that was lowered before are remembered (`make record`); a new one, and a sample, is
lowered here, and `make test-all` lowers, runs and emulates all of them.
"""

import json

import pytest
from elsewhere import RECORD, WAYS, cases

from gdngen.judge import judge
from gdngen.judge.addresses import addresses, together
from gdngen.verify import emulate, lowering, verify

SAMPLE = {
    "gfx942": "prepare_c64_k128_v128_float16",
    "gfx942 freest": "prepare_c32_k128_v128_float16",
    "sm_80 freest": "prepare_c64_k64_v64_float16",
    "sm_90 freest": "prepare_c64_k128_v128_float32",
}
NAMES = [c.name for c in cases("gfx942")]


def of(way: str, name: str):
    return next(c for c in cases(way) if c.name == name)


@pytest.mark.parametrize("way", WAYS)
def test_bytes_asked_are_bytes_planned(way, tmp_path):
    record = json.loads(RECORD.read_text())
    assert len(cases(way)) == 18
    for case in cases(way):
        known = record.get(case.digest, {}).get(case.target)
        if known is None or case.name == SAMPLE[way]:
            low = lowering.cached_lower(case.written(tmp_path), case.target)
            known = {"dynamic": low.dynamic_bytes, "static": low.static_bytes}
        assert known == {"dynamic": case.plan.dynamic, "static": case.plan.static}, case.name


@pytest.mark.parametrize("way", WAYS)
def test_the_judge_agrees(way):
    for case in cases(way):
        kernel = case.planned.kernel
        where = addresses(kernel, case.plan)
        found = judge.judge(case.author, kernel, where, together=together(kernel, case.plan))
        assert found.ok, (case.name, found.faults)


@pytest.mark.parametrize("name", ["prepare_c64_k64_v64_float16", "prepare_c32_k128_v128_bfloat16"])
def test_views_run_right_on_the_cpu(name, tmp_path):
    case = of("sm_80 freest", name)
    assert "T.view(" in case.text
    verdict = verify.verify(case.author, case.written(tmp_path), {})
    assert verdict.ok and verdict.comparisons, verdict.problems()


@pytest.mark.long
def test_views_have_no_race(tmp_path):
    case = of("sm_80 freest", "prepare_c32_k128_v128_float16")
    emulate.ready()
    done = emulate.emulate(case.author, case.written(tmp_path), case.plan.slots, sanitize=False)
    assert done.ok and done.barriers, done.problems()


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_all_lowered_anew_and_run(way, name, tmp_path):
    case = of(way, name)
    path = case.written(tmp_path)
    low = lowering.lower(path, case.target)
    assert (low.dynamic_bytes, low.static_bytes) == (case.plan.dynamic, case.plan.static)
    verdict = verify.verify(case.author, path, {})
    assert verdict.ok, verdict.problems()


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_all_views_emulated(name, tmp_path):
    case = of("sm_80 freest", name)
    emulate.ready()
    done = emulate.emulate(case.author, case.written(tmp_path), case.plan.slots)
    assert done.ok, done.problems()
