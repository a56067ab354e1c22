"""The whole forward and decoding on a GPU, in one call: how far off, how fast, which kernel takes what.

    python benchmarks/forward.py [--parts errors,forward,decode,steps,beside] [--seconds N] [--out DIR]

errors   both functions against the recurrence in float64: dims, dtypes, grouped heads, sequences of
         any length in one batch, numbers that break others
forward  times beside FLA's Triton kernels and FlashQLA, against the memory floor
decode   the same for one token
steps    each kernel of some forwards by itself: time, bytes, registers, spills
beside   the cases of `errors` once more, with FLA's error beside ours: last, since its kernels are
         tuned anew for every one
tune     only where asked for: other variants of those kernels, on the same tensors

Kernels are compiled side by side first, and so are the peers', which else compile dozens of candidates
one after the other; which of them is the fastest they find out when they are timed, with the GPU to
themselves. Each part runs in a process of its own, which writes every case down as it is done: one that
crashes or hangs is told, and the part goes on behind it. Results go to DIR (default: $OUT, else forward-results) as JSON; tables are printed. Exit code 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gdngen import runtime
from gdngen.bench import building, gpu, peers, timings, whole
from gdngen.bench.building import Built
from gdngen.bench.timings import Row, Run, Skipped
from gdngen.bench.whole import Case
from gdngen.errors import GdngenError

PARTS = ("errors", "forward", "decode", "steps", "beside")
ALL = (*PARTS, "tune")
TOOLKIT = "/usr/local/cuda/bin"  # where nvcc is, if not on the path
QUIET = 180  # seconds that a case may take before it is taken for hanging
WARM = 12  # processes that compile what peers choose from
CHILD = {"TILELANG_PRINT_ON_COMPILATION": "0", "PYTHONUNBUFFERED": "1"}

DIMS = ((64, 64), (128, 128), (96, 192), (256, 256))
GROUPED = tuple((16 // by, heads // by) for by in (1, 2, 4, 8) for heads in (16, 32, 48, 64))

FORWARD = (
    Case("forward", 2, 32, 32, 8192),
    Case("forward", 2, 32, 32, 8192, 64, 64),
    Case("forward", 1, 16, 16, 32768),
    Case("forward", 1, 16, 32, 32768),
    Case("forward", 1, 16, 64, 8192),
    Case("forward", 4, 16, 32, 2048),
    Case("forward", 2, 32, 32, 8192, numbers="no_decay"),
    Case("forward", 2, 32, 32, 8192, 64, 64, numbers="no_decay"),
    Case("forward", 1, 16, 16, 32768, numbers="no_decay"),
    Case("forward", 1, 16, 64, 8192, numbers="no_decay"),
    Case("forward", 4, 16, 32, 2048, numbers="no_decay"),
    Case("forward", 1, 16, 48, 8192),
    Case("forward", 1, 2, 8, 8192),
    Case("forward", 1, 4, 8, 8192),
    Case("forward", 1, 30, 30, 8192, 96, 192),
    Case("forward", 1, 16, 16, 8192, 256, 256),
    Case("forward", 1, 16, 32, 16384, N=16, states=True),
    Case("forward", 1, 16, 32, 16384, N=200, states=True),
    Case("forward", 2, 16, 32, 8192, norm=True, states=True),
    Case("forward", 1, 16, 32, 512),
    Case("forward", 2, 32, 32, 8192, io="float16"),
)
DECODE = tuple(
    Case("decode", B, H, HV, 1, DK, DV, states=True, norm=norm)
    for H, HV, DK, DV, norm in (
        (32, 32, 128, 128, False),
        (16, 32, 128, 128, True),
        (32, 32, 64, 64, False),
        (30, 30, 96, 192, False),
        (16, 16, 256, 256, False),
    )
    for B in (1, 8, 32, 128)
)


def errors() -> Iterable[Case]:
    """What both functions are checked on: short, ragged."""
    for kind in whole.FUNCTIONS:
        T = 300 if kind == "forward" else 5
        for io in whole.DTYPES:
            for DK, DV in DIMS:
                yield Case(kind, 2, 2, 4, T, DK, DV, io, states=True)
                yield Case(kind, 1, 2, 4, T, DK, DV, io, N=7, states=True, norm=True)
        for H, HV in GROUPED:
            yield Case(kind, 1, H, HV, T)
        for numbers in whole.NUMBERS[1:]:
            for io in whole.DTYPES[:2]:
                yield Case(kind, 1, 2, 2, T, io=io, numbers=numbers, states=True)
        yield Case(kind, 1, 2, 2, 20000, N=10000, states=True)
        yield Case(kind, 2, 2, 2, 1, states=True)
    yield Case("forward", 1, 2, 2, 4096, states=True)


STEPS = FORWARD[:6] + FORWARD[9:11] + DECODE[2:4]
CASES = {
    "errors": tuple(errors()),
    "forward": FORWARD,
    "decode": DECODE,
    "steps": STEPS,
    "beside": tuple(errors()),
    "tune": STEPS,
}
TRY: dict[str, list[dict]] = {
    "forward": [
        dict(BV=BV, stages=stages, warps=warps)
        for BV in (16, 32, 64)
        for stages in (1, 2, 3)
        for warps in (4, 8)
    ],
    "decode": [dict(BV=4), dict(BV=16)],
}


def main() -> int:
    options = _parser().parse_args()
    os.environ["PATH"] += os.pathsep + TOOLKIT
    try:
        gpu.require()
        return _inside(options) if options.inside else _all(options)
    except GdngenError as e:
        print(e, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--parts", default=",".join(PARTS), help=f"some of: {','.join(ALL)}")
    made.add_argument(
        "--select",
        metavar="GLOB",
        action="append",
        help="cases, by 'variant shape'; may be repeated",
    )
    made.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT", "forward-results")), metavar="DIR"
    )
    made.add_argument("--seconds", type=int, default=540, help="start nothing after so long")
    made.add_argument("--peers", default="all")
    made.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    made.add_argument("--inside", choices=("build", "warm", *ALL), help=argparse.SUPPRESS)
    made.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    return made


def picked(part: str, select: list[str] | None) -> list[Case]:
    return [
        c
        for c in CASES[part]
        if any(fnmatch.fnmatchcase(f"{c.variant} {c.shape}", glob) for glob in select or ["*"])
    ]


# -- the parts, one after the other ----------------------------------------------------------------


def _all(options: argparse.Namespace) -> int:
    peers.chosen(options.peers)
    parts = options.parts.split(",")
    if unknown := set(parts) - set(ALL):
        raise GdngenError(
            f"error: --parts: {', '.join(sorted(unknown))}: there are {', '.join(ALL)}"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    stop = time.monotonic() + options.seconds
    for part in ("build", *ALL):
        (options.out / f"{part}.jsonl").unlink(missing_ok=True)
    _child(options, "build", stop)
    _warm(options, stop)
    found: dict[str, Run] = {}
    bad = 0
    for part in (p for p in ALL if p in parts):
        began = time.monotonic()
        found[part] = _part(options, part, stop)
        (options.out / f"{part}.json").write_text(timings.dumps(found[part]))
        text, wrong = told(part, found[part])
        bad += wrong
        print(f"== {part} ({time.monotonic() - began:.0f} s)\n{text}\n", flush=True)
    both = [found[p] for p in ("forward", "decode") if p in found]
    if both:  # one file for the page's tables
        rows = tuple(r for run in both for r in run.rows)
        skipped = tuple(s for run in both for s in run.skipped)
        whole_run = replace(both[0], rows=rows, skipped=skipped)
        (options.out / "whole.json").write_text(timings.dumps(whole_run))
    if "beside" in found:
        rest = found.get("errors", Run({}, 1.0, ()))
        told_of = {(r.variant, r.shape) for r in found["beside"].rows}
        rows = tuple(r for r in rest.rows if (r.variant, r.shape) not in told_of)
        both_run = timings.joined(replace(rest, rows=rows), found["beside"])
        (options.out / "errors.json").write_text(timings.dumps(both_run))
    print(f"== {'all is well' if not bad else f'{bad} things are wrong'}; results in {options.out}")
    return 1 if bad else 0


def told(part: str, found: Run) -> tuple[str, int]:
    """A part's table with what is remarkable, and how many things are wrong."""
    rows = found.rows
    wrong = [r for r in rows if r.wrong and (r.who == timings.OURS or part in ("steps", "tune"))]
    lines = [timings.table(found)]
    if part in ("forward", "decode"):
        lines += [f"slower: {line}" for line in whole.slower(rows)]
    if part in ("beside", "forward", "decode"):
        lines += [f"further off: {line}" for line in whole.coarser(rows)]
    return "\n".join(lines), len(wrong) if part != "tune" else 0


