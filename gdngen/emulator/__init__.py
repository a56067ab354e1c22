"""Run the CUDA that TileLang emits for sm_80 and sm_90 on the CPU, and say what is wrong with it.

    emulated = build(source, shared_bytes)
    result = run(emulated, {"x": x, "y": y, "L": 100}, grid=(4,), order=1, copies="late")
    result.outputs["y"], result.findings

docs/emulator.md says what is modelled. Needs a C++20 compiler, and neither torch nor TileLang.
"""

from .compiling import Emulated, EmulatorError, build
from .findings import Finding
from .maps import TensorMap, tensor_map
from .mutation import Mutant, mutate
from .running import Result, compare, run

__all__ = [
    "Emulated",
    "EmulatorError",
    "Finding",
    "Mutant",
    "Result",
    "TensorMap",
    "build",
    "compare",
    "mutate",
    "run",
    "tensor_map",
]
