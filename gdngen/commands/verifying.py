"""`gdngen verify` and `gdngen mutate`: is it right, and would it be noticed if it were not?"""

import json
import tempfile
from pathlib import Path

from gdngen.commands import given, rendering
from gdngen.errors import GdngenError
from gdngen.show import tables


def add(commands) -> None:
    made = given.command(
        commands,
        "verify",
        _verify,
        "run the kernels, compare with the right answer and the planned bytes",
    )
    given.add_templates(made)
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    made.add_argument(
        "--target", action="append", default=[], help="lower for this target, not the spec's"
    )
    made.add_argument(
        "--judge-only", action="store_true",
        help="replay the plans on the storage they name, and no more: needs neither torch nor tilelang",
    )  # fmt: skip
    made.add_argument(
        "--emulate", action="store_true",
        help="run the CUDA for sm_80 and sm_90 on the CPU: races, barriers, stray accesses; needs a C++ compiler",
    )  # fmt: skip
    made.add_argument("--json", action="store_true", help="the same as data")

    made = given.command(
        commands,
        "mutate",
        _mutate,
        "delete each barrier of the emulated CUDA in turn: is it missed?",
    )
    made.add_argument(
        "--plans",
        action="store_true",
        help="break plans instead, in every way that the judge must see",
    )
    made.add_argument(
        "--random", type=int, default=0, metavar="N", help="with --plans: of N random specs too"
    )
    made.add_argument("--json", action="store_true", help="the same as data")


def _verify(options) -> int:
    from gdngen.verify import sweep

    if not options.judge_only:
        given.require("verify")
    if options.emulate:
        return _emulate(options)
    loaded, wrong = given.load(options), 0
    over, judged, targets = options.progress.over, [], given.targets(options)
    for one in over(rendering.singly(loaded), "judging", rendering.variant):
        judged += sweep.judged([one], given.wish(options), targets)
    faulty = [(name, faults) for name, faults in judged if faults]
    if options.judge_only and options.json:
        print(json.dumps([{"plan": name, "faults": faults} for name, faults in judged], indent=1))
    elif not options.json:
        for name, faults in faulty:
            print(f"WRONG  {name}\n    " + "\n    ".join(faults))
        if not options.quiet or options.judge_only or faulty:
            print(f"{len(judged) - len(faulty)} of {len(judged)} plans are right, says the judge")
    if options.judge_only or faulty:
        return 1 if faulty else 0
    with tempfile.TemporaryDirectory() as folder:
        own = given.templates(options)
        jobs, verdicts = [], []
        for one in over(rendering.singly(loaded), "rendering", rendering.variant):
            jobs += sweep.jobs([one], given.wish(options), targets, Path(folder), own)
        done = over(sweep.run(jobs, options.device), "running", lambda d: d[0].path.stem, len(jobs))
        for n, (job, verdict) in enumerate(done, 1):
            verdicts.append(verdict)
            wrong += not verdict.ok
            if not options.json and not (options.quiet and verdict.ok):
                print(f"[{n}/{len(jobs)}] {sweep.line(job, verdict)}", flush=True)
                for problem in verdict.problems():
                    print(f"    {problem}")
    if options.json:
        print(json.dumps([v.json() for v in verdicts], indent=1))
    elif verdicts:
        notes = [] if options.quiet else [note for v in verdicts for note in v.notes]
        for note in dict.fromkeys(notes):
            print(f"note: {note}")
        print(f"{len(jobs) - wrong} of {len(jobs)} kernels are right on {options.device}")
    return 1 if wrong else 0


def _emulate(options) -> int:
    from gdngen.verify import emulate, sweep

    if options.device != "cpu":
        raise GdngenError("error: --emulate runs on the CPU\n  help: leave --device out")
    emulate.ready()
    loaded, done = given.load(options), []
    with tempfile.TemporaryDirectory() as folder:
        own = given.templates(options)
        jobs = sweep.jobs(loaded, given.wish(options), given.targets(options), Path(folder), own)
        tasks = emulate.tasks(jobs)
        found = options.progress.over(
            emulate.sweep(tasks), "emulating", lambda e: e.module, len(tasks)
        )
        for one in found:
            done.append(one)
            if not options.json and not (options.quiet and one.ok):
                lines = [emulate.line(one), *(f"    {problem}" for problem in one.problems())]
                print(f"[{len(done)}/{len(tasks)}]", "\n".join(lines), flush=True)
    if options.json:
        print(json.dumps([one.json() for one in done], indent=1))
    else:
        print(emulate.total(done))
    return 0 if all(one.ok for one in done) else 1


def _mutate(options) -> int:
    from gdngen.verify import emulate, waits

    if options.plans:
        return _mutate_plans(options)
    given.require("mutate")
    emulate.ready()
    loaded, done = waits.chosen(given.load(options)), []
    with tempfile.TemporaryDirectory() as folder:
        jobs = waits.jobs(loaded, given.wish(options), Path(folder))
        found = options.progress.over(waits.sweep(jobs), "mutating", lambda w: w.module, len(jobs))
        for one in found:
            done.append(one)
            if not options.json and not (options.quiet and one.ok):
                print("\n".join(waits.lines(one)), flush=True)
    if options.json:
        print(json.dumps([one.json() for one in done], indent=1))
    else:
        print(waits.total(done))
    return 0 if all(one.ok for one in done) else 1


def _mutate_plans(options) -> int:
    from gdngen.judge import planted

    found = [
        p
        for one in given.load(options)
        for v in one.variants
        if not v.kernel.roles
        for p in planted.planted(v, v.kernel.module)
    ]
    found += planted.in_random(range(options.random))
    missed = [p for p in found if not p.caught]
    if options.json:
        print(json.dumps([vars(p) for p in found], indent=1))
    else:
        for p in missed:
            print(f"MISSED  {p.kernel}: {p.kind} {', '.join(p.names)}")
        print(tables.table(["fault", "", "planted", "caught"], planted.rows(found), left=2))
    return 1 if missed else 0
