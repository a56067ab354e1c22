"""A module's CUDA, run on the CPU: is it right, and are its threads in order?

What TileLang emits for sm_80 is built for the CPU and run in several orders of its warps, with
asynchronous copies that land early and late, while every access is watched; results are compared as
on a GPU. Then once more under ThreadSanitizer, as a second opinion.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdngen import emulator
from gdngen.emulator import Emulated, Finding, compiling
from gdngen.errors import GdngenError
from gdngen.language.expr import evaluate
from gdngen.model.model import Kernel
from gdngen.plan.storage import Slot
from gdngen.pools import processes
from gdngen.render.text import safe
from gdngen.verify import blame, lowering, samples, verify
from gdngen.verify.blame import Fault
from gdngen.verify.samples import Trial
from gdngen.verify.sweep import Job
from gdngen.verify.verify import Comparison

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]

TARGET = "sm_80"
ORDERS = (0, 1, 2)  # of warps and lanes: ascending, descending, shuffled
SHUFFLED = 2
WORKERS = 2  # processes; each holds TileLang and torch


@dataclass(frozen=True)
class Case:
    """A run of a kernel: on what, in which order, and when asynchronous copies land."""

    trial: Trial
    order: int
    copies: str

    def __str__(self) -> str:
        return f"{self.trial}, order {self.order}, copies {self.copies}"


@dataclass(frozen=True)
class Emulation:
    """What became of one module. `failures` say why it could not be run at all, or not to the end.

    lines       of the kernel's CUDA
    runs        how often it was run, each time over all blocks of a grid
    barriers    block-wide barriers passed, in all runs
    agreed      whether ThreadSanitizer watched one of the runs
    seconds     for everything, lowering included
    """

    module: str
    lines: int
    runs: int
    barriers: int
    agreed: bool
    seconds: float
    faults: tuple[Fault, ...]
    comparisons: tuple[Comparison, ...]
    failures: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems()

    def problems(self) -> tuple[str, ...]:
        """One line for each thing that is wrong; an output that is wrong in several runs, once."""
        wrong: dict[tuple[str, str], list[Comparison]] = {}
        for c in self.comparisons:
            if not c.ok:
                wrong.setdefault((c.output, c.against), []).append(c)
        results = (
            f"wrong result: {first}" + (f", and in {len(rest)} more runs" if rest else "")
            for first, *rest in wrong.values()
        )
        return (*self.failures, *map(str, self.faults), *results)

    def worst(self) -> float:
        """The largest error of all comparisons."""
        return max((e for c in self.comparisons for e in (c.error, c.worst)), default=0.0)

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok, "problems": list(self.problems())}


def ready() -> None:
    """Raises GdngenError where this machine lacks what the emulator needs."""
    try:
        compiling.compiler()
    except emulator.EmulatorError as e:
        raise GdngenError(f"error: {e}") from None
    if not (shutil.which("addr2line") or shutil.which("llvm-addr2line")):
        raise GdngenError("error: the emulator needs addr2line: install binutils")


def cases(kernel: Kernel, asynchronous: bool) -> tuple[Case, ...]:
    """The runs of a kernel: every order and copy model on several tiles, and once on each other trial."""
    models = ("early", "late") if asynchronous else ("early",)
    first, *others = trials(kernel)
    return (
        *(Case(first, order, copies) for order in ORDERS for copies in models),
        *(Case(trial, 1, models[-1]) for trial in others),
    )


def trials(kernel: Kernel) -> tuple[Trial, ...]:
    """As `samples.trials`, over few blocks: where lengths are longer, counts such as a batch are 1.

    The longer lengths come first.
    """
    short, longer, *others = samples.trials(kernel)
    lengths = samples.tiles(kernel)
    kept = {*lengths, *samples.parts(kernel)}
    few = {name: size if name in kept else 1 for name, size in longer.sizes.items()}
    return (Trial(few, longer.step), short, *others)


def grid(kernel: Kernel, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Blocks of a launch."""
    values = {**dict(kernel.values), **sizes}
    return tuple(int(evaluate(count, values)) for _, count in kernel.grid)


