"""Every spec of the repository: rendered, run on the CPU, lowered to the bytes that were planned."""

from __future__ import annotations

import pytest
from rendering import SPECS, kernels_of, modules

from gdngen import driver
from gdngen.plan import plan
from gdngen.verify import verify

KERNELS = [p for p in SPECS.rglob("*.yaml") if not driver.is_pipeline(p)]
NAMES = sorted(str(p.relative_to(SPECS).with_suffix("")) for p in KERNELS)
EXAMPLES = [name for name in NAMES if name.startswith("examples/")]
# what is checked in of the others is lowered, or remembered, by test_generated.py
OTHERS = [pytest.param(name, marks=pytest.mark.long) for name in NAMES if name not in EXAMPLES]


def first_of(name: str, io: str):
    """The first variant with these tensors; of a spec that has none such, the first."""
    found = list(kernels_of(name).values())
    return next((k for k in found if dict(k.dtypes).get("io") == io), found[0])


def problems(
    kernel, folder, policy: str = plan.DEFAULT, lower: bool = True, run: bool = True
) -> str:
    """What is wrong with any of a kernel's modules, '' if nothing is."""
    wrong = []
    for path, plans in modules(kernel, folder, policy):
        verdict = verify.verify(kernel, path, plans if lower else {}, trials=None if run else ())
        wrong += [f"{path.stem}: {line}" for line in verdict.problems()]
    return "\n".join(wrong)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("io", ["float16", "bfloat16", "float32"])
def test_an_example_runs_right(name, io, tmp_path):
    assert not problems(first_of(name, io), tmp_path, lower=False)


@pytest.mark.parametrize("name", EXAMPLES + OTHERS)
def test_bytes_asked_for_are_bytes_planned(name, tmp_path):
    """Lowering takes seconds; results are remembered by the text."""
    kernel = first_of(name, "float16")
    # these two make what roles take, and take what they make
    hopper = kernel.roles or name in ("forward_prepare", "forward_join")
    assert kernel.targets == (("sm_90",) if hopper else ("sm_80", "sm_90"))
    assert not problems(kernel, tmp_path, run=False)


def test_an_example_shows_each_thing_that_prepare_has_not():
    text = "\n".join((SPECS / f"{name}.yaml").read_text() for name in EXAMPLES)
    for word in (
        "pipelined:",
        "reduce: max",
        "reduce: sum",
        "+>",
        "when:",
        "else:",
        "loop:",
        "fill:",
    ):
        assert word in text
    softmax = first_of("examples/softmax", "float16")
    assert [b.name for b in softmax.shared()] == ["x_s", "y_s"]


@pytest.mark.long
@pytest.mark.parametrize("policy", plan.POLICIES)
@pytest.mark.parametrize("name", NAMES)
def test_every_variant(name, policy, tmp_path):
    wrong = [problems(kernel, tmp_path, policy) for kernel in kernels_of(name).values()]
    assert not any(wrong), "\n".join(filter(None, wrong))
