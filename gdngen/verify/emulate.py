"""A module's CUDA, run on the CPU: is it right, and are its threads in order?

What TileLang emits for sm_80 or sm_90 is built for the CPU and run in several orders of its warps, with
asynchronous operations that take place early and late, while every access is watched; results are
compared as on a GPU. Then once more under ThreadSanitizer, as a second opinion.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdngen import emulator
from gdngen.emulator import Emulated, Finding, compiling
from gdngen.errors import GdngenError
from gdngen.language.expr import evaluate, names
from gdngen.model.model import Kernel, Loop
from gdngen.plan import bulk
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
HOPPER = "sm_90"
# TileLang 0.1.15 splits three warps off a pipelined loop that wait for every tile and do nothing: nobody
# waits for them. A block would hang if one of them were held up for two rounds of all the others.
SUSPICIOUS = "overtaken wait"
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

    target      that its CUDA was lowered for
    lines       of the kernel's CUDA
    runs        how often it was run, each time over all blocks of a grid
    barriers    block-wide barriers passed, in all runs
    cautions    what only the compiler could put right, and no GPU was seen to fail by
    agreed      whether ThreadSanitizer watched one of the runs
    seconds     for everything, lowering included
    """

    module: str
    target: str
    lines: int
    runs: int
    barriers: int
    agreed: bool
    seconds: float
    faults: tuple[Fault, ...]
    comparisons: tuple[Comparison, ...]
    failures: tuple[str, ...] = ()
    cautions: tuple[Fault, ...] = ()

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

    The longer lengths come first. Roles get about twice the tiles then that they have room for, in two
    parts where
    blocks share them.
    """
    short, longer, *others = samples.trials(kernel)
    lengths = samples.tiles(kernel)
    kept = {*lengths, *samples.parts(kernel)}
    few = {name: size if name in kept else 1 for name, size in longer.sizes.items()}
    if kernel.roles:
        copies = max(role.copies for role in kernel.roles)  # that may take turns with the rounds
        tiles = 2 * copies * max(b.stages for b in kernel.buffers) + 1
        few |= {name: few[name] % tile + tile * (tiles - 1) for name, tile in lengths.items()}
        walked = _walked(kernel)
        few |= dict.fromkeys(walked, tiles)
        for part, count in _parts(kernel, walked):
            few |= {part: -(-tiles // 2), count: 2}
    return (Trial(few, longer.step), short, *others)


def inputs(kernel: Kernel, trial: Trial) -> Tensors:
    """Samples; where a block walks until a sum is below a bound, the bound lets it take a step or two."""
    tensors = samples.inputs(kernel, trial.sizes, step=trial.step)
    for walk in (s.walk for s in kernel.scalars if s.walk):
        match walk.until, walk.term:
            case (
                ast.Subscript(value=ast.Name(id=bound), slice=ast.Constant(value=at)),
                ast.Subscript(value=ast.Name(id=summed)),
            ):
                tensors[bound][at] = 1.5 * tensors[summed].mean()
    return tensors


def _walked(kernel: Kernel) -> set[str]:
    """Sizes that say how many rounds the loops of roles have, without those of the grid."""
    scalars = {s.name: s for s in kernel.scalars}
    loops = [s for s in kernel.statements() if isinstance(s, Loop)]
    found, seen = [name for loop in loops for name in names(loop.count)], set()
    while found:
        name = found.pop().id
        if name in scalars and name not in seen:
            found += [n for part in scalars[name].parts() for n in names(part)]
        seen.add(name)
    return (seen & set(kernel.runtime)) - {n.id for _, count in kernel.grid for n in names(count)}


def _parts(kernel: Kernel, walked: set[str]) -> Iterator[tuple[str, str]]:
    """Of the walked sizes those that a block starts at a multiple of, by themselves or with something
    added to each, and the size that counts blocks."""
    grid = {name: count.id for name, count in kernel.grid if isinstance(count, ast.Name)}
    for node in (n for s in kernel.scalars for n in ast.walk(s.value)):
        match node:
            case ast.BinOp(left=ast.Name(id=index), op=ast.Mult(), right=part) if index in grid:
                yield from ((n.id, grid[index]) for n in _terms(part) if n.id in walked)


def _terms(node: ast.AST) -> Iterator[ast.Name]:
    """The names among the terms of a sum."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _terms(node.left)
        yield from _terms(node.right)
    elif isinstance(node, ast.Name):
        yield node


def grid(kernel: Kernel, sizes: Mapping[str, int], target: str = TARGET) -> tuple[int, ...]:
    """Blocks of a launch."""
    values = {**dict(kernel.values), **sizes}
    return tuple(int(evaluate(count, values)) for _, count in bulk.grid(kernel, target))


