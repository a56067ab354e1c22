"""Bytes that TileLang's compiler will ask for, given the slots: with its own merging and without.

The rules of the compiler are in `compiler.py`; this module tells it what the kernel does.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from gdngen.language import expr
from gdngen.model import warps
from gdngen.model.model import (
    BYTES,
    Assign,
    Branch,
    Copy,
    Gemm,
    Kernel,
    Loop,
    Point,
    Span,
    Statement,
    leaves,
    touched,
)
from gdngen.plan import bulk, compiler, packing, pipeline
from gdngen.plan.emission import Emitted, emitted, homes, is_block, members
from gdngen.roles import handover
from gdngen.roles.sync import Barrier

BARRIER = 8  # bytes


@dataclass(frozen=True)
class Slot:
    """One allocation; `tenants` in the order of their lives. Its name is the first tenant's.

    `columns` says at which column, in elements of its own, each tenant starts, where not all start at 0.
    `dtypes` says of what dtype each tenant is, where not all are of the slot's: those see the same bytes
    through a view, as many elements a row as fill it.
    """

    shape: tuple[int, ...]
    dtype: str
    tenants: tuple[str, ...]
    columns: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.tenants[0]

    def column(self, tenant: str) -> int:
        """The tenant's first column in the slot."""
        return self.columns[self.tenants.index(tenant)] if self.columns else 0

    def dtype_of(self, tenant: str) -> str:
        return self.dtypes[self.tenants.index(tenant)] if self.dtypes else self.dtype

    def seen(self, tenant: str) -> tuple[int, ...]:
        """The slot's shape in elements of the tenant."""
        width = self.shape[-1] * BYTES[self.dtype] // BYTES[self.dtype_of(tenant)]
        return (*self.shape[:-1], width)

    @property
    def bytes(self) -> int:
        total = BYTES[self.dtype]
        for n in self.shape:
            total *= n
        return total


@dataclass(frozen=True)
class Layout:
    """Dynamic and static shared bytes of a block.

    `blocking` says that the compiler refuses the kernel unless its loads wait: a pipelined loop of
    symbolic length, whose asynchronous copies would run further ahead than it can count. `places` are
    the first byte and the bytes, of all its versions, of each storage, by its last tenant.
    """

    dynamic: int
    static: int
    blocking: bool = False
    places: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class Compiled:
    """What TileLang's compiler makes of a kernel with its slots.

    own, merged  bytes of a block as the slots are, and after the compiler's default merging
    refused      why it would not compile the kernel, one line each
    """

    own: Layout
    merged: Layout
    refused: tuple[str, ...]


def compiled(kernel: Kernel, slots: tuple[Slot, ...], target: str) -> Compiled:
    facts = _Facts(kernel, slots)
    if kernel.roles:
        return _side_by_side(facts, target, handover.of(kernel).barriers)
    if bulk.wanted(kernel, target):
        return _side_by_side(facts, target, bulk.barriers(kernel))
    loop = facts.pipelined
    producer = loop is not None and pipeline.is_specialised(loop, facts.tiles, target)
    program = facts.program(target)
    align = compiler.alignments(program, target)
    kept = pipeline.versions(loop, target) if loop else {}
    sizes = {name: tile.bytes * kept.get(name, 1) for name, tile in facts.tiles.items()}
    static = pipeline.barrier_bytes(loop, facts.tiles, target) if loop else 0
    plain, lying = packing.plain_layout(sizes, align)
    merged, put = (
        plain,
        lying,
    )  # how a storage that is seen as several dtypes merges is not modelled
    if not any(s.dtypes for s in slots):
        events, loops = facts.events(producer, target)
        merged, put = packing.merged_layout(events, sizes, align, loops)
    blocking = (
        loop is not None
        and facts.symbolic
        and pipeline.needs_static_trips(loop, facts.tiles, target)
    )
    return Compiled(
        Layout(plain, static, blocking, _places(lying, sizes)),
        Layout(merged, static, blocking, _places(put, sizes)),
        tuple(compiler.refusals(program, target)),
    )


