"""Bytes that TileLang asks for: a kernel's source told to the predictor of `gdngen.plan`.

The predictor is exact for the kernels that it models. What lies outside is said, as the reasons for
which a figure is an estimate.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from gdngen.inspect.kernel import (
    Access,
    Branch,
    Gemm,
    Kernel,
    Leaf,
    Loop,
    Move,
    Reduce,
    Span,
    Statement,
    Tile,
    leaves,
    number,
    statements,
)
from gdngen.language import expr
from gdngen.plan import compiler, packing, pipeline
from gdngen.plan.instructions import DTYPE_BYTES, is_modelled

VERSION = "0.1.15"
TOO_FAR_AHEAD = (
    "pipelined loop of a length known at launch only: its asynchronous copies run further ahead than "
    "TileLang can count, unless the pass config tirx.use_async_copy is False"
)


@dataclass(frozen=True)
class Asked:
    """Bytes of a block: as the tiles are, side by side, and after the compiler's default merging.

    plain, merged  without what is static
    kept           tiles of which a pipelined loop keeps several copies, by id
    estimated      why `merged` is no more than an estimate, none where it is exact
    unsure         the same for `plain`
    """

    plain: int
    merged: int
    static: int
    reuse: str
    estimated: tuple[str, ...]
    unsure: tuple[str, ...]
    refused: tuple[str, ...]
    kept: Mapping[str, int]

    @property
    def bytes(self) -> int:
        """What the kernel as written asks for."""
        return (self.plain if self.reuse == "off" else self.merged) + self.static

    @property
    def exact(self) -> bool:
        return not (self.unsure if self.reuse == "off" else self.estimated)


def asked(kernel: Kernel, target: str, onto: Mapping[str, str] = {}) -> Asked:
    """What a kernel asks for on a target. `onto` puts tiles onto others, as if the source did."""
    return _Facts(kernel, target, onto).asked()


class _Facts:
    """A kernel in the predictor's terms: tiles go by the last name bound to their storage."""

    def __init__(self, kernel: Kernel, target: str, onto: Mapping[str, str]):
        self.kernel, self.target = kernel, target
        touched = {a.tile for leaf in leaves(kernel.body) for a in leaf.accesses}
        # A tile that nothing touches is none to the compiler.
        shared = [t for t in kernel.shared if t.id in touched]
        self.place = {t.id: onto.get(t.id, t.id) for t in shared}
        self.lowered: dict[str, str] = {}
        self.of: dict[str, Tile] = {}
        for home in dict.fromkeys(self.place.values()):
            tenants = [t for t in shared if self.place[t.id] == home]
            # Tiles of inlined functions may share a name, which the compiler numbers.
            name = tenants[-1].names[-1]
            name = name if name not in self.of else tenants[-1].id
            self.of[name] = max(tenants, key=lambda t: (t.bytes, t.id == home))
            self.lowered |= {t.id: name for t in tenants}
        self.tiles = {name: compiler.Tile(t.shape, t.dtype) for name, t in self.of.items()}
        self.lost: list[str] = []  # what could not be told to the predictor
        self.moves: list[str] = []  # tensors of which copies move no one knows how much

    def asked(self) -> Asked:
        kernel, target = self.kernel, self.target
        by_hand = any(
            isinstance(leaf.detail, Move) and leaf.detail.asynchronous
            for leaf in leaves(kernel.body)
        )
        apart = kernel.side_by_side or by_hand
        loop = None if apart else self.pipelined
        producer = loop is not None and pipeline.is_specialised(loop, self.tiles, target)
        threads = kernel.threads or 128
        gemms, copies = self.gemms, self.copies
        if apart:
            program = compiler.Program(self.tiles, gemms, self.by_hand, threads, True)
        else:
            if producer:
                loads = pipeline.producer_loads(loop, self.tiles, target)
                copies = tuple(c for c in copies if c.store or c in loads)
            program = compiler.Program(self.tiles, gemms, copies, threads, producer)
        align = compiler.alignments(program, target)
        kept = pipeline.versions(loop, target) if loop else {}
        in_launch = {n: t for n, t in self.tiles.items() if not self.of[n].static}
        sizes = {name: tile.bytes * kept.get(name, 1) for name, tile in in_launch.items()}
        static = sum(t.bytes for t in self.of.values() if t.static) + kernel.barriers
        static += pipeline.barrier_bytes(loop, self.tiles, target) if loop else 0
        plain = merged = packing.plain_layout(sizes, align)[0] if sizes else 0
        if sizes and not apart:
            events, loops = self.events(producer)
            merged, _ = packing.merged_layout(
                [e & sizes.keys() for e in events], sizes, align, loops
            )
        unsure = self.unsure(program)
        estimated = (*unsure, *self.estimated(apart))
        # Which threads run a gemm is not known where warps go different ways.
        refused = [] if kernel.side_by_side else compiler.refusals(program, target)
        ahead = loop is not None and self.symbolic and not kernel.waits
        if ahead and pipeline.needs_static_trips(loop, self.tiles, target):
            refused.append(TOO_FAR_AHEAD)
        return Asked(
            plain, merged, static, kernel.reuse, estimated, unsure, tuple(refused),
            {id: kept[name] for id, name in self.lowered.items() if name in kept},
        )  # fmt: skip

    # -- where the predictor ends

    def unsure(self, program: compiler.Program) -> tuple[str, ...]:
        kernel, found = self.kernel, list(dict.fromkeys(self.lost))
        if self.moves:
            names = ", ".join(dict.fromkeys(self.moves))
            found.append(f"how much copies from or to {names} move is not known")
        if not is_modelled(self.target):
            found.append(f"{self.target}: bytes are modelled from sm_80 on, and for AMD")
        if kernel.threads is None:
            found.append("how many threads a block has is not known: 128 are assumed")
        loops = [
            s for s in statements(kernel.body) if isinstance(s, Loop) and s.kind == "pipelined"
        ]
        if len(loops) > 1 or (loops and loops[0] not in kernel.body):
            found.append("only one pipelined loop, at the top of the block, is modelled")
        if any(n for n in kernel.notes if not n.harmless):
            found.append("not every statement was understood")
        if self.crosses():
            size = 4 * (kernel.threads or 128)
            found.append(f"a reduction across warps takes scratch, up to {size:,} bytes more")
        laid = [self.of[n].name for n in self.tiles if self.of[n].id in kernel.layouts]
        if laid and compiler.has_tma(self.target):
            found.append(f"layouts given by hand may align tiles otherwise: {', '.join(laid)}")
        if kernel.side_by_side:
            found.append("warps run side by side: the largest group is not known")
        return tuple(found)

    def estimated(self, apart: bool) -> tuple[str, ...]:
        found = []
        if apart:
            found.append(
                "how the compiler merges tiles of warps or copies at times of their own is not modelled"
            )
        if any(t.viewed for t in self.of.values()):
            found.append(
                "how the compiler merges a tile that is seen in two shapes is not modelled"
            )
        if self.kernel.reuse == "aggressive":
            found.append(
                "aggressive merging is not modelled; this is the default's, which is no less"
            )
        return tuple(found)

    def crosses(self) -> bool:
        """Whether a fragment is reduced by more than one warp."""
        if self.kernel.threads is not None and self.kernel.threads <= 32:
            return False
        return any(
            isinstance(leaf.detail, Reduce) and self.spread(leaf.detail)
            for leaf in leaves(self.kernel.body)
        )

    def spread(self, reduce: Reduce) -> bool:
        """Whether the elements of one sum may lie in several warps. The accumulator of a gemm is
        split over warps; rows that copies fill are read by neighbouring threads, a row within a warp.
        """
        tile = self.kernel.tiles[reduce.src.tile]
        if tile.scope != "fragment":
            return True
        if reduce.axis != len(tile.shape) - 1:
            return True
        policies = [g.policy for g in self.products if g.c.tile == tile.id]
        return any(p != "full_row" for p in policies) or tile.shape[-1] > 128

    # -- the kernel, told

    @cached_property
    def products(self) -> list[Gemm]:
        return [leaf.detail for leaf in leaves(self.kernel.body) if isinstance(leaf.detail, Gemm)]

    @cached_property
    def gemms(self) -> tuple[compiler.Gemm, ...]:
        return tuple(g for g in map(self.gemm, self.products) if g is not None)

    def gemm(self, g: Gemm) -> compiler.Gemm | None:
        a, b, c = (self.extents(x)[-2:] for x in (g.a, g.b, g.c))
        if len(a) < 2 or len(c) < 2 or None in (*a, *c):
            self.lost.append("the sizes of a gemm are not known")
            return None
        return compiler.Gemm(
            a=self.lowered.get(g.a.tile),
            b=self.lowered.get(g.b.tile),
            m=c[0],
            n=c[1],
            k=a[0] if g.transpose_a else a[1],
            dtype=self.kernel.tiles[g.a.tile].dtype,
            accumulator=self.kernel.tiles[g.c.tile].dtype,
            transpose_a=g.transpose_a,
            transpose_b=g.transpose_b,
            policy=g.policy,
        )

    def extents(self, access: Access) -> list[int | None]:
        if not access.index:
            return list(self.kernel.tiles[access.tile].shape)
        return [p.size if isinstance(p, Span) else 1 for p in access.index]

    @cached_property
    def copies(self) -> tuple[compiler.Copy, ...]:
        return self.told(asynchronous=False)

    @property
    def by_hand(self) -> tuple[compiler.Copy, ...]:
        """Copies that TMA makes where loads are written as such: those, and stores."""
        return self.told(asynchronous=True)

    def told(self, asynchronous: bool) -> tuple[compiler.Copy, ...]:
        moves = (leaf.detail for leaf in leaves(self.kernel.body) if isinstance(leaf.detail, Move))
        if asynchronous:
            moves = (m for m in moves if m.store or m.asynchronous)
        return tuple(c for c in map(self.copy, moves) if c is not None)

    def copy(self, move: Move) -> compiler.Copy | None:
        tile, tensor = self.lowered.get(move.tile.tile), move.tensor
        if tile is None:
            return None
        extents = tuple(p.size if isinstance(p, Span) else 1 for p in move.part)
        if len(extents) != len(tensor.shape) or None in extents or tensor.dtype not in DTYPE_BYTES:
            self.moves.append(tensor.name)
            return None
        return compiler.Copy(
            tile=tile,
            dtype=tensor.dtype,
            shape=tuple(map(number, tensor.shape)),
            extents=extents,
            store=move.store,
            disable_tma=move.disable_tma,
            in_bounds=all(self.inside(p, side) for p, side in zip(move.part, tensor.shape)),
        )

    def inside(self, part, side: ast.expr) -> bool:
        """Whether an index provably stays within a side of a tensor."""
        at, size = (part.start, part.size) if isinstance(part, Span) else (part, 1)
        if isinstance(part, Span) and number(at) == 0:
            if expr.linear(side, {}) == ({"": size} if size else {}):
                return True
        extent = number(side)
        if extent is None:
            return size == 1 and self.is_block(at, side)
        low, high = expr.interval(at, {}, self.kernel.ranges)
        return low >= 0 and high + size <= extent and high < inf

    def is_block(self, at: ast.expr, side: ast.expr) -> bool:
        """Whether an index is a block's own, in a grid as long as the tensor's side; or h // n in a grid
        n times as long."""
        share = 1
        if isinstance(at, ast.BinOp) and isinstance(at.op, ast.FloorDiv):
            at, share = at.left, number(at.right) or 0
        blocks = self.kernel.grid.get(at.id) if isinstance(at, ast.Name) else None
        if blocks is None:
            return False
        length = {term: k * share for term, k in expr.linear(side, {}).items()}
        return share > 0 and expr.linear(blocks, {}) == length

    # -- the statements

    def flat(self, body: Sequence[Statement]) -> Iterator[Statement]:
        """A branch without an else is no event of its own: its statements count one by one. What reads
        scalars only is none either."""
        for s in body:
            if isinstance(s, Branch) and not s.other:
                yield from self.flat(s.then)
            elif not (isinstance(s, Leaf) and s.kind == "scalar" and not self.touches(s)):
                yield s

    def touches(self, s: Statement) -> frozenset[str]:
        inside = leaves((s,))
        return frozenset(
            self.lowered[a.tile] for leaf in inside for a in leaf.accesses if a.tile in self.lowered
        )

    def events(self, producer: bool) -> tuple[list[frozenset[str]], list[int]]:
        """Storages that each top-level statement touches, and which statements are loops of several.
        As `gdngen.plan.storage` counts them for a planned kernel."""
        found: list[frozenset[str]] = []
        loops: list[int] = []
        for s in self.flat(self.kernel.body):
            if producer and isinstance(s, Loop) and s.kind == "pipelined":
                moves = [leaf.detail for leaf in leaves((s,)) if isinstance(leaf.detail, Move)]
                inside = [m.tile.tile for m in moves if not m.store]
                found.append(frozenset(self.lowered[t] for t in inside if t in self.lowered))
            if (isinstance(s, Loop) and len(list(self.flat(s.body))) > 1) or self.stepped(s):
                loops.append(len(found))
            found.append(self.touches(s))
        return found, loops

    def stepped(self, s: Statement) -> bool:
        """Whether a statement is a gemm that becomes a loop over steps of 32 bytes."""
        gemm = self.gemm(s.detail) if isinstance(s, Leaf) and isinstance(s.detail, Gemm) else None
        if gemm is None or compiler.is_wgmma(gemm, self.kernel.threads or 128, self.target):
            return False
        return gemm.k * DTYPE_BYTES[gemm.dtype] > 32

    @property
    def symbolic(self) -> bool:
        """Whether the pipelined loop runs a number of rounds that is known only at launch."""
        loops = (s for s in self.kernel.body if isinstance(s, Loop) and s.kind == "pipelined")
        return next((s.trips is None for s in loops), False)

    @cached_property
    def pipelined(self) -> pipeline.Loop | None:
        body = self.kernel.body
        for i, s in enumerate(body):
            if isinstance(s, Loop) and s.kind == "pipelined":
                before = tuple(map(self.step, body[:i]))
                return pipeline.Loop(s.stages, tuple(map(self.step, self.flat(s.body))), before)
        return None

    def step(self, s: Statement) -> pipeline.Statement:
        inside = list(leaves((s,)))
        found = [
            (a, self.lowered[a.tile]) for x in inside for a in x.accesses if a.tile in self.lowered
        ]
        reads = frozenset(name for a, name in found if not a.write and not a.anew)
        writes = frozenset(name for a, name in found if a.write)
        moved = s.detail if isinstance(s, Leaf) and isinstance(s.detail, Move) else None
        load = self.copy(moved) if moved is not None and not moved.store and writes else None
        simt = isinstance(s, Leaf) and s.kind == "map" and bool(writes) and not reads
        only = simt and s.loads and not any(not a.write for a in s.accesses)
        return pipeline.Statement(reads, writes, load, only)
