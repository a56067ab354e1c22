"""A parted kernel as its protocol sees it: every copy of every role as a list of events.

What is proven is what is rendered: events come from the programs with their barriers in place.
"""

import ast
from collections.abc import Iterator

from gdngen.language import expr
from gdngen.model import rounds
from gdngen.model.model import Access, Assign, Gemm, Leaf, Point, Region, Role
from gdngen.roles import happenings, unroll
from gdngen.roles.handover import Parted, row_products
from gdngen.roles.sync import (
    AsyncLoad,
    AsyncStore,
    BarrierArrive,
    BarrierWait,
    Drain,
    Fence,
    Meet,
    Settle,
)


class Traces:
    """What every copy of every role does, for any numbers; what does not rest on them is worked out once."""

    def __init__(self, p: Parted):
        self.p = p
        self.known: dict[tuple[str, int | None], _Events] = {}

    def of(self, env: unroll.Env) -> tuple[happenings.Trace, ...]:
        """For these numbers."""
        found = []
        for role, body in self.p.programs:
            for own in unroll.copies(role, env):
                key = role.name, own.get(role.each)
                if key not in self.known:
                    self.known[key] = _Events(self.p, role, own)
                events = tuple(self.known[key].all(body, own))
                found.append(happenings.Trace(role.name, role.threads, events))
        return tuple(found)


class _Events:
    """Of one copy of a role."""

    def __init__(self, p: Parted, role: Role, env: unroll.Env):
        self.p = p
        self.own = f"{role.name} {env.get(role.each, '')}" if role.each else role.name
        self.rows = row_products(p.kernel, role)
        self.names: dict[int, tuple[str, ...]] = {}  # that each statement's events are made of
        self.known: dict[tuple, tuple[happenings.Event, ...]] = {}

    def all(self, body, env: unroll.Env) -> Iterator[happenings.Event]:
        for leaf, here in unroll.run(body, env):
            if id(leaf) not in self.names:
                self.names[id(leaf)] = _rests_on(leaf)
            key = id(leaf), *(here.get(name) for name in self.names[id(leaf)])
            if key not in self.known:
                self.known[key] = tuple(self.event(leaf, here))
            yield from self.known[key]

    def event(self, s: Leaf, env: unroll.Env) -> Iterator[happenings.Event]:
        match s:
            case BarrierWait():
                at, slots = self.round(s.round, env), s.barrier.slots
                about = f"for {_said(s.barrier.name)}, round {at}"
                phase = at // slots - s.behind
                yield happenings.Wait(s.where, s.barrier.name, at % slots, phase, about)
            case BarrierArrive():
                at, slots = self.round(s.round, env), s.barrier.slots
                about = f"at {_said(s.barrier.name)}, round {at}"
                yield happenings.Arrive(s.where, s.barrier.name, at % slots, at // slots, about)
            case AsyncLoad():
                at, slots = self.round(s.round, env), s.barrier.slots
                touches = self.touches(s.copy, s.writes(), True, env)
                name = s.barrier.name
                yield happenings.Load(s.where, touches, name, at % slots, at // slots)
            case AsyncStore():
                yield happenings.Store(s.where, self.touches(s.copy, s.reads(), False, env))
            case Settle():
                yield happenings.Settle(s.where, s.pending)
            case Drain():
                yield happenings.Drain(s.where)
            case Fence():
                yield happenings.Fence(s.where)
            case Meet():
                yield happenings.Meet(s.where)
            case Gemm():
                own = not s.transpose_a
                a = self.touches(s, (_of(s.a),), False, env, own)
                b = self.touches(s, (_of(s.b),), False, env)
                c = self.touches(s, (_of(s.c),), True, env)
                yield happenings.Product(s.where, a + b + c)
            case _:
                keeps = s.reads() and all(x.name in self.rows for x in s.reads())
                reads = self.touches(s, s.reads(), False, env)
                writes = self.touches(s, s.writes(), True, env, bool(keeps))
                if reads or writes:
                    yield happenings.Access(s.where, reads + writes)

    def touches(
        self, s: Leaf, accesses, writes: bool, env, rows=False
    ) -> tuple[happenings.Touch, ...]:
        out = []
        for a in accesses:
            buffer = self.p.kernel.buffer(a.name)
            if buffer is None:
                continue
            shared = buffer.scope == "shared"
            name = a.name if shared else f"{a.name} of {self.own}"
            at = self.round(rounds.round_of(a), env) if buffer.stages else 0
            box = self.box(s, a, buffer, env)
            out.append(happenings.Touch(name, box, at, writes, rows or not shared, not shared))
        return tuple(out)

    def box(self, s: Leaf, a: Access, buffer, env) -> happenings.Box:
        """The part of a tile that an access may reach, along each axis."""
        whole = tuple((0, n) for n in buffer.shape)
        ranges = {x.name: (0.0, x.extent - 1.0) for x in s.axes} if isinstance(s, Assign) else {}
        out = list(whole)
        for axis, ((start, size), (_, n)) in enumerate(zip(_parts(a), whole)):
            low, high = expr.interval(start, env, ranges)
            out[axis] = (int(max(low, 0)), int(min(high + size, n)))
        return tuple(out)

    def round(self, node, env) -> int:
        return int(expr.evaluate(node, env))


def _rests_on(s: Leaf) -> tuple[str, ...]:
    """Names that an event of a statement is made of: those of its rounds and of the parts it touches."""
    asked = [s.round] if isinstance(s, (BarrierWait, BarrierArrive, AsyncLoad)) else []
    asked += [start for a in (*s.reads(), *s.writes()) for start, _ in _parts(a)]
    return tuple(sorted(frozenset().union(*map(unroll.rests_on, asked))))


def _parts(a: Access) -> list[tuple[ast.expr, int]]:
    """Where an access begins along each axis that it names, and how far it goes."""
    if a.region is None:
        return [(i, 1) for i in a.index or ()]
    parts = a.region.index or ()
    return [(p.at, 1) if isinstance(p, Point) else (p.start, p.size) for p in parts]


def _of(r: Region) -> Access:
    return Access(r.name, r.where, r.whole, region=r)


def _said(barrier: str) -> str:
    return f"'{barrier}'"
