"""Runs a built kernel on tensors and collects its outputs and what was wrong on the way."""

import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .compiling import Emulated
from .findings import Finding, read_findings, read_sanitizer
from .maps import TensorMap
from .source import EmulatorError, Param

# What a tensor's elements may be called, by the type of the kernel's parameter.
DTYPES = {
    "half_t": ("float16",),
    "bfloat16_t": ("bfloat16", "uint16"),  # numpy has no bfloat16: its bits then
    "float": ("float32",),
    "double": ("float64",),
    "int": ("int32",),
    "int64_t": ("int64",),
    "uint": ("uint32",),
    "uchar": ("uint8", "bool"),
    "signed char": ("int8",),
}
COPIES = ("early", "late")


@dataclass(frozen=True)
class Result:
    """Outputs are every tensor after the run, as the kind of array it came as.

    `barriers` counts the block-wide barriers that were passed, `skipped` how often a thread came by
    the wait that was left out, both summed over the blocks.
    """

    outputs: dict[str, Any]
    findings: tuple[Finding, ...]
    barriers: int
    skipped: int = 0


def run(
    emulated: Emulated,
    tensors: dict[str, Any],
    grid: tuple[int, ...],
    threads: int | tuple[int, ...] | None = None,
    order: int = 0,
    copies: str = "early",
    skip: int | None = None,
    timeout: float = 120,
    maps: Mapping[str, TensorMap] | None = None,
) -> Result:
    """Run every block of `grid`, with `threads` of a block or as many as the kernel was built for.

    `tensors` has a numpy array or torch CPU tensor for each pointer and an int for each number that
    the kernel takes; they are not changed. `order` runs warps and lanes ascending (0), descending
    (1) or shuffled by that seed. `copies` says when asynchronous copies land: at their issue
    ("early") or at the wait for them ("late"). `skip` leaves out one wait, by its site's number.
    `maps` has a map for each parameter that is one; `tensors` then has the tensors that they name too.
    Raises EmulatorError for arguments that do not fit the kernel, and after `timeout` seconds.
    """
    kernel = emulated.kernel
    if copies not in COPIES:
        raise EmulatorError(f"copies land {' or '.join(COPIES)}, not {copies}")
    maps = maps or {}
    names = [param.name for param in kernel.params if not param.is_map]
    mapped = [param.name for param in kernel.params if param.is_map]
    behind = [m.tensor for m in maps.values() if m.tensor not in names]
    if {*names, *behind} != set(tensors) or set(mapped) != set(maps):
        given = ", ".join((*tensors, *maps))
        raise EmulatorError(f"{kernel.name} takes {', '.join((*names, *mapped))}; got {given}")
    shape = _three(kernel.threads if threads is None else threads)
    if math.prod(shape) != kernel.threads:
        raise EmulatorError(f"{kernel.name} is built for {kernel.threads} threads, not {threads}")
    numbers = (*_three(grid), *shape, emulated.shared_bytes, order)
    numbers += (int(copies == "late"), -1 if skip is None else skip)
    with tempfile.TemporaryDirectory() as scratch:
        paths = {}
        arguments = []
        for param in (*kernel.params, *(Param(name, "", True) for name in dict.fromkeys(behind))):
            name = param.name
            if param.is_tensor:
                paths[name] = Path(scratch) / name
                paths[name].write_bytes(_bytes_of(tensors[name], param))
                arguments.append(f"{name}={paths[name]}")
            elif param.is_map:
                arguments.append(f"{name}@{maps[name].argument}")
            else:
                arguments.append(f"{name}:{int(tensors[name])}")
        done = _execute([str(emulated.program), *map(str, numbers), *arguments], timeout)
        outputs = {name: _like(tensors[name], path.read_bytes()) for name, path in paths.items()}
    facts = dict(row.split("\t", 1) for row in done.stdout.splitlines())
    findings = read_findings(done.stdout, emulated.program)
    if emulated.tsan:
        start = int(facts["shared"], 16)
        findings += read_sanitizer(done.stderr, start, emulated.shared_bytes, emulated.program)
    barriers, skipped = (int(facts.get(name, 0)) for name in ("barriers", "skipped"))
    return Result(outputs, tuple(findings), barriers, skipped)


def compare(
    outputs: dict[str, Any], reference: dict[str, Any], tolerance: float
) -> tuple[Finding, ...]:
    """A `wrong result` for each output further from the reference than `tolerance` of its largest
    value, or that holds a value which is not finite where the reference's is."""
    import numpy

    findings = []
    for name, expected in reference.items():
        want = _as_float64(expected)
        got = _as_float64(outputs[name])
        with numpy.errstate(invalid="ignore", over="ignore"):
            error = numpy.abs(got - want).max(initial=0) / max(
                numpy.abs(want).max(initial=0), 1e-30
            )
        if not error <= tolerance:
            note = f"relative error {error:.2g}, allowed {tolerance:.2g}"
            findings.append(Finding("wrong result", name, 0, want.size, note=note))
    return tuple(findings)


def _execute(command: list[str], timeout: float) -> subprocess.CompletedProcess:
    sanitizer = "halt_on_error=0 exitcode=0 report_signal_unsafe=0 symbolize=0"
    sanitizer += " history_size=2 ignore_interceptors_accesses=1"
    environment = {**os.environ, "TSAN_OPTIONS": sanitizer}
    options = {"capture_output": True, "text": True, "env": environment, "timeout": timeout}
    try:
        done = subprocess.run(command, **options)
        if "unexpected memory mapping" in done.stderr and (setarch := shutil.which("setarch")):
            # ThreadSanitizer's own fixed addresses clash with strong address randomisation.
            done = subprocess.run([setarch, "-R", *command], **options)
    except subprocess.TimeoutExpired:
        raise EmulatorError(f"the emulated kernel ran for more than {timeout:g} s") from None
    if done.returncode or not done.stdout.startswith("shared\t"):
        raise EmulatorError(f"the emulated kernel failed: {done.stderr.strip()[-400:]}")
    return done


def _three(sizes: int | tuple[int, ...]) -> tuple[int, int, int]:
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise EmulatorError(f"a grid or block has one to three positive sizes, not {sizes}")
    return (sizes + (1, 1))[:3]


def _is_torch(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "torch"


def _bytes_of(value: Any, param: Param) -> bytes:
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in DTYPES.get(param.type, (dtype,)):
        raise EmulatorError(f"{param.name} is {param.type} in the kernel, got {dtype}")
    if _is_torch(value):
        import torch

        return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return value.tobytes()


def _like(value: Any, data: bytes) -> Any:
    """The bytes as an array of the same kind, dtype and shape as `value`."""
    import numpy

    if _is_torch(value):
        import torch

        if not data:
            return value.clone()
        flat = torch.from_numpy(numpy.frombuffer(data, dtype=numpy.uint8).copy())
        return flat.view(value.dtype).reshape(value.shape)
    return numpy.frombuffer(data, dtype=value.dtype).reshape(value.shape).copy()


def _as_float64(value: Any) -> Any:
    import numpy

    return value.detach().double().numpy() if _is_torch(value) else numpy.asarray(value, "float64")
