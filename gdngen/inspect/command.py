"""`gdngen inspect`: its options, and what it comes to. Text is returned; only the CLI prints."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gdngen.devices import device, devices
from gdngen.errors import GdngenError
from gdngen.inspect import files, report
from gdngen.inspect.inspection import inspected
from gdngen.inspect.kernel import Kernel

TEXT = "read a hand-written TileLang kernel: its shared memory, what could share it, misuse of fragments"
DEFAULT_TARGET = "sm_80"


@dataclass(frozen=True)
class Outcome:
    """What to print, and the exit code."""

    text: str
    code: int


def add(commands, setting: Callable) -> argparse.ArgumentParser:
    """Adds the command to the parser's."""
    made = commands.add_parser(
        "inspect", help=TEXT, description=TEXT + ". Nothing of the file is run."
    )
    made.add_argument(
        "files",
        nargs="+",
        metavar="FILE.py[:FUNCTION]",
        help="kernels are functions with a T.Kernel",
    )
    made.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", type=setting,
        help="the value of a constant or a parameter, say BC=64; else defaults count",
    )  # fmt: skip
    where = made.add_mutually_exclusive_group()
    where.add_argument(
        "--target",
        default=None,
        help=f"the architecture that it is for (default: {DEFAULT_TARGET})",
    )
    where.add_argument("--device", help=f"does it fit this one? one of: {' '.join(devices())}")
    made.add_argument(
        "--lower", action="store_true",
        help="run the file as well, and ask TileLang for the bytes: only for files that you trust",
    )  # fmt: skip
    made.add_argument("--json", action="store_true", help="the same as data")
    return made


def run(options: argparse.Namespace, settings: Mapping[str, str]) -> Outcome:
    on = device(options.device or options.target or DEFAULT_TARGET)
    shown, rows, wrong = [], [], 0
    for given in options.files:
        path, function = _split(given)
        sources: dict[str, str] = {}
        found = files.load(path, function, settings)
        sources[str(path)] = path.read_text(encoding="utf-8-sig")
        for kernel in found:
            lowered = None
            if options.lower:
                lowered = _lowered(path, kernel, on.target)
            one = inspected(kernel, on, lowered)
            wrong += len(one.errors)
            if options.json:
                rows.append(report.data(one, devices().values(), lowered))
            else:
                shown.append(report.text(one, sources, devices().values(), lowered))
    out = json.dumps(rows, indent=1) if options.json else "\n\n".join(shown)
    return Outcome(out, 1 if wrong else 0)


def _split(given: str) -> tuple[Path, str | None]:
    """A path, and the function behind its colon."""
    path, colon, function = given.rpartition(":")
    if colon and function.isidentifier() and not Path(given).exists():
        return Path(path), function
    return Path(given), None


def _lowered(path: Path, kernel: Kernel, target: str) -> int:
    from gdngen.inspect import lowered
    from gdngen.verify.lowering import LoweringError

    try:
        return lowered.asked_bytes(path, kernel.factory, kernel.settings, target)
    except LoweringError as e:
        raise GdngenError(f"error: {e}") from None
