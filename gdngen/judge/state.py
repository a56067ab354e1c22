"""The judge's tensors and tiles while a kernel runs: regions and elements are read and stored here.

What can't be right on any GPU is noted as a `Fault`; the run goes on, so that outputs can be compared.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gdngen.judge import field
from gdngen.judge.arena import Address, Hazards, Storage, private, shared
from gdngen.language.expr import evaluate
from gdngen.model.model import BYTES, Kernel, Leaf, Loop, Point, Region


@dataclass(frozen=True)
class Fault:
    """Something that a plan does wrong.

    kind      unwritten, clobbered: an element is read that nothing wrote, or whose bytes another
              buffer took; race: two threads of a map meet; overlap: a statement's source and target
              meet; pipelined: a load that runs ahead meets another tile; bounds; address; malformed;
              differs: an output isn't what the author's program computes
    buffers   those at fault, the one that is damaged first
    element   the first element at fault, of buffers[0]
    """

    kind: str
    what: str
    buffers: tuple[str, ...] = ()
    element: tuple[int, ...] | None = None
    id: int | None = None
    line: int | None = None
    stage: str | None = None


class State:
    """The values of a kernel's tensors and buffers.

    addresses   of the shared buffers; None gives every buffer storage of its own

    Raises BadAddress.
    """

    def __init__(
        self,
        kernel: Kernel,
        sizes: Mapping[str, int],
        seed: int,
        addresses: Mapping[str, Address] | None = None,
    ):
        self.values = {**dict(kernel.values), **sizes}
        self.tensors = {
            t.name: field.drawn(t.name, seed, tensor_shape(t.shape, self.values), t.dtype)
            for t in kernel.tensors
        }
        self.dtype_of = {t.name: t.dtype for t in (*kernel.tensors, *kernel.buffers)}
        self.faults: dict[tuple, Fault] = {}
        inside = [b for b in kernel.buffers if b.scope == "shared" and addresses is not None]
        self.memory, found = shared(inside, addresses or {}, BYTES)
        outside = [b for b in kernel.buffers if b not in inside]
        found += [private(b, n) for n, b in enumerate(outside, len(found) + 1)]
        self.buffers = {s.name: s for s in found}
        self.names = {s.owner: s.name for s in found}
        self.hazards = Hazards(self.memory.size, [s for s in found if s.at is not None])

    def clear(self) -> None:
        """A block starts: no buffer holds anything."""
        self.memory.fill(0)
        for s in self.buffers.values():
            if s.at is None:
                s.words.fill(0)

    def fault(
        self, kind: str, what: str, leaf: Leaf | Loop, buffers: tuple[str, ...], element=None
    ) -> None:
        """Notes a fault; the same of one statement and the same buffers once."""
        made = Fault(kind, what, buffers, element, leaf.id, leaf.where.line, leaf.stage)
        self.faults.setdefault((kind, leaf.id, buffers), made)

    # -- regions -----------------------------------------------------------------------------

    def ends(self, r: Region, env: dict) -> list[tuple[int, int | None]]:
        """(start, size) along every axis; size None for one position."""
        if not r.index:
            return [(0, n) for n in r.shape]
        return [
            (
                int(evaluate(p.at if isinstance(p, Point) else p.start, env)),
                getattr(p, "size", None),
            )
            for p in r.index
        ]

    def part(self, s: Leaf, r: Region, env: dict) -> tuple:
        """A region of a buffer as a numpy index."""
        shape, out = self.buffers[r.name].buffer.shape, []
        for (start, size), n in zip(self.ends(r, env), shape, strict=True):
            if start < 0 or start + (size or 1) > n:
                what = f"'{r.name}' is used from {start} to {start + (size or 1) - 1}"
                self.fault("bounds", what, s, (r.name,))
                start = min(max(start, 0), n - (size or 1))
            out.append(start if size is None else slice(start, start + size))
        return tuple(out)

    def get(self, s: Leaf, r: Region, env: dict) -> np.ndarray:
        """The values of a region; outside a tensor 0."""
        if r.name in self.buffers:
            where = self.part(s, r, env)
            values, bad = self.buffers[r.name].read(where)
            if bad is not None:
                self.stale(s, self.buffers[r.name], where, bad)
            return values
        data = self.tensors[r.name]
        inside, within, shape = self.overlap_with(data, r, env)
        out = np.zeros(shape, dtype=np.int64)
        out[within] = data[inside].reshape(out[within].shape)
        return out.reshape(r.shape)

    def put(self, s: Leaf, r: Region, values: np.ndarray, env: dict) -> None:
        """Stores values into a region, rounded to its dtype; outside a tensor nothing happens."""
        values = field.rounded(values, self.dtype_of[r.name])
        if r.name in self.buffers:
            self.buffers[r.name].write(self.part(s, r, env), values)
            return
        data = self.tensors[r.name]
        inside, within, shape = self.overlap_with(data, r, env)
        data[inside] = values.reshape(shape)[within]

    def overlap_with(self, data: np.ndarray, r: Region, env: dict):
        """The part of a region that is inside a tensor: there, in the region, and the region's shape
        with a 1 for every point."""
        inside, within, shape = [], [], []
        for (start, size), n in zip(self.ends(r, env), data.shape, strict=True):
            size = size or 1
            low, high = min(max(start, 0), n), min(max(start + size, 0), n)
            inside.append(slice(low, high))
            within.append(slice(low - start, high - start) if high > low else slice(0, 0))
            shape.append(size)
        return tuple(inside), tuple(within), tuple(shape)

    def stale(self, s: Leaf, storage: Storage, where, bad: np.ndarray) -> None:
        """Notes a read of an element that is not there."""
        first = np.unravel_index(int(np.argmax(bad)), bad.shape)
        position = int(np.broadcast_to(storage.positions(where), bad.shape)[first])
        element = tuple(int(i) for i in np.unravel_index(position, storage.buffer.shape))
        taker = self.names.get(storage.last_owner(element))
        text = f"'{storage.name}' is read at {list(element)}"
        if taker is None or taker == storage.name:
            self.fault("unwritten", f"{text}, which nothing wrote", s, (storage.name,), element)
        else:
            buffers = (storage.name, taker)
            self.fault("clobbered", f"{text}, whose bytes '{taker}' took", s, buffers, element)

    def replace(self, name: str, values: np.ndarray) -> None:
        """Overwrites all of a tensor or buffer."""
        if name in self.tensors:
            self.tensors[name] = values
        else:
            self.buffers[name].write((slice(None),) * values.ndim, values)

    def old(self, name: str) -> np.ndarray:
        """All of a tensor or buffer; elements that were not written are the same in every run."""
        if name in self.tensors:
            return self.tensors[name]
        return self.buffers[name].read((slice(None),) * len(self.buffers[name].buffer.shape))[0]

    # -- elements of maps --------------------------------------------------------------------

    def load(self, s: Leaf, name: str, index: list[np.ndarray], active, grid):
        """Values of elements at the points of a map; also the active points and the index used."""
        if name in self.tensors:
            used, where = self.inside(s, name, index, np.asarray(True), grid)
            return np.where(used, self.tensors[name][where], 0), used, where
        used, where = self.inside(s, name, index, active, grid)
        values, bad = self.buffers[name].read(where)
        if bad is not None and (bad & used).any():
            self.stale(s, self.buffers[name], where, np.broadcast_to(bad, grid) & used)
        return values, used, where

    def store(self, name: str, where: tuple, value: np.ndarray, active: np.ndarray) -> None:
        """Stores the elements of active points."""
        if not active.all():
            where = tuple(np.broadcast_to(i, active.shape)[active] for i in where)
            value = value[active]
        if name in self.buffers:
            self.buffers[name].write(where, value)
        else:
            self.tensors[name][where] = value

    def kept(self, name: str, where) -> np.ndarray:
        """Old values under a guard that data decides."""
        if name in self.tensors:
            return self.tensors[name][where]
        return self.buffers[name].read(where)[0]

    def inside(
        self, s: Leaf, name: str, index: list[np.ndarray], active, grid
    ) -> tuple[np.ndarray, tuple]:
        """(points that are active and inside, the indices moved inside); outside a buffer is a fault."""
        data = self.tensors.get(name)
        shape = self.buffers[name].buffer.shape if data is None else data.shape
        kept, where = active, []
        for i, n in zip(index, shape, strict=True):
            if i.min() >= 0 and i.max() < n:
                where.append(i)
                continue
            within = (i >= 0) & (i < n)
            if name in self.buffers and (active & ~within).any():
                self.fault("bounds", f"'{name}' is used from {i.min()} to {i.max()}", s, (name,))
            kept = kept & within
            where.append(np.clip(i, 0, n - 1))
        if not any(i.ndim for i in where):  # one element for all points
            where = [np.broadcast_to(where[0], (1,) * len(grid)), *where[1:]] if where else where
        return np.asarray(kept), tuple(where)


def tensor_shape(shape: Sequence[ast.expr], values: Mapping[str, object]) -> tuple[int, ...]:
    return tuple(int(evaluate(n, values)) for n in shape)
