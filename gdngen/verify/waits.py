"""Every barrier and wait of a module deleted in turn: does the emulator notice, and if not, why not?

A check that never fails proves nothing; this shows what it sees. What is not noticed must be shown
redundant: threads came by, no conflict is left unordered on the paths that ran, whatever the order
of warps, results are the same to the bit, and ThreadSanitizer finds nothing either.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gdngen import emulator
from gdngen.driver import Loaded
from gdngen.emulator import Emulated, Finding, Mutant
from gdngen.model.model import Kernel
from gdngen.plan.plan import Wish
from gdngen.plan.storage import Slot
from gdngen.pools import processes
from gdngen.show.tables import table
from gdngen.verify import blame, emulate, lowering, samples
from gdngen.verify import sweep as sweeps
from gdngen.verify.emulate import HOPPER, SUSPICIOUS, TARGET, WORKERS, Runnable
from gdngen.verify.sweep import Job

SANITIZED = (0, 1, 2)  # orders that ThreadSanitizer watches where the emulator noticed nothing
COPY_WAIT = "cp_async_wait"


@dataclass(frozen=True)
class Wait:
    """A wait left out.

    place    where it stands
    caught   whether a run noticed
    shown    whether that, or why none could, is shown
    reason   kinds of fault noticed, or the evidence that there is none
    slots    slots at fault
    """

    statement: str
    place: str
    caught: bool
    shown: bool
    reason: str
    slots: tuple[str, ...] = ()


@dataclass(frozen=True)
class Waits:
    """All waits of one module; `failures` say why it was not tried."""

    module: str
    waits: tuple[Wait, ...]
    seconds: float = 0.0
    failures: tuple[str, ...] = ()

    @property
    def caught(self) -> int:
        return sum(w.caught for w in self.waits)

    @property
    def ok(self) -> bool:
        return not self.failures and all(w.shown for w in self.waits)

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def chosen(loaded: Iterable[Loaded]) -> list[Loaded]:
    """Of every spec the first variant with each choice of dtypes."""
    out = []
    for one in loaded:
        first = {v.kernel.dtypes: v for v in reversed(one.variants)}
        variants = tuple(v for v in one.variants if first[v.kernel.dtypes] is v)
        out.append(dataclasses.replace(one, variants=variants))
    return out


def jobs(loaded: Iterable[Loaded], wish: Wish, folder: Path) -> list[Job]:
    """Modules of these variants as lowered for sm_80, or for sm_90 where roles have it alone."""
    found = []
    for one in loaded:
        roles = any(v.kernel.roles for v in one.variants)
        found += sweeps.jobs([one], wish, [HOPPER if roles else TARGET], folder)
    return found


def delete_each(kernel: Kernel, path: Path, slots: Iterable[Slot], target: str = TARGET) -> Waits:
    """Delete each wait of the module at `path`, a text of `kernel`; `slots` are its plan's."""
    start = time.monotonic()
    try:
        waits = tuple(_waits(kernel, emulate.runnable(path, target), path, tuple(slots)))
        failures: tuple[str, ...] = ()
    except (lowering.LoweringError, emulator.EmulatorError, Unfit) as e:
        waits, failures = (), (str(e).removeprefix("error: "),)
    return Waits(path.stem, waits, round(time.monotonic() - start, 1), failures)


class Unfit(Exception):
    """The module has faults with all its waits in place."""


@dataclass(frozen=True)
class _Setting:
    """One trial of a kernel: what it runs on, and whether outputs are those of the whole kernel."""

    given: dict[str, Any]
    check: Callable[[dict[str, Any]], Iterable[Finding]]


def _waits(kernel: Kernel, cuda: Runnable, path: Path, slots: tuple[Slot, ...]) -> Iterator[Wait]:
    whole = cuda.build()
    if not whole.kernel.sites:
        return
    watched = cuda.build(tsan=True)
    settings = [_setting(kernel, cuda, whole, trial) for trial in emulate.trials(kernel)]
    found = blame.blame(path, cuda.source, slots, cuda.dynamic, cuda.target)
    for site in whole.kernel.sites:
        runs = passes = 0
        mutant: Mutant | None = None
        for s in settings:
            (mutant,) = emulator.mutate(
                whole, **s.given, check=s.check, sites=[site], ignored=ignored(kernel)
            )
            runs, passes = runs + mutant.runs, passes + mutant.passes
            if mutant.caught:
                break
        place = str(found.place(site.line))
        if mutant.caught:
            faults = [found.fault(f) for f in mutant.findings]
            blamed = tuple(dict.fromkeys(slot for f in faults for slot in f.slots))
            yield Wait(site.statement, place, True, True, mutant.reason, blamed)
            continue
        seen = cuda.target == TARGET and COPY_WAIT not in site.statement
        yield _uncaught(watched if seen else None, settings[0], site, place, runs, passes)