def _part(options: argparse.Namespace, part: str, stop: float) -> Run:
    """Runs a part's cases; a case that ends its process is told, and the others go on."""
    cases, first, failed = picked(part, options.select), 0, []
    log = options.out / f"{part}.jsonl"
    while first < len(cases) and stop - time.monotonic() > 5:
        why = _child(options, part, stop, first)
        if not why:
            break
        first = max(first, _begun(log)) + 1
        c = cases[min(first, len(cases)) - 1]
        least = timings.floor(c.least, 1.0)
        failed.append(Row(c.variant, c.shape, timings.OURS, "", (), c.least, least, wrong=why))
    found = read(log)
    done = {(r.variant, r.shape) for r in (*found.rows, *failed)}
    late = [c for c in cases if (c.variant, c.shape) not in done]
    missed = [Skipped(c.variant, c.shape, timings.OURS, "the time was up") for c in late]
    return replace(found, rows=(*found.rows, *failed), skipped=(*found.skipped, *missed))


def _child(options: argparse.Namespace, part: str, stop: float, first: int = 0) -> str:
    """Runs a part in a process of its own; '' where it came to its end, else what became of it."""
    command = [sys.executable, __file__, "--inside", part, "--first", str(first)]
    command += ["--out", str(options.out), "--peers", options.peers]
    command += [f"--select={glob}" for glob in options.select or ()]
    command += ["--workers", str(options.workers), "--parts", options.parts]
    command += ["--seconds", str(max(1, int(stop - time.monotonic())))]
    log = options.out / f"{part}.jsonl"
    child = subprocess.Popen(
        command, env={**os.environ, **CHILD}, stderr=subprocess.PIPE, text=True
    )
    lines: list[str] = []
    reader = threading.Thread(target=_echo, args=(child.stderr, lines), daemon=True)
    reader.start()
    seen, since = _size(log), time.monotonic()
    while child.poll() is None:
        time.sleep(0.2)
        if _size(log) != seen:
            seen, since = _size(log), time.monotonic()
        if part != "build" and time.monotonic() - since > QUIET or time.monotonic() > stop + 30:
            child.kill()
            child.wait()
            return "stopped: it took too long"
    reader.join(5)
    last = next((line for line in reversed(lines) if line.strip()), "no message").strip()
    return "" if child.returncode == 0 else f"exit code {child.returncode}: {last}"


