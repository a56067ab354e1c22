"""Every module of some specs, verified; a few at a time, since each compiles."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path

from gdngen import driver
from gdngen.driver import Loaded
from gdngen.model.model import Kernel
from gdngen.plan.plan import Plan, Wish
from gdngen.pools import processes
from gdngen.verify import verify
from gdngen.verify.verify import Verdict


@dataclass(frozen=True)
class Job:
    """One module on disk, the author's kernel that it is of, and its plans by target."""

    kernel: Kernel
    path: Path
    plans: tuple[tuple[str, Plan], ...]


def jobs(
    loaded: Iterable[Loaded],
    wish: Wish,
    targets: Iterable[str],
    folder: Path,
    own: Path | None = None,
) -> list[Job]:
    """Renders every module into `folder`; the text is what `render` writes."""
    out = []
    for one in loaded:
        authors = {v.kernel.module: v.kernel for v in one.variants}
        for m in driver.formatted(driver.modules(one, wish, targets, own)):
            path = folder / m.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(m.text)
            plans = tuple((p.target, p) for p in m.planned.plans)
            out.append(Job(authors[m.planned.kernel.module], path, plans))
    return out


def run(found: list[Job], device: str) -> Iterator[tuple[Job, Verdict]]:
    """Verdicts as they come. A GPU is used by one process; without one, each core compiles."""
    if device == "cuda" or len(found) < 2:
        for job in found:
            yield job, _verified(job, device)
        return
    workers = min(len(found), os.cpu_count() or 1)
    with processes(workers) as pool:
        waiting = {pool.submit(_verified, job, device): job for job in found}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def _verified(job: Job, device: str) -> Verdict:
    return verify.verify(job.kernel, job.path, dict(job.plans), device, compiled=True)


def judged(
    loaded: Iterable[Loaded], wish: Wish, targets: Iterable[str]
) -> Iterator[tuple[str, list[str]]]:
    """(module and targets, faults) of every plan: the judge replays it on the storage that it names.

    Needs neither torch nor tilelang, and runs no text: what the plan says is what is judged.
    """
    from gdngen.judge import judge, turns
    from gdngen.judge.addresses import addresses, together

    for one in loaded:
        for v in one.variants:
            if v.kernel.roles:
                continue  # they run side by side: nothing is shared, and no one order says what happens
            groups = driver.plans(v, wish, targets)
            for name, p in zip(driver.module_names(v, groups, wish), groups):
                where = addresses(p.kernel, p.plan)
                if v.kernel.roles:
                    found = turns.judge(v.kernel, p.kernel, where)
                else:
                    merged = together(p.kernel, p.plan)
                    found = judge.judge(v.kernel, p.kernel, where, together=merged)
                on = ", ".join(plan.target for plan in p.plans)
                yield f"{name} ({on})", [str(f) for f in found.faults]


def line(job: Job, verdict: Verdict) -> str:
    """What the command line says of one module."""
    asked = ", ".join(f"{b.asked:,} on {b.target}" for b in verdict.bytes if b.asked is not None)
    word = "ok" if verdict.ok else "WRONG"
    code = "".join(f", {c}" for c in verdict.code)
    return (
        f"{word}  {job.path.stem}  off by {verdict.worst():.1e} at worst, {asked} bytes asked{code}"
    )
