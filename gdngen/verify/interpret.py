"""What a resolved kernel means, computed: no plan, no threads, no rounding.

Every buffer has storage of its own and every number that is not an integer is a float64, whatever
its dtype says, so a plan or a rendering can't be wrong in the same way. Blocks run one after the
other; within a block each statement works on all its elements at once (torch, on the CPU).
Loads outside a tensor give 0 and stores outside it do nothing. A buffer starts as NaN.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gdngen.language.expr import evaluate
from gdngen.model.model import (
    Assign,
    Branch,
    Copy,
    Cumsum,
    Fill,
    Gemm,
    Kernel,
    Loop,
    Point,
    Raw,
    Reduce,
    Region,
    Solve,
    Statement,
    Walk,
)
from gdngen.model.values import along, value, wide

if TYPE_CHECKING:
    import torch

UNWRITTEN = -(2**31)  # what an integer buffer starts as, which has no NaN


class Uninterpretable(Exception):
    """The kernel has a statement that says nothing of its meaning; the message says where."""


def bind_sizes(kernel: Kernel, tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Runtime size -> its value, from the tensors' shapes.

    Raises ValueError, with the tensor's name, where a tensor is unknown, where ranks or sizes
    disagree with the kernel or with one another, and where a runtime size is the side of none.
    """
    values = dict(kernel.values)
    bound: dict[str, tuple[int, str]] = {}
    for name, data in tensors.items():
        tensor = kernel.tensor(name)
        if tensor is None:
            known = ", ".join(t.name for t in kernel.tensors)
            raise ValueError(f"{kernel.name} has no tensor '{name}'; its tensors are {known}")
        if data.dim() != len(tensor.shape):
            wanted = ", ".join(map(ast.unparse, tensor.shape))
            raise ValueError(f"'{name}' is [{wanted}]; got a shape of {tuple(data.shape)}")
        for axis, (side, size) in enumerate(zip(tensor.shape, data.shape)):
            if isinstance(side, ast.Name) and side.id in kernel.runtime:
                have, owner = bound.setdefault(side.id, (size, name))
                if have != size:
                    raise ValueError(
                        f"'{name}' has {size} along axis {axis}, which is {side.id}; "
                        f"'{owner}' makes it {have}"
                    )
    sizes = {name: size for name, (size, _) in bound.items()}
    for name in kernel.runtime:
        if name not in sizes:
            raise ValueError(f"no tensor given has '{name}' as a side")
    for name, data in tensors.items():
        wanted = shape(kernel, name, {**values, **sizes})
        if tuple(data.shape) != wanted:
            raise ValueError(f"'{name}' should be {wanted}; got a shape of {tuple(data.shape)}")
    return sizes


