"""Faults planted in plans, and whether the judge catches them: every kind, on specs and on random ones."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gdngen.driver import Checked
from gdngen.judge import fuzz, mutants, turns, unruly
from gdngen.judge.addresses import addresses
from gdngen.judge.judge import judge, trial_sizes
from gdngen.plan import plan
from gdngen.roles import handover


@dataclass(frozen=True)
class Planted:
    """One broken plan: of what, how, which tiles, and whether the judge refused it."""

    kernel: str
    kind: str
    names: tuple[str, ...]
    caught: bool


def planted(v: Checked, name: str) -> Iterator[Planted]:
    """Every mutant of a kernel, judged."""
    if v.kernel.roles:
        yield from _unruly(v, name)
        return
    for m in mutants.mutants(v.kernel, v.found, trial_sizes(v.kernel)):
        caught = not judge(v.kernel, m.kernel, m.addresses).ok
        yield Planted(name, m.kind, m.names, caught)


def _unruly(v: Checked, name: str) -> Iterator[Planted]:
    """Mutants of a kernel whose roles run side by side."""
    made = plan.plan(v.kernel, v.found, plan.Wish(), v.kernel.targets[0])
    where, sizes = addresses(made.kernel, made.plan), trial_sizes(v.kernel)
    for m in unruly.mutants(handover.of(made.kernel), where):
        caught = bool(turns.faults(v.kernel, m.parted, m.addresses, sizes, 0))
        yield Planted(name, m.kind, m.names, caught)


def in_random(seeds: Iterable[int]) -> Iterator[Planted]:
    """Mutants of random specs."""
    for seed in seeds:
        yield from planted(fuzz.load(fuzz.spec_of(seed)), f"random spec {seed}")


def rows(found: Iterable[Planted]) -> list[list[str]]:
    """kind, what it is, how many were planted and how many caught; kinds that were never planted too."""
    every = list(found)
    sown, caught = Counter(p.kind for p in every), Counter(p.kind for p in every if p.caught)
    kinds = {**(unruly.KINDS if sown.keys() & unruly.KINDS else {}), **mutants.KINDS}
    return [[kind, what, f"{sown[kind]:,}", f"{caught[kind]:,}"] for kind, what in kinds.items()]
