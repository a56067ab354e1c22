"""From a spec to kernels and modules, in as few words as a test wants."""

from __future__ import annotations

import functools
from pathlib import Path

from gdngen import driver
from gdngen.errors import Report
from gdngen.language import spec
from gdngen.model import analysis, scopes, variants
from gdngen.model.model import Kernel
from gdngen.plan import plan
from gdngen.plan.plan import Plan, Planned, Wish
from gdngen.plan.storage import Slot
from gdngen.render import format, render

SPECS = Path(__file__).resolve().parent.parent / "specs"

Module = tuple[Path, dict[str, Plan]]  # a file and the plans of the targets that it serves


def kernels(text: str, name: str = "test.yaml") -> tuple[Kernel, ...]:
    """Every variant of a spec, checked; SpecError where something is wrong."""
    report = Report()
    found = spec.parse(text, name, report)
    report.stop()
    made = variants.kernels(found, report)
    report.stop()
    for kernel in made:
        plan.check_reuse(kernel, analysis.check(kernel, report), report)
        scopes.check(kernel, report)
    report.stop()
    return made


@functools.cache
def kernels_of(name: str) -> dict[str, Kernel]:
    """The variants of a spec in `specs/`, say 'prepare' or 'examples/matmul', by their modules."""
    path = SPECS / f"{name}.yaml"
    return {k.module: k for k in kernels(path.read_text(), f"specs/{name}.yaml")}


def modules(
    kernel: Kernel, folder: Path, policy: str = plan.DEFAULT, targets: tuple[str, ...] = ()
) -> list[Module]:
    """A kernel's modules for `targets` (its own, if none is named), written into `folder`: one, or
    more where the plans of targets differ."""
    checked = driver.Checked(kernel, analysis.analyse(kernel))
    groups = driver.plans(checked, Wish(policy), targets)
    names = driver.module_names(checked, groups, Wish(policy))
    return [_written(planned, folder / f"{name}.py") for name, planned in zip(names, groups)]


def module(kernel: Kernel, folder: Path, slots: tuple[Slot, ...] | None = None) -> Module:
    """The module of the author's own program: with the `share` plan, or with `slots`, right or not."""
    found = analysis.analyse(kernel)
    if slots is None:
        slots = plan.plan(kernel, found, Wish("share"), kernel.targets[0]).plan.slots
    plans = [plan.realise(kernel, found, slots, "share", target) for target in kernel.targets]
    return _written(Planned(kernel, found, tuple(plans)), folder / f"{kernel.module}.py")


def _written(planned: Planned, path: Path) -> Module:
    path.write_text(format.formatted(render.render(planned), path.name))
    return path, {p.target: p for p in planned.plans}
