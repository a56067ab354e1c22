"""Lower a generated kernel for a GPU on a machine without one, and read back what it asks for.

Bytes are those of one block: `dynamic` is the size of the launch's shared buffer, `static` what
the source declares beside it (barriers, static arrays); a device's limit applies to their sum.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Reuse = Literal["off", "default", "aggressive"]

OFF = "tl.disable_shared_memory_reuse"
AGGRESSIVE = "tl.enable_aggressive_shared_memory_merge"
REUSE = {
    "off": {OFF: True, AGGRESSIVE: False},
    "default": {OFF: False, AGGRESSIVE: False},
    "aggressive": {OFF: False, AGGRESSIVE: True},
}

STATIC_ARRAY = re.compile(
    r"(?<!extern )__shared__(?: __align__\(\d+\))? ((?:\w+ )*?)(\w+) \w+((?:\[\d+\])+);"
)
C_TYPE_BYTES = {
    **dict.fromkeys(("char", "uchar", "bool", "int8_t", "uint8_t", "fp8_e4_t", "fp8_e5_t"), 1),
    **dict.fromkeys(("short", "ushort", "half", "half_t", "bfloat16_t", "int16_t", "uint16_t"), 2),
    **dict.fromkeys(("int", "uint", "float", "int32_t", "uint32_t"), 4),
    **dict.fromkeys(("double", "int64_t", "uint64_t", "long", "Barrier"), 8),
}


class LoweringError(Exception):
    """TileLang refuses a kernel; the message ends in the line of its own that says why."""


@dataclass(frozen=True)
class Lowered:
    """What a kernel asks for (bytes a block) and the device source that TileLang emits.

    maps  of the CUDA's parameters that describe a tensor for TMA: the arguments of the host's call that
          makes each, as numbers or as text with sizes in it
    """

    dynamic_bytes: int
    static_bytes: int
    source: str
    maps: dict[str, list[int | str]]

    @property
    def bytes(self) -> int:
        return self.dynamic_bytes + self.static_bytes


@dataclass(frozen=True)
class Registers:
    """What ptxas reports: registers a thread, spills in bytes, static shared bytes a block."""

    registers: int
    spill_stores: int
    spill_loads: int
    static_bytes: int

    @property
    def spills(self) -> int:
        """Bytes a thread that spills store and load."""
        return self.spill_stores + self.spill_loads


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture, and what ptxas reported of it."""

    code: bytes
    registers: Registers


def lower(path: str | Path, target: str) -> Lowered:
    """Lower the module at `path` for `target` ("sm_80", "gfx942", ...) with its own pass configs.

    Raises LoweringError where TileLang refuses it.
    """
    return _lower(Path(path), target, {})


def asked_bytes(path: str | Path, target: str, reuse: Reuse | None = None) -> int:
    """The dynamic bytes asked for when the compiler merges as `reuse` says; None is as written."""
    return _lower(Path(path), target, REUSE[reuse] if reuse else {}).dynamic_bytes


def cached_lower(path: str | Path, target: str, reuse: Reuse | None = None) -> Lowered:
    """`lower`, remembered by the text, the target and TileLang's version; `reuse` as in `asked_bytes`.

    Results lie in $GDNGEN_CACHE, or `.cache/gdngen` under the current directory.
    """
    version = importlib.metadata.version("tilelang")
    key = "\0".join((Path(path).read_text(), target, version, reuse or ""))
    return _remembered(
        key, Lowered, lambda: _lower(Path(path), target, REUSE[reuse] if reuse else {})
    )


def _remembered(key: str, kind: type, make: Callable[[], Any]) -> Any:
    """What `make` gives, an instance of the dataclass `kind`, made once for a key."""
    folder = Path(os.environ.get("GDNGEN_CACHE") or Path(".cache") / "gdngen")
    entry = folder / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
    try:
        return kind(**json.loads(entry.read_text()))
    except (OSError, ValueError, TypeError):
        pass  # absent, or not an entry of ours: make it anew
    made = make()
    folder.mkdir(parents=True, exist_ok=True)
    # Readers in other processes see a whole entry or none.
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".tmp", delete=False) as file:
        json.dump(asdict(made), file)
    os.replace(file.name, entry)
    return made


def _lower(path: Path, target: str, overrides: dict[str, Any]) -> Lowered:
    factory = load(path)
    config = {**(factory.pass_configs or {}), **overrides}
    return lowered(factory.get_tir, target, config, path.name)