def _side_by_side(facts: "_Facts", target: str, barriers: Sequence[Barrier]) -> Compiled:
    """Storages that the compiler's merging does not know enough of: roles do not wait for one another,
    and TMA is done with a tile at a time of its own. Barriers stand beside them."""
    group = max((r.threads for r in facts.kernel.roles), default=facts.kernel.threads)
    program = compiler.Program(facts.tiles, facts.gemms, facts.by_tma(), group, True)
    sizes = {name: tile.bytes for name, tile in facts.tiles.items()}
    dynamic, offsets = packing.plain_layout(sizes, compiler.alignments(program, target))
    static = sum(b.slots * BARRIER for b in barriers)
    layout = Layout(dynamic, static, places=_places(offsets, sizes))
    return Compiled(layout, layout, tuple(compiler.refusals(program, target)))


def _places(
    offsets: Mapping[str, int], sizes: Mapping[str, int]
) -> tuple[tuple[str, int, int], ...]:
    return tuple((name, first, sizes[name]) for name, first in offsets.items())


def pipelined_loads(kernel: Kernel, slots: tuple[Slot, ...], target: str) -> frozenset[str]:
    """Storages, by their last tenant, that TMA loads inside the kernel's pipelined loop."""
    facts = _Facts(kernel, slots)
    loop = facts.pipelined
    if loop is None:
        return frozenset()
    inside = pipeline.Loop(loop.stages, loop.body)
    return frozenset(load.tile for load in pipeline.producer_loads(inside, facts.tiles, target))


