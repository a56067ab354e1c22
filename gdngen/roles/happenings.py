"""What a role does, as its protocol is proven of it: a list of events, every number known."""

from dataclasses import dataclass

from gdngen.errors import Location
from gdngen.roles.boxes import Box


@dataclass(frozen=True)
class Touch:
    """A use of a part of a tile. `rows`: a thread touches the rows that it has in registers alone;
    `registers`: the tile itself is in registers."""

    tile: str
    box: Box
    round: int  # of a staged tile; else 0
    writes: bool
    rows: bool = False
    registers: bool = False


@dataclass(frozen=True)
class Event:
    where: Location


@dataclass(frozen=True)
class _AtBarrier(Event):
    barrier: str
    slot: int
    phase: int
    about: str


class Wait(_AtBarrier):
    """Until phase `phase` of a barrier's place is over; -1 is over from the start."""


class Arrive(_AtBarrier):
    """So many of the role's threads more, of those that complete the phase."""


@dataclass(frozen=True)
class _Touching(Event):
    touches: tuple[Touch, ...]


class Access(_Touching):
    """Reads and writes of the threads themselves."""


@dataclass(frozen=True)
class Load(_Touching):
    """One thread has a tile copied in; it is there when the barrier's phase is over."""

    barrier: str
    slot: int
    phase: int


class Product(_Touching):
    """All threads have tiles multiplied; they are read until a `Settle` says otherwise."""


@dataclass(frozen=True)
class Settle(Event):
    """Until no more than `pending` products are under way."""

    pending: int


class Store(_Touching):
    """One thread has a tile copied out; it is read until a `Drain`."""


class Drain(Event):
    """Until the role's stores have read what they store."""


class Fence(Event):
    """What threads wrote can be read by copies and products from here on."""


class Meet(Event):
    """All threads of the role wait for one another."""


@dataclass(frozen=True)
class Trace:
    """What one copy of a role does."""

    role: str
    threads: int
    events: tuple[Event, ...]
