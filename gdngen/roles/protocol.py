"""Does a protocol of barriers keep roles from one another's tiles? Decided for every interleaving.

A role is given as the list of what it does, with loops run out and every number known. Roles meet at
barriers as GPUs have them: so many arrivals complete a phase, and a wait looks at no more than whether
the phase that runs now has the other parity. A wait that comes too early or too late by a phase
passes at once or for ever.

One run suffices. Roles branch on nothing that another does, so if waits counted phases in full, what
happens before what would be the same in every interleaving. It is followed by vector clocks, and each
wait is shown to come when its phase, or the next, is the one that runs, in all of them: so parity
says the same as counting, and what was found in one run holds for all. What can't be shown is a fault.

Threads of one role wait for one another nowhere but at barriers either, so each role runs twice here,
as two of its threads; copies and products that run on by themselves have clocks of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gdngen.errors import Location
from gdngen.roles.boxes import boxes_meet, covers, meet, minus
from gdngen.roles.happenings import (
    Access,
    Arrive,
    Drain,
    Event,
    Fence,
    Load,
    Meet,
    Product,
    Settle,
    Store,
    Touch,
    Trace,
    Wait,
)
from gdngen.roles.sync import Barrier


@dataclass(frozen=True)
class Fault:
    where: Location
    what: str
    hint: str


def faults(
    barriers: Sequence[Barrier], traces: Sequence[Trace], homes: Mapping[str, str] = {}
) -> list[Fault]:
    """What may go wrong in some interleaving; none if the protocol holds in all of them.

    homes  tile -> the storage that it lives in, where that is not its own
    """
    run = _Run(barriers, traces, homes)
    run.go()
    return run.faults


REPLICAS = 2  # threads of each role that stand for all of them

Clock = dict[int, int]


@dataclass
class _Thread:
    """One of two threads that stand for a copy of a role."""

    id: int
    trace: Trace
    which: int
    partner: int
    at: int = 0
    clock: Clock = field(default_factory=dict)
    products: list[int] = field(default_factory=list)  # agents that are still at work
    stores: list[int] = field(default_factory=list)

    @property
    def weight(self) -> int:
        return self.trace.threads // REPLICAS

    def tick(self) -> int:
        self.clock[self.id] = self.clock.get(self.id, 0) + 1
        return self.clock[self.id]


@dataclass
class _Phase:
    """`waits` are those for the phase before: none of them may find this one over."""

    arrivals: list[tuple[int, int, int]] = field(default_factory=list)  # thread, tick, weight
    came: list[Clock] = field(default_factory=list)  # what each that arrived knew
    clock: Clock = field(default_factory=dict)
    done: bool = False
    waits: list[tuple[int, int, Wait]] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)


@dataclass
class _Record:
    """A use of a tile that later ones must be ordered against."""

    agent: int
    tick: int
    thread: int
    touch: Touch
    where: Location
    self_made: bool  # by threads, so that copies and products need a fence
    half: tuple[int, int]
    fence: int = 0  # the thread's tick when it fenced


class _Run:
    def __init__(self, barriers, traces, homes):
        self.barriers = {b.name: b for b in barriers}
        self.homes = homes
        self.faults: list[Fault] = []
        self.threads: list[_Thread] = []
        for trace in traces:
            first = len(self.threads)
            for which in range(REPLICAS):
                partner = first + (1 - which)
                self.threads.append(_Thread(first + which, trace, which, partner))
        self.agents = len(self.threads)
        self.phases: dict[tuple[str, int], list[_Phase]] = {}
        self.memory: dict[str, list[_Record]] = {}

    def fault(self, where: Location, what: str, hint: str) -> None:
        found = Fault(where, what, hint)
        if found not in self.faults:
            self.faults.append(found)

    # -- running -----------------------------------------------------------------------------

    def go(self) -> None:
        moved = True
        while moved:
            moved = False
            for thread in self.threads:
                while thread.at < len(thread.trace.events) and self.step(thread):
                    thread.at += 1
                    moved = True
        stuck = [t for t in self.threads if t.at < len(t.trace.events) and t.which == 0]
        for t in stuck:
            self.deadlock(t)
        if not stuck:
            self.late()
            self.left()

    def left(self) -> None:
        """When a block ends its tiles are gone: nothing may read them any more."""
        for t in self.threads:
            if (t.stores or t.products) and t.trace.events:
                what = "a store" if t.stores else "a product"
                where = t.trace.events[-1].where
                self.fault(where, f"'{t.trace.role}' ends while {what} goes on", "wait for it")

    def deadlock(self, t: _Thread) -> None:
        event = t.trace.events[t.at]
        if not isinstance(event, Wait):
            return
        phase = self.phase(event.barrier, event.slot, event.phase)
        have = sum(w for _, _, w in phase.arrivals)
        need = self.barriers[event.barrier].arrivals
        late = {}
        for other in self.threads:
            rest = other.trace.events[other.at :]
            if any(_is_arrival(e, event) for e in rest):
                at = other.trace.events[other.at].where.line
                late.setdefault(other.trace.role, f"'{other.trace.role}', which waits on line {at}")
        missing = f"{need - have} of {need} threads never arrive"
        missing += f": those of {' and of '.join(late.values())}" if late else ""
        hint = (
            "every role that uses a staged tile takes every round of it in turn; skip: names one "
        )
        hint += "that it lets go by"
        if late:
            hint = "give the tile more stages, or let a round go before the next is asked for"
        self.fault(event.where, f"'{t.trace.role}' waits for ever {event.about}: {missing}", hint)

    def step(self, t: _Thread) -> bool:
        """Whether the thread's next event could happen."""
        event = t.trace.events[t.at]
        match event:
            case Wait():
                return self.wait(t, event)
            case Arrive():
                self.arrive(t, event)
            case Access():
                tick = t.tick()
                for touch in event.touches:
                    half = (t.which, t.which + 1) if touch.rows else (0, REPLICAS)
                    self.touch(t, t.id, tick, t.clock, touch, event, True, half)
            case Load():
                if t.which == 0:
                    self.load(t, event)
            case Product():
                t.products.append(self.agent(t, event, (t.which, t.which + 1)))
            case Settle():
                self.settle(t, t.products, event.pending)
            case Store():
                if t.which == 0:
                    t.stores.append(self.agent(t, event, (0, REPLICAS)))
            case Drain():
                self.settle(t, t.stores, 0)
            case Fence():
                tick = t.tick()
                for records in self.memory.values():
                    for r in records:
                        if r.agent == t.id and r.self_made and not r.fence:
                            r.fence = tick
            case Meet():
                return self.meet(t)
        return True

    def agent(self, t: _Thread, event: Load | Product | Store, half) -> int:
        """A copy or product that goes on by itself, from what its thread knows now."""
        agent = self.agents
        self.agents += 1
        t.tick()
        clock = {**t.clock, agent: 1}
        for touch in event.touches:
            own = half if touch.rows else (0, REPLICAS)
            self.touch(t, agent, 1, clock, touch, event, False, own)
        return agent

    def settle(self, t: _Thread, under_way: list[int], pending: int) -> None:
        while len(under_way) > pending:
            t.clock[under_way.pop(0)] = 1

    def meet(self, t: _Thread) -> bool:
        other = self.threads[t.partner]
        if other.at != t.at:
            return False
        t.tick(), other.tick()
        _join(t.clock, other.clock)
        _join(other.clock, t.clock)
        other.at += 1
        return True

    # -- barriers ----------------------------------------------------------------------------

    def phase(self, barrier: str, slot: int, number: int) -> _Phase:
        found = self.phases.setdefault((barrier, slot), [])
        while len(found) <= number:
            found.append(_Phase())
        return found[number]

    def over(self, barrier: str, slot: int, number: int) -> _Phase | None:
        """The phase, if it is over; None where it is not."""
        phase = self.phase(barrier, slot, number)
        return phase if phase.done else None

    def wait(self, t: _Thread, event: Wait) -> bool:
        if event.phase >= 0:
            phase = self.over(event.barrier, event.slot, event.phase)
            if phase is None:
                return False
            if event.phase > 0:
                before = self.phase(event.barrier, event.slot, event.phase - 1)
                if not _knows(t.clock, before.arrivals):
                    self.early(t, event)
            _join(t.clock, phase.clock)
        tick = t.tick()
        self.phase(event.barrier, event.slot, event.phase + 1).waits.append((t.id, tick, event))
        return True

    def early(self, t: _Thread, event: Wait) -> None:
        self.fault(
            event.where,
            f"'{t.trace.role}' may pass its wait {event.about} at once: it has let the round that was "
            "in the same place before go by without a wait, and a barrier tells odd from even only",
            "take every round in turn; skip: names one that a role lets go by",
        )

    def late(self) -> None:
        """No phase ends before everyone who waits for the one before has seen it end."""
        for phases in self.phases.values():
            for phase in phases:
                if not phase.done:
                    continue
                for thread, tick, event in phase.waits:
                    if not any(clock.get(thread, 0) >= tick for clock in phase.came):
                        role = self.threads[thread].trace.role
                        self.fault(
                            event.where,
                            f"'{role}' may wait for ever {event.about}: the round after it, in the "
                            "same place, may come and go first",
                            "let a round go only when the last use of it is over",
                        )

    def load(self, t: _Thread, event: Load) -> None:
        self.in_turn(t, event, "has a tile copied in")
        if event.phase < 0:
            return
        phase = self.phase(event.barrier, event.slot, event.phase)
        agent = self.agent(t, event, (0, REPLICAS))
        if phase.done:
            what = f"'{t.trace.role}' has a tile copied in when its round is handed on already"
            self.fault(event.where, what, "copy before the round is handed on")
        phase.loads.append(agent)

    def in_turn(self, t: _Thread, event: Arrive | Load, does: str) -> None:
        """What is meant for a phase comes when the one before is known to be over."""
        if event.phase < 0:
            self.fault(event.where, f"'{t.trace.role}' {does}: there is no such round", "")
        if event.phase <= 0:
            return
        before = self.phase(event.barrier, event.slot, event.phase - 1)
        if not (before.done and _knows(t.clock, before.arrivals)):
            self.fault(
                event.where,
                f"'{t.trace.role}' {does} before it knows that the round before, in the same place, is "
                "over: it would be counted there",
                "wait for a round before letting it go",
            )

    def arrive(self, t: _Thread, event: Arrive) -> None:
        barrier = self.barriers[event.barrier]
        tick = t.tick()
        self.in_turn(t, event, f"arrives {event.about}")
        if event.phase < 0:
            return
        phase = self.phase(event.barrier, event.slot, event.phase)
        if phase.done or any(a == t.id for a, _, _ in phase.arrivals):
            self.fault(
                event.where,
                f"'{t.trace.role}' arrives twice {event.about}",
                "a role lets each round of a staged tile go once",
            )
            return
        phase.arrivals.append((t.id, tick, t.weight))
        phase.came.append(dict(t.clock))
        _join(phase.clock, t.clock)
        if sum(w for _, _, w in phase.arrivals) >= barrier.arrivals:
            phase.done = True
            for agent in phase.loads:
                phase.clock[agent] = 1

    # -- tiles -------------------------------------------------------------------------------

    def touch(self, t, agent, tick, clock, touch: Touch, event, self_made: bool, half) -> None:
        home = self.homes.get(touch.tile, touch.tile)
        records = self.memory.setdefault(home, [])
        here = _Record(agent, tick, t.id, touch, event.where, self_made, half)
        kept = []
        for r in records:
            other = r.touch.tile != touch.tile  # in one storage: nothing is said of which part
            if not other and not (meet(r.half, half) and boxes_meet(r.touch.box, touch.box)):
                kept.append(r)
                continue
            ordered = clock.get(r.agent, 0) >= r.tick
            if (r.touch.writes or touch.writes) and not ordered:
                same = r.where == event.where and r.agent != agent and self.together(r, t, here)
                if not (same or self.sums(r, t, here)):
                    self.race(t, r, here, event)
            if touch.writes and ordered:
                if other or covers((half, *touch.box), (r.half, *r.touch.box)):
                    continue  # whatever is ordered behind this is ordered behind that
            kept.append(r)
        if not touch.writes:
            self.check_content(t, clock, touch, event, kept, self_made, half)
        kept.append(here)
        self.memory[home] = kept

    def together(self, r: _Record, t: _Thread, here: _Record) -> bool:
        """Whether two threads of one role are at one statement, each at elements of its own."""
        return self.threads[r.thread].partner == t.id and r.touch.round == here.touch.round

    def sums(self, r: _Record, t: _Thread, here: _Record) -> bool:
        """Whether two products of a thread add to one sum: they do so in order."""
        products = not r.self_made and not here.self_made and r.thread == t.id
        return products and r.touch.registers and r.touch.writes and here.touch.writes

    def race(self, t: _Thread, r: _Record, here: _Record, event) -> None:
        other = self.threads[r.thread].trace.role
        verb = "write" if here.touch.writes else "read"
        did = "write" if r.touch.writes else "read"
        tile = f"'{r.touch.tile}'" if r.touch.tile != here.touch.tile else "it"
        whom = f"'{other}'" if other != t.trace.role else "a thread, copy or product of its own"
        self.fault(
            event.where,
            f"'{t.trace.role}' may {verb} '{here.touch.tile}', round {here.touch.round}, while {whom} "
            f"may still {did} {tile}, round {r.touch.round} (line {r.where.line})",
            "let a round go only when the last use of it is over",
        )

    def check_content(self, t, clock, touch: Touch, event, records, self_made: bool, half) -> None:
        """Every element read was written last in this round of this tile."""
        written = [
            r
            for r in records
            if r.touch.writes and meet(r.half, half) and boxes_meet(r.touch.box, touch.box)
        ]
        rest = [touch.box]
        for r in written:
            right = (r.touch.tile, r.touch.round) == (touch.tile, touch.round)
            if not right:
                self.fault(
                    event.where,
                    f"'{t.trace.role}' reads round {touch.round} of '{touch.tile}' where round "
                    f"{r.touch.round} of '{r.touch.tile}' may lie (line {r.where.line})",
                    "give it more stages, or let the round go later",
                )
            if r.self_made and not self_made and not touch.registers:
                if not r.fence or clock.get(r.agent, 0) < r.fence:
                    self.fault(
                        event.where,
                        f"'{touch.tile}' is read by a copy or a product, and no fence stands behind "
                        f"its write on line {r.where.line}",
                        "a fence belongs between",
                    )
            rest = [piece for box in rest for piece in minus(box, r.touch.box)]
        if rest:
            self.fault(
                event.where,
                f"'{t.trace.role}' reads round {touch.round} of '{touch.tile}', which nothing has "
                "written by then",
                "write all of it, in every round that is read",
            )


def _is_arrival(e: Event, wait: Wait) -> bool:
    where = wait.barrier, wait.slot, wait.phase
    return isinstance(e, Arrive) and (e.barrier, e.slot, e.phase) == where


def _join(clock: Clock, other: Clock) -> None:
    for agent, tick in other.items():
        if clock.get(agent, 0) < tick:
            clock[agent] = tick


def _knows(clock: Clock, arrivals: list[tuple[int, int, int]]) -> bool:
    return all(clock.get(agent, 0) >= tick for agent, tick, _ in arrivals)