def _warm(options: argparse.Namespace, stop: float) -> None:
    """Has peers compile what they choose from, side by side; what they choose here is forgotten."""
    if options.peers == "none" or not set(options.parts.split(",")) & {
        "forward",
        "decode",
        "beside",
    }:
        return
    command = [sys.executable, __file__, "--inside", "warm", "--peers", options.peers]
    command += ["--parts", options.parts, "--out", str(options.out)]
    command += [f"--select={glob}" for glob in options.select or ()]
    command += ["--seconds", str(max(1, int(stop - time.monotonic())))]
    env = {**os.environ, **CHILD, "FLA_CACHE_RESULTS": "0"}
    began = time.monotonic()
    children = [
        subprocess.Popen(
            [*command, "--first", str(i)],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for i in range(WARM)
    ]
    for child in children:
        try:
            child.wait(max(1.0, stop - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
    print(f"peers compiled in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _warmed(options: argparse.Namespace) -> int:
    """The first calls of every WARMth kind of case: few rows, as many heads and as wide."""
    import torch

    parts = [p for p in options.parts.split(",") if p in ("forward", "decode", "beside")]
    small = [
        replace(c, T=min(c.T, 128), N=min(c.N, 2), numbers="usual")
        for part in parts
        for c in picked(part, options.select)
    ]
    for c in list(dict.fromkeys(small))[options.first :: WARM]:
        for who, _, rule in whole.contenders(c, options.peers)[0]:
            if who == timings.OURS:
                continue
            try:
                with torch.no_grad():
                    rule(**whole.inputs(c))
                torch.cuda.synchronize()
            except Exception as e:  # told when it is timed
                print(f"{who} at {c.variant} {c.shape}: {e}", file=sys.stderr)
    return 0


def _echo(stream, lines: list[str]) -> None:
    for line in stream:
        lines.append(line)
        print(line, end="", file=sys.stderr, flush=True)


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


# -- what a process writes down --------------------------------------------------------------------


def _note(log: Path, kind: str, data: object) -> None:
    with log.open("a") as file:
        file.write(json.dumps({kind: timings.strict(data)}) + "\n")


def _begun(log: Path) -> int:
    """The number of the case that was begun last."""
    lines = log.read_text().splitlines() if log.exists() else []
    return max((json.loads(line).get("begun", -1) for line in lines), default=-1)


def read(log: Path) -> Run:
    """All that a part's processes wrote down."""
    machine, rate, rows, skipped = {}, 1.0, [], []
    for line in log.read_text().splitlines() if log.exists() else ():
        match json.loads(line):
            case {"machine": machine}:
                pass
            case {"rate": rate}:
                pass
            case {"row": row}:
                rows.append(row)
            case {"skipped": one}:
                skipped.append(one)
    data = {"machine": machine, "copy_rate": rate, "rows": rows, "skipped": skipped}
    return timings.loads(json.dumps(data))


def _inside(options: argparse.Namespace) -> int:
    stop = time.monotonic() + options.seconds
    log = options.out / f"{options.inside}.jsonl"
    if options.inside == "build":
        return _build(options, log)
    if options.inside == "warm":
        return _warmed(options)
    part = options.inside
    machine, rate = gpu.machine(), gpu.copy_rate()
    _note(log, "machine", machine)
    _note(log, "rate", rate)
    cases = picked(part, options.select)
    built = _known(options.out / "build.jsonl") if part in ("steps", "tune") else {}
    for i, c in list(enumerate(cases))[options.first :]:
        if time.monotonic() > stop:
            return 0
        print(f"[{part} {i + 1}/{len(cases)}] {c.variant} at {c.shape}", file=sys.stderr)
        _note(log, "begun", i)
        skipped: list[Skipped] = []
        if part in ("steps", "tune"):
            rows = whole.steps(c, rate, built, TRY if part == "tune" else {})
        else:
            others = "none" if part == "errors" else options.peers
            rows, skipped = whole.group(c, others, machine, rate, part in ("forward", "decode"))
        for row in rows:
            _note(log, "row", asdict(row))
        for one in skipped:
            _note(log, "skipped", asdict(one))
    return 0


def _build(options: argparse.Namespace, log: Path) -> int:
    """Compiles every kernel that the parts will run, side by side."""
    parts = options.parts.split(",")
    paths: dict[Path, None] = {}
    for part in parts:
        for c in picked(part, options.select):
            try:
                small = replace(c, B=min(c.B, 2), T=min(c.T, 64), N=min(c.N, 2))
                sizes = _blocks(c, small)
                for launch in whole.launches(sizes, whole.inputs(sizes)):
                    paths[launch.found.path] = None
                    for values in TRY.get(launch.spec, []) if part == "tune" else []:
                        found = runtime.alternative(launch, values)
                        if isinstance(found, runtime.Found):
                            paths[found.path] = None
            except Exception as e:
                print(f"{c.variant} at {c.shape}: {type(e).__name__}: {e}", file=sys.stderr)
    print(f"compiling {len(paths)} kernels", file=sys.stderr, flush=True)
    built = building.build_all(paths, gpu.target(), options.workers)
    for path, one in built.items():
        note = {**asdict(one), "path": path.stem, "code": None}
        _note(log, "built", note)
        if one.refusal:
            print(f"{path.stem}: {one.refusal.splitlines()[0]}", file=sys.stderr)
    return 0


def _blocks(c: Case, small: Case) -> Case:
    """A small case for which a function picks what it picks for `c`, whose number of sequences decides."""
    return c if c.sequences * c.T <= 1 << 16 else replace(small, B=c.B, N=c.N, T=max(c.N, 64))


def _known(log: Path) -> dict[Path, Built]:
    """What the compiler said, by a module's name: files that are made anew lie elsewhere each time."""
    lines = log.read_text().splitlines() if log.exists() else []
    found = [json.loads(line)["built"] for line in lines]
    return {one["path"]: Built(**{**one, "path": Path(one["path"])}) for one in found}


if __name__ == "__main__":
    sys.exit(main())