def lowered(make: Callable[[], Any], target: str, config: dict[str, Any], name: str) -> Lowered:
    """Lower what `make` returns, a `prim_func`, under pass configs; `name` is what errors call it."""
    import tilelang
    from tilelang import tvm

    device = tvm.target.Target(
        {"kind": "hip", "mcpu": target}
        if target.startswith("gfx")
        else {"kind": "cuda", "arch": target}
    )
    try:
        with tvm.transform.PassContext(opt_level=3, config=config), device:
            artifact = tilelang.lower(make(), target=device)
    except Exception as error:
        raise LoweringError(f"{name}: {target}: {_reason(error)}") from error
    dynamic = 0
    for function in artifact.device_mod.functions.values():
        dynamic = max(dynamic, int(function.attrs.get("dyn_shared_memory_buf", 0)))
    source = artifact.kernel_source
    return Lowered(dynamic, static_bytes(source), source, _maps(artifact.host_mod))


def _maps(host: Any) -> dict[str, list[int | str]]:
    """Tensor maps by name, from the host's code; what a size is not known by is left as text."""
    found = {}
    for function in host.functions.values():
        for name, call in (function.attrs.get("tma_descriptor_args") or {}).items():
            found[str(name.name)] = [_text(value) for value in list(call)[2:]]
    return found


def _text(value: Any) -> int | str:
    """A host's expression: a number, or Python's text of it."""
    from tilelang import tvm

    tir = tvm.tirx

    signs = {tir.Add: "+", tir.Sub: "-", tir.Mul: "*", tir.FloorDiv: "//", tir.Div: "//"}
    match value:
        case int() | str():
            return value
        case tir.IntImm():
            return int(value)
        case tir.Var():
            return str(value.name)
        case tir.Cast():
            return _text(value.value)
        case tir.Max() | tir.Min():
            return f"{type(value).__name__.lower()}({_text(value.a)}, {_text(value.b)})"
        case _ if type(value) in signs:
            return f"({_text(value.a)} {signs[type(value)]} {_text(value.b)})"
    return str(value)


def load(path: str | Path) -> Any:
    """Import the module at `path`, under no name, and return its one `@tilelang.jit` factory."""
    path = Path(path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    factories = [value for value in vars(module).values() if hasattr(value, "get_tir")]
    if len(factories) != 1:
        raise ValueError(f"{path}: has {len(factories)} kernel factories, not one")
    return factories[0]


def static_bytes(source: str) -> int:
    """Bytes of the shared arrays that device source declares outside the dynamic buffer."""
    total = 0
    for _, c_type, extents in STATIC_ARRAY.findall(source):
        count = 1
        for extent in re.findall(r"\d+", extents):
            count *= int(extent)
        total += C_TYPE_BYTES[c_type] * count
    return total


def _reason(error: Exception) -> str:
    """The last line of an error's message that says something."""
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if re.search(r"\w", line) and not line.startswith("File ")]
    return lines[-1] if lines else type(error).__name__


def registers(source: str, arch: str) -> Registers | None:
    """Compile CUDA source for `arch` as TileLang does, and read ptxas's report.

    None where nvcc is not at hand. Raises LoweringError where nvcc refuses the source.
    """
    made = cubin(source, arch)
    return made and made.registers


def cached_registers(source: str, arch: str) -> Registers | None:
    """`registers`, remembered by the source, the architecture and nvcc's version, beside `cached_lower`."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return None
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    key = "\0".join(("registers", source, arch, version))
    return _remembered(key, Registers, lambda: registers(source, arch))


def cubin(source: str, arch: str, flags: tuple[str, ...] = ()) -> Cubin | None:
    """CUDA source compiled for `arch` as TileLang does; `flags` are nvcc's, beside TileLang's own.

    None where nvcc is not at hand. Raises LoweringError where nvcc refuses the source.
    """
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return None
    from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

    # wgmma, setmaxnreg and their like exist on the accelerated form of an architecture only.
    number = arch.removeprefix("sm_")
    code = number + "a" if number.isdigit() and int(number) >= 90 else number
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cu")
        out = file.with_suffix(".cubin")
        file.write_text(source)
        command = [nvcc, "-std=c++20", "-O3", "-w", "-cubin", "-Xptxas", "-v", *flags]
        command += ["-gencode", f"arch=compute_{code},code=sm_{code}"]
        command += [f"-I{TILELANG_TEMPLATE_PATH}", f"-I{CUTLASS_INCLUDE_DIR}"]
        command += [str(file), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True)
        report = done.stdout + done.stderr
        if done.returncode:
            raise LoweringError(f"nvcc: {arch}: {_reason(Exception(report))}")
        binary = out.read_bytes()
    counts = (
        max((int(value) for value in re.findall(pattern, report)), default=0)
        for pattern in (
            r"Used (\d+) registers",
            r"(\d+) bytes spill stores",
            r"(\d+) bytes spill loads",
            r"(\d+) bytes smem",
        )
    )
    return Cubin(binary, Registers(*counts))
