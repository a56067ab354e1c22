"""Plans broken on purpose, each in a way that provably changes what the kernel reads.

A tile *x dooms* a tile y if somewhere, on the way that the statements run, all of x is written while
y holds a value, and the next that happens to y is that all of it is read. So if x and y have a byte in
common, that read finds it taken. Nothing here is shared with the judge, which must refuse them all.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gdngen.judge.addresses import addresses
from gdngen.judge.arena import Address
from gdngen.language.expr import evaluate
from gdngen.model.analysis import Analysis
from gdngen.model.model import (
    Access,
    Assign,
    Branch,
    Buffer,
    Kernel,
    Leaf,
    Loop,
    Raw,
    Statement,
    with_stages,
)
from gdngen.plan import plan as planning
from gdngen.plan import rewrite
from gdngen.plan.plan import Wish

ELSEWHERE = 1 << 16  # bytes: beyond every tile of a plan that is mutated
FEW = 12  # shared tiles of a kernel that is planned under `lean` here
KINDS = {
    "merged": "two tiles that live at one time, at one address",
    "swapped": "two tenants, each at the other's address: the larger reaches into a third",
    "overlapped": "two column ranges of one slot that overlap by a column",
    "shortened": "a plan made from a live range that ends where it starts",
    "moved": "a tile read before the statement that stores it",
    "early": "a load or first write moved up, over the last read of what lies there",
}


@dataclass(frozen=True)
class Mutant:
    """A program and addresses; `kind` and `names` say what was done to which tiles."""

    kind: str
    names: tuple[str, ...]
    kernel: Kernel
    addresses: Mapping[str, Address]


def trace(kernel: Kernel, sizes: Mapping[str, int], block: Mapping[str, int]) -> list[Leaf]:
    """Leaf statements of one block in the order that they run."""
    out: list[Leaf] = []

    def run(body: Sequence[Statement], env: dict) -> None:
        for s in body:
            if isinstance(s, Loop):
                for at in range(int(evaluate(s.count, env))):
                    run(s.body, {**env, s.var: at} if s.var else env)
            elif isinstance(s, Branch):
                run(s.then if evaluate(s.cond, env) else s.other, env)
            else:
                out.append(s)

    run(kernel.statements(), {**dict(kernel.values), **sizes, **block})
    return out


def doomed(kernel: Kernel, sizes: Mapping[str, int]) -> set[tuple[str, str]]:
    """Pairs (x, y) of shared buffers of which x dooms y in the first block."""
    names = [b.name for b in kernel.shared()]
    steps = trace(kernel, sizes, {name: 0 for name, _ in kernel.grid})
    found = set()
    for y in names:
        full = False  # y holds a value, all of it
        over: set[str] = set()  # written since, in full
        for s in steps:
            reads = [a for a in s.reads() if a.name == y]
            writes = [a for a in s.writes() if a.name == y]
            if any(reads_all(s, a, kernel.buffer(y)) for a in reads):
                found |= {(x, y) for x in over}
            if reads or writes:
                over = set()
            if any(a.whole for a in writes):
                full = True
            elif full and not writes:
                over |= {a.name for a in s.writes() if a.whole and a.name in names}
    return found


def reads_all(s: Leaf, a: Access, b: Buffer) -> bool:
    """Whether a statement surely reads every element of a buffer."""
    if isinstance(s, Raw) or a.region is not None:
        return a.region is not None and a.region.whole
    if not isinstance(s, Assign) or s.guard is not None or _has_where(s.value):
        return False
    extents = {x.name: x.extent for x in s.axes}
    plain = [i.id for i in a.index if isinstance(i, ast.Name)]
    return len(set(plain)) == len(b.shape) and tuple(extents.get(p) for p in plain) == b.shape


def _has_where(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Call) and n.func.id == "where" for n in ast.walk(node))


# -- bytes -----------------------------------------------------------------------------------------


def taken(b: Buffer, a: Address) -> int:
    """The bytes of a buffer: bit n is set where it has byte n."""
    at = np.full((), a.offset)
    for n, stride in zip((*b.shape, a.itemsize), (*a.strides, 1)):
        at = np.add.outer(at, np.arange(n) * stride)
    has = np.zeros(int(at.max()) + 1, dtype=bool)
    has[at] = True
    return int.from_bytes(np.packbits(has, bitorder="little").tobytes(), "little")


def meeting(kernel: Kernel, where: Mapping[str, Address]) -> set[tuple[str, str]]:
    """Pairs of shared buffers with a byte in common, both ways round."""
    spots = {b.name: taken(b, where[b.name]) for b in kernel.shared()}
    return {(a, b) for a in spots for b in spots if a != b and spots[a] & spots[b]}


# -- what is broken --------------------------------------------------------------------------------


def mutants(kernel: Kernel, found: Analysis, sizes: Mapping[str, int]) -> Iterator[Mutant]:
    """Every kind, where the kernel offers one; at most a few of each."""
    pairs = sorted(doomed(kernel, sizes))
    plan = planning.plan(kernel, found, Wish("separate"), kernel.targets[0]).plan
    apart = addresses(kernel, plan)
    yield from _merged(kernel, apart, pairs[:4])
    yield from _swapped(kernel, apart, set(pairs))
    yield from _overlapped(kernel, apart, pairs)
    yield from _moved(kernel, apart)
    yield from _shortened(kernel, found, set(pairs))
    yield from _early(kernel, found, sizes)


def _merged(kernel: Kernel, apart: Mapping[str, Address], pairs) -> Iterator[Mutant]:
    """Two tiles that live at one time, at one address."""
    for x, y in pairs:
        where = {**apart, x: replace(apart[x], offset=apart[y].offset)}
        yield Mutant("merged", (x, y), kernel, where)


def _swapped(kernel: Kernel, apart: Mapping[str, Address], pairs: set) -> Iterator[Mutant]:
    """Two tiles of different size, each at the other's address: the larger reaches into a third."""
    shared = sorted(kernel.shared(), key=lambda b: (b.bytes, b.name))
    packed, offset = {}, 0
    for b in shared:  # without gaps, small ones first
        packed[b.name] = replace(apart[b.name], offset=offset)
        offset += b.bytes
    tries = [(a, b) for a in shared for b in shared if a.bytes < b.bytes]
    for a, b in tries[:3]:
        to = {a.name: packed[b.name].offset, b.name: packed[a.name].offset}
        where = {n: replace(p, offset=to.get(n, p.offset)) for n, p in packed.items()}
        if pairs & meeting(kernel, where):
            yield Mutant("swapped", (a.name, b.name), kernel, where)


