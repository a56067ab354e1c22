"""What a role does, as its protocol is proven of it: a list of events, every number known."""

from dataclasses import dataclass

from gdngen.errors import Location
from gdngen.roles.boxes import Box


@dataclass(frozen=True)
class Barrier:
    """One barrier for each of `slots` places; `arrivals` threads complete a phase of one."""

    name: str
    slots: int
    arrivals: int


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
class Wait:
    """Until phase `phase` of a barrier's place is over; -1 is over from the start."""

    where: Location
    barrier: str
    slot: int
    phase: int
    about: str


@dataclass(frozen=True)
class Arrive:
    where: Location
    barrier: str
    slot: int
    phase: int
    about: str


@dataclass(frozen=True)
class Access:
    """Reads and writes of the threads themselves."""

    where: Location
    touches: tuple[Touch, ...]


@dataclass(frozen=True)
class Load:
    """One thread has a tile copied in; it is there when the barrier's phase is over."""

    where: Location
    touches: tuple[Touch, ...]
    barrier: str
    slot: int
    phase: int


@dataclass(frozen=True)
class Product:
    """All threads have tiles multiplied; they are read until a `Settle` says otherwise."""

    where: Location
    touches: tuple[Touch, ...]


@dataclass(frozen=True)
class Settle:
    """Until no more than `pending` products are under way."""

    where: Location
    pending: int


@dataclass(frozen=True)
class Store:
    """One thread has a tile copied out; it is read until a `Drain`."""

    where: Location
    touches: tuple[Touch, ...]


@dataclass(frozen=True)
class Drain:
    where: Location


@dataclass(frozen=True)
class Fence:
    """What threads wrote can be read by copies and products from here on."""

    where: Location


@dataclass(frozen=True)
class Meet:
    """All threads of the role wait for one another."""

    where: Location


Event = Wait | Arrive | Access | Load | Product | Settle | Store | Drain | Fence | Meet


@dataclass(frozen=True)
class Trace:
    """What one copy of a role does."""

    role: str
    threads: int
    events: tuple[Event, ...]
