"""What stands between the statements of roles: barriers, waits for what runs on by itself, fences.

Statements of their own kind, put in by `handover.py`; the author writes none of them.
"""

import ast
from dataclasses import dataclass

from gdngen.model.model import Copy, Leaf


@dataclass(frozen=True)
class Barrier:
    """One for each place of the tiles that it is about; so many threads complete a phase of it."""

    name: str
    slots: int
    arrivals: int


@dataclass(frozen=True)
class Sync(Leaf):
    def reads(self):
        return ()

    writes = reads


@dataclass(frozen=True)
class BarrierWait(Sync):
    """Until the phase of a round is over, or, `behind` by one, that of the round before in its place."""

    barrier: Barrier
    round: ast.expr
    behind: int


@dataclass(frozen=True)
class BarrierArrive(Sync):
    barrier: Barrier
    round: ast.expr


@dataclass(frozen=True)
class AsyncLoad(Leaf):
    """A copy from a tensor that is there when the phase of a round is over."""

    copy: Copy
    barrier: Barrier
    round: ast.expr

    def reads(self):
        return self.copy.reads()

    def writes(self):
        return self.copy.writes()


@dataclass(frozen=True)
class AsyncStore(Leaf):
    """A copy to a tensor that goes on by itself until a `Drain`."""

    copy: Copy

    def reads(self):
        return self.copy.reads()

    def writes(self):
        return self.copy.writes()


@dataclass(frozen=True)
class Settle(Sync):
    """Until no more than `pending` products of the role are under way."""

    pending: int


@dataclass(frozen=True)
class Drain(Sync):
    """Until the role's stores have read what they store."""


@dataclass(frozen=True)
class Fence(Sync):
    """What threads wrote is seen by copies and products."""


@dataclass(frozen=True)
class Meet(Sync):
    """All threads of one copy of the role wait for one another, at a barrier of the hardware's."""

    first: int  # the number of the first copy's barrier
    each: str | None
    threads: int


@dataclass(frozen=True)
class Together(Sync):
    """All threads of the block wait for one another."""
