"""The judge of roles: their program as planned, in many orders of turns, against what the spec says.

What the spec says is run without barriers: whoever uses a round of a staged tile waits until all that it
rests on is done, counted in full, and copies and products are done at once, on storage that nothing
shares. What is planned has its barriers, of which a wait sees a parity only; copies and products that run
on take place at once or as late as may be; tiles lie where the plan puts them. Outputs must be equal,
exactly (`field.py`). Before that the protocol is proven (`proof.py`): fences show in no order of turns.
"""

import ast
import copy
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as made

import numpy as np

from gdngen.errors import Report
from gdngen.judge import field
from gdngen.judge.arena import Address, BadAddress, private
from gdngen.judge.interleave import EARLY, PhaseBarrier
from gdngen.judge.judge import Verdict, trial_sizes
from gdngen.judge.replay import MOST_SCALAR, Machine
from gdngen.judge.state import Fault, State
from gdngen.language.expr import ExprError, evaluate
from gdngen.model import roles, rounds
from gdngen.model.model import Await, Gemm, Kernel, Leaf, Point, Skip, Walk
from gdngen.roles import channels as channelling
from gdngen.roles import handover, proof, unroll
from gdngen.roles.handover import Parted
from gdngen.roles.sync import (
    AsyncLoad,
    AsyncStore,
    BarrierArrive,
    BarrierWait,
    Drain,
    Settle,
    Sync,
)

ORDERS = 3  # of turns that are tried of every trial
Step = tuple[Leaf, dict]
Outputs = Mapping[str, object]


@dataclass(frozen=True)
class Trial:
    """One block: the numbers that hold in it, and the sizes of tensors that its accesses reach."""

    sizes: tuple[tuple[str, int], ...]
    env: tuple[tuple[str, object], ...]


