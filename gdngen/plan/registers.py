"""Registers a thread of a kernel takes: as the compiler reported them, else estimated.

`registers.json` is written by `make record`, which lowers the generated kernels and asks nvcc.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from gdngen.model import roles
from gdngen.model.model import BYTES, Buffer, Kernel, Solve

BASE = 96  # what the kernels here take besides their fragments: addresses, swizzles, loop state
MOST = 255


@dataclass(frozen=True)
class Registers:
    """Registers a thread, and the bytes of it that don't fit in them: stores and loads of spills.

    `recorded` says that a compiler reported them; an estimate knows of no spills.
    """

    count: int
    recorded: bool
    spills: int = 0


@cache
def table() -> Mapping[str, Mapping[str, int | Mapping[str, int]]]:
    """Module -> target -> registers a thread, or {registers, spills} where there are spills."""
    return json.loads(files("gdngen").joinpath("registers.json").read_text())


def registers(kernel: Kernel, target: str) -> Registers:
    """The recorded count of a variant on a target, else `BASE` and its largest live fragments.

    Roles share out what a block has from the start, which is as much as a thread can have.
    """
    recorded = table().get(kernel.module, {}).get(target)
    if isinstance(recorded, Mapping):
        return Registers(recorded["registers"], True, recorded["spills"])
    if recorded:
        return Registers(recorded, True)
    if kernel.roles:
        return Registers(roles.launched(kernel, target), False)
    return Registers(min(MOST, BASE + fragment_registers(kernel)), False)


def fragment_registers(kernel: Kernel) -> int:
    """32-bit registers a thread for the most fragment bytes that one statement needs at once."""
    fragments: dict[str, Buffer] = {b.name: b for b in kernel.buffers if b.scope == "fragment"}
    order = list(kernel.leaves())
    spans: dict[str, tuple[int, int]] = {}
    for i, leaf in enumerate(order):
        for a in leaf.reads() + leaf.writes():
            if a.name in fragments:
                spans[a.name] = (spans.get(a.name, (i, i))[0], i)
    live = [
        sum(fragments[n].bytes for n, (first, last) in spans.items() if first <= i <= last)
        // (BYTES["float32"] * kernel.threads)
        + (2 * leaf.block if isinstance(leaf, Solve) else 0)  # a column and a row, in each thread
        for i, leaf in enumerate(order)
    ]
    return max(live, default=0)
