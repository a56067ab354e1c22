"""Variants that nobody has checked in: planned and rendered when a function first asks for them.

They are planned for the very device that asks, and lie in a folder of this process's own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gdngen import driver
from gdngen.devices import devices
from gdngen.errors import GdngenError
from gdngen.plan.plan import DEFAULT, Wish
from gdngen.verify import hopper

ANYWHERE = "sm_80"  # whose plan the CPU runs


@dataclass(frozen=True)
class Found:
    """A kernel's file, and what is needed to run it: its factory's name and its tensors' in order.

    outputs what it writes of these
    values  by which it was found
    """

    path: Path
    kernel: str
    tensors: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    values: tuple[tuple[str, int | str | bool], ...] = ()


@dataclass(frozen=True)
class Refused:
    """Why there is no such variant, in a few words."""

    why: str


def variant(
    spec: Path, values: Mapping[str, int | str | bool], arch: int | None, limit: int | None
) -> Found | Refused:
    """The variant of a spec with these values, options that are not among them at their defaults.

    arch   of the device, say 90; None for the CPU, which runs any plan
    limit  bytes of shared memory that a block may have there; None where it doesn't matter
    """
    if not spec.exists():
        return Refused(f"there is no {spec.name} to make it from")
    try:
        loaded = driver.load(spec, {k: _word(v) for k, v in values.items()})
        # A name tells every option that is not at its default: the shortest has the fewest.
        v = min(loaded.variants, key=lambda v: len(v.kernel.module))
        target = _target(v.kernel.targets, arch)
        if target is None:
            return Refused(f"it has no plan for sm_{arch}")
        on = f"sm_{arch}" if f"sm_{arch}" in devices() else ""
        one = driver.Loaded(loaded.path, (v,), (), {})
        (module,) = driver.modules(one, Wish(DEFAULT, device=on or None), (target,))
    except GdngenError as e:
        return Refused(str(e).splitlines()[0])
    planned = module.planned
    if hopper.applies(planned.kernel, target):
        slots = planned.plan.slots
        if wrong := (
            *hopper.in_plan(planned.kernel, slots),
            *hopper.in_program(planned.kernel, slots),
        ):
            return Refused(wrong[0])
    asked = planned.plan.asked
    if limit is not None and asked > limit:
        return Refused(f"it takes {asked:,} bytes of shared memory, and there are {limit:,}")
    path = _folder() / module.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(module.text)
    told = driver.entry(module)
    names, outputs = tuple(told["tensors"]), tuple(told["outputs"])
    return Found(path, told["kernel"], names, outputs, tuple(sorted(values.items())))


def _word(value: int | str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _target(targets: tuple[str, ...], arch: int | None) -> str | None:
    """Of a spec's targets the newest that a device can run."""
    if arch is None:
        return ANYWHERE if ANYWHERE in targets else targets[0]
    usable = [t for t in targets if t.startswith("sm_") and int(t.removeprefix("sm_")) <= arch]
    return max(usable, key=lambda t: int(t.removeprefix("sm_")), default=None)


@cache
def _folder() -> Path:
    holder = tempfile.TemporaryDirectory(prefix="gdngen-")
    _KEPT.append(holder)  # until the process ends
    return Path(holder.name)


_KEPT: list[tempfile.TemporaryDirectory] = []
