"""Everything that needs a GPU, in one call: are the checked-in kernels right, how fast, any race?

    python benchmarks/gpu.py [--parts verify,bench,sanitize] [--select GLOB] [--limit N] [--out DIR]

verify    every kernel compiled and run against float64, each in a process of its own
bench     `gdngen bench` on some of them, beside whatever peers are installed
sanitize  compute-sanitizer's racecheck and memcheck on a small run of each; of some, if there are other
          parts

A kernel that crashes or hangs stops nothing but itself. Results go to DIR (default: $OUT, else
gpu-results) as JSON, with a chart; a table of each part is printed. Runs on what is checked in, and
needs neither black nor a network. Exit code 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gdngen import catalog  # fmt: skip
from gdngen.bench import (  # fmt: skip
    bench,
    building,
    chart,
    checked,
    gpu,
    peers,
    sanitize,
    shapes,
    timings,
)
from gdngen.bench.building import Job
from gdngen.errors import GdngenError
from gdngen.show import tables  # fmt: skip
from gdngen.verify import verify  # fmt: skip

PARTS = ("verify", "bench", "sanitize")
LIMITS = {
    "verify": 1000,
    "bench": 8,
    "sanitize": 6,
}  # kernels of a part, where --limit says nothing
ALONE = {"sanitize": 1000}  # where it is the only part
SELECT = {"verify": "*", "bench": "prepare_blocked/*c64*bfloat16*", "sanitize": "*"}
EACH = 150  # seconds that verifying one kernel may take
RESERVE = 120  # seconds that bench leaves for sanitize
TOOLKIT = "/usr/local/cuda/bin"  # where nvcc and compute-sanitizer are, if not on the path


def main() -> int:
    options = _parser().parse_args()
    os.environ["PATH"] += os.pathsep + TOOLKIT
    try:
        gpu.require()
        if options.one == "sanitize":
            every = {catalog.below(j.path): j for j in building.checked_in("*", gpu.target())}
            sanitize.inside(every[name] for name in options.kernel)
            return 0
        if options.one:
            print(json.dumps(_verify_one(_job(*options.kernel)), default=str))
            return 0
        if options.inside:
            return _bench_here(options)
        return _all(options)
    except GdngenError as e:
        print(e, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--parts", default=",".join(PARTS), help="some of: verify,bench,sanitize")
    made.add_argument("--select", metavar="GLOB", help="kernels, by path below generated/")
    made.add_argument(
        "--limit", type=int, metavar="N", help="at most N kernels a part, spread evenly"
    )
    made.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "gpu-results")))
    made.add_argument("--seconds", type=int, default=480, help="start nothing after so long")
    made.add_argument("--shape", action="append", default=[], metavar="B=2,H=32,T=8192")
    made.add_argument("--peers", default="all")
    made.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    made.add_argument("--one", choices=("verify", "sanitize"), help=argparse.SUPPRESS)
    made.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    made.add_argument("--kernel", action="append", help=argparse.SUPPRESS)
    return made


def _job(path: str) -> Job:
    return building.checked_in(path, gpu.target())[0]


def _picked(options: argparse.Namespace, part: str) -> list[Job]:
    """Kernels of a part: those selected, at most its limit, evenly spread over the list."""
    jobs = building.checked_in(options.select or SELECT[part], gpu.target())
    usual = ALONE.get(part, LIMITS[part]) if options.parts == part else LIMITS[part]
    limit = options.limit or usual
    return jobs if len(jobs) <= limit else [jobs[i * len(jobs) // limit] for i in range(limit)]


def _all(options: argparse.Namespace) -> int:
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        raise GdngenError(
            f"error: --parts: {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    stop = time.monotonic() + options.seconds
    bad, said = 0, []
    for part in (p for p in PARTS if p in parts):
        began = time.monotonic()
        reserve = RESERVE if part == "bench" and "sanitize" in parts else 0
        try:
            wrong, text = _RUN[part](options, stop - reserve)
        except Exception:  # the other parts may still have something to say
            wrong, text = 1, traceback.format_exc()
        bad += wrong
        said.append(f"== {part} ({time.monotonic() - began:.0f} s)\n{text}")
        print(said[-1], flush=True)
    _write(options, "checked.json", _checked(options.out))
    (options.out / "summary.txt").write_text("\n\n".join(said) + "\n")
    print(f"== {'all is well' if not bad else f'{bad} things are wrong'}; results in {options.out}")
    return 1 if bad else 0


def _checked(out: Path) -> list[dict[str, Any]]:
    """What `verify` and `sanitize` left there, a row a kernel."""
    kept = [out / f"{part}.json" for part in ("verify", "sanitize")]
    verified, sanitized = (json.loads(p.read_text()) if p.exists() else {} for p in kept)
    return checked.rows(verified, sanitized)


# -- processes of one kernel -----------------------------------------------------------------------


def _side_by_side(
    work: Iterable[tuple[Any, list[str]]], options: argparse.Namespace, stop: float
) -> list[tuple[Any, int | None, str, str]]:
    """Runs commands a few at a time: (key, exit code or None, output, errors) of each.

    The code is None where a command hung or where the time was up before it began.
    """

    def one(item: tuple[Any, list[str]]) -> tuple[Any, int | None, str, str]:
        key, command = item
        left = stop - time.monotonic()
        if left < 5:
            return key, None, "", "not run: the time was up"
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=min(EACH, left),
                env={**os.environ, **sanitize.CHILD},
            )  # fmt: skip
            return key, done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired:
            return key, None, "", "stopped: it took too long"

    with ThreadPoolExecutor(options.workers) as pool:
        return list(pool.map(one, work))


def _child(part: str, jobs: Iterable[Job]) -> list[str]:
    named = [word for job in jobs for word in ("--kernel", catalog.below(job.path))]
    return [sys.executable, __file__, "--one", part, *named]


# -- verify ----------------------------------------------------------------------------------------


def _verify_one(job: Job) -> dict[str, Any]:
    """Compiles, runs and judges one kernel here."""
    built = building.build(job.path, job.target)
    if built.refusal:
        return {"problems": [built.refusal], "worst": None, "seconds": built.seconds}
    verdict = verify.verify(job.kernel, job.path, {job.target: job.plan()}, "cuda")
    code = bench.code(built, job.planned)
    return {
        "problems": list(verdict.problems()),
        "worst": verdict.worst(),
        "seconds": built.seconds,
        "verdict": verdict.json(),
        "code": asdict(code),
    }


def _verify(options: argparse.Namespace, stop: float) -> tuple[int, str]:
    jobs = _picked(options, "verify")
    ran = _side_by_side([(j, _child("verify", [j])) for j in jobs], options, stop)
    results = {catalog.below(job.path): _said(*rest) for job, *rest in ran}
    _write(options, "verify.json", results)
    body, wrong = [], 0
    for name, r in results.items():
        code = r.get("code") or {}
        wrong += bool(r["problems"])
        numbers = [code.get(k) for k in ("planned", "asked", "registers", "spills", "blocks")]
        error = "-" if r.get("worst") is None else f"{float(r['worst']):.1e}"
        shown = ["-" if n is None else f"{n:,}" for n in numbers]
        body.append([name, "WRONG" if r["problems"] else "ok", error, *shown])
    headings = ["kernel", "", "worst", "planned", "asked", "regs", "spills", "blocks/SM"]
    lines = [tables.table(headings, body, left=2)]
    lines += [f"{name}: {p}" for name, r in results.items() for p in r["problems"]]
    return wrong, "\n".join([*lines, f"{len(jobs) - wrong} of {len(jobs)} kernels are right"])


def _said(code: int | None, output: str, errors: str) -> dict[str, Any]:
    """What a process printed last, as data; its complaint where it printed none."""
    try:
        if code == 0:
            return json.loads(output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        pass
    last = (errors.strip().splitlines() or ["no message"])[-1]
    return {"problems": [last if code is None else f"exit code {code}: {last}"], "worst": None}


# -- bench -----------------------------------------------------------------------------------------


def _bench(options: argparse.Namespace, stop: float) -> tuple[int, str]:
    """In a process of its own, which a hanging kernel can't keep."""
    command = [sys.executable, __file__, "--inside", "--out", str(options.out)]
    command += ["--peers", options.peers, "--workers", str(options.workers)]
    command += [word for text in options.shape for word in ("--shape", text)]
    command += ["--select", options.select] if options.select else []
    command += ["--limit", str(options.limit)] if options.limit else []
    left = stop - time.monotonic()
    if left < 30:
        return 1, "not run: the time was up"
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            text=True,
            timeout=left,
            env={**os.environ, **sanitize.CHILD},
        )
    except subprocess.TimeoutExpired:
        kept = options.out / "bench.json"
        text = timings.table(timings.loads(kept.read_text())) if kept.exists() else ""
        return 1, f"{text}\nstopped: it took too long".lstrip()
    return int(done.returncode != 0), done.stdout.rstrip()


