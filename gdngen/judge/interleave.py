"""Roles computed side by side, in an interleaving that chance picks: barriers hold, nothing else does.

Every copy of a role is a coroutine that stops between statements, and at barriers until parity lets
it by, as a GPU would. A copy or product that runs on by itself takes place at any moment between its
statement and the wait for it: early it meets what came before, late it finds what has changed since.
A protocol that fails gives a wrong number, or none: everybody waits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gdngen.language.expr import evaluate
from gdngen.model.model import Branch, Gemm, Kernel, Leaf, Loop, Statement
from gdngen.roles import handover, unroll
from gdngen.roles.handover import Parted
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
from gdngen.verify.interpret import Block, fresh

if TYPE_CHECKING:
    import torch

EARLY = 0.5  # how often what runs on by itself is done at once


class Deadlock(Exception):
    """Every role waits; the message says where."""


@dataclass
class PhaseBarrier:
    """A barrier of one place: the phase that runs, what has come in it, and what it brings."""

    arrivals: int
    phase: int = 0
    came: int = 0
    bringing: list[Callable[[], None]] = field(default_factory=list)

    def arrive(self, threads: int) -> None:
        self.came += threads
        if self.came >= self.arrivals:
            for done in self.bringing:
                done()
            self.bringing = []
            self.came -= self.arrivals
            self.phase += 1

    def passes(self, parity: int) -> bool:
        return self.phase % 2 != parity


def run_block(kernel: Kernel, tensors: Mapping[str, torch.Tensor], values: dict, seed: int) -> None:
    """One block of a kernel with roles; `values` has every size and the block's indices."""
    Interleaving(handover.of(kernel), tensors, values, seed).go()


class Interleaving:
    """One block of a parted kernel, which need not be what `handover` made."""

    def __init__(self, p: Parted, tensors, values: dict, seed: int):
        self.chance = random.Random(seed)
        kernel = p.kernel
        shared = {b.name: fresh(b.shape, b.dtype) for b in kernel.shared()}
        self.barriers = {
            b.name: [PhaseBarrier(b.arrivals) for _ in range(b.slots)] for b in p.barriers
        }
        values = Block(kernel, tensors, shared).scalars(values)
        self.runs = []
        for role, body in p.programs:
            for own in unroll.copies(role, values):
                registers = {
                    b.name: fresh(b.shape, b.dtype) for b in kernel.buffers if b.scope != "shared"
                }
                block = Block(kernel, tensors, {**shared, **registers})
                self.runs.append(_Run(self, role.name, role.threads, block).body(body, own))

    def go(self) -> None:
        waiting = list(self.runs)
        stuck: dict[int, str] = {}
        while waiting:
            ready = [r for r in waiting if id(r) not in stuck]
            if not ready:
                raise Deadlock("; ".join(stuck.values()))
            one = self.chance.choice(ready)
            try:
                held = next(one)
            except StopIteration:
                waiting.remove(one)
                stuck.clear()
                continue
            if held is None:
                stuck.clear()
            else:
                stuck[id(one)] = held


@dataclass
class _Run:
    """A copy of a role; `products` and `stores` are still to be done."""

    all: Interleaving
    role: str
    threads: int
    block: Block
    products: list[Callable[[], None]] = field(default_factory=list)
    stores: list[Callable[[], None]] = field(default_factory=list)

    def body(self, body: tuple[Statement, ...], values: dict) -> Iterator[str | None]:
        """Runs, and stops between statements: None where it may go on, else what it waits for."""
        for s in body:
            if isinstance(s, Loop):
                for at in range(int(evaluate(s.count, values))):
                    inner = {**values, s.var: at} if s.var else dict(values)
                    for name, value in s.lets:
                        inner[name] = int(evaluate(value, inner))
                    yield from self.body(s.body, inner)
            elif isinstance(s, Branch):
                yield from self.body(s.then if evaluate(s.cond, values) else s.other, values)
            elif isinstance(s, BarrierWait):
                yield from self.wait(s, values)
            else:
                self.leaf(s, values)
                yield None

    def wait(self, s: BarrierWait, values: dict) -> Iterator[str | None]:
        at = int(evaluate(s.round, values))
        barrier = self.all.barriers[s.barrier.name][at % s.barrier.slots]
        while not barrier.passes((at // s.barrier.slots + s.behind) % 2):
            yield f"'{self.role}' waits at '{s.barrier.name}' for round {at} (line {s.where.line})"

    def leaf(self, s: Leaf, values: dict) -> None:
        chance = self.all.chance
        match s:
            case BarrierArrive():
                at = int(evaluate(s.round, values))
                self.all.barriers[s.barrier.name][at % s.barrier.slots].arrive(self.threads)
            case AsyncLoad():
                at = int(evaluate(s.round, values))
                barrier = self.all.barriers[s.barrier.name][at % s.barrier.slots]
                self.some_time(barrier.bringing, lambda: self.block.step(s.copy, values))
            case AsyncStore():
                self.some_time(self.stores, lambda: self.block.step(s.copy, values))
            case Drain():
                self.finish(self.stores, 0)
            case Gemm():
                self.products.append(lambda: self.block.step(s, values))
                if chance.random() < EARLY:
                    self.finish(self.products, 0)  # in order: those before it are done as well
                elif not s.accumulate:
                    self.block.forget(s.c.name)
            case Settle():
                self.finish(self.products, s.pending)
            case Fence() | Meet():
                pass
            case _:
                self.block.step(s, values)

    def some_time(self, later: list, work: Callable[[], None]) -> None:
        if self.all.chance.random() < EARLY:
            work()
        else:
            later.append(work)

    def finish(self, later: list, pending: int) -> None:
        while len(later) > pending:
            later.pop(0)()