def arguments(emulated: Emulated, tensors: Tensors, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Tensors and sizes by the names of the kernel's parameters."""
    given = {safe(name): value for name, value in {**sizes, **tensors}.items()} | {
        **sizes,
        **tensors,
    }
    return {p.name: given[p.name] for p in emulated.kernel.params if p.name in given}


def is_asynchronous(emulated: Emulated) -> bool:
    """Whether the kernel has asynchronous copies."""
    return any("cp_async_wait" in site.statement for site in emulated.kernel.sites)


def emulate(kernel: Kernel, path: Path, slots: Iterable[Slot], sanitize: bool = True) -> Emulation:
    """Run the module at `path`, a text of `kernel`, in all its cases.

    slots     of its plan, to name those at fault
    sanitize  whether ThreadSanitizer watches one more run
    """
    start = time.monotonic()
    try:
        lowered = lowering.cached_lower(path, TARGET)
        done = source_emulated(kernel, lowered.source, lowered.dynamic_bytes, path, slots, sanitize)
    except (lowering.LoweringError, emulator.EmulatorError) as e:
        failure = f"can't be emulated: {str(e).removeprefix('error: ')}"
        done = Emulation(path.stem, 0, 0, 0, False, 0.0, (), (), (failure,))
    return dataclasses.replace(done, seconds=round(time.monotonic() - start, 1))


def source_emulated(
    kernel: Kernel,
    source: str,
    dynamic: int,
    path: Path,
    slots: Iterable[Slot],
    sanitize: bool = True,
) -> Emulation:
    """`emulate` for CUDA at hand, with `dynamic` bytes of shared memory. Raises EmulatorError."""
    emulated = emulator.build(source, dynamic)
    found: dict[Finding, str] = {}
    seen: set[tuple] = set()
    compared: list[Comparison] = []
    barriers = 0

    def note(findings: Iterable[Finding], case: Case) -> None:
        for f in findings:
            key = (f.kind, f.memory, f.line, f.other_line)
            if key not in seen:
                seen.add(key)
                found[f] = str(case)

    every = cases(kernel, is_asynchronous(emulated))
    drawn: dict[Trial, tuple] = {}
    for case in every:
        trial = case.trial
        if str(trial) not in drawn:
            tensors = samples.inputs(kernel, trial.sizes, step=trial.step)
            drawn[str(trial)] = tensors, verify.right_answers(kernel, tensors, trial.sizes)
        tensors, answers = drawn[str(trial)]
        given = arguments(emulated, tensors, trial.sizes)
        blocks = grid(kernel, trial.sizes)
        result = emulator.run(emulated, given, blocks, order=case.order, copies=case.copies)
        barriers += result.barriers
        note(result.findings, case)
        compared += [
            verify.compare(kernel, case, name, result.outputs[safe(name)], against, right, "cuda")
            for against, answer in answers.items()
            for name, right in answer.items()
        ]
    if sanitize:
        watched = emulator.build(source, dynamic, tsan=True)
        case = dataclasses.replace(every[0], order=SHUFFLED, copies=every[0].copies)
        tensors, _ = drawn[str(case.trial)]
        given = arguments(watched, tensors, case.trial.sizes)
        result = emulator.run(
            watched, given, grid(kernel, case.trial.sizes), order=case.order, copies=case.copies
        )
        note(result.findings, case)
    faults = blame.faults(found, path, source, slots, dynamic, TARGET)
    count = len(source.splitlines())
    return Emulation(
        path.stem, count, len(every) + sanitize, barriers, sanitize, 0.0, faults, tuple(compared)
    )


def sweep(jobs: list[Job]) -> Iterator[Emulation]:
    """Emulations as they come, by `WORKERS` processes."""
    workers = min(len(jobs), os.cpu_count() or 1, WORKERS)
    if workers < 2:
        yield from map(_emulated, jobs)
        return
    with processes(workers) as pool:
        for done in as_completed([pool.submit(_emulated, job) for job in jobs]):
            yield done.result()


def _emulated(job: Job) -> Emulation:
    return emulate(job.kernel, job.path, job.plans[0][1].slots)


def line(done: Emulation) -> str:
    """What the command line says of one module."""
    word = "ok" if done.ok else "WRONG"
    return (
        f"{word}  {done.module}  {done.lines:,} lines of CUDA, {done.runs} runs, "
        f"{done.barriers:,} barriers, off by {done.worst():.1e} at worst, {done.seconds:.1f} s"
    )


def total(done: list[Emulation]) -> str:
    """The last line: how many modules are without a fault."""
    fine = sum(one.ok for one in done)
    return f"{fine} of {len(done)} kernels are right and without a race, emulated as for {TARGET}"
