"""Deletes every wait of a kernel in turn and asks whether the emulator notices.

One build serves all: a run can leave out a numbered wait. What no run notices is redundant, because
the race detector is exact on the path that ran: with the wait gone, some other barrier still orders
every two accesses of different threads to one byte of which one is a write, no copy is used before
it has been waited for, and the results are the same.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .compiling import Emulated
from .findings import Finding
from .maps import TensorMap
from .running import COPIES, run
from .source import Site


@dataclass(frozen=True)
class Mutant:
    """A kernel without one wait. `findings` are what was noticed, in the first run that did.

    `passes` counts how often threads came by the place of the wait, in all `runs`.
    """

    site: Site
    findings: tuple[Finding, ...]
    runs: int
    passes: int = 0

    @property
    def caught(self) -> bool:
        return bool(self.findings)

    @property
    def reason(self) -> str:
        """The kinds of fault noticed, or why nothing is."""
        if self.caught:
            return ", ".join(dict.fromkeys(finding.kind for finding in self.findings))
        if not self.passes:
            return f"unknown: no thread came by in {self.runs} runs"
        return f"redundant: no conflict is left unordered without it, in {self.runs} runs"


def mutate(
    emulated: Emulated,
    tensors: dict[str, Any],
    grid: tuple[int, ...],
    check: Callable[[dict[str, Any]], Iterable[Finding]] = lambda outputs: (),
    orders: Iterable[int] = (0, 1),
    sites: Iterable[Site] | None = None,
    maps: Mapping[str, TensorMap] | None = None,
    ignored: Container[str] = (),
) -> list[Mutant]:
    """One mutant for each of `sites`, by default every wait; `check` judges a run's outputs.

    `ignored` are kinds of findings that the kernel has with all its waits in place. Every order is
    tried with either model of asynchronous operations until one run notices.
    """
    models = COPIES if emulated.kernel.asynchronous else COPIES[:1]
    runs = [(order, copies) for order in orders for copies in models]
    mutants = []
    for site in emulated.kernel.sites if sites is None else sites:
        findings: tuple[Finding, ...] = ()
        tried = passes = 0
        for order, copies in runs:
            result = run(
                emulated, tensors, grid, order=order, copies=copies, skip=site.number, maps=maps
            )
            found = (f for f in result.findings if f.kind not in ignored)
            findings = (*found, *check(result.outputs))
            tried += 1
            passes += result.skipped
            if findings:
                break
        mutants.append(Mutant(site, findings, tried, passes))
    return mutants
