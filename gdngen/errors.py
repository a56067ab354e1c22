"""Where something stands in a spec, and what is wrong with it.

Passes put what they find into a `Report` and go on, so that one run shows every mistake;
`Report.stop()` raises them together as one `SpecError`. Only the command line prints.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, order=True)
class Location:
    """A place in a spec; `line` and `column` count from 1, `width` is how many characters to mark."""

    file: str
    line: int
    column: int
    width: int = field(default=1, compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def shifted(self, columns: int, width: int = 1) -> "Location":
        return Location(self.file, self.line, self.column + columns, width)


@dataclass(frozen=True)
class Diagnostic:
    """One finding: `severity` is 'error' or 'warning', `hint` a way out."""

    severity: str
    where: Location
    what: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.severity}: {self.what}"


class GdngenError(Exception):
    """A mistake of the user's; the message says what to do. The command line exits with 2."""


class SpecError(GdngenError):
    """Every mistake found in a spec, in the order of their lines."""

    def __init__(self, diagnostics: Iterable[Diagnostic], sources: dict[str, str]):
        self.diagnostics = tuple(diagnostics)
        self.sources = sources
        super().__init__("\n".join(show(d, sources) for d in self.diagnostics))


# What differs between variants in the words of one fault: sizes and dtypes.
_VARYING = re.compile(r"\b(?:b?float|int)\d+\b|\b\d[\d,.]*")


class Report:
    """Collects diagnostics; the same fault at the same place (in another variant, say) counts once."""

    def __init__(self) -> None:
        self._found: dict[tuple[Location, str], Diagnostic] = {}
        self.sources: dict[str, str] = {}

    def error(self, where: Location, what: str, hint: str | None = None, kind: str = "") -> None:
        self._add(Diagnostic("error", where, what, hint), kind)

    def warning(self, where: Location, what: str, hint: str | None = None, kind: str = "") -> None:
        self._add(Diagnostic("warning", where, what, hint), kind)

    def _add(self, found: Diagnostic, kind: str) -> None:
        self._found.setdefault((found.where, kind or _VARYING.sub("#", found.what)), found)

    def errors(self) -> list[Diagnostic]:
        return sorted((d for d in self._found.values() if d.severity == "error"), key=_order)

    def warnings(self) -> list[Diagnostic]:
        return sorted((d for d in self._found.values() if d.severity == "warning"), key=_order)

    def stop(self) -> None:
        """Raises `SpecError` if anything is wrong so far."""
        if errors := self.errors():
            raise SpecError(errors, self.sources)


def _order(d: Diagnostic) -> tuple:
    return (d.where, d.what)


def show(d: Diagnostic, sources: dict[str, str]) -> str:
    """`file:line:col: error: what`, the source line, a caret, and the way out."""
    out = [str(d)]
    lines = sources.get(d.where.file, "").splitlines()
    if 0 < d.where.line <= len(lines):
        text = lines[d.where.line - 1]
        start = max(0, d.where.column - 60)  # a very long line is shown around the fault
        text = text[start : start + 110]
        column = d.where.column - 1 - start
        lead = "".join(c if c == "\t" else " " for c in text[:column])
        width = max(1, min(d.where.width, len(text) - column))
        out += [f"  {text}", f"  {lead}{'^' * width}"]
    if d.hint:
        out.append(f"  help: {d.hint}")
    return "\n".join(out)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """'; did you mean 'x'?', or nothing if no known name is near."""
    near = difflib.get_close_matches(word[:64], list(known), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""
