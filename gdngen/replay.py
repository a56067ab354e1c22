"""Runs a kernel's statements, in their order, on the judge's numbers and the judge's memory.

Every block runs, one after the other, on memory that holds nothing at its start. What can't be right
on any GPU is noted as a `Fault`; the run goes on, so that its outputs can be compared as well.
"""

import ast
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gdngen import field
from gdngen.arena import Address, BadAddress, Hazards, Storage, Touch, common, private, shared
from gdngen.expr import ExprError, evaluate
from gdngen.model import (
    BYTES,
    Assign,
    Branch,
    Copy,
    Cumsum,
    Fill,
    Gemm,
    Kernel,
    Leaf,
    Loop,
    Point,
    Raw,
    Reduce,
    Region,
    Solve,
    Statement,
    leaves,
    touched,
)
from gdngen.symbols import Doubt, Reader

MAX_FAULTS = 20


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


class Machine:
    """One run of a kernel.

    addresses   of the shared buffers; None gives every buffer storage of its own
    together    ids of assignments that are emitted as one parallel loop, each group in order
    """

    def __init__(
        self,
        kernel: Kernel,
        sizes: Mapping[str, int],
        seed: int,
        addresses: Mapping[str, Address] | None = None,
        together: Sequence[Sequence[int]] = (),
    ):
        self.kernel = kernel
        self.values = {**dict(kernel.values), **sizes}
        self.dtypes = dict(kernel.dtypes)
        self.tensors = {
            t.name: field.drawn(t.name, seed, tensor_shape(t.shape, self.values), t.dtype)
            for t in kernel.tensors
        }
        self.dtype_of = {t.name: t.dtype for t in (*kernel.tensors, *kernel.buffers)}
        self.faults: dict[tuple, Fault] = {}
        self.group_of = {i: n for n, group in enumerate(together) for i in group}
        inside = [b for b in kernel.buffers if b.scope == "shared" and addresses is not None]
        self.memory, found = shared(inside, addresses or {}, BYTES)
        outside = [b for b in kernel.buffers if b not in inside]
        found += [private(b, n) for n, b in enumerate(outside, len(found) + 1)]
        self.buffers = {s.name: s for s in found}
        self.names = {s.owner: s.name for s in found}
        self.hazards = Hazards(self.memory.size, [s for s in found if s.at is not None])
        self.in_map: tuple[Assign, list[Touch]] | None = None

    def run(self) -> None:
        """Every block; what its statements do to the tensors stays in `tensors`."""
        for loop in _pipelined(self.kernel.statements()):
            self.check_pipelined(loop)
        axes = [range(int(evaluate(count, self.values))) for _, count in self.kernel.grid]
        for at in itertools.product(*axes):
            self.memory.fill(0)
            for s in self.buffers.values():
                if s.at is None:
                    s.words.fill(0)
            block = dict(zip((name for name, _ in self.kernel.grid), at))
            self.body(self.kernel.statements(), {**self.values, **block})

    def fault(self, kind: str, what: str, leaf: Leaf | Loop | None, buffers=(), element=None) -> None:
        key = (kind, leaf.id if leaf else None, tuple(buffers))
        if key in self.faults or len(self.faults) >= MAX_FAULTS:
            return
        place = (leaf.id, leaf.where.line, leaf.stage) if leaf else (None, None, None)
        self.faults[key] = Fault(kind, what, tuple(buffers), element, *place)

    # -- statements --------------------------------------------------------------------------

    def body(self, statements: Sequence[Statement], env: dict) -> None:
        group, touches = None, []
        for s in statements:
            if not isinstance(s, Assign):
                group = None
                self.step(s, env)
                continue
            if group is None or self.group_of.get(s.id) != group:
                touches = []
            group = self.group_of.get(s.id)
            self.assign(s, env, touches)

    def step(self, s: Statement, env: dict) -> None:
        match s:
            case Loop():
                for at in range(int(evaluate(s.count, env))):
                    self.body(s.body, {**env, s.var: at} if s.var else env)
            case Branch():
                self.body(s.then if evaluate(s.cond, env) else s.other, env)
            case Copy():
                self.apart(s, (s.src,), s.dst, env, in_place=True)
                self.put(s, s.dst, self.get(s, s.src, env), env)
            case Fill():
                value = Reader(env, self.loader(s, None), self.dtypes).data(s.value)
                self.put(s, s.dst, np.broadcast_to(value, s.dst.shape), env)
            case Gemm():
                self.apart(s, (s.a, s.b), s.c, env)
                a, b = self.get(s, s.a, env), self.get(s, s.b, env)
                c = field.product(a.T if s.transpose_a else a, b.T if s.transpose_b else b)
                self.put(s, s.c, field.add(c, self.get(s, s.c, env)) if s.accumulate else c, env)
            case Reduce():
                self.apart(s, (s.src,), s.dst, env)
                self.reduce(s, env)
            case Cumsum():
                self.apart(s, (s.src,), s.dst, env, in_place=True)
                x = self.get(s, s.src, env)
                turned = np.flip(x, s.axis) if s.reverse else x
                found = field.running(turned, s.axis)
                self.put(s, s.dst, np.flip(found, s.axis) if s.reverse else found, env)
            case Solve():
                self.apart(s, (s.src,), s.dst, env)
                self.put(s, s.dst, field.inverse(self.get(s, s.src, env), s.block), env)
            case Raw():
                self.raw(s, env)
            case _:
                raise ExprError(ast.Constant(0), f"{type(s).__name__} on line {s.where.line} says nothing")

    def reduce(self, s: Reduce, env: dict) -> None:
        """sum is the field's; others are told apart by their elements' hashes, in any order."""
        x = self.get(s, s.src, env)
        if s.op != "sum":
            x = field.mixed(s.op, x)
        found = field.total(x, s.axis).reshape(s.dst.shape)
        self.put(s, s.dst, field.add(found, self.get(s, s.dst, env)) if s.accumulate else found, env)

    def raw(self, s: Raw, env: dict) -> None:
        """Whatever its lines do: a hash of all that they may see, over all that they may write."""
        text = "\n".join(s.lines)
        words = set(re.findall(r"\w+", text))
        seen = [field.salt(text) % field.P]
        seen += [int(v) for n, v in sorted(env.items()) if n in words and isinstance(v, int)]
        for access in s.used:
            x = self.old(access.name)
            seen.append(int(field.total(field.mixed("raw", x, np.arange(x.size).reshape(x.shape)), None)))
        token = field.mixed("raw", *seen)
        used = dict.fromkeys(a.name for a in s.used + s.changed)
        for n, access in enumerate(s.changed):
            name, x = access.name, self.old(access.name)
            for other in used:
                if name != other and {name, other} <= self.hazards.storages.keys():
                    if self.hazards.meet(name, other):
                        self.fault("overlap", f"raw lines use '{other}' and write '{name}' on it", s, (other, name))
            new = field.mixed("raw", token, n, x, np.arange(x.size).reshape(x.shape))
            new = field.rounded(new, self.dtype_of[name])
            if name in self.tensors:
                self.tensors[name] = new
            else:
                self.buffers[name].write((slice(None),) * new.ndim, new)

    def old(self, name: str) -> np.ndarray:
        """All of a tensor or buffer; elements that were not written are the same in every run."""
        if name in self.tensors:
            return self.tensors[name]
        return self.buffers[name].read((slice(None),) * len(self.buffers[name].buffer.shape))[0]

    def apart(self, s: Leaf, sources: Sequence[Region], target: Region, env, in_place=False) -> None:
        """Notes sources that meet the target in memory: threads read them while others write it."""
        to = self.hazards.storages.get(target.name)
        for r in sources if to else ():
            of = self.hazards.storages.get(r.name)
            if not of or not self.hazards.meet(of.name, to.name):
                continue
            here, there = self.part(s, r, env), self.part(s, target, env)
            a, b = of.at[here], to.at[there]
            if in_place and a.shape == b.shape and (a == b).all() and of.pieces == to.pieces:
                continue
            if common(of, here, to, there):
                what = f"'{r.name}' is read and '{target.name}' written at the same bytes by one statement"
                self.fault("overlap", what, s, (r.name, target.name))

    # -- regions -----------------------------------------------------------------------------

    def ends(self, r: Region, env: dict) -> list[tuple[int, int | None]]:
        """(start, size) along every axis; size None for one position."""
        if not r.index:
            return [(0, n) for n in r.shape]
        return [
            (int(evaluate(p.at, env)), None) if isinstance(p, Point) else (int(evaluate(p.start, env)), p.size)
            for p in r.index
        ]

    def part(self, s: Leaf, r: Region, env: dict) -> tuple:
        """A region of a buffer as a numpy index."""
        shape, out = self.buffers[r.name].buffer.shape, []
        for (start, size), n in zip(self.ends(r, env), shape, strict=True):
            if start < 0 or start + (size or 1) > n:
                self.fault("bounds", f"'{r.name}' is used from {start} to {start + (size or 1) - 1}", s, (r.name,))
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

    # -- maps --------------------------------------------------------------------------------

    def assign(self, s: Assign, env: dict, touches: list[Touch]) -> None:
        """All points at once: everything is read before anything is written."""
        grid = tuple(a.extent for a in s.axes)
        axes = {
            a.name: np.arange(a.extent).reshape([-1 if i == k else 1 for i in range(len(grid))])
            for k, a in enumerate(s.axes)
        }
        reader = Reader({**env, **axes}, self.loader(s, touches), self.dtypes)
        guard = True if s.guard is None else reader.condition(s.guard)
        may = (~guard.decided | guard.truth) if isinstance(guard, Doubt) else guard
        value = np.broadcast_to(reader.data(s.value, may), grid)
        value = field.rounded(value, self.dtype_of[s.name])
        index = [np.asarray(reader.exact(i)) for i in s.index]
        active, where = self.inside(s, s.name, index, np.broadcast_to(may, grid), grid)
        if isinstance(guard, Doubt):
            kept = self.kept(s.name, where)
            open_ = field.rounded(field.mixed("guard", guard.token, value, kept), self.dtype_of[s.name])
            value = np.where(guard.decided, value, open_)
        if (storage := self.hazards.storages.get(s.name)) is not None:
            touches.append(Touch(storage, s.index, where, active, True, s.id))
            if hit := self.hazards.race(touches, grid):
                self.note_race(s, *hit)
        if not active.all():
            where, value = tuple(np.broadcast_to(i, grid)[active] for i in where), value[active]
        if s.name in self.buffers:
            self.buffers[s.name].write(where, value)
        else:
            self.tensors[s.name][where] = value

    def kept(self, name: str, where) -> np.ndarray:
        """Old values under a guard that data decides."""
        return self.buffers[name].read(where)[0] if name in self.buffers else self.tensors[name][where]

    def note_race(self, s: Assign, write: Touch, other: Touch) -> None:
        verb = "written" if other.is_write else "read"
        what = f"'{other.storage.name}' is {verb} at bytes that another point of the map writes as '{write.storage.name}'"
        self.fault("race", what, s, (other.storage.name, write.storage.name))

    def loader(self, s: Leaf, touches: list[Touch] | None):
        """How the elements of a statement's expressions are read."""

        def load(node: ast.Subscript, name: str, index: list, active) -> np.ndarray:
            index = [np.asarray(i) for i in index]
            grid = np.broadcast_shapes(np.shape(active), *(i.shape for i in index))
            if name in self.tensors:
                used, where = self.inside(s, name, index, np.asarray(True), grid)
                return np.where(used, self.tensors[name][where], 0)
            used, where = self.inside(s, name, index, active, grid)
            values, bad = self.buffers[name].read(where)
            if bad is not None and (bad & used).any():
                self.stale(s, self.buffers[name], where, np.broadcast_to(bad, grid) & used)
            storage = self.hazards.storages.get(name)
            if touches is not None and storage is not None:
                parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
                touches.append(Touch(storage, tuple(parts), where, used, False, s.id))
            return values

        return load

    def inside(self, s: Leaf, name: str, index: list[np.ndarray], active, grid) -> tuple[np.ndarray, tuple]:
        """(points that are active and inside, the indices moved inside); outside a buffer is a fault."""
        shape = self.tensors[name].shape if name in self.tensors else self.buffers[name].buffer.shape
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

    # -- pipelined loops ---------------------------------------------------------------------

    def check_pipelined(self, loop: Loop) -> None:
        """Loads of a pipelined loop run ahead: their tiles may meet no other tile of the loop."""
        loads = [leaf for leaf in leaves(loop) if _is_load(leaf, self.tensors)]
        loaded = {leaf.writes()[0].name: leaf for leaf in loads}
        used = [n for n in touched(loop) if n in self.hazards.storages]
        for name, leaf in loaded.items():
            for other in used if name in self.hazards.storages else ():
                if other != name and self.hazards.meet(name, other):
                    what = f"'{name}' is loaded ahead, onto bytes of '{other}' that the same loop uses"
                    self.fault("pipelined", what, leaf, (other, name))


def _is_load(leaf: Leaf, tensors: Mapping[str, object]) -> bool:
    """Whether a statement only moves values of tensors into a tile."""
    read = {a.name for a in leaf.reads()}
    return isinstance(leaf, (Copy, Assign)) and bool(read) and read <= tensors.keys()


def _pipelined(statements: Sequence[Statement]):
    for s in statements:
        if isinstance(s, Loop):
            if s.kind == "pipelined":
                yield s
            yield from _pipelined(s.body)
        elif isinstance(s, Branch):
            yield from _pipelined(s.then + s.other)


def tensor_shape(shape: Sequence[ast.expr], values: Mapping[str, object]) -> tuple[int, ...]:
    return tuple(int(evaluate(n, values)) for n in shape)
