"""Compiles a lowered kernel for the CPU, together with the machine that runs it."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import uuid
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from .source import FILE_NAME, EmulatorError, Kernel, read_kernel

HERE = Path(__file__).resolve().parent
HEADERS = (
    "types.h", "math.h", "threads.h", "memory.h", "matrix.h", "copies.h", "reduce.h",
    "phases.h", "bulk.h", "warpgroup.h",
)  # fmt: skip
MACHINE = (
    "machine.cpp", "memory.cpp", "matrix.cpp", "copies.cpp", "phases.cpp", "bulk.cpp",
    "warpgroup.cpp", "main.cpp",
)  # fmt: skip
# By whether ThreadSanitizer watches.
WATCHERS = {False: ("shadow.cpp", "clocks.cpp"), True: ("tsan.cpp",)}

# DWARF 4, because common versions of addr2line misname the main file of DWARF 5 line tables.
COMMON = (
    "-std=c++20",
    "-g1",
    "-gdwarf-4",
    "-w",
    "-fno-pie",
    "-fno-strict-aliasing",
)
# The instrumentation calls the watcher before every load and store, whoever the watcher is.
INSTRUMENTED = ("-O1", "-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0")


@dataclass(frozen=True)
class Emulated:
    """A kernel built for the CPU: what `run` takes."""

    kernel: Kernel
    source: str = field(repr=False)
    shared_bytes: int
    tsan: bool
    program: Path


def build(
    source: str, shared_bytes: int, tsan: bool = False, kernel: str | None = None
) -> Emulated:
    """Build a kernel from the CUDA that TileLang lowers for sm_80 or sm_90.

    `shared_bytes` is the dynamic shared memory that the launch asks for. `tsan` has ThreadSanitizer
    watch instead of the emulator's own race detector. `kernel` names one of several.
    Raises EmulatorError for an instruction that is not emulated, and where no compiler is at hand.
    """
    parsed = read_kernel(source, kernel)
    unit = _translation_unit(parsed)
    name = _hash(unit, parsed.text, str(tsan), _machine_hash())
    program = cache_directory() / name / "kernel"
    if not program.exists():
        _link(unit, parsed.text, tsan, program)
    return Emulated(parsed, source, shared_bytes, tsan, program)


def cache_directory() -> Path:
    """Where builds are kept: `$GDNGEN_CACHE` or `.cache/gdngen` of the working directory."""
    return Path(os.environ.get("GDNGEN_CACHE") or ".cache/gdngen").resolve() / "emulator"


@cache
def compiler() -> str:
    """The C++ compiler: `$CXX`, else g++ or clang++."""
    for name in filter(None, (os.environ.get("CXX"), "g++", "clang++")):
        if path := shutil.which(name):
            return path
    raise EmulatorError("the emulator needs a C++20 compiler: install g++ or set CXX")


def _translation_unit(kernel: Kernel) -> str:
    """The emulator's headers, the kernel's text, and a call with the launch's arguments."""
    arguments = ", ".join(
        (
            f"({param.type}*)emu_arguments[{i}]"
            if param.is_tensor
            else (
                f"*({param.type}*)emu_arguments[{i}]"
                if param.is_map
                else f"({param.type})*(long*)emu_arguments[{i}]"
            )
        )
        for i, param in enumerate(kernel.params)
    )
    includes = "".join(f'#include "cuda/{header}"\n' for header in HEADERS)
    count = len(kernel.params)
    return (
        f'{includes}#include "{FILE_NAME}"\n'
        f'extern "C" {{\nvoid* emu_arguments[{max(count, 1)}];\n'
        f"extern const int emu_arguments_count = {count};\n"
        f"void emu_kernel() {{ {kernel.name}({arguments}); }}\n}}\n"
    )


def _hash(*texts: str) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:20]


@cache
def _machine_hash() -> str:
    """Changes with the emulator's own sources, the flags and the compiler."""
    files = sorted([*(HERE / "cuda").iterdir(), *(HERE / "machine").iterdir()])
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True).stdout
    return _hash(version, str(COMMON + INSTRUMENTED), *(file.read_text() for file in files))


def _machine_objects(tsan: bool) -> list[str]:
    """The machine's parts, compiled once and without instrumentation."""
    directory = cache_directory() / f"machine-{_machine_hash()}"
    names = [*MACHINE, *WATCHERS[tsan]]
    for name in names:
        target = directory / f"{name}.o"
        if not target.exists():
            source = str(HERE / "machine" / name)
            _make([*COMMON, "-O2", "-c", source], target)
    return [str(directory / f"{name}.o") for name in names]


def _link(unit: str, text: str, tsan: bool, program: Path) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as directory:
        scratch = Path(directory)
        (scratch / "unit.cpp").write_text(unit)
        (scratch / FILE_NAME).write_text(text)
        compiled = scratch / "unit.o"
        sources = [f"-I{HERE}", f"-I{scratch}", "-c", str(scratch / "unit.cpp")]
        _make([*COMMON, *INSTRUMENTED, *sources], compiled)
        runtime = ["-fsanitize=thread"] if tsan else []
        _make([*runtime, "-no-pie", str(compiled), *_machine_objects(tsan)], program)


def _make(arguments: list[str], target: Path) -> None:
    """Run the compiler into `target`, which appears whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    command = [compiler(), *arguments, "-o", str(partial)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if re.search("error|undefined", line)]
        errors = [re.sub(r"\S*/(?=\w+\.(cu|cpp|h):)", "", line) for line in errors]
        raise EmulatorError("the C++ compiler refused this kernel:\n" + "\n".join(errors[:5]))
    os.replace(partial, target)
