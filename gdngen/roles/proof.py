"""Roles' protocols proven, for every number of rounds up to where they repeat themselves."""

import functools

from gdngen.errors import Report
from gdngen.model import roles
from gdngen.model.model import Branch, Kernel, Loop, Statement
from gdngen.roles import events, handover, protocol, spans, unroll
from gdngen.roles.handover import Parted
from gdngen.roles.sync import BarrierArrive, BarrierWait, Settle

MOST = 8  # faults shown of one kernel


def check(kernel: Kernel, report: Report) -> None:
    """Reports what is wrong with a kernel's roles, and every way in which they may go astray."""
    if not kernel.roles:
        return
    roles.check(kernel, report)
    if report.errors():
        return
    parted = handover.parted(kernel, report)
    if parted is None:
        return
    for fault, numbers in faults(parted):
        what = f"{fault.what} ({numbers})" if numbers else fault.what
        report.error(fault.where, what, fault.hint)


def faults(p: Parted) -> list[tuple[protocol.Fault, str]]:
    """Faults of the first numbers of rounds that have any, and those numbers in words."""
    found = [(f, "") for f in _inside(p)]
    if found:
        return found[:MOST]
    traces = events.Traces(p)
    for env in unroll.valuations(p.kernel):
        for fault in _proven(p.barriers, traces.of(env)):
            found.append((fault, spans.numbers(env, p.kernel)))
        if found:
            return found[:MOST]
    return []


@functools.lru_cache(maxsize=1024)
def _proven(barriers, traces) -> tuple[protocol.Fault, ...]:
    return tuple(protocol.faults(barriers, traces))


def _inside(p: Parted) -> list[protocol.Fault]:
    """Waits for products inside a branch, and barriers in one that rests on what is not known here."""
    out: list[protocol.Fault] = []
    names = set().union(*unroll.valuations(p.kernel)) if p.kernel.roles else set()
    for role, body in p.programs:
        _walk(body, frozenset(names) | {role.each}, False, False, role.name, out)
    return out


def _walk(body: tuple[Statement, ...], known, branched: bool, free: bool, role: str, out) -> None:
    for s in body:
        if isinstance(s, Loop):
            inner = known | {s.var}
            for name, value in s.lets:
                if unroll.rests_on(value) <= inner:
                    inner = inner | {name}
            _walk(s.body, inner, branched, free, role, out)
        elif isinstance(s, Branch):
            unknown = free or not unroll.rests_on(s.cond) <= known
            _walk(s.then, known, True, unknown, role, out)
            _walk(s.other, known, True, unknown, role, out)
        elif isinstance(s, Settle) and branched:
            what = f"'{role}' waits for a product inside a branch: the compiler does all products one by one then"
            hint = "wait in every round, or let the last round repeat itself"
            out.append(protocol.Fault(s.where, what, hint))
        elif isinstance(s, (BarrierWait, BarrierArrive)) and free:
            what = (
                f"'{role}' takes or lets go a round in a branch that rests on more than rounds do"
            )
            hint = "which rounds a role takes must follow from counts and conditions on rounds"
            out.append(protocol.Fault(s.where, what, hint))
