"""Roles' programs broken on purpose: a wait, an arrival, a fence or a meeting too few, or too early.

Each may go wrong in some order of turns; nothing here is shared with the proof and the judge, which must
refuse them all. A wait for a round that a role lets go by is left in its place: where another tile tells
the role that the round has come, nothing is wrong without it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gdngen.judge.arena import Address
from gdngen.model.model import Branch, Loop, Skip, Statement
from gdngen.roles.handover import Parted
from gdngen.roles.sync import (
    BarrierArrive,
    BarrierWait,
    Drain,
    Fence,
    Meet,
    Settle,
    Sync,
)

KINDS = {
    "unwaited": "a role goes on without waiting for a round, a product or a store",
    "unsaid": "a round is over, and a role doesn't say so",
    "unfenced": "what threads wrote is read by a copy or product without a fence",
    "unmet": "threads of a role don't meet where they should",
    "untimely": "a round is handed on before the statement that ends its use",
    "stacked": "two staged tiles at one address",
}
_KIND = {
    BarrierWait: "unwaited",
    Settle: "unwaited",
    Drain: "unwaited",
    BarrierArrive: "unsaid",
    Fence: "unfenced",
    Meet: "unmet",
}


@dataclass(frozen=True)
class Mutant:
    """A program of roles, and where its tiles lie; `names` says whose, and what was done to."""

    kind: str
    names: tuple[str, ...]
    parted: Parted
    addresses: Mapping[str, Address]


def mutants(p: Parted, addresses: Mapping[str, Address]) -> Iterator[Mutant]:
    let_go = {leaf.where for leaf in p.kernel.leaves() if isinstance(leaf, Skip)}
    for i, (role, body) in enumerate(p.programs):
        for kind, at, made in _edits(body):
            if isinstance(at, BarrierWait) and at.where in let_go:
                continue
            programs = (*p.programs[:i], (role, made), *p.programs[i + 1 :])
            names = (role.name, f"{type(at).__name__} of line {at.where.line}")
            yield Mutant(kind, names, replace(p, programs=programs), addresses)
    staged = [b for b in p.kernel.shared() if b.stages]
    for a, b in zip(staged, staged[1:]):
        moved = replace(addresses[b.name], offset=addresses[a.name].offset)
        yield Mutant("stacked", (a.name, b.name), p, {**addresses, b.name: moved})


def _edits(body: tuple[Statement, ...]) -> Iterator[tuple[str, Sync, tuple[Statement, ...]]]:
    """(kind, statement, the program with that one fault)."""
    for n, s in enumerate(body):
        before, behind = body[:n], body[n + 1 :]
        if isinstance(s, Loop):
            for kind, at, inner in _edits(s.body):
                yield kind, at, (*before, replace(s, body=inner), *behind)
        elif isinstance(s, Branch):
            for arm in ("then", "other"):
                for kind, at, inner in _edits(getattr(s, arm)):
                    yield kind, at, (*before, replace(s, **{arm: inner}), *behind)
        elif isinstance(s, Sync):
            yield _KIND[type(s)], s, (*before, *behind)
            if isinstance(s, BarrierArrive) and before and _ends(before[-1]):
                yield "untimely", s, (*before[:-1], s, before[-1], *behind)


def _ends(s: Statement) -> bool:
    """Whether a round that goes back behind a statement must not go before it."""
    return not isinstance(s, (BarrierArrive, BarrierWait, Branch, Loop))
