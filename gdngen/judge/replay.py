"""Runs a kernel's statements, in their order, on the judge's numbers and the judge's memory.

Every block runs, one after the other, on memory that holds nothing at its start.
"""

import ast
import itertools
import re
from collections.abc import Mapping, Sequence

import numpy as np

from gdngen.judge import field
from gdngen.judge.arena import Address, Touch, common
from gdngen.judge.state import State
from gdngen.judge.symbols import Doubt, Reader
from gdngen.language.expr import ExprError, evaluate
from gdngen.model.model import (
    Assign,
    Branch,
    Copy,
    Cumsum,
    Fill,
    Gemm,
    Kernel,
    Leaf,
    Loop,
    Raw,
    Reduce,
    Region,
    Solve,
    Statement,
    leaves,
    touched,
)

MOST_SCALAR = 97  # below it are the numbers that blocks read


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
        self.state = State(kernel, sizes, seed, addresses)
        self.dtypes = dict(kernel.dtypes)
        self.group_of = {i: n for n, group in enumerate(together) for i in group}

    def run(self) -> None:
        """Every block; what its statements do to the tensors stays in `tensors`."""
        for loop in _pipelined(self.kernel.statements()):
            self.check_pipelined(loop)
        axes = [range(int(evaluate(count, self.state.values))) for _, count in self.kernel.grid]
        for at in itertools.product(*axes):
            self.state.clear()
            block = dict(zip((name for name, _ in self.kernel.grid), at))
            env = {**self.state.values, **block}
            for s in self.kernel.scalars:  # any number will do: both programs read the same
                seed = [n for _, n in sorted(env.items()) if isinstance(n, int)]
                env[s.name] = int(field.mixed(s.name, *seed)) % MOST_SCALAR
            self.body(self.kernel.statements(), env)

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
                self.state.put(s, s.dst, self.state.get(s, s.src, env), env)
            case Fill():
                value = Reader(env, self.loader(s, None), self.dtypes).data(s.value)
                self.state.put(s, s.dst, np.broadcast_to(value, s.dst.shape), env)
            case Gemm():
                self.apart(s, (s.a, s.b), s.c, env)
                a, b = self.state.get(s, s.a, env), self.state.get(s, s.b, env)
                c = field.product(a.T if s.transpose_a else a, b.T if s.transpose_b else b)
                c = field.add(c, self.state.get(s, s.c, env)) if s.accumulate else c
                self.state.put(s, s.c, c, env)
            case Reduce():
                self.apart(s, (s.src,), s.dst, env)
                self.reduce(s, env)
            case Cumsum():
                self.apart(s, (s.src,), s.dst, env, in_place=True)
                x = self.state.get(s, s.src, env)
                turned = np.flip(x, s.axis) if s.reverse else x
                found = field.running(turned, s.axis)
                self.state.put(s, s.dst, np.flip(found, s.axis) if s.reverse else found, env)
            case Solve():
                self.apart(s, (s.src,), s.dst, env)
                self.state.put(s, s.dst, field.inverse(self.state.get(s, s.src, env), s.block), env)
            case Raw():
                self.raw(s, env)
            case _:
                what = f"{type(s).__name__} on line {s.where.line} has no meaning here"
                raise ExprError(ast.Constant(0), what)

    def reduce(self, s: Reduce, env: dict) -> None:
        """sum is the field's; others are told apart by their elements' hashes, in any order."""
        x = self.state.get(s, s.src, env)
        if s.op != "sum":
            x = field.mixed(s.op, x)
        found = field.total(x, s.axis).reshape(s.dst.shape)
        if s.accumulate:
            found = field.add(found, self.state.get(s, s.dst, env))
        self.state.put(s, s.dst, found, env)

    def raw(self, s: Raw, env: dict) -> None:
        """Whatever its lines do: a hash of all that they may see, over all that they may write."""
        text = "\n".join(s.lines)
        words = set(re.findall(r"\w+", text))
        seen = [field.salt(text) % field.P]
        seen += [int(v) for n, v in sorted(env.items()) if n in words and isinstance(v, int)]
        for access in s.used:
            x = self.state.old(access.name)
            seen.append(int(field.total(field.mixed("raw", x, _numbers(x)), None)))
        token = field.mixed("raw", *seen)
        names = dict.fromkeys(a.name for a in s.used + s.changed)
        for n, access in enumerate(s.changed):
            name, x = access.name, self.state.old(access.name)
            for other in names:
                if name != other and self.state.hazards.meet(name, other):
                    what = f"raw lines use '{other}' and write '{name}' on it"
                    self.state.fault("overlap", what, s, (other, name))
            new = field.mixed("raw", token, n, x, _numbers(x))
            self.state.replace(name, field.rounded(new, self.state.dtype_of[name]))

    def apart(
        self, s: Leaf, sources: Sequence[Region], target: Region, env, in_place=False
    ) -> None:
        """Notes sources that meet the target in memory: threads read them while others write it."""
        for r in sources:
            if not self.state.hazards.meet(r.name, target.name):
                continue
            of, to = self.state.buffers[r.name], self.state.buffers[target.name]
            here, there = self.state.part(s, r, env), self.state.part(s, target, env)
            a, b = of.at[here], to.at[there]
            if in_place and a.shape == b.shape and (a == b).all() and of.pieces == to.pieces:
                continue
            if common(of, here, to, there):
                what = (
                    f"'{target.name}' is written at bytes where the same statement reads '{r.name}'"
                )
                self.state.fault("overlap", what, s, (r.name, target.name))

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
        value = field.rounded(value, self.state.dtype_of[s.name])
        index = [np.asarray(reader.exact(i)) for i in s.index]
        active, where = self.state.inside(s, s.name, index, np.broadcast_to(may, grid), grid)
        if isinstance(guard, Doubt):
            kept = self.state.kept(s.name, where)
            maybe = field.mixed("guard", guard.token, value, kept)
            value = np.where(
                guard.decided, value, field.rounded(maybe, self.state.dtype_of[s.name])
            )
        if (storage := self.state.hazards.storages.get(s.name)) is not None:
            touches.append(Touch(storage, s.index, where, active, True, s.id))
            if hit := self.state.hazards.race(touches, grid):
                self.note_race(s, *hit)
        self.state.store(s.name, where, value, active)

    def note_race(self, s: Assign, write: Touch, other: Touch) -> None:
        verb = "written" if other.is_write else "read"
        x, y = other.storage.name, write.storage.name
        what = f"'{x}' is {verb} at bytes that another point of the map writes as '{y}'"
        self.state.fault("race", what, s, (x, y))

    def loader(self, s: Leaf, touches: list[Touch] | None):
        """How the elements of a statement's expressions are read."""

        def load(node: ast.Subscript, name: str, index: list, active) -> np.ndarray:
            index = [np.asarray(i) for i in index]
            grid = np.broadcast_shapes(np.shape(active), *(i.shape for i in index))
            values, used, where = self.state.load(s, name, index, active, grid)
            storage = self.state.hazards.storages.get(name)
            if touches is not None and storage is not None:
                parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
                touches.append(Touch(storage, tuple(parts), where, used, False, s.id))
            return values

        return load

    # -- pipelined loops ---------------------------------------------------------------------

    def check_pipelined(self, loop: Loop) -> None:
        """Loads of a pipelined loop run ahead: their tiles may meet no other tile of the loop."""
        loads = [leaf for leaf in leaves(loop) if _is_load(leaf, self.state.tensors)]
        loaded = {leaf.writes()[0].name: leaf for leaf in loads}
        for name, leaf in loaded.items():
            for other in touched(loop):
                if other != name and self.state.hazards.meet(name, other):
                    what = f"'{name}' is loaded ahead, onto '{other}', which the same loop uses"
                    self.state.fault("pipelined", what, leaf, (other, name))


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


def _numbers(x: np.ndarray) -> np.ndarray:
    """Row-major numbers of an array's elements."""
    return np.arange(x.size).reshape(x.shape)
