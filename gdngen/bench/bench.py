"""Generated kernels and their peers, timed in one run on one GPU.

For each variant and shape: input sets are drawn on the device until they exceed its L2; every
contender is checked against float64 on a part of the first set, then all are timed in turn, twice.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdngen.bench import building, contenders, gpu, peers, shapes, timings
from gdngen.bench.building import Built, Job
from gdngen.bench.contenders import Contender, NotServed
from gdngen.bench.peers import Peer
from gdngen.bench.timings import Code, Row, Run, Skipped
from gdngen.devices import devices
from gdngen.model.model import Kernel
from gdngen.verify import samples, verify

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]

SLICE = 1 << 26  # bytes: a part that float64 references work on within a second
ROUNDS = 2
DEVICE = "cuda"


@dataclass(frozen=True)
class Part:
    """What a contender is checked on: its sizes, in words, and how to cut a tensor down to it."""

    sizes: dict[str, int]
    text: str
    cut: Callable[[str, torch.Tensor], torch.Tensor]


# -- what is checked -------------------------------------------------------------------------------


def part(kernel: Kernel, full: Mapping[str, int]) -> Part | None:
    """The last sequence of a run: every count cut to its last index, lengths whole.

    None where a tensor's shape does not show its counts, where there are none, where the kernel has
    no named reference (what interprets a kernel is slow), and where the part is too large.
    """
    lengths = samples.tiles(kernel)
    counts = {name for name in kernel.runtime if name not in lengths}
    cut_sizes = {**full, **dict.fromkeys(counts, 1)}
    if not counts or not kernel.reference or timings.least_bytes(kernel, cut_sizes) > SLICE:
        return None
    axes: dict[str, list[int]] = {}
    for t in kernel.tensors:
        for i, side in enumerate(t.shape):
            plain = isinstance(side, ast.Name) and side.id in counts
            if plain:
                axes.setdefault(t.name, []).append(i)
            elif counts & {n.id for n in ast.walk(side) if isinstance(n, ast.Name)}:
                return None

    def cut(name: str, tensor: torch.Tensor) -> torch.Tensor:
        for axis in axes.get(name, []):
            tensor = tensor.narrow(axis, tensor.shape[axis] - 1, 1)
        return tensor.cpu()

    text = "the last " + " ".join(name for name in kernel.runtime if name in counts)
    return Part(cut_sizes, text, cut)


def judged(
    row: Row, kernel: Kernel, who: Contender, tensors: Tensors, full: Mapping[str, int]
) -> Row:
    """The row with the errors of one call, on a part of these tensors or on few others."""
    found = part(kernel, full)
    if found is None:
        small = samples.sizes(kernel, longer=True)
        found = Part(small, shapes.text(small), lambda _, tensor: tensor.cpu())
        tensors = samples.inputs(kernel, small, device=DEVICE, restart=True)
    given = {t.name: found.cut(t.name, tensors[t.name]) for t in kernel.tensors if t.role != "out"}
    bound = who.bind(tensors)
    outputs = bound.outputs(bound.call())
    right = who.right(given, found.sizes)
    compared = [
        verify.compare(
            kernel,
            samples.Trial(found.sizes),
            name,
            found.cut(name, out),
            "float64",
            right[name],
            "cuda",
        )
        for name, out in outputs.items()
        if name in right and kernel.tensor(name) is not None
    ]
    if not compared:
        return row
    return replace(
        row,
        error=max(c.error for c in compared),
        worst=max(c.worst for c in compared),
        checked=found.text,
        wrong="; ".join(str(c) for c in compared if not c.ok),
    )


# -- what is timed ---------------------------------------------------------------------------------


def code(built: Built | None, planned: int | None) -> Code:
    """What a compiled kernel takes, and how many blocks of it an SM holds."""
    if built is None:
        return Code()
    blocks, how = None, ""
    try:
        if built.code:
            blocks = gpu.resident(built.code, built.entry, built.threads, built.dynamic).blocks
            how = "counted by the driver for the compiled kernel"
    except (OSError, RuntimeError) as e:
        how = f"computed, since the driver does not say ({e})"
    if blocks is None and (on := devices().get(gpu.target())) and built.threads:
        how = how or "computed from what a device gives"
        blocks = on.blocks_per_sm(built.dynamic + built.static, built.threads, built.registers)
    return Code(
        planned, built.dynamic + built.static, built.registers, built.spills,
        built.threads, blocks, how,
    )  # fmt: skip


def run(
    jobs: list[Job],
    wanted: list[dict[str, int]],
    asked: tuple[Peer, ...],
    progress: Callable[[str], None] = lambda _: None,
    workers: int | None = None,
    keep: Callable[[Run], None] = lambda _: None,
) -> Run:
    """Times every job on every shape beside the peers asked for.

    progress   is told what is about to happen; `keep` gets all that is known after each shape
    workers    compile side by side
    """
    shapes.check_names(wanted, [job.kernel for job in jobs])
    beside: dict[int, list[Contender]] = {}
    skipped: list[tuple[int, str, str]] = []
    for i, job in enumerate(jobs):
        for peer in asked:
            match peers.contender(peer, job.kernel, job.target):
                case str(why):
                    skipped.append((i, peer.name, why))
                case made:
                    beside.setdefault(i, []).append(made)
    paths = [job.path for job in jobs] + [
        c.path for made in beside.values() for c in made if c.path
    ]
    progress(f"compiling {len(set(paths))} kernels")
    built = building.build_all(paths, jobs[0].target, workers) if jobs else {}
    machine, rate = gpu.machine(), gpu.copy_rate()
    rows: list[Row] = []
    missed: list[Skipped] = []
    for i, job in enumerate(jobs):
        for given in wanted:
            at = shapes.sizes(job.kernel, given)
            text = shapes.text(at)
            progress(f"[{i + 1}/{len(jobs)}] {job.path.stem} at {text}")
            more, refused = group(job, at, beside.get(i, []), built, int(machine["l2"]), rate)
            rows, missed = rows + more, missed + refused
            missed += [Skipped(job.path.stem, text, *why) for n, *why in skipped if n == i]
            keep(Run(machine, rate, tuple(rows), tuple(missed)))
    return Run(machine, rate, tuple(rows), tuple(missed))


def group(
    job: Job,
    at: dict[str, int],
    others: list[Contender],
    built: Mapping[Path, Built],
    l2: int,
    rate: float,
) -> tuple[list[Row], list[Skipped]]:
    """One generated kernel and its peers on one shape, judged, then timed in turn."""
    least = timings.least_bytes(job.kernel, at)
    same = (job.path.stem, shapes.text(at))
    rows, refused, ready, drawn = [], [], [], None
    for who in (contenders.ours(job.kernel, job.path), *others):
        made = built.get(who.path) if who.path else None
        row = Row(*same, who.who, who.what, (), least, timings.floor(least, rate))
        try:
            if made and made.refusal:
                raise RuntimeError(made.refusal)
            drawn = drawn or [
                samples.inputs(job.kernel, at, seed=seed, device=DEVICE, restart=True)
                for seed in range(gpu.sets(least, l2))
            ]
            row = replace(row, code=code(made, job.planned if who.path == job.path else None))
            row = judged(row, job.kernel, who, drawn[0], at)
            ready.append((len(rows), [who.bind(tensors).call for tensors in drawn]))
        except NotServed as e:
            refused.append(Skipped(*same, who.who, str(e)))
            continue
        except Exception as e:  # a peer may fail in any way, and a kernel may crash
            row = replace(row, wrong=message(e))
        rows.append(row)
    return timed(rows, ready), refused


def timed(rows: list[Row], ready: Iterable[tuple[int, list[Callable[[], Any]]]]) -> list[Row]:
    """The rows with the times of their calls, one for each set of inputs: all take turns, in ROUNDS."""
    out = list(rows)
    for _ in range(ROUNDS):
        for i, calls in ready:
            try:
                out[i] = replace(out[i], rounds=(*out[i].rounds, gpu.median(calls)))
            except Exception as e:
                out[i] = replace(out[i], wrong=message(e))
    return out


def message(e: Exception) -> str:
    """What kind of error, and the first line that it says."""
    lines = str(e).strip().splitlines() or ["no message"]
    return f"{type(e).__name__}: {lines[0]}"


def failed(found: Run) -> list[Row]:
    """The generated kernels' rows that are wrong or have no time."""
    return [r for r in found.rows if r.who == timings.OURS and (r.wrong or not r.rounds)]