def ignored(kernel: Kernel) -> tuple[str, ...]:
    """Kinds of findings that a kernel has with all its waits in place."""
    return () if kernel.roles else (SUSPICIOUS,)


def _setting(kernel: Kernel, cuda: Runnable, whole: Emulated, trial: samples.Trial) -> _Setting:
    tensors = emulate.inputs(kernel, trial)
    given = cuda.given(kernel, whole, tensors, trial.sizes)
    result = emulator.run(whole, **given)
    if faults := [f for f in result.findings if f.kind not in ignored(kernel)]:
        raise Unfit(f"has faults with all its waits in place: {faults[0]}")
    expected = {name: _bits(value) for name, value in result.outputs.items()}

    def check(outputs: dict[str, Any]) -> list[Finding]:
        return [
            Finding("wrong result", name)
            for name, value in outputs.items()
            if not expected[name].equal(_bits(value))
        ]

    return _Setting(given, check)


def _bits(value: Any) -> Any:
    import torch

    return value.contiguous().view(-1).view(torch.uint8)


def _uncaught(
    watched: Emulated | None, on: _Setting, site: Any, place: str, runs: int, passes: int
) -> Wait:
    """What shows that a wait which nobody misses is redundant.

    watched  for ThreadSanitizer, which knows nothing of asynchronous operations; None where it is no help
    """
    if not passes:
        return Wait(site.statement, place, False, False, f"no thread came by in {runs} runs")
    evidence = (
        f"redundant: threads came by {passes:,} times in {runs} runs, no conflict was left "
        "unordered, results are the same to the bit"
    )
    if watched is None:
        return Wait(site.statement, place, False, True, evidence)
    (theirs,) = emulator.mutate(watched, **on.given, check=on.check, orders=SANITIZED, sites=[site])
    if theirs.caught:
        return Wait(site.statement, place, False, False, f"ThreadSanitizer alone: {theirs.reason}")
    return Wait(site.statement, place, False, True, f"{evidence}; ThreadSanitizer agrees")


def sweep(jobs: list[Job]) -> Iterator[Waits]:
    """Every module's waits, in the order of `jobs`."""
    workers = min(len(jobs), os.cpu_count() or 1, WORKERS)
    if workers < 2:
        yield from map(_of, jobs)
        return
    with processes(workers) as pool:
        yield from pool.map(_of, jobs)


def _of(job: Job) -> Waits:
    target, plan = job.plans[0]
    return delete_each(job.kernel, job.path, plan.slots, emulate.emulated_as(target))


def lines(done: Waits) -> list[str]:
    """What the command line says of one module."""
    head = f"{done.module}: {done.caught} of {len(done.waits)} waits caught, {done.seconds:.1f} s"
    rows = [
        [
            "caught" if w.caught else "uncaught" if w.shown else "UNCAUGHT",
            w.statement,
            w.place,
            w.reason + (f" in {', '.join(w.slots)}" if w.slots else ""),
        ]
        for w in done.waits
    ]
    body = table(["", "wait", "stands at", "without it"], rows, left=4).splitlines() if rows else []
    return [head, *(f"    {failure}" for failure in done.failures), *(f"  {row}" for row in body)]


def total(done: Iterable[Waits]) -> str:
    """The last line: how much of it all is caught or shown redundant."""
    waits = [w for one in done for w in one.waits]
    caught, shown = sum(w.caught for w in waits), sum(w.shown for w in waits)
    share = f"{shown / len(waits):.0%}" if waits else "none"
    return (
        f"{len(waits)} waits deleted: {caught} caught, {shown - caught} shown redundant, "
        f"{len(waits) - shown} neither ({share} accounted for)"
    )
