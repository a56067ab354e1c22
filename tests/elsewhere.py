"""Kernels that are not checked in, but must be as planned all the same: their texts and plans.

For HIP as it is, and with everything that `lean` may do. `record.py` lowers them once and
`test_elsewhere.py` holds what it found against the plans.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gdngen import driver
from gdngen.judge.fuzz import FREEST
from gdngen.model.model import Kernel
from gdngen.plan.plan import Plan, Planned, Wish

ROOT = Path(__file__).parent.parent
RECORD = Path(__file__).parent / "lowered_elsewhere.json"
SPEC = ROOT / "specs/prepare.yaml"
WAYS = {
    "gfx942": ("gfx942", Wish()),
    "gfx942 freest": ("gfx942", FREEST),
    "sm_80 freest": ("sm_80", FREEST),
    "sm_90 freest": ("sm_90", FREEST),
}


@dataclass(frozen=True)
class Case:
    """A module that `gdngen verify --target` would render; `author` is the kernel as written."""

    name: str
    target: str
    author: Kernel
    planned: Planned
    text: str

    @property
    def plan(self) -> Plan:
        return self.planned.plan

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def written(self, folder: Path) -> Path:
        path = folder / f"{self.name}.py"
        path.write_text(self.text)
        return path


@cache
def cases(way: str) -> tuple[Case, ...]:
    """Every variant of the spec that leaves the policy to the command line."""
    return tuple(_cases(*WAYS[way]))


def _cases(target: str, wish: Wish) -> Iterator[Case]:
    loaded = driver.load(SPEC)
    authors = {v.kernel.module: v.kernel for v in loaded.variants}
    for m in driver.formatted(driver.modules(loaded, wish, [target])):
        if m.planned.kernel.policy is None:
            kernel = m.planned.kernel
            yield Case(kernel.module, target, authors[kernel.module], m.planned, m.text)
