"""What the emulator found, in the terms of a module: its slots, their tenants and its statements.

A fault comes with bytes and lines of the CUDA. The CUDA names a storage wherever it touches one, by
the last name that the module binds to it, and says where each storage begins; the plan says whose
slot it is; `marks` say which statement a line comes from. A tenant is blamed if that statement names
it, every tenant of the slot if it names none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gdngen.emulator import Finding
from gdngen.plan.storage import Slot
from gdngen.render.text import safe
from gdngen.verify import marks
from gdngen.verify.marks import Lines, Statement

SHARED = "shared"  # what a finding calls dynamic shared memory
_OFFSET = re.compile(r"void\* (\w+) = \(\(void\*\)\(\(char\*\)\w+ \+ (\d+)\)\);")
_ONLY = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?\w+ (\w+)\[\];")
_NAME = re.compile(r"[A-Za-z_]\w*")
PIPELINED = "T.Pipelined("
WIDTH = 72  # characters of a quoted line


@dataclass(frozen=True)
class Storage:
    """Where the CUDA puts a slot: bytes [low, high) of dynamic shared memory, and its name there."""

    name: str
    low: int
    high: int
    slot: Slot | None


@dataclass(frozen=True)
class Place:
    """A line of the CUDA and the statement behind it; line 0 is unknown, as is no statement."""

    cuda_line: int
    cuda: str
    line: int = 0
    text: str = ""
    stage: str = ""

    def __str__(self) -> str:
        where = f"CUDA line {self.cuda_line}" if self.cuda_line else "an unknown line"
        return f"line {self.line} `{self.text}` ({self.stage}; {where})" if self.line else where


@dataclass(frozen=True)
class Fault:
    """A finding with everything that is known of it.

    memory  'shared', 'static shared', or a tensor; '' where no memory is concerned
    slots   slots concerned, by the names of their storage in the module; () where unknown
    tenants buffers concerned: those that the statements name, or all of the slots
    low     bytes [low, high) of that memory
    places  the access or the wait; of a race the later one, then the earlier one
    run     the first run that showed it: sizes, order of warps and when copies land
    count   how often, in that run
    """

    kind: str
    memory: str
    slots: tuple[str, ...]
    tenants: tuple[str, ...]
    low: int
    high: int
    places: tuple[Place, ...]
    note: str
    run: str
    count: int

    def __str__(self) -> str:
        what = self.memory and f" {self.memory}[{self.low}:{self.high}]"
        if self.slots:
            what = f" in slot {', '.join(self.slots)} ({', '.join(self.tenants)}), bytes {self.low}:{self.high}"
        where = " against ".join(map(str, self.places))
        notes = "; ".join(filter(None, (self.note, f"first at {self.run}" if self.run else "")))
        return f"{self.kind}{what}: {where}" + (f" ({notes})" if notes else "")


def storages(source: str, slots: Iterable[Slot], dynamic: int) -> tuple[Storage, ...]:
    """The storages that CUDA declares in its `dynamic` bytes; a slot that is on none is left out.

    Under the compiler's own merging they may overlap; a storage then ends where its slot does.
    """
    owner = {safe(t): slot for slot in slots for t in slot.tenants}
    starts = {name: int(offset) for name, offset in _OFFSET.findall(source)}
    if not starts and (only := _ONLY.search(source)):
        starts = {only[1]: 0}
    apart = len(set(starts.values())) == len(starts)
    found = []
    for name, low in starts.items():
        slot = owner.get(name)
        high = min((s for s in starts.values() if s > low), default=dynamic)
        if not apart or slot is not None and low + slot.bytes > high:
            high = low + slot.bytes if slot else dynamic
        found.append(Storage(name, low, high, slot))
    return tuple(found)


@dataclass(frozen=True)
class Blame:
    """Everything that turns a finding into a fault."""

    module: str
    python: tuple[str, ...]
    cuda: tuple[str, ...]
    storages: tuple[Storage, ...]
    lines: Lines
    body: tuple[Statement, ...]

    def fault(self, finding: Finding, run: str = "") -> Fault:
        numbers = [n for n in (finding.line, finding.other_line) if n] or [0]
        places = tuple(self.place(n) for n in dict.fromkeys(numbers))
        touched = self.touched(finding, numbers) if finding.memory == SHARED else ()
        slots = tuple(safe(s.slot.name) if s.slot else s.name for s in touched)
        tenants = tuple(t for s in touched for t in self.tenants(s, numbers))
        return Fault(
            finding.kind, finding.memory, slots, tenants, finding.low, finding.high, places,
            finding.note, run, finding.count,
        )  # fmt: skip

    def place(self, number: int) -> Place:
        cuda = self.cuda[number - 1].strip() if number else ""
        statement = self.statement(number)
        if statement is None:
            return Place(number, cuda)
        text = self.python[statement.first - 1].strip()
        short = text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."
        return Place(number, cuda, statement.first, short, statement.stage)

    def statement(self, number: int) -> Statement | None:
        """The statement of a CUDA line. A pipelined loop's loads are moved out of reach of their marks:
        then it is the loop's first that names the storage of the line."""
        found = self.lines.of(number)
        if found is None or PIPELINED not in self.python[found.first - 1]:
            return found
        words = set(_NAME.findall(self.cuda[number - 1]))
        tenants = {t for s in self.storages if s.name in words for t in self.names(s)}
        later = (s for s in self.body if s.first > found.first)
        return next((s for s in later if tenants & set(self._words(s))), found)

    def names(self, storage: Storage) -> tuple[str, ...]:
        """What the module calls a storage."""
        return tuple(map(safe, storage.slot.tenants)) if storage.slot else (storage.name,)

    def touched(self, finding: Finding, numbers: list[int]) -> tuple[Storage, ...]:
        """Storages that the bytes lie in; of several, those that the lines name."""
        named = {word for n in numbers if n for word in _NAME.findall(self.cuda[n - 1])}
        meeting = [s for s in self.storages if s.low < finding.high and finding.low < s.high]
        inside = [s for s in meeting if s.name in named] or meeting
        return tuple(inside or [s for s in self.storages if s.name in named])

    def tenants(self, storage: Storage, numbers: list[int]) -> list[str]:
        """The slot's tenants that the statements of these lines name, or all of them."""
        if storage.slot is None:
            return [storage.name]
        words = {word for n in numbers for word in self._words(self.statement(n))}
        return [t for t in storage.slot.tenants if safe(t) in words] or list(storage.slot.tenants)

    def _words(self, statement: Statement | None) -> Iterator[str]:
        if statement is not None:
            yield from _NAME.findall("\n".join(self.python[statement.first - 1 : statement.last]))


def blame(path: Path, source: str, slots: Iterable[Slot], dynamic: int, target: str) -> Blame:
    """For the module at `path`, whose CUDA for `target` is `source`; lowers it a second time."""
    text = path.read_text()
    return Blame(
        path.name,
        tuple(text.splitlines()),
        tuple(source.splitlines()),
        storages(source, slots, dynamic),
        marks.lines(path, source, target),
        tuple(marks.statements(text)),
    )


def faults(
    findings: Mapping[Finding, str],
    path: Path,
    source: str,
    slots: Iterable[Slot],
    dynamic: int,
    target: str,
) -> tuple[Fault, ...]:
    """Faults of findings, each with the run that showed it; nothing is lowered where there is none."""
    if not findings:
        return ()
    found = blame(path, source, slots, dynamic, target)
    return tuple(found.fault(finding, run) for finding, run in findings.items())
