"""A kernel with every name resolved, for one variant: what the analysis, the planner and the renderer see.

Sizes and dtypes are final, indices are expressions over block, loop and map indices and runtime sizes.
Each kind of statement is one dataclass that says what it reads and writes; nothing here knows any
particular kernel. All of it is immutable: a planner that moves statements builds another `Kernel`.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gdngen.errors import Location

BYTES = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "int8": 1, "int16": 2, "int32": 4, "int64": 8, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """A tensor in global memory; `shape` is in the author's terms (a runtime size stays a name).

    `partly` where the kernel may leave elements of it as they were.
    """

    name: str
    where: Location
    role: str
    shape: tuple[ast.expr, ...]
    dtype: str
    dtype_name: str
    doc: str
    sample: str
    partly: bool = False


@dataclass(frozen=True)
class Buffer:
    """A tile. `shape` in elements; `shape_text` as the author wrote it; `live` as declared."""

    name: str
    where: Location
    scope: str
    shape: tuple[int, ...]
    shape_text: tuple[str, ...]
    dtype: str
    dtype_name: str
    live: tuple[str, str] | None
    live_where: tuple[Location, Location] | None
    reuse: str | None
    reuse_where: Location | None
    doc: str
    stages: int = 0  # rounds that it has room for, where roles pass it on; its first axis then

    @property
    def bytes(self) -> int:
        total = BYTES[self.dtype]
        for n in self.shape:
            total *= n
        return total


@dataclass(frozen=True)
class Point:
    """One position along an axis."""

    at: ast.expr


@dataclass(frozen=True)
class Span:
    """`size` positions along an axis from `start`; `full` where that is the whole axis."""

    start: ast.expr
    stop: ast.expr
    size: int
    full: bool


@dataclass(frozen=True)
class Region:
    """A rectangle of a tensor or buffer; `index` is empty for the whole of it."""

    name: str
    where: Location
    index: tuple[Point | Span, ...]
    shape: tuple[int, ...]  # of the spans
    whole: bool  # every element of a buffer


@dataclass(frozen=True)
class Access:
    """One use of a tensor or buffer by a statement.

    `whole` on a write says that every element is overwritten, so that the old value is dead.
    `index` is the element's index in a map, None elsewhere.
    """

    name: str
    where: Location
    whole: bool
    index: tuple[ast.expr, ...] | None = None
    region: Region | None = None


@dataclass(frozen=True)
class Axis:
    name: str
    extent: int
    text: str


@dataclass(frozen=True)
class Leaf:
    """A statement that holds no others. `id` is its place in the author's order."""

    id: int
    where: Location
    stage: str

    def reads(self) -> tuple[Access, ...]:
        raise NotImplementedError

    def writes(self) -> tuple[Access, ...]:
        raise NotImplementedError


def _access(r: Region) -> Access:
    return Access(r.name, r.where, r.whole, region=r)


@dataclass(frozen=True)
class Copy(Leaf):
    """dst = src, converted; outside a tensor a load gives 0 and a store does nothing."""

    src: Region
    dst: Region

    def reads(self):
        return (_access(self.src),)

    def writes(self):
        return (_access(self.dst),)


@dataclass(frozen=True)
class Fill(Leaf):
    """dst = value everywhere."""

    value: ast.expr
    dst: Region

    def reads(self):
        return ()

    def writes(self):
        return (_access(self.dst),)


@dataclass(frozen=True)
class Gemm(Leaf):
    """c = a @ b, or c += a @ b where `accumulate`; either operand may be transposed."""

    a: Region
    b: Region
    c: Region
    transpose_a: bool
    transpose_b: bool
    accumulate: bool
    mnk: tuple[int, int, int]

    def reads(self):
        return (_access(self.a), _access(self.b)) + ((_access(self.c),) if self.accumulate else ())

    def writes(self):
        return (_access(self.c),)


@dataclass(frozen=True)
class Assign(Leaf):
    """For every point of `axes` (where `guard` holds): name[index] = value, all points at once.

    `group` numbers the map that it was written in, `used` are the elements that it reads.
    """

    axes: tuple[Axis, ...]
    name: str
    index: tuple[ast.expr, ...]
    value: ast.expr
    guard: ast.expr | None
    covers: bool
    used: tuple[Access, ...]
    group: int

    def reads(self):
        return self.used

    def writes(self):
        return (Access(self.name, self.where, self.covers, self.index),)


@dataclass(frozen=True)
class Reduce(Leaf):
    """dst = op of src along `axis`, combined with dst's old value where `accumulate`."""

    op: str
    src: Region
    dst: Region
    axis: int
    accumulate: bool

    def reads(self):
        return (_access(self.src),) + ((_access(self.dst),) if self.accumulate else ())

    def writes(self):
        return (_access(self.dst),)


@dataclass(frozen=True)
class Cumsum(Leaf):
    """dst = running sum of src along `axis`."""

    src: Region
    dst: Region
    axis: int
    reverse: bool

    def reads(self):
        return (_access(self.src),)

    def writes(self):
        return (_access(self.dst),)


@dataclass(frozen=True)
class Solve(Leaf):
    """dst [n, n] = blockdiag((I + strictLower(B_0))^-1, (I + strictLower(B_1))^-1, ...), 0 elsewhere.

    src [n, block] holds the diagonal blocks one below the other: src[r, c] is entry
    (r, r // block * block + c) of the matrix. Forward substitution in float32, then dst's dtype.
    """

    src: Region
    dst: Region
    block: int
    block_text: str  # as the author wrote it

    def reads(self):
        return (_access(self.src),)

    def writes(self):
        return (_access(self.dst),)


