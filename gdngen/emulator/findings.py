"""What a run found wrong, and where: read from the machine's output and from ThreadSanitizer's."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .source import FILE_NAME, EmulatorError

KINDS = (
    "race",
    "missing proxy fence",
    "barrier divergence",
    "deadlock",
    "overtaken wait",
    "early arrival",
    "misaligned",
    "uninitialised shared read",
    "out of bounds",
    "wrong result",
)


@dataclass(frozen=True)
class Finding:
    """One fault, with everything of its kind between the same two lines taken together.

    `memory` is "shared", "static shared", a tensor's name, or "" where no memory is concerned.
    `low` and `high` bound the bytes concerned, [low, high) from the start of that memory.
    `line` is the line of the generated CUDA, from 1, of the later access or of the wait;
    `other_line` is a race's earlier access. 0 means unknown. Threads are linear in their block, -1 is unknown.
    """

    kind: str
    memory: str = ""
    low: int = 0
    high: int = 0
    line: int = 0
    other_line: int = 0
    thread: int = -1
    other_thread: int = -1
    count: int = 1
    note: str = ""

    def __str__(self) -> str:
        where = f"line {self.line}" + (f" against {self.other_line}" if self.other_line else "")
        bytes_ = f" {self.memory}[{self.low}:{self.high}]" if self.memory else ""
        return f"{self.kind}:{bytes_} {where}" + (f" ({self.note})" if self.note else "")


def read_findings(output: str, program: Path) -> list[Finding]:
    """The machine's `finding` lines, code addresses turned into lines of the CUDA text."""
    rows = [line.split("\t")[1:] for line in output.splitlines() if line.startswith("finding\t")]
    lines = _lines_of({int(row[i], 16) for row in rows for i in (4, 5)}, program)
    found = {}
    for kind, memory, low, high, caller, other, thread, other_thread, count, note in rows:
        finding = Finding(
            kind,
            memory,
            int(low),
            int(high),
            lines.get(int(caller, 16), 0),
            lines.get(int(other, 16), 0),
            int(thread),
            int(other_thread),
            int(count),
            note,
        )
        if kind == "barrier divergence" and 0 < finding.line == finding.other_line:
            continue  # one barrier that the compiler has made two of
        key = (kind, memory, finding.line, finding.other_line, note)
        found[key] = _merged(found[key], finding) if key in found else finding
    return sorted(found.values(), key=lambda f: (KINDS.index(f.kind), f.line, f.other_line))


def _merged(a: Finding, b: Finding) -> Finding:
    values = {**vars(a), "low": min(a.low, b.low), "high": max(a.high, b.high)}
    return Finding(**{**values, "count": a.count + b.count})


_ACCESS = re.compile(r"(?:Write|Read|Previous \w+) of size (\d+) at 0x([0-9a-f]+)", re.IGNORECASE)
_FRAME = re.compile(r"^    #0 .*\(kernel\+0x([0-9a-f]+)\)", re.MULTILINE)


def read_sanitizer(errors: str, shared: int, shared_bytes: int, program: Path) -> list[Finding]:
    """ThreadSanitizer's reports as findings; `shared` is where shared memory began."""
    races = []
    for report in errors.split("WARNING: ThreadSanitizer: data race")[1:]:
        access = _ACCESS.search(report)
        frames = [int(match[1], 16) for match in _FRAME.finditer(report)][:2]
        if access and frames:  # else it is about the machine's own bookkeeping
            races.append((int(access[2], 16) - shared, int(access[1]), *(frames + [0, 0])[:2]))
    lines = _lines_of({address for race in races for address in race[2:]}, program)
    found = {}
    for offset, size, caller, other in races:
        memory = "shared" if 0 <= offset < shared_bytes else ""
        low, high = (offset, offset + size) if memory else (0, 0)
        key = (memory, lines.get(caller, 0), lines.get(other, 0))
        finding = Finding("race", memory, low, high, *key[1:], note="ThreadSanitizer")
        found[key] = _merged(found[key], finding) if key in found else finding
    return list(found.values())


def _lines_of(addresses: Iterable[int], program: Path) -> dict[int, int]:
    """Line of the CUDA text for each return address, seen through inlined functions."""
    wanted = sorted(set(addresses) - {0})
    if not wanted:
        return {}
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if not tool:
        raise EmulatorError("the emulator needs addr2line (binutils) to name a fault's line")
    # A return address is just past the call, so the call is found one byte before.
    command = [tool, "-a", "-i", "-e", str(program), *(hex(address - 1) for address in wanted)]
    lines: dict[int, int] = {}
    current = 0
    for row in subprocess.run(command, capture_output=True, text=True).stdout.splitlines():
        if row.startswith("0x"):
            current = int(row, 16) + 1
        elif match := re.search(rf"{re.escape(FILE_NAME)}:(\d+)", row):
            lines[current] = int(match[1])
    return lines
