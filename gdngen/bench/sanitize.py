"""compute-sanitizer over many kernels: racecheck and memcheck, each kernel on one small run.

All kernels are compiled first, side by side. A process then runs several, since most of its time goes
into starting; only where such a group is not clean, each of its kernels runs once more on its own, so
that what was found has a name. Before anything else both tools must find what is planted in two kernels
of CUDA: a sanitizer that sees nothing would find nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from gdngen import catalog
from gdngen.bench.building import Job
from gdngen.pools import processes
from gdngen.show import tables
from gdngen.verify import lowering, samples

TOOLS = ("racecheck", "memcheck")
BESIDE = 8  # processes at once; they share one GPU
GROUP = 8  # kernels that one process runs, at most
START, EACH = 60, 25  # seconds that a process may take: to start, and for each kernel
LEAST = 5  # seconds that must be left for a process to be started
FOUND = 77  # exit code of compute-sanitizer that has found something
SUMMARY = re.compile(r"SUMMARY: (\d+) (?:error|hazard)s?.*")
CHILD = {"OMP_NUM_THREADS": "2", "TILELANG_PRINT_ON_COMPILATION": "0", "PYTHONUNBUFFERED": "1"}
KEPT = 4000  # characters of output that are kept of what is not clean

PLANTED = r"""
#include <cstdio>
__global__ void races(int* out) {
  __shared__ int tile[128];
  tile[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = tile[127 - threadIdx.x];  // no barrier: another warp's element
}
__global__ void strays(int* out) { out[(1 << 20) + threadIdx.x] = 1; }
int main(int count, char**) {
  int* out;
  if (cudaMalloc(&out, 512)) return 3;
  if (count > 1) strays<<<1, 128>>>(out); else races<<<1, 128>>>(out);
  cudaDeviceSynchronize();
  return 0;
}
"""


@dataclass(frozen=True)
class Ran:
    """What a process came to. `code` is None where it was stopped, or never started."""

    code: int | None
    output: str
    seconds: float

    @property
    def hazards(self) -> int | None:
        """What the sanitizer counted; None where it did not come to that."""
        found = SUMMARY.findall(self.output)
        return int(found[-1]) if found else None

    @property
    def clean(self) -> bool:
        return self.code == 0 and self.hazards == 0


@dataclass(frozen=True)
class Result:
    """One kernel under one tool. `what` says why it is not clean; `output` is the end of the tool's."""

    kernel: str
    tool: str
    clean: bool
    hazards: int | None
    seconds: float
    what: str = ""
    output: str = ""


@dataclass(frozen=True)
class Setup:
    """How kernels are run.

    tool     the path of compute-sanitizer
    child    the command of a process that runs some kernels, as `inside` does
    workers  processes that compile at once
    stop     when nothing may be started any more, by time.monotonic
    say      takes a line of progress
    """

    tool: str
    child: Callable[[Sequence[Job]], list[str]]
    workers: int
    stop: float
    say: Callable[[str], None]

    @property
    def at_once(self) -> int:
        return min(self.workers, BESIDE)


def run(jobs: Sequence[Job], setup: Setup, out: Path) -> tuple[int, str]:
    """How many things are wrong, and a table; `sanitize.json` in `out` has the results so far."""
    if jobs and (lacking := blind(jobs[0].target, setup)):
        return 1, f"not run: {lacking}"
    refused = warm(jobs, setup)
    results = [
        Result(catalog.below(path), name, False, None, 0.0, f"not compiled: {why}")
        for path, why in refused.items()
        for name in TOOLS
    ]
    for found in checked([job for job in jobs if job.path not in refused], setup):
        results += found
        _keep(results, out)
    _keep(results, out)
    return sum(not r.clean for r in results), table(results, len(jobs))


def _keep(results: Iterable[Result], out: Path) -> None:
    rows = sorted((asdict(r) for r in results), key=lambda r: (r["kernel"], r["tool"]))
    (out / "sanitize.json").write_text(json.dumps(rows, indent=1) + "\n")


def table(results: Sequence[Result], jobs: int) -> str:
    """A row a kernel: hazards by each tool; what is wrong below."""
    by = {(r.kernel, r.tool): r for r in results}
    names = sorted({r.kernel for r in results})
    body = [[n, *(_cell(by.get((n, tool))) for tool in TOOLS)] for n in names]
    wrong = [r for r in sorted(results, key=lambda r: (r.kernel, r.tool)) if not r.clean]
    lines = [tables.table(["kernel", *TOOLS], body)]
    lines += [f"{r.kernel}: {r.tool}: {r.what}" for r in wrong]
    clean = sum(all(by[n, t].clean for t in TOOLS if (n, t) in by) for n in names)
    return "\n".join([*lines, f"{clean} of {jobs} kernels: nothing found by {' or '.join(TOOLS)}"])


def _cell(r: Result | None) -> str:
    return "-" if r is None or r.hazards is None else f"{r.hazards:,}"


# -- is the tool to be believed? -------------------------------------------------------------------


def blind(target: str, setup: Setup) -> str:
    """Why the tools here are not to be believed; empty where they find what is planted."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return "there is no nvcc to plant a race with"
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "planted.cu"), Path(folder, "planted")
        source.write_text(PLANTED)
        made = ran([nvcc, f"-arch={target}", str(source), "-o", str(program)], 120, setup.stop)
        if made.code != 0:
            return f"nvcc does not compile what is to be found: {made.output.strip()[-300:]}"
        for name, words in (("racecheck", []), ("memcheck", ["stray"])):
            found = ran([*watched(setup.tool, name), str(program), *words], START, setup.stop)
            if found.code != FOUND or not found.hazards:
                return f"{name} does not find what is planted: {found.output.strip()[-300:]}"
    setup.say("both tools find what is planted")
    return ""


def watched(tool: str, name: str) -> list[str]:
    """The tool's own part of a command; compilers that the kernel's process starts are let be."""
    return [tool, "--tool", name, "--error-exitcode", str(FOUND), "--target-processes", "application-only"]  # fmt: skip


# -- compiling -------------------------------------------------------------------------------------


def warm(jobs: Sequence[Job], setup: Setup) -> dict[Path, str]:
    """Compiles all kernels into TileLang's cache, where their processes find them; why some are not."""
    if not jobs:
        return {}
    began, refused = time.monotonic(), {}
    workers = min(len(jobs), setup.workers)
    with processes(workers) as pool:
        waiting = {pool.submit(_compiled, job.path): job.path for job in jobs}
        for done in as_completed(waiting):
            try:
                done.result()
            except Exception as e:  # the compiler's errors are of many types
                refused[waiting[done]] = f"{type(e).__name__}: {str(e).strip()[-300:]}"
    took = time.monotonic() - began
    setup.say(f"{len(jobs) - len(refused)} of {len(jobs)} kernels compiled in {took:.0f} s")
    return refused


def _compiled(path: Path) -> None:
    lowering.load(path)()


# -- running ---------------------------------------------------------------------------------------


def inside(jobs: Iterable[Job]) -> None:
    """One small run of each kernel, and a line when it is done: what the sanitizer looks at."""
    import torch

    for job in jobs:
        began = time.monotonic()
        kernel = lowering.load(job.path)()
        trial = samples.trials(job.kernel)[1]  # more than one tile, the last one ragged
        tensors = samples.inputs(job.kernel, trial.sizes, step=trial.step)
        kernel(*(t.cuda() for t in tensors.values()))
        torch.cuda.synchronize()
        done = {"ran": catalog.below(job.path), "seconds": round(time.monotonic() - began, 1)}
        print(json.dumps(done), flush=True)


def groups(jobs: Sequence[Job], at_once: int) -> list[list[Job]]:
    """Kernels that share a process: as many groups as keep all processes busy, of at most `GROUP`."""
    wanted = max(-(-len(jobs) // GROUP), min(len(jobs), -(-at_once // len(TOOLS))))
    return [list(jobs[i::wanted]) for i in range(wanted)]


def checked(jobs: Sequence[Job], setup: Setup) -> Iterator[list[Result]]:
    """Results as they come: of groups that are clean, then of every kernel of those that are not."""
    alone: list[tuple[str, list[Job]]] = []
    waiting = [(name, group) for group in groups(jobs, setup.at_once) for name in TOOLS]
    for name, group, found in _side_by_side(waiting, setup):
        took = times(found.output)
        if len(group) == 1 or (found.clean and len(took) == len(group)):
            yield [_result(job, name, found, took) for job in group]
        else:
            alone += [(name, [job]) for job in group]
    for name, group, found in _side_by_side(alone, setup):
        yield [_result(job, name, found, times(found.output)) for job in group]


def _side_by_side(
    work: Sequence[tuple[str, list[Job]]], setup: Setup
) -> Iterator[tuple[str, list[Job], Ran]]:
    """Runs groups of kernels under tools, some at once; each with what came of it, as it comes."""

    def one(name: str, group: list[Job]) -> Ran:
        command = [*watched(setup.tool, name), *setup.child(group)]
        return ran(command, START + EACH * len(group), setup.stop)

    with ThreadPoolExecutor(setup.at_once) as pool:
        waiting = {pool.submit(one, *item): item for item in work}
        for n, done in enumerate(as_completed(waiting), 1):
            (name, group), found = waiting[done], done.result()
            hazards = "no count" if found.hazards is None else f"{found.hazards} hazards"
            setup.say(
                f"[{n}/{len(work)}] {name}: {len(times(found.output))} of {len(group)} kernels ran, "
                f"{hazards}, {found.seconds:.0f} s"
            )
            yield name, group, found


def times(output: str) -> dict[str, float]:
    """Kernels that a process said it ran, and their seconds."""
    lines = (line for line in output.splitlines() if line.startswith('{"ran"'))
    return {said["ran"]: said["seconds"] for said in map(json.loads, lines)}


def _result(job: Job, name: str, found: Ran, took: dict[str, float]) -> Result:
    kernel = catalog.below(job.path)
    if found.clean and kernel in took:
        return Result(kernel, name, True, 0, took[kernel])
    return Result(
        kernel, name, False, found.hazards, took.get(kernel, 0.0), _why(found), found.output[-KEPT:]
    )


def _why(found: Ran) -> str:
    if found.hazards:
        return f"{found.hazards} found"
    last = (found.output.strip().splitlines() or ["no output"])[-1][:200]
    return last if found.code is None else f"exit code {found.code}: {last}"


def ran(command: Sequence[str], most: float, stop: float) -> Ran:
    """Runs a command with all that it starts, for at most so many seconds and not past `stop`."""
    began = time.monotonic()
    left = min(most, stop - began)
    if left < LEAST:
        return Ran(None, "not run: the time was up", 0.0)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        env={**os.environ, **CHILD}, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=left)
        return Ran(process.returncode, output, time.monotonic() - began)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the tool and the process that it watches
        output, _ = process.communicate()
        return Ran(None, f"{output}\nstopped: it took too long", time.monotonic() - began)