def shape(kernel: Kernel, tensor: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a tensor for these runtime sizes."""
    values = {**dict(kernel.values), **sizes}
    return tuple(int(evaluate(side, values)) for side in kernel.tensor(tensor).shape)


def interpret(
    kernel: Kernel,
    tensors: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """The outputs (roles out and inout) that `kernel` gives for these inputs.

    tensors   every tensor of role in or inout, of any dtype; others are ignored
    sizes     the runtime sizes, from the tensors' shapes where they are left out
    seed      of the interleaving, where the kernel has roles

    Outputs are float64 (int64 for integers, bool); elements never written are NaN (`UNWRITTEN`).
    Raises Uninterpretable for a kernel with raw statements, ValueError where shapes disagree.
    """
    for leaf in kernel.leaves():
        if isinstance(leaf, Raw):
            raise Uninterpretable(f"{leaf.where}: a raw statement has no meaning but its own")
    needed = [t.name for t in kernel.tensors if t.role != "out"]
    if missing := [name for name in needed if name not in tensors]:
        raise ValueError(f"no tensor given for {', '.join(missing)}")
    if sizes is None:
        sizes = bind_sizes(kernel, {name: tensors[name] for name in needed})
    arena: dict[str, torch.Tensor] = {}
    for t in kernel.tensors:
        wanted = shape(kernel, t.name, sizes)
        if t.role == "out":
            arena[t.name] = fresh(wanted, t.dtype)
            continue
        if tuple(tensors[t.name].shape) != wanted:
            raise ValueError(f"'{t.name}' should be {wanted}; got {tuple(tensors[t.name].shape)}")
        arena[t.name] = tensors[t.name].detach().cpu().to(wide(t.dtype), copy=True)
    from gdngen.judge import (
        interleave,  # which computes single statements as this module does
    )

    values = {**dict(kernel.values), **sizes}
    axes = [range(int(evaluate(count, values))) for _, count in kernel.grid]
    with one_thread():
        for at in itertools.product(*axes):
            block = dict(zip((name for name, _ in kernel.grid), at))
            if kernel.roles:
                interleave.run_block(kernel, arena, {**values, **block}, seed)
                continue
            buffers = {b.name: fresh(b.shape, b.dtype) for b in kernel.buffers}
            Block(kernel, arena, buffers).start({**values, **block})
    return {t.name: arena[t.name] for t in kernel.tensors if t.role != "in"}


@contextlib.contextmanager
def one_thread():
    """Tiles are so small that handing them to other threads takes longer than the work."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fresh(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Storage that nothing has written."""
    import torch

    kind = wide(dtype)
    empty = {torch.float64: torch.nan, torch.int64: UNWRITTEN, torch.bool: False}[kind]
    return torch.full(shape, empty, dtype=kind)


class Block:
    """One block: the tensors it shares with all others and the buffers that are its own."""

    def __init__(self, kernel: Kernel, tensors: dict, buffers: dict):
        self.kernel, self.tensors, self.buffers = kernel, tensors, buffers
        self.dtypes = {b.name: b.dtype for b in (*kernel.tensors, *kernel.buffers)}
        self.named = dict(kernel.dtypes)

    def start(self, values: dict) -> None:
        """Run all statements; `values` has every size and the block's indices."""
        self.run(self.kernel.statements(), self.scalars(values))

    def scalars(self, values: dict) -> dict:
        """The values, with what the block works out when it starts."""
        for scalar in self.kernel.scalars:
            found = self.walked(scalar.walk, values) if scalar.walk else None
            if found is None:
                found = self.value(scalar.value, values).item()
            values = {**values, scalar.name: found}
        return values

    def walked(self, walk: Walk, values: dict) -> int:
        """How many terms of a sum it takes."""
        until, most = self.value(walk.until, values), int(evaluate(walk.most, values))
        count, total = 0, 0.0
        while count < most and total > until:
            total = total + self.value(walk.term, {**values, walk.over: count})
            count += 1
        return count

    def forget(self, name: str) -> None:
        """What a buffer holds is as if nothing had written it."""
        self.buffers[name].copy_(fresh(self.buffers[name].shape, self.dtypes[name]))

    def run(self, body: tuple[Statement, ...], values: dict) -> None:
        for s in body:
            self.step(s, values)

    def step(self, s: Statement, values: dict) -> None:
        """Run one statement; `values` has every size and the block's and loops' indices."""
        import torch

        match s:
            case Loop():
                for at in range(int(evaluate(s.count, values))):
                    inner = {**values, s.var: at} if s.var else dict(values)
                    for name, value in s.lets:
                        inner[name] = int(evaluate(value, inner))
                    self.run(s.body, inner)
            case Branch():
                self.run(s.then if evaluate(s.cond, values) else s.other, values)
            case Copy():
                self.put(s.dst, self.get(s.src, values), values)
            case Fill():
                self.put(s.dst, self.value(s.value, values), values)
            case Gemm():
                a, b = self.get(s.a, values), self.get(s.b, values)
                c = (a.mT if s.transpose_a else a) @ (b.mT if s.transpose_b else b)
                self.put(s.c, c + self.get(s.c, values) if s.accumulate else c, values)
            case Reduce():
                full = self.get(s.src, values)
                full = full.abs() if s.op.startswith("abs") else full
                kind = s.op.removeprefix("abs")
                found = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}[kind](full, s.axis)
                found = found.reshape(s.dst.shape)
                if s.accumulate:
                    both = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}[kind]
                    found = both(self.get(s.dst, values), found)
                self.put(s.dst, found, values)
            case Cumsum():
                full = self.get(s.src, values)
                turned = full.flip(s.axis) if s.reverse else full
                total = turned.cumsum(s.axis)
                self.put(s.dst, total.flip(s.axis) if s.reverse else total, values)
            case Solve():
                self.put(s.dst, _inverse(self.get(s.src, values), s.block), values)
            case Assign():
                rank = len(s.axes)
                points = {a.name: along(i, rank, a.extent) for i, a in enumerate(s.axes)}
                here = {**values, **points}
                every = torch.broadcast_to(torch.tensor(True), [a.extent for a in s.axes])
                where = every if s.guard is None else every & self.value(s.guard, here).bool()
                index = [self.value(i, here) for i in s.index]
                self.store(s.name, index, self.value(s.value, here), where)
            case _:
                raise Uninterpretable(f"{s.where}: {type(s).__name__} has no meaning yet")

    # -- storage -----------------------------------------------------------------------------

    def places(self, r: Region, values: dict) -> list[torch.Tensor]:
        """An index for every axis; together they broadcast to the region's shape."""
        import torch

        if not r.index:
            return [along(i, len(r.shape), n) for i, n in enumerate(r.shape)]
        axis, out = 0, []
        for part in r.index:
            if isinstance(part, Point):
                out.append(torch.tensor(int(evaluate(part.at, values))))
            else:
                start = int(evaluate(part.start, values))
                out.append(start + along(axis, len(r.shape), part.size))
                axis += 1
        return out

    def get(self, r: Region, values: dict) -> torch.Tensor:
        return self.load(r.name, self.places(r, values)).expand(r.shape)

    def put(self, r: Region, value: torch.Tensor, values: dict) -> None:
        import torch

        everywhere = torch.broadcast_to(torch.tensor(True), r.shape)
        self.store(r.name, self.places(r, values), value, everywhere)

    def load(self, name: str, index: list[torch.Tensor]) -> torch.Tensor:
        """Elements at `index`; outside a tensor 0, outside a buffer NaN (a guard hides those)."""
        import torch

        data = self.tensors[name] if name in self.tensors else self.buffers[name]
        outside = 0 if name in self.tensors else fresh((), self.dtypes[name])
        inside = _inside(index, data.shape)
        if not data.numel():
            return torch.full(inside.shape, outside, dtype=data.dtype)
        clamped = [i.clamp(0, n - 1) for i, n in zip(index, data.shape)]
        return torch.where(inside, data[tuple(clamped)], outside)

    def store(self, name: str, index: list, value: torch.Tensor, where: torch.Tensor) -> None:
        data = self.tensors[name] if name in self.tensors else self.buffers[name]
        kept = where & _inside(index, data.shape)
        at = tuple(i.expand(where.shape)[kept] for i in index)
        data[at] = value.to(data.dtype).expand(where.shape)[kept]

    def value(self, node: ast.AST, values: dict) -> torch.Tensor:
        return value(node, values, self.load, self.named)


def _inverse(packed: torch.Tensor, block: int) -> torch.Tensor:
    """[n, block] -> [n, n]: the inverse of I + the strictly lower parts of n // block diagonal blocks."""
    import torch

    eye = torch.eye(block, dtype=torch.float64)
    systems = packed.view(-1, block, block).tril(-1) + eye
    found = torch.linalg.solve_triangular(
        systems, eye.expand_as(systems), upper=False, unitriangular=True
    )
    return torch.block_diag(*found)


def _inside(index: list[torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    return functools.reduce(lambda a, b: a & b, [(i >= 0) & (i < n) for i, n in zip(index, shape)])