@np.errstate(over="ignore")
def trials(kernel: Kernel, sizes: Mapping[str, int], seed: int) -> list[Trial]:
    """As many rounds as all places have, twice over, and about half as many, in the last block; in the
    first, as few of everything but one as there may be."""
    found = [env for env in unroll.valuations(kernel) if min(env.values()) >= 0]
    fewest = max(found, key=lambda env: (list(env.values()).count(0), sum(env.values())))
    several = dict.fromkeys((len(found) // 2, len(found) - 1))
    return [_trial(kernel, sizes, found[at], seed, 1) for at in several] + [
        _trial(kernel, sizes, fewest, seed, 0)
    ]


def judge(original: Kernel, planned: Kernel, addresses: Mapping[str, Address]) -> Verdict:
    """What `judge.judge` is to a kernel whose statements have one order."""
    sizes, report = trial_sizes(original), Report()
    parted = handover.parted(planned, report)
    if parted is None:
        found = [Fault("malformed", d.what, line=d.where.line) for d in report.errors()]
    else:
        found = faults(original, parted, addresses, sizes, 0)
    blocks = len(trials(original, sizes, 0))
    return Verdict(not found, tuple(found), tuple(sorted(sizes.items())), blocks, 0)


def faults(
    original: Kernel,
    p: Parted,
    addresses: Mapping[str, Address],
    sizes: Mapping[str, int],
    seed: int,
) -> list[Fault]:
    """What is wrong with a parted program on storage at these addresses."""
    found = [Fault("protocol", f.what, line=f.where.line) for f, _ in proof.faults(p)]
    return found or played(original, p, addresses, sizes, seed)


@np.errstate(over="ignore")
def played(
    original: Kernel,
    p: Parted,
    addresses: Mapping[str, Address],
    sizes: Mapping[str, int],
    seed: int,
) -> list[Fault]:
    """What goes wrong in the orders of turns that are tried; nothing is proven here."""
    try:
        for trial in trials(original, sizes, seed):
            right = _meant(original, trial, seed)
            if isinstance(right, Fault):
                return [right]
            for order in range(ORDERS):
                if found := _run(p, addresses, trial, seed, order, right):
                    return list(dict.fromkeys(found))
    except BadAddress as e:
        return [Fault("address", str(e))]
    except ExprError as e:
        return [Fault("malformed", e.what)]
    return []


# -- numbers of a trial ----------------------------------------------------------------------------


def _trial(kernel: Kernel, sizes: Mapping[str, int], rounds_: Mapping[str, int], seed, at) -> Trial:
    """Block `at` of two along each axis; sizes grow until scalars and accesses are inside them."""
    largest = max(rounds_[n] for n in rounds_ if n not in dict(kernel.values))
    grid = {n.id for _, count in kernel.grid for n in [count] if isinstance(n, ast.Name)}
    grown = dict(sizes)
    for name in kernel.runtime:
        wish = {**grown, name: 2 if name in grid else max(largest, grown[name])}
        if _env(kernel, wish, rounds_, seed, at) is not None:
            grown = wish
    env = _env(kernel, grown, rounds_, seed, at)
    for role in kernel.roles:
        for own in unroll.copies(role, env):
            for leaf, here in unroll.run(roles.statements(kernel, role), own):
                _reach(kernel, leaf, here, grown)
    return Trial(tuple(grown.items()), tuple({**env, **grown}.items()))


def _env(kernel: Kernel, sizes: Mapping[str, int], rounds_: Mapping[str, int], seed: int, at: int):
    """Everything that statements rest on; None where a scalar has no value at these sizes."""
    env = {**dict(kernel.values), **sizes}
    try:
        for name, count in kernel.grid:
            env[name] = min(at, int(evaluate(count, env)) - 1)
        for s in kernel.scalars:
            reads = any(isinstance(n, ast.Subscript) for n in ast.walk(s.value))
            if s.name in rounds_:
                env[s.name] = rounds_[s.name]
            elif isinstance(s.walk, Walk) or reads:  # any number will do
                env[s.name] = int(field.mixed(s.name, seed)) % MOST_SCALAR
            else:
                env[s.name] = int(evaluate(s.value, env))
    except ExprError:
        return None
    return env


def _reach(kernel: Kernel, leaf: Leaf, env: Mapping[str, object], sizes: dict[str, int]) -> None:
    """Makes lengths as long as a copy reaches."""
    for access in leaf.reads() + leaf.writes():
        tensor, r = kernel.tensor(access.name), access.region
        if tensor is None or r is None or not r.index:
            continue
        for side, part in zip(tensor.shape, r.index):
            if isinstance(side, ast.Name) and side.id in sizes:
                point = isinstance(part, Point)
                end = int(evaluate(part.at if point else part.start, env)) + (
                    1 if point else part.size
                )
                sizes[side.id] = max(sizes[side.id], end)


# -- copies of roles -------------------------------------------------------------------------------


@dataclass
class _Copy:
    """A copy of a role: what it still has to do, on registers of its own."""

    role: str
    threads: int
    steps: list[Step]
    machine: Machine
    at: int = 0
    products: list[Callable[[], None]] = made(default_factory=list)
    stores: list[Callable[[], None]] = made(default_factory=list)

    def do(self, leaf: Leaf, env: dict) -> None:
        self.machine.body((leaf,), env)

    def forget(self, name: str) -> None:
        self.machine.state.buffers[name].words.fill(0)


def _copies(kernel: Kernel, programs: Iterable, trial: Trial, seed: int, addresses) -> list[_Copy]:
    first = Machine(kernel, dict(trial.sizes), seed, addresses)
    first.state.clear()
    out = []
    for role, body in programs:
        for own in unroll.copies(role, dict(trial.env)):
            machine = copy.copy(first)
            machine.state = _with_registers(kernel, first.state)
            out.append(_Copy(role.name, role.threads, list(unroll.run(body, own)), machine))
    return out


def _with_registers(kernel: Kernel, state: State) -> State:
    """Tensors and shared tiles are everybody's; fragments are a copy's own."""
    own = copy.copy(state)
    fragments = {b.name: b for b in kernel.buffers if b.scope != "shared"}
    own.buffers = {
        name: private(fragments[name], s.owner) if name in fragments else s
        for name, s in state.buffers.items()
    }
    return own


def _outputs(kernel: Kernel, one: _Copy) -> Outputs:
    return {t.name: one.machine.state.tensors[t.name] for t in kernel.tensors if t.role != "in"}


# -- what is meant ---------------------------------------------------------------------------------


def _meant(kernel: Kernel, trial: Trial, seed: int) -> Outputs | Fault:
    """Outputs of the roles, each use of a round in its place; a fault where there is no such order."""
    report = Report()
    writers = {t: c.writer.name for c in channelling.channels(kernel, report) for t in c.tiles}
    programs = [(r, roles.statements(kernel, r)) for r in kernel.roles]
    copies = _copies(kernel, programs, trial, seed, None)
    last = [_last_uses(kernel, one) for one in copies]
    moved = True
    while moved:
        moved = False
        for one in copies:
            while one.at < len(one.steps) and _may(kernel, one, copies, last, writers):
                leaf, env = one.steps[one.at]
                if not isinstance(leaf, (Skip, Await)):
                    one.do(leaf, env)
                one.at += 1
                moved = True
    for one in copies:
        if one.at < len(one.steps):
            leaf, _ = one.steps[one.at]
            what = f"'{one.role}' waits for ever for a round of a staged tile"
            return Fault("malformed", what, (), None, leaf.id, leaf.where.line, leaf.stage)
    return _outputs(kernel, copies[0])


def _uses(kernel: Kernel, step: Step):
    leaf, env = step
    for use in rounds.uses(leaf, kernel):
        yield use.buffer, int(evaluate(use.round, env)), use.writes


def _last_uses(kernel: Kernel, one: _Copy) -> dict[tuple[str, int], int]:
    """(tile, round) -> the last step that uses it."""
    return {(b.name, at): n for n, step in enumerate(one.steps) for b, at, _ in _uses(kernel, step)}


def _may(kernel: Kernel, one: _Copy, copies: Sequence[_Copy], last, writers) -> bool:
    """Whether all that a copy's next statement rests on is done."""
    for b, at, _ in _uses(kernel, one.steps[one.at]):
        writing = writers.get(b.name) == one.role
        for other, uses in zip(copies, last):
            if (writers.get(b.name) == other.role) == writing:
                continue
            of = at - b.stages if writing else at
            needed = [n for (name, r), n in uses.items() if name == b.name and r == of]
            if any(n >= other.at for n in needed):
                return False
    return True


# -- what is planned -------------------------------------------------------------------------------


def _run(p: Parted, addresses, trial: Trial, seed: int, order: int, right: Outputs) -> list[Fault]:
    chance = random.Random(order)
    barriers = {b.name: [PhaseBarrier(b.arrivals) for _ in range(b.slots)] for b in p.barriers}
    copies = _copies(p.kernel, p.programs, trial, seed, addresses)
    waiting = list(copies)
    stuck: set[int] = set()
    while waiting:
        ready = [one for one in waiting if id(one) not in stuck]
        if not ready:
            return [_deadlock(one) for one in waiting]
        one = chance.choice(ready)
        if one.at == len(one.steps):
            waiting.remove(one)
        elif _step(one, barriers, chance):
            one.at += 1
            stuck.clear()
        else:
            stuck.add(id(one))
    found = list(copies[0].machine.state.faults.values())
    return found + list(_differences(p.kernel, copies[0], right))


def _deadlock(one: _Copy) -> Fault:
    leaf, _ = one.steps[one.at]
    what = f"'{one.role}' waits for ever, and so does everybody"
    return Fault("deadlock", what, (), None, leaf.id, leaf.where.line, leaf.stage)


def _step(one: _Copy, barriers: Mapping[str, list[PhaseBarrier]], chance: random.Random) -> bool:
    """Whether a copy's next statement could be done; it is, then."""
    leaf, env = one.steps[one.at]
    match leaf:
        case BarrierWait():
            at = int(evaluate(leaf.round, env))
            phase = at // leaf.barrier.slots + leaf.behind
            return barriers[leaf.barrier.name][at % leaf.barrier.slots].passes(phase % 2)
        case BarrierArrive():
            at = int(evaluate(leaf.round, env))
            barriers[leaf.barrier.name][at % leaf.barrier.slots].arrive(one.threads)
        case AsyncLoad():
            at = int(evaluate(leaf.round, env))
            barrier = barriers[leaf.barrier.name][at % leaf.barrier.slots]
            _some_time(chance, barrier.bringing, lambda: one.do(leaf.copy, env))
        case AsyncStore():
            _some_time(chance, one.stores, lambda: one.do(leaf.copy, env))
        case Drain():
            _finish(one.stores, 0)
        case Gemm():
            one.products.append(lambda: one.do(leaf, env))
            if chance.random() < EARLY:
                _finish(one.products, 0)
            elif not leaf.accumulate:
                one.forget(leaf.c.name)
        case Settle():
            _finish(one.products, leaf.pending)
        case Sync():
            pass
        case _:
            one.do(leaf, env)
    return True


def _some_time(chance: random.Random, later: list, work: Callable[[], None]) -> None:
    if chance.random() < EARLY:
        work()
    else:
        later.append(work)


def _finish(later: list[Callable[[], None]], pending: int) -> None:
    while len(later) > pending:
        later.pop(0)()


def _differences(kernel: Kernel, one: _Copy, right: Outputs) -> Iterable[Fault]:
    for name, want in right.items():
        if (one.machine.state.tensors[name] != want).any():
            yield Fault("differs", f"output '{name}' is not what the spec says", (name,))