def arguments(emulated: Emulated, tensors: Tensors, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Tensors and sizes by the names of the kernel's parameters."""
    given = {safe(name): value for name, value in {**sizes, **tensors}.items()} | {
        **sizes,
        **tensors,
    }
    return {p.name: given[p.name] for p in emulated.kernel.params if p.name in given}


@dataclass(frozen=True)
class Runnable:
    """CUDA at hand: its text, the dynamic shared bytes that it asks for, and its tensor maps."""

    source: str
    dynamic: int
    maps: Mapping[str, list[int | str]] = field(default_factory=dict)
    target: str = TARGET

    def build(self, tsan: bool = False) -> Emulated:
        return emulator.build(self.source, self.dynamic, tsan=tsan)

    def given(
        self, kernel: Kernel, emulated: Emulated, tensors: Tensors, sizes: Mapping[str, int]
    ) -> dict[str, Any]:
        """What `emulator.run` and `mutate` take of these tensors: `tensors`, `grid` and `maps`."""
        values = {**dict(kernel.values), **sizes}
        maps = {name: emulator.tensor_map(call, values) for name, call in self.maps.items()}
        named = {safe(name): value for name, value in tensors.items()}
        behind = {m.tensor: named[m.tensor] for m in maps.values()}
        given = {**behind, **arguments(emulated, tensors, sizes)}
        return {"tensors": given, "grid": grid(kernel, sizes, self.target), "maps": maps}


def runnable(path: Path, target: str) -> Runnable:
    """The CUDA of the module at `path`. Raises LoweringError."""
    lowered = lowering.cached_lower(path, target)
    return Runnable(lowered.source, lowered.dynamic_bytes, lowered.maps, target)


def emulate(
    kernel: Kernel,
    path: Path,
    slots: Iterable[Slot],
    sanitize: bool = True,
    target: str = TARGET,
) -> Emulation:
    """Run the module at `path`, a text of `kernel`, in all its cases.

    slots     of its plan, to name those at fault
    sanitize  whether ThreadSanitizer watches one more run
    target    'sm_80' or 'sm_90': what the module is lowered for
    """
    start = time.monotonic()
    try:
        done = source_emulated(kernel, runnable(path, target), path, slots, sanitize)
    except (lowering.LoweringError, emulator.EmulatorError) as e:
        failure = f"can't be emulated: {str(e).removeprefix('error: ')}"
        done = Emulation(path.stem, target, 0, 0, 0, False, 0.0, (), (), (failure,))
    return dataclasses.replace(done, seconds=round(time.monotonic() - start, 1))


def source_emulated(
    kernel: Kernel, cuda: Runnable, path: Path, slots: Iterable[Slot], sanitize: bool = True
) -> Emulation:
    """`emulate` for CUDA at hand. Raises EmulatorError."""
    emulated = cuda.build()
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

    every = cases(kernel, emulated.kernel.asynchronous)
    drawn: dict[Trial, tuple] = {}
    for case in every:
        trial = case.trial
        if str(trial) not in drawn:
            tensors = inputs(kernel, trial)
            drawn[str(trial)] = tensors, verify.right_answers(kernel, tensors, trial.sizes)
        tensors, answers = drawn[str(trial)]
        given = cuda.given(kernel, emulated, tensors, trial.sizes)
        result = emulator.run(emulated, **given, order=case.order, copies=case.copies)
        barriers += result.barriers
        note(result.findings, case)
        compared += [
            verify.compare(kernel, case, name, result.outputs[safe(name)], against, right, "cuda")
            for against, answer in answers.items()
            for name, right in answer.items()
        ]
    if sanitize:
        watched = cuda.build(tsan=True)
        case = dataclasses.replace(every[0], order=SHUFFLED, copies=every[0].copies)
        tensors, _ = drawn[str(case.trial)]
        given = cuda.given(kernel, watched, tensors, case.trial.sizes)
        result = emulator.run(watched, **given, order=case.order, copies=case.copies)
        note(result.findings, case)
    faults = blame.faults(found, path, cuda.source, slots, cuda.dynamic, cuda.target)
    cautions = tuple(f for f in faults if f.kind == SUSPICIOUS and not kernel.roles)
    return Emulation(
        path.stem,
        cuda.target,
        len(cuda.source.splitlines()),
        len(every) + sanitize,
        barriers,
        sanitize,
        0.0,
        tuple(f for f in faults if f not in cautions),
        tuple(compared),
        cautions=cautions,
    )


@dataclass(frozen=True)
class Task:
    """A module, and the target that it is lowered for."""

    job: Job
    target: str


def tasks(jobs: Iterable[Job]) -> list[Task]:
    """For sm_90 what was planned for it, for sm_80 what was planned for anything else."""
    return [
        Task(job, target)
        for job in jobs
        for target in dict.fromkeys(emulated_as(t) for t, _ in job.plans)
    ]


def emulated_as(target: str) -> str:
    return HOPPER if target.startswith(HOPPER) else TARGET


def sweep(found: list[Task]) -> Iterator[Emulation]:
    """Emulations as they come, by `WORKERS` processes."""
    workers = min(len(found), os.cpu_count() or 1, WORKERS)
    if workers < 2:
        yield from map(_emulated, found)
        return
    with processes(workers) as pool:
        for done in as_completed([pool.submit(_emulated, task) for task in found]):
            yield done.result()


def _emulated(task: Task) -> Emulation:
    slots = next(p.slots for t, p in task.job.plans if emulated_as(t) == task.target)
    return emulate(task.job.kernel, task.job.path, slots, target=task.target)


def line(done: Emulation) -> str:
    """What the command line says of one module."""
    word = "ok" if done.ok else "WRONG"
    overtaken = f", {len(done.cautions)} waits may be overtaken" if done.cautions else ""
    return (
        f"{word}  {done.module}  {done.lines:,} lines of CUDA for {done.target}, {done.runs} runs, "
        f"{done.barriers:,} barriers, off by {done.worst():.1e} at worst{overtaken}, "
        f"{done.seconds:.1f} s"
    )


def total(done: list[Emulation]) -> str:
    """The last line: how many modules are without a fault."""
    fine = sum(one.ok for one in done)
    targets = " and ".join(sorted({one.target for one in done}))
    return f"{fine} of {len(done)} kernels are right and without a race, emulated as for {targets}"
