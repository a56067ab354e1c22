"""What a benchmark found, as data: rows, the table, JSON. Nothing here needs a GPU.

Times are milliseconds, sizes bytes, rates bytes a second.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from gdngen.model.model import BYTES, Kernel
from gdngen.show import tables
from gdngen.verify.interpret import shape

OURS = "gdngen"


@dataclass(frozen=True)
class Code:
    """What a compiled kernel takes.

    planned, asked   shared bytes a block: by the plan, and by the lowered kernel
    registers        a thread; `spills` in bytes a thread (stores and loads together)
    blocks           resident on one SM at once; `how` says who counted them: the driver, or the
                     limits in devices.yaml
    """

    planned: int | None = None
    asked: int | None = None
    registers: int | None = None
    spills: int | None = None
    threads: int | None = None
    blocks: int | None = None
    how: str = ""


@dataclass(frozen=True)
class Row:
    """One kernel on one shape.

    variant    the generated kernel that this row is about, or is a peer of
    who        'gdngen' or the peer; `what` says what exactly ran
    rounds     medians of rounds of launches, the same kernel each time: their spread is the noise
    bytes      the fewest that the kernel must move; `floor` is the time this takes at the copy rate
    error      ||out - ref|| / ||ref|| of the worst output, `worst` the largest error of an element
               over the largest value; `checked` says on which part, None where nothing was
    wrong      why the row is not to be believed, '' where all is well
    """

    variant: str
    shape: str
    who: str
    what: str
    rounds: tuple[float, ...]
    bytes: int
    floor: float
    error: float | None = None
    worst: float | None = None
    checked: str = ""
    code: Code = Code()
    wrong: str = ""

    @property
    def ms(self) -> float:
        """The mean of the rounds."""
        return sum(self.rounds) / len(self.rounds) if self.rounds else math.nan

    @property
    def over_floor(self) -> float:
        return self.ms / self.floor

    @property
    def rate(self) -> float:
        """Bytes a second that it moves, if it moves no more than it must."""
        return self.bytes / self.ms * 1e3


@dataclass(frozen=True)
class Skipped:
    """A peer that was not timed beside a variant."""

    variant: str
    shape: str
    who: str
    why: str


@dataclass(frozen=True)
class Run:
    """One run on one machine; `machine` holds names and versions."""

    machine: Mapping[str, str | int]
    copy_rate: float
    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...] = ()


def joined(one: Run, other: Run) -> Run:
    """Two runs on one machine as one."""
    return replace(other, rows=one.rows + other.rows, skipped=one.skipped + other.skipped)


def least_bytes(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """Inputs read once and outputs written once; a tensor that is both counts twice."""
    times = {"in": 1, "out": 1, "inout": 2}
    return sum(
        times[t.role] * BYTES[t.dtype] * math.prod(shape(kernel, t.name, sizes))
        for t in kernel.tensors
    )


def floor(least: int, copy_rate: float) -> float:
    """Milliseconds that moving `least` bytes takes at `copy_rate` bytes a second."""
    return least / copy_rate * 1e3


def groups(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows by variant and shape, in their order."""
    out: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        out.setdefault((row.variant, row.shape), []).append(row)
    return out


def against_ours(row: Row, rows: Iterable[Row]) -> float | None:
    """How many times as long as the generated kernel a row takes; None where that has no time."""
    ours = next((r.ms for r in rows if r.who == OURS and r.rounds), None)
    return row.ms / ours if ours and row.rounds else None


# -- the table -------------------------------------------------------------------------------------

HEADINGS = (
    "variant", "shape", "who", "ms", "again", "floor", "x floor", "x gdngen", "TB/s", "error", "worst",
    "shared", "regs", "spills", "blocks/SM",
)  # fmt: skip
TEXTS = 3  # columns that are aligned left


def cells(row: Row, rows: Iterable[Row]) -> list[str]:
    """A row of the table; '-' for what is not known."""
    ratio = against_ours(row, rows)
    times = [f"{t:.4f}" for t in row.rounds] + ["-", "-"]
    code = row.code
    return [
        row.variant,
        row.shape,
        row.who,
        *times[:2],
        f"{row.floor:.4f}",
        f"{row.over_floor:.2f}" if row.rounds else "-",
        f"{ratio:.2f}" if ratio else "-",
        f"{row.rate / 1e12:.2f}" if row.rounds else "-",
        *("-" if e is None else f"{e:.1e}" for e in (row.error, row.worst)),
        *(
            "-" if n is None else f"{n:,}"
            for n in (code.asked, code.registers, code.spills, code.blocks)
        ),
    ]


def table(run: Run) -> str:
    """Everything that was measured, then what was not and why."""
    body = [cells(r, rows) for rows in groups(run.rows).values() for r in rows]
    machine = ", ".join(f"{k} {v}" for k, v in run.machine.items())
    lines = [
        tables.table(HEADINGS, body, left=TEXTS),
        "",
        f"ms: median of launches, each kernel in two rounds. floor: the fewest bytes at the measured copy "
        f"rate, {run.copy_rate / 1e12:.2f} TB/s.",
        "x gdngen: as many times as long as the generated kernel. error, worst: against float64.",
        machine,
    ]
    lines += [f"wrong: {r.variant} at {r.shape}, {r.who}: {r.wrong}" for r in run.rows if r.wrong]
    lines += [
        f"not timed: {s.who} beside {', '.join(names)}: {s.why}" for s, names in told(run.skipped)
    ]
    if any(r.code.how for r in run.rows):
        how = dict.fromkeys(r.code.how for r in run.rows if r.code.how)
        lines.append(f"blocks/SM: {'; '.join(how)}")
    return "\n".join(lines)


def told(skipped: Iterable[Skipped]) -> list[tuple[Skipped, list[str]]]:
    """Each reason once, with the variants that it is the reason for."""
    by: dict[tuple[str, str], tuple[Skipped, list[str]]] = {}
    for s in skipped:
        _, names = by.setdefault((s.who, s.why), (s, []))
        if s.variant not in names:
            names.append(s.variant)
    return list(by.values())


# -- JSON ------------------------------------------------------------------------------------------


def dumps(run: Run) -> str:
    """The run as strict JSON; numbers that JSON has not are the strings 'nan', 'inf' and '-inf'."""
    return json.dumps(strict(asdict(run)), indent=1, allow_nan=False) + "\n"


def loads(text: str) -> Run:
    """What `dumps` wrote. Raises ValueError for anything else."""
    try:
        data = json.loads(text)
        return Run(
            data["machine"],
            data["copy_rate"],
            tuple(_row(r) for r in data["rows"]),
            tuple(Skipped(**s) for s in data["skipped"]),
        )
    except (KeyError, TypeError) as e:
        raise ValueError(f"not the JSON of a benchmark: {e}") from None


def _row(data: dict[str, Any]) -> Row:
    numbers = {f.name: float(data[f.name]) for f in fields(Row) if isinstance(data.get(f.name), str)
               and f.name in ("error", "worst")}  # fmt: skip
    rounds = tuple(float(t) for t in data["rounds"])
    return Row(**{**data, **numbers, "rounds": rounds, "code": Code(**data["code"])})


def strict(value: Any) -> Any:
    """Data in which numbers that JSON has not are strings."""
    match value:
        case dict():
            return {k: strict(v) for k, v in value.items()}
        case list() | tuple():
            return [strict(v) for v in value]
        case float() if not math.isfinite(value):
            return str(value)
    return value