@dataclass(frozen=True)
class Raw(Leaf):
    """TileLang lines, with declared reads and writes; a write may keep part of the old value."""

    lines: tuple[str, ...]
    used: tuple[Access, ...]
    changed: tuple[Access, ...]

    def reads(self):
        return self.used

    def writes(self):
        return self.changed


@dataclass(frozen=True)
class Skip(Leaf):
    """A round of a staged tile that a role lets go by, unread."""

    tile: Region

    def reads(self):
        return ()

    writes = reads


@dataclass(frozen=True)
class Await(Leaf):
    """Whatever is still being done to a tile is done from here on."""

    tile: Region

    def reads(self):
        return ()

    writes = reads


@dataclass(frozen=True)
class Broken(Leaf):
    """A statement with a mistake, reported: it may do anything to what it names, so that the mistake
    is not reported again as a missing write or use. Never planned or rendered."""

    names: tuple[str, ...]

    def reads(self):
        return tuple(Access(n, self.where, False) for n in self.names)

    writes = reads


@dataclass(frozen=True)
class Loop:
    """`kind` repeat, loop or pipelined; `count` may be a runtime size, `trips` is None then.

    `runs` says that the body runs at least once.
    """

    id: int
    where: Location
    stage: str
    kind: str
    var: str | None
    count: ast.expr
    trips: int | None
    runs: bool
    num_stages: int
    body: "tuple[Statement, ...]"
    stages_text: str = "1"  # num_stages as the author wrote it
    lets: tuple[tuple[str, ast.expr], ...] = ()  # names for expressions, in every round anew


@dataclass(frozen=True)
class Branch:
    """A condition on block or loop indices: which arm runs is known only in the kernel."""

    id: int
    where: Location
    stage: str
    cond: ast.expr
    then: "tuple[Statement, ...]"
    other: "tuple[Statement, ...]"


Statement = Leaf | Loop | Branch


@dataclass(frozen=True)
class Stage:
    name: str
    where: Location
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Walk:
    """How many terms, `over` = 0, 1, ..., it takes until their sum is no more than `until`; at most `most`."""

    over: str
    term: ast.expr
    until: ast.expr
    most: ast.expr


@dataclass(frozen=True)
class Scalar:
    """A number that a block works out when it starts; `value` is in the author's terms, and of a walk
    what it may at most come to."""

    name: str
    where: Location
    value: ast.expr
    dtype: str  # int32 or float32
    walk: Walk | None = None

    def parts(self) -> tuple[ast.expr, ...]:
        """The expressions that it rests on."""
        w = self.walk
        return (w.term, w.until, w.most) if w else (self.value,)


@dataclass(frozen=True)
class Role:
    """`copies` parts of a block, each of `threads` threads, that run some of its stages by themselves.

    Copies are told apart by the index `each`; they stand side by side from thread `first` on, and keep
    whole warpgroups to themselves. `registers` is what a thread may have; 0 leaves it to the launch.
    """

    name: str
    where: Location
    threads: int
    copies: int
    each: str | None
    registers: int
    stages: tuple[str, ...]
    first: int
    doc: str = ""


@dataclass(frozen=True)
class Kernel:
    """One variant of a spec, resolved."""

    spec: str
    name: str
    module: str  # name of the rendered file, without suffix
    where: Location
    doc: str
    values: tuple[tuple[str, int | str], ...]  # dims and options
    dims: tuple[str, ...]
    dtypes: tuple[tuple[str, str], ...]
    runtime: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    buffers: tuple[Buffer, ...]
    grid: tuple[tuple[str, ast.expr], ...]
    threads: int
    stages: tuple[Stage, ...]
    targets: tuple[str, ...]
    reference: str | None
    resident: int = 1  # blocks that registers should leave room for on an SM
    asynchronous: bool = False  # whole tiles are copied by TMA, where there is one
    rounds: tuple[str, int] | None = None  # so many of a block index in one block, where they are
    fast_math: bool = False  # exponentials and quotients by the fast instructions
    policy: str | None = None  # of sharing storage, where the variant names one
    ranges: tuple[tuple[str, tuple[float, float]], ...] = field(default=(), compare=False)
    scalars: tuple[Scalar, ...] = ()
    roles: tuple[Role, ...] = ()

    def buffer(self, name: str) -> Buffer | None:
        return next((b for b in self.buffers if b.name == name), None)

    def tensor(self, name: str) -> Tensor | None:
        return next((t for t in self.tensors if t.name == name), None)

    def shared(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers if b.scope == "shared")

    def statements(self) -> tuple[Statement, ...]:
        return tuple(s for stage in self.stages for s in stage.body)

    def leaves(self) -> Iterator[Leaf]:
        for s in self.statements():
            yield from leaves(s)


def children(s: Statement) -> tuple[tuple[Statement, ...], ...]:
    """The groups of statements inside a statement."""
    if isinstance(s, Loop):
        return (s.body,)
    return (s.then, s.other) if isinstance(s, Branch) else ()


def leaves(s: Statement) -> Iterator[Leaf]:
    if isinstance(s, Leaf):
        yield s
    for group in children(s):
        for inner in group:
            yield from leaves(inner)


def touched(s: Statement) -> tuple[str, ...]:
    """Names that a statement reads or writes, each once, in order of first use."""
    found: dict[str, None] = {}
    for leaf in leaves(s):
        for access in leaf.reads() + leaf.writes():
            found.setdefault(access.name)
    return tuple(found)


def with_stages(kernel: Kernel, stages: tuple[Stage, ...]) -> Kernel:
    return replace(kernel, stages=stages)