class _Facts:
    """A planned kernel in the compiler's terms: tiles go by the last name bound to their storage."""

    def __init__(self, kernel: Kernel, slots: tuple[Slot, ...]):
        self.kernel, self.slots = kernel, slots
        self.lowered = {t: s.tenants[-1] for s in slots for t in s.tenants}
        self.tiles = {
            self.lowered[s.name]: compiler.Tile(s.shape, s.dtype)
            for s in sorted(slots, key=lambda s: s.name)
        }

    def tile(self, name: str) -> str | None:
        return self.lowered.get(name)

    def program(self, target: str) -> compiler.Program:
        """Gemms and copies as the compiler meets them: of the loads, only those that a producer makes
        can be TMA."""
        loop = self.pipelined
        producer = loop is not None and pipeline.is_specialised(loop, self.tiles, target)
        copies = self.copies
        if producer:
            loads = pipeline.producer_loads(loop, self.tiles, target)
            copies = tuple(c for c in copies if c.store or c in loads)
        return compiler.Program(self.tiles, self.gemms, copies, self.kernel.threads, producer)

    def events(self, producer: bool, target: str) -> tuple[list[frozenset[str]], list[int]]:
        """Storages that each top-level statement of the emitted block touches, and which of the
        statements are loops over several: a gemm is one that becomes MMA, over steps of 32 bytes.

        Where a producer's warps are split off, their loads stand ahead of the loop's other statements.
        A branch without an else is no event of its own: its statements count one by one.
        """
        found: list[frozenset[str]] = []
        loops = []
        ours = [leaf for leaf in self.kernel.leaves() if isinstance(leaf, Gemm)]
        stepped = {
            leaf.id
            for leaf, gemm in zip(ours, self.gemms)
            if not compiler.is_wgmma(gemm, self.kernel.threads, target)
            and gemm.k * BYTES[gemm.dtype] > 32
        }
        for s in self.emitted(self.kernel.statements()):
            if producer and isinstance(s, Loop) and s.kind == "pipelined":
                loads = [
                    c for c in leaves(s) if isinstance(c, Copy) and self.kernel.tensor(c.src.name)
                ]
                found.append(frozenset(self.lowered[c.dst.name] for c in loads))
            several = isinstance(s, Loop) and len(list(self.emitted(s.body))) > 1
            if several or (isinstance(s, Gemm) and s.id in stepped):
                loops.append(len(found))
            found.append(frozenset(self.lowered[n] for n in _names(s) if n in self.lowered))
        return found, loops

    def emitted(self, body: Sequence[Statement]) -> Iterator[Emitted]:
        for s in emitted(body, self.kernel, homes(self.slots)):
            if isinstance(s, Branch) and not s.other:
                yield from self.emitted(s.then)
            else:
                yield s

    @property
    def symbolic(self) -> bool:
        """Whether the first pipelined loop runs a number of rounds that is known only at launch."""
        loops = (
            s for s in self.kernel.statements() if isinstance(s, Loop) and s.kind == "pipelined"
        )
        return next((s.trips is None for s in loops), False)

    @cached_property
    def gemms(self) -> tuple[compiler.Gemm, ...]:
        by_rows = warps.by_rows(self.kernel)
        return tuple(
            compiler.Gemm(
                a=self.tile(g.a.name),
                b=self.tile(g.b.name),
                m=g.mnk[0],
                n=g.mnk[1],
                k=g.mnk[2],
                dtype=self.kernel.buffer(g.a.name).dtype,
                accumulator=self.kernel.buffer(g.c.name).dtype,
                transpose_a=g.transpose_a,
                transpose_b=g.transpose_b,
                policy="full_row" if g.id in by_rows else "square",
            )
            for g in self.kernel.leaves()
            if isinstance(g, Gemm)
        )

    def by_tma(self) -> tuple[compiler.Copy, ...]:
        """Copies that TMA may make: in a kernel without roles, of the loads only those of whole tiles."""
        ids = {c.id for c in bulk.loads(self.kernel)}
        found = ((leaf, self.copy(leaf)) for leaf in self.kernel.leaves() if isinstance(leaf, Copy))
        return tuple(
            c for leaf, c in found if c and (c.store or self.kernel.roles or leaf.id in ids)
        )

    @cached_property
    def copies(self) -> tuple[compiler.Copy, ...]:
        found = (self.copy(leaf) for leaf in self.kernel.leaves() if isinstance(leaf, Copy))
        return tuple(c for c in found if c)

    def copy(self, leaf: Copy) -> compiler.Copy | None:
        """A copy between a shared tile and a tensor, or None for any other."""
        store = self.kernel.tensor(leaf.dst.name) is not None
        inner, outer = (leaf.src, leaf.dst) if store else (leaf.dst, leaf.src)
        tensor, tile = self.kernel.tensor(outer.name), self.tile(inner.name)
        if tensor is None or tile is None:
            return None
        values = dict(self.kernel.values)
        shape = tuple(expr.constant(expr.linear(side, values)) for side in tensor.shape)
        parts = outer.index or tuple(None for _ in shape)
        extents = tuple(
            1 if isinstance(p, Point) else p.size if p else size or 1
            for p, size in zip(parts, shape)
        )
        return compiler.Copy(
            tile=tile,
            dtype=tensor.dtype,
            shape=shape,
            extents=extents,
            store=store,
            in_bounds=all(self.inside(p, side) for p, side in zip(parts, tensor.shape)),
        )

    def inside(self, part: Point | Span | None, side: ast.expr) -> bool:
        """Whether an index provably stays within a side of a tensor."""
        if part is None or (isinstance(part, Span) and part.full):
            return True
        values, ranges = dict(self.kernel.values), dict(self.kernel.ranges)
        extent = expr.constant(expr.linear(side, values))
        if extent is None:
            return isinstance(part, Point) and is_block(part.at, side, self.kernel)
        at, size = (part.at, 1) if isinstance(part, Point) else (part.start, part.size)
        low, high = expr.interval(at, values, ranges)
        return low >= 0 and high + size <= extent

    @cached_property
    def pipelined(self) -> pipeline.Loop | None:
        """The kernel's pipelined loop, if it has one."""
        body = self.kernel.statements()
        for i, s in enumerate(body):
            if isinstance(s, Loop) and s.kind == "pipelined":
                before = tuple(
                    self.step(x) for x in emitted(body[:i], self.kernel, homes(self.slots))
                )
                inside = tuple(
                    self.step(x) for x in emitted(s.body, self.kernel, homes(self.slots))
                )
                return pipeline.Loop(s.num_stages, inside, before)
        return None

    def step(self, s: Statement | tuple[Assign, ...]) -> pipeline.Statement:
        inside = [leaf for x in members(s) for leaf in leaves(x)]
        reads = frozenset(
            self.lowered[a.name] for x in inside for a in x.reads() if a.name in self.lowered
        )
        writes = frozenset(
            self.lowered[a.name] for x in inside for a in x.writes() if a.name in self.lowered
        )
        load = self.copy(s) if isinstance(s, Copy) and writes else None
        simt = isinstance(s, tuple) and bool(writes) and not reads
        return pipeline.Statement(reads, writes, load, simt and self._moves_only(inside))

    def _moves_only(self, inside) -> bool:
        return all(
            self.kernel.tensor(a.name) is not None for x in inside for a in x.reads()
        ) and any(x.reads() for x in inside)


def _names(s: Emitted) -> list[str]:
    return [n for x in members(s) for n in touched(x)]
