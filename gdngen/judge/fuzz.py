"""Random specs -> every policy's plan -> the judge; and plans broken on purpose, which it must refuse.

    python -m gdngen.judge.fuzz --examples 10000 --seed 0 [--jobs 2]

A spec is a function of its number: `spec_of(seed)` writes it again. Each is planned under every policy
and judged; where a spec has few tiles, `share` is compared with the best of all assignments.
"""

import argparse
import functools
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gdngen import pools
from gdngen.driver import Checked
from gdngen.errors import Report
from gdngen.judge import fuzzspec
from gdngen.judge.addresses import addresses, together
from gdngen.judge.judge import Verdict, judge
from gdngen.language import spec as syntax
from gdngen.model import analysis, scopes, variants
from gdngen.plan import plan as planning
from gdngen.plan.plan import Planned, Wish
from gdngen.plan.slots import laid_out

TARGET = "sm_80"
FREEST = Wish("lean", "bytes", allow_reload=True, allow_views=True)  # everything that lean may do
WISHES = {**{p: Wish(p) for p in planning.POLICIES}, "freest": FREEST}
AT_ONCE = 20  # specs that a process is given
FEW = 6  # tiles of one class whose every assignment can be tried


@dataclass(frozen=True)
class Disagreement:
    """A plan that the judge refuses, or that takes more bytes than another would."""

    policy: str
    what: str


def spec_of(seed: int) -> str:
    """The text of random spec number `seed`."""
    source = random.Random(seed)
    return fuzzspec.write(source.randrange)


def load(text: str, file: str = "fuzzed.yaml") -> Checked:
    """The first variant of a spec; raises SpecError as the front end does."""
    report = Report()
    parsed = syntax.parse(text, file, report)
    report.stop()
    kernels = variants.kernels(parsed, report)
    report.stop()
    found = analysis.check(kernels[0], report)
    scopes.check(kernels[0], report)
    report.stop()
    return Checked(kernels[0], found)


def judged(v: Checked, made: Planned) -> Verdict:
    """The judge's verdict on a plan."""
    where = addresses(made.kernel, made.plan)
    return judge(v.kernel, made.kernel, where, together=together(made.kernel, made.plan))


def check(text: str, policies: Sequence[str] = tuple(WISHES)) -> list[Disagreement]:
    """What is wrong with the plans of a spec, by the names of `WISHES`; nothing, one hopes."""
    v = load(text)
    out, seen = [], set()
    for policy in policies:
        made = planning.plan(v.kernel, v.found, WISHES[policy], TARGET)
        if policy == "share":
            out += list(_wasteful(v, made))
        key = (made.kernel, tuple(addresses(made.kernel, made.plan).items()))
        if key in seen:
            continue
        seen.add(key)
        out += [
            Disagreement(policy, f"{f.kind}: {f.what} (line {f.line})")
            for f in judged(v, made).faults
        ]
    return out


def _wasteful(v: Checked, made: Planned) -> Iterator[Disagreement]:
    """Classes of tiles (one shape, one dtype) that could do with fewer slots."""
    classes: dict[tuple, list[str]] = {}
    for b in v.kernel.shared():
        classes.setdefault((b.shape, b.dtype), []).append(b.name)
    for (shape, dtype), names in classes.items():
        used = sum((s.shape, s.dtype) == (shape, dtype) for s in made.plan.slots)
        if len(names) <= FEW and (least := _fewest(names, v)) != used:
            yield Disagreement(
                "share", f"{used} slots of {dtype}{list(shape)} where {least} would do"
            )


def _fewest(names: list[str], v: Checked) -> int:
    """The fewest groups of tiles that can share, over all partitions."""
    rows, operands = laid_out(v.kernel)

    def apart(a: str, b: str) -> bool:
        one, other = (a in rows and b in operands), (b in rows and a in operands)
        return v.found.interfere(a, b) or one or other

    def partitions(at: int, groups: list[list[str]]) -> Iterator[int]:
        if at == len(names):
            yield len(groups)
            return
        for group in groups:
            if not any(apart(names[at], other) for other in group):
                group.append(names[at])
                yield from partitions(at + 1, groups)
                group.pop()
        yield from partitions(at + 1, [*groups, [names[at]]])

    return min(partitions(0, []))


def main(argv: Sequence[str] | None = None) -> int:
    """Checks many specs; prints what is wrong with each, and how many there were."""
    parser = argparse.ArgumentParser(
        prog="python -m gdngen.judge.fuzz", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="number of the first spec")
    parser.add_argument("--policy", action="append", choices=tuple(WISHES))
    parser.add_argument(
        "--tiles", type=int, default=40, help="leave out specs with more shared tiles than this"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes side by side")
    options = parser.parse_args(argv)
    policies = tuple(options.policy or WISHES)
    started, done, wrong = time.monotonic(), 0, 0
    seeds = range(options.seed, options.seed + options.examples)
    one = functools.partial(_findings, policies=policies, tiles=options.tiles)
    with pools.processes(options.jobs) as pool:
        for seed, found in zip(seeds, pool.map(one, seeds, chunksize=AT_ONCE)):
            if found is None:
                continue
            for line in found:
                print(f"spec {seed}: {line}", flush=True)
            done, wrong = done + 1, wrong + bool(found)
    print(
        f"{done:,} specs of {options.examples:,} from seed {options.seed} under {' '.join(policies)} "
        f"in {time.monotonic() - started:,.0f} s: {wrong} with disagreements"
    )
    return 1 if wrong else 0


def _findings(seed: int, policies: Sequence[str], tiles: int) -> list[str] | None:
    """What is wrong with a spec's plans; None for one that has too many tiles."""
    text = spec_of(seed)
    try:
        if len(load(text).kernel.shared()) > tiles:
            return None
        return [f"{d.policy}: {d.what}" for d in check(text, policies)]
    except Exception as e:  # a spec that stops the tool is a finding as well
        return [f"{type(e).__name__}: {e}"]


if __name__ == "__main__":
    sys.exit(main())
