"""A kernel as its source says it: tiles, and a tree of the statements that touch them.

Sizes and indices are Python's `ast` in which every name is unique and what is known is a number:
`expr.linear` compares them. A tile is an allocation; names are what the source calls it, and two
names may be one tile (`k_beta = P`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from gdngen.errors import Location
from gdngen.language import expr
from gdngen.plan.instructions import DTYPE_BYTES

Box = tuple[tuple[int, int], ...]  # of each axis the first index, and the one behind the last


@dataclass(frozen=True)
class Tile:
    """An allocation: `shared`, `fragment`, `local` (a thread's own) or `barrier`.

    id      its first name, made unique
    names   every name that the source binds to it, in order; the last is the compiler's
    static  whether it is a shared array outside the launch's dynamic bytes
    viewed  whether it is also seen in another shape or dtype
    """

    id: str
    scope: str
    shape: tuple[int, ...]
    dtype: str
    where: Location
    names: tuple[str, ...]
    static: bool = False
    viewed: bool = False

    @property
    def bytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def box(self) -> Box:
        return tuple((0, n) for n in self.shape)

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True)
class Tensor:
    """A tensor in global memory."""

    name: str
    shape: tuple[ast.expr, ...]
    dtype: str


@dataclass(frozen=True)
class Span:
    """A range of an axis, `start : start + size`; size None where it is not known."""

    start: ast.expr
    size: int | None


Part = ast.expr | Span


@dataclass(frozen=True)
class Access:
    """What a statement does to a tile, by one of its names.

    index  of an element, or spans; empty for the whole tile
    box    where it surely lies within; `exact` says that all of the box is touched, every time
    anew   whether a read finds what the same statement wrote just before
    """

    tile: str
    name: str
    write: bool
    index: tuple[Part, ...]
    box: Box
    exact: bool
    where: Location
    anew: bool = False

    @property
    def element(self) -> bool:
        return bool(self.index) and not any(isinstance(p, Span) for p in self.index)


@dataclass(frozen=True)
class Gemm:
    """`c (+)= a @ b`; sizes are None where they are not known."""

    a: Access
    b: Access
    c: Access
    transpose_a: bool
    transpose_b: bool
    clear: bool
    policy: str


@dataclass(frozen=True)
class Move:
    """A copy between a tile and a tensor. `part` is where in the tensor; spans there say how much."""

    tile: Access
    tensor: Tensor
    part: tuple[Part, ...]
    store: bool
    disable_tma: bool
    asynchronous: bool


@dataclass(frozen=True)
class Reduce:
    """A reduction of `src` along an axis into `dst`."""

    src: Access
    dst: Access
    axis: int


@dataclass(frozen=True)
class Axis:
    """A variable of a loop, by its unique name; `extent` None where not known."""

    id: str
    name: str
    extent: int | None


@dataclass(frozen=True)
class Leaf:
    """A statement that is one for the compiler: a tile operation, a parallel loop, a lone store.

    kind     copy, gemm, fill, reduce, cumsum, map, scalar, call
    axes     of a parallel loop; `inner` are the plain loops that it holds
    loads    whether it reads tensors
    """

    kind: str
    where: Location
    accesses: tuple[Access, ...]
    axes: tuple[Axis, ...] = ()
    inner: tuple[Axis, ...] = ()
    detail: Gemm | Move | Reduce | None = None
    loads: bool = False


@dataclass(frozen=True)
class Loop:
    """`kind` is serial or pipelined; `trips` None where they are not known."""

    kind: str
    where: Location
    trips: int | None
    body: tuple[Statement, ...]
    stages: int = 0


@dataclass(frozen=True)
class Branch:
    """Arms of an `if`; `side_by_side` where threads go different ways at one time, `another` where the
    condition is that the loop around has another round."""

    where: Location
    then: tuple[Statement, ...]
    other: tuple[Statement, ...]
    side_by_side: bool = False
    another: bool = False


Statement = Leaf | Loop | Branch


@dataclass(frozen=True)
class Note:
    """What was not understood, or was taken for granted."""

    where: Location
    what: str
    harmless: bool = False


@dataclass(frozen=True)
class Kernel:
    """`factory` is the outermost function around it; `reuse` whether the compiler may merge shared
    tiles (off, default, aggressive), `waits` whether asynchronous copies are off."""

    name: str
    factory: str
    where: Location
    settings: Mapping[str, object]
    threads: int | None
    grid: Mapping[str, ast.expr]
    ranges: Mapping[str, tuple[float, float]]
    tiles: Mapping[str, Tile]
    body: tuple[Statement, ...]
    barriers: int  # bytes
    reuse: str
    waits: bool
    notes: tuple[Note, ...]
    layouts: tuple[str, ...] = ()  # tiles whose layout the source gives

    @property
    def shared(self) -> list[Tile]:
        return [t for t in self.tiles.values() if t.scope == "shared"]

    @property
    def side_by_side(self) -> bool:
        """Whether warps run different statements at one time."""
        return any(isinstance(s, Branch) and s.side_by_side for s in statements(self.body))


def statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Every statement, those inside loops and branches too, in the order written."""
    for s in body:
        yield s
        if isinstance(s, Loop):
            yield from statements(s.body)
        elif isinstance(s, Branch):
            yield from statements(s.then)
            yield from statements(s.other)


def leaves(body: tuple[Statement, ...]) -> Iterator[Leaf]:
    return (s for s in statements(body) if isinstance(s, Leaf))


def number(node: ast.expr) -> int | None:
    """The integer that an expression is, if it is one."""
    return expr.constant(expr.linear(node, {}))


def meet(one: Box, other: Box) -> bool:
    """Whether two boxes of one tile have an element in common."""
    return all(a < d and c < b for (a, b), (c, d) in zip(one, other))


def within(inner: Box, outer: Box) -> bool:
    return all(c <= a and b <= d for (a, b), (c, d) in zip(inner, outer))