def side_by_side(
    kernel: Kernel, apart: Mapping[str, Address], x: str, y: str, overlap: int
) -> dict[str, Address]:
    """Two tiles in one slot, y's first column `overlap` columns before x's last."""
    a, b = kernel.buffer(x), kernel.buffer(y)
    size = apart[x].itemsize
    stride = (a.shape[1] + b.shape[1]) * size
    first = Address(ELSEWHERE, (stride, size), size)
    return {**apart, x: first, y: replace(first, offset=ELSEWHERE + (a.shape[1] - overlap) * size)}


def _overlapped(kernel: Kernel, apart: Mapping[str, Address], pairs) -> Iterator[Mutant]:
    """Two column ranges of one slot that overlap by a column."""
    for x, y in [p for p in pairs if is_alike(kernel, *p)][:2]:
        yield Mutant("overlapped", (x, y), kernel, side_by_side(kernel, apart, x, y, 1))


def is_alike(kernel: Kernel, x: str, y: str) -> bool:
    """Whether two tiles could stand side by side: matrices of one dtype and height."""
    a, b = kernel.buffer(x), kernel.buffer(y)
    return len(a.shape) == len(b.shape) == 2 and (a.dtype, a.shape[0]) == (b.dtype, b.shape[0])


def _moved(kernel: Kernel, apart: Mapping[str, Address]) -> Iterator[Mutant]:
    """A statement before the one that first gives it a tile."""
    written: set[str] = set()
    for n, stage in enumerate(kernel.stages):
        for k, s in enumerate(stage.body):
            then = stage.body[k + 1] if k + 1 < len(stage.body) else None
            if isinstance(s, Leaf) and isinstance(then, Leaf):
                first = {a.name for a in s.writes() if a.whole and a.name not in written}
                names = [
                    a.name
                    for a in then.reads()
                    if a.name in first and reads_all(then, a, kernel.buffer(a.name))
                ]
                if names:
                    body = stage.body[:k] + (then, s) + stage.body[k + 2 :]
                    stages = (
                        kernel.stages[:n] + (replace(stage, body=body),) + kernel.stages[n + 1 :]
                    )
                    yield Mutant("moved", (names[0],), with_stages(kernel, stages), apart)
            written |= _writes(s)


def _writes(s: Statement) -> set[str]:
    if isinstance(s, Leaf):
        return {a.name for a in s.writes()}
    inner = s.body if isinstance(s, Loop) else s.then + s.other
    return set().union(*(_writes(i) for i in inner)) if inner else set()


def _shortened(kernel: Kernel, found: Analysis, pairs: set) -> Iterator[Mutant]:
    """A plan made from a live range that ends where it starts."""
    for b in kernel.shared():
        first, last = found.span(b.name)
        late = {leaf.id for leaf in found.order[first + 1 : last + 1]}
        live = {i: names - {b.name} if i in late else names for i, names in found.live.items()}
        wrong = replace(found, live=live)
        plan = planning.plan(kernel, wrong, Wish("share"), kernel.targets[0]).plan
        where = addresses(kernel, plan)
        if pairs & meeting(kernel, where):
            yield Mutant("shortened", (b.name,), kernel, where)
            return


def _early(kernel: Kernel, found: Analysis, sizes: Mapping[str, int]) -> Iterator[Mutant]:
    """A statement that first fills a later tenant of a slot moved up, past statements that name nothing of
    it, until the tenant before still lives there: in what `share` plans, else in what `lean` does.
    """
    for wish in (Wish("share"), Wish("lean", "bytes"))[: 1 + (len(kernel.shared()) <= FEW)]:
        made = planning.plan(kernel, found, wish, kernel.targets[0])
        where = addresses(made.kernel, made.plan)
        body, together = made.kernel.statements(), meeting(made.kernel, where)
        for at, s in enumerate(body):
            filled = {a.name for a in s.writes() if a.whole} if isinstance(s, Leaf) else set()
            for to in reversed(range(at if any(x in filled for x, _ in together) else 0)):
                if rewrite.depends(body[to], s):
                    break
                order = [*range(to), at, *range(to, at), *range(at + 1, len(body))]
                broken = rewrite.reordered(made.kernel, order, {at})
                hit = sorted(p for p in doomed(broken, sizes) & together if p[0] in filled)
                if hit:
                    yield Mutant("early", hit[0], broken, where)
                    return
