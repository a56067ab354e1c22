"""What differs between the TileLang versions that kernels are checked under, in one place.

0.1.9   its IR is `tvm.tir` (later `tvm.tirx`, and pass configs are named after it); it has no switch for
        its own merging of shared memory; and a launch must be told that it is on the CPU
0.1.12  and before: target `c` cannot print the constant NaN
"""

from __future__ import annotations

import importlib.metadata
import math
from types import ModuleType
from typing import Any


def version() -> tuple[int, ...]:
    """TileLang's version, without what follows its numbers."""
    parts = importlib.metadata.version("tilelang").split("+")[0].split(".")
    return tuple(int(p) for p in parts[:3] if p.isdigit())


def ir() -> ModuleType:
    """TVM's module of the IR that kernels are made of."""
    from tilelang import tvm

    return tvm.tirx if version() >= (0, 1, 10) else tvm.tir


def disable_vectorize() -> dict[str, Any]:
    """The pass config that keeps loops scalar."""
    return {f"{'tirx' if version() >= (0, 1, 10) else 'tir'}.disable_vectorize": True}


def on_cpu() -> dict[str, Any]:
    """What `T.Kernel` must be told for target `c`."""
    return {} if version() >= (0, 1, 12) else {"is_cpu": True}


def nan(dtype: str) -> Any:
    """A NaN of a float dtype that target `c` can print."""
    if version() >= (0, 1, 15):
        return ir().const(math.nan, dtype)
    import tilelang.language as T

    return T.cast(T.log(T.cast(-1, "float32")), dtype)