def _bench_here(options: argparse.Namespace) -> int:
    """Results are written after every kernel: a later one may hang."""
    wanted = [shapes.parse(text) for text in options.shape] or [{}]

    def keep(found: timings.Run) -> None:
        (options.out / "bench.json").write_text(timings.dumps(found))
        (options.out / "bench.svg").write_text(chart.svg(found))

    jobs, asked = _picked(options, "bench"), peers.chosen(options.peers)
    found = bench.run(jobs, wanted, asked, _say, options.workers, keep)
    print(timings.table(found))
    return 1 if bench.failed(found) else 0


# -- sanitize --------------------------------------------------------------------------------------


def _sanitize(options: argparse.Namespace, stop: float) -> tuple[int, str]:
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return 1, "not run: there is no compute-sanitizer here"
    setup = sanitize.Setup(tool, lambda jobs: _child("sanitize", jobs), options.workers, stop, _say)
    return sanitize.run(_picked(options, "sanitize"), setup, options.out)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _write(options: argparse.Namespace, name: str, data: Any) -> None:
    (options.out / name).write_text(json.dumps(timings.strict(data), indent=1, default=str) + "\n")


_RUN = {"verify": _verify, "bench": _bench, "sanitize": _sanitize}

if __name__ == "__main__":
    sys.exit(main())
