"""Reads a lowered kernel's CUDA text and rewrites it, line for line, into C++ for the emulator."""

import re
from dataclasses import dataclass

from ..errors import GdngenError
from .instructions import MATRIX_TYPES, SUPPORTED, WORDS

FILE_NAME = "kernel.cu"  # what the compiler calls the text in its line tables
MAP = "CUtensorMap"


class EmulatorError(GdngenError):
    """The emulator cannot build or run this; the message says why."""


@dataclass(frozen=True)
class Param:
    """One parameter of a kernel: `type` is C++'s, without `const` and the pointer's star."""

    name: str
    type: str
    is_tensor: bool

    @property
    def is_map(self) -> bool:
        """Whether it describes a tensor for TMA."""
        return self.type == MAP


@dataclass(frozen=True)
class Site:
    """A statement that waits, or that others wait for, numbered in the order of the text; `line`
    counts from 1."""

    number: int
    line: int
    statement: str


@dataclass(frozen=True)
class Kernel:
    """A kernel's signature and its text, rewritten."""

    name: str
    params: tuple[Param, ...]
    threads: int
    sites: tuple[Site, ...]
    text: str

    @property
    def asynchronous(self) -> bool:
        """Whether it has operations that take place at some time between their issue and a wait."""
        return bool(_ASYNCHRONOUS.search(self.text))


_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_SIGNATURE = re.compile(
    r'extern "C" __global__ void __launch_bounds__\((\d+)[^)]*\)\s+(\w+)\(([^)]*)\)\s*\{'
)
_DYNAMIC_SHARED = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];")
_STATIC_SHARED = re.compile(
    r"(?<!extern )__shared__ (?:__align__\((?P<align>\d+)\) )?"
    r"(?P<type>[\w ]+) (?P<name>\w+)\[(?P<size>\d+)\];"
)
_VECTOR_ACCESS = re.compile(r"\*\((\w+)\*\)\(")
_LOCAL_ARRAY = re.compile(r"^( *)(\w+ \w+\[\d+\];)")
_WAIT = re.compile(
    r"(?P<call>__syncthreads|__syncwarp|tl::cp_async_wait<\d+>|tl::__sync_thread_partial"
    r"|tl::fence_proxy_async|tl::tma_store_wait<[\w, ]+>|tl::(?:wait_wgmma|warpgroup_wait)<\d+>"
    r"|tl::warpgroup_arrive|(?<=\.)arrive)"
    r"\((?P<arguments>[^()]*)\);"
)
_PHASE_WAIT = re.compile(r"(?P<call>(?<=\.)wait)\((?P<arguments>.*)\);")  # ends a line
_BARRIERS = re.compile(r"auto (\w+) = (reinterpret_cast<Barrier\*>\(\w+\));")
_ASYNCHRONOUS = re.compile(r"\btl::(?:cp_async_wait|tma_load|tma_store|wgmma_\w\w)\b")
_CALL = re.compile(r"(?<![\w:.])([A-Za-z_]\w*(?:::\w+)*)\s*\(")
_SCOPED = re.compile(r"(?<![\w:])([A-Za-z_]\w*)::(\w+)")


def read_kernel(source: str, name: str | None = None) -> Kernel:
    """The kernel `name`, or the only one there is. Raises EmulatorError for what is unsupported."""
    found = {match[2]: match for match in _SIGNATURE.finditer(source)}
    if not found:
        raise EmulatorError("no kernel with launch bounds in this CUDA source")
    if name is None and len(found) > 1:
        raise EmulatorError(f"several kernels in one source, name one of: {', '.join(found)}")
    if name is not None and name not in found:
        raise EmulatorError(f"no kernel {name}; there is {', '.join(found)}")
    match = found[name or next(iter(found))]
    refuse_unsupported(source, found)
    params = tuple(_param(text.strip()) for text in match[3].split(",") if text.strip())
    text, sites = _rewrite(source)
    return Kernel(match[2], params, int(match[1]), sites, text)


def _param(text: str) -> Param:
    words = re.sub("__restrict__|__grid_constant__", " ", text).replace("*", " * ").split()
    type_words = [word for word in words[:-1] if word not in ("const", "*")]
    return Param(words[-1], " ".join(type_words), "*" in words)


def refuse_unsupported(source: str, kernels: object = ()) -> None:
    """Raises EmulatorError naming the first instruction that is outside the known set."""
    code = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)
    code = re.sub(r"^[ \t]*#.*$", "", code, flags=re.MULTILINE)
    assembly = re.finditer(r"\b(?:asm|__asm__)\b", code)
    faults = [(match.start(), "asm (inline assembly)") for match in assembly]
    for match in _CALL.finditer(code):
        name = match[1]
        if "::" not in name and name not in SUPPORTED | WORDS and name not in kernels:
            faults.append((match.start(), name))
    for match in _SCOPED.finditer(code):
        scope, member = match.groups()
        if f"{scope}::{member}" not in SUPPORTED:
            faults.append((match.start(), f"{scope}::{member}"))
    for match in re.finditer(r"tl::DataType::(\w+)", code):
        if match[1] not in MATRIX_TYPES:
            faults.append((match.start(), match[0]))
    if faults:
        start, name = min(faults)
        line = code.count("\n", 0, start) + 1
        raise EmulatorError(f"{FILE_NAME}:{line}: unsupported instruction {name}")


def _rewrite(source: str) -> tuple[str, tuple[Site, ...]]:
    """The text for the C++ compiler, with as many lines, and the places where it waits."""
    sites: list[Site] = []
    lines = []
    for number, line in enumerate(source.splitlines(), start=1):
        if line.lstrip().startswith("#") and "#pragma" not in line:
            line = ""  # includes and compiler switches; the emulator brings its own
        line = _DYNAMIC_SHARED.sub(r"\1* const \2 = (\1*)emu::dynamic_shared();", line)
        line = _STATIC_SHARED.sub(_bytes_of_static_shared, line)
        line = _LOCAL_ARRAY.sub(r"\1alignas(16) \2", line)  # as the device's compiler does
        line = _VECTOR_ACCESS.sub(r"*emu::aligned<\1>(", line)
        line = _BARRIERS.sub(r'auto \1 = emu::named(\2, "\1");', line)
        for wait in (_WAIT, _PHASE_WAIT):
            line = wait.sub(lambda match: _numbered(match, number, sites), line)
        lines.append(line)
    return "\n".join(lines) + "\n", tuple(sites)


def _bytes_of_static_shared(array: re.Match) -> str:
    """Raw bytes and a pointer: an array of a class would be guarded as if it had a constructor."""
    element, name = array["type"], array["name"]
    return (
        f"alignas({array['align'] or 16}) __shared__ uchar "
        f"{name}_bytes[sizeof({element}) * {array['size']}]; "
        f"{element}* const {name} = ({element}*){name}_bytes;"
    )


def _numbered(wait: re.Match, line: int, sites: list[Site]) -> str:
    site = Site(len(sites), line, wait[0])
    sites.append(site)
    arguments = wait["arguments"]
    if wait["call"] == "__syncwarp" and not arguments:
        arguments = "emu::all_lanes"
    return f"{wait['call']}({arguments + ', ' if arguments else ''}{site.number});"
