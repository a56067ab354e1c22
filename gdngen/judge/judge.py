"""Is a plan right? A verdict from nothing but the program's order and its buffers' addresses.

The planned program runs on one shared memory, the author's on storage that nothing shares, and every
output must be the same, exactly: values are elements of a prime field, whatever is not a sum or a
product is an uninterpreted hash, so neither a tolerance nor a `where` can hide a wrong value. Live
ranges, and what planned the kernel, are not looked at; any plan from anywhere can be judged.

    field    numbers              symbols  expressions
    arena    bytes at addresses   state    tensors and tiles   replay   statements

Bytes that another buffer wrote since count as bytes that nothing wrote: dead bytes are never read.
"""

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from gdngen.judge.arena import Address, BadAddress
from gdngen.judge.replay import Machine
from gdngen.judge.state import Fault, tensor_shape
from gdngen.language.expr import ExprError, evaluate, names
from gdngen.model.model import Kernel, Loop, Statement, children

__all__ = ["Address", "Fault", "Verdict", "judge", "trial_sizes"]

MAX_FAULTS = 20  # that a verdict lists
BLOCKS, ROUNDS = 2, 3  # along a tiled axis of the grid; of a loop over a runtime size
MAX_SIZE = 2**16
TAIL = (9, 16)  # of the way from the least size with these counts to the largest


@dataclass(frozen=True)
class Verdict:
    """What the judge found.

    blocks     how many ran; `sizes` are the runtime sizes
    undefined  buffers of which the author's own program reads elements that nothing wrote
    """

    ok: bool
    faults: tuple[Fault, ...]
    sizes: tuple[tuple[str, int], ...]
    blocks: int
    seed: int
    undefined: tuple[str, ...] = ()

    def as_dict(self) -> dict:
        """The same as data that JSON can hold."""
        return asdict(self) | {"sizes": dict(self.sizes)}


def judge(
    original: Kernel,
    planned: Kernel,
    addresses: Mapping[str, Address],
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    together: Sequence[Sequence[int]] = (),
) -> Verdict:
    """Runs `planned` at `addresses` and compares it with `original`.

    addresses  of all shared buffers of `planned`, in bytes
    sizes      of the runtime names; by default small ones with more than one block and ragged tails
    together   groups of ids of assignments that one parallel loop holds when emitted: its threads
               don't wait for one another between them

    Raises ExprError where the original itself has no meaning (say, a size that is not given).
    """
    bound = dict(sizes) if sizes is not None else trial_sizes(original)
    key = tuple(sorted(bound.items()))
    with np.errstate(over="ignore"):
        right, undefined, blocks = _reference(original, key, seed)
        faults = _run(planned, addresses, bound, seed, together, right, set(undefined))
    return Verdict(not faults, tuple(faults[:MAX_FAULTS]), key, blocks, seed, undefined)


@functools.lru_cache(maxsize=2)
def _reference(kernel: Kernel, sizes: tuple[tuple[str, int], ...], seed: int):
    """Outputs of the author's program, the buffers that it reads unwritten, and its blocks."""
    machine = Machine(kernel, dict(sizes), seed)
    machine.run()
    undefined = {f.buffers[0] for f in machine.state.faults.values() if f.kind == "unwritten"}
    values = {**dict(kernel.values), **dict(sizes)}
    blocks = 1
    for _, count in kernel.grid:
        blocks *= int(evaluate(count, values))
    return _outputs(machine), tuple(sorted(undefined)), blocks


def _outputs(machine: Machine) -> dict[str, np.ndarray]:
    return {t.name: machine.state.tensors[t.name] for t in machine.kernel.tensors if t.role != "in"}


def _run(
    planned: Kernel, addresses, sizes, seed, together, right, undefined: set[str]
) -> list[Fault]:
    try:
        machine = Machine(planned, sizes, seed, addresses, together)
        machine.run()
    except BadAddress as e:
        return [Fault("address", str(e))]
    except ExprError as e:
        return [Fault("malformed", e.what)]
    differences = list(_differences(machine, right))
    return differences + [
        f
        for f in machine.state.faults.values()
        if f.kind not in ("unwritten", "clobbered") or f.buffers[0] not in undefined
    ]


def _differences(machine: Machine, right: Mapping[str, np.ndarray]) -> Iterator[Fault]:
    found = _outputs(machine)
    for name, want in right.items():
        got = found.get(name)
        if got is None or got.shape != want.shape:
            yield Fault("malformed", f"there is no output '{name}' of shape {want.shape}", (name,))
        elif (got != want).any():
            first = tuple(int(i) for i in np.argwhere(got != want)[0])
            count = int((got != want).sum())
            what = f"output '{name}' differs at {list(first)} and {count - 1:,} other elements"
            writers = [s for s in machine.kernel.leaves() if name in {a.name for a in s.writes()}]
            place = [(s.id, s.where.line, s.stage) for s in writers[-1:]]
            yield Fault("differs", what, (name,), first, *(place[0] if place else ()))


# -- sizes -----------------------------------------------------------------------------------------


def trial_sizes(kernel: Kernel) -> dict[str, int]:
    """Small runtime sizes: at least two blocks along every tiled axis, three rounds of every loop
    over a runtime size, and a ragged tail where a size is walked by tiles."""
    sizes = {name: 1 for name in kernel.runtime}
    counts = list(_counts(kernel))
    for name in reversed(kernel.runtime):
        own = [(n, least) for n, least in counts if name in {x.id for x in names(n)}]
        sizes[name] = _least(kernel, sizes, name, [c for c in own if not _counts_itself(c[0])])
    return sizes


def _counts(kernel: Kernel) -> Iterator[tuple[ast.expr, int]]:
    """Numbers of blocks and rounds, and how many are wanted."""
    for _, count in kernel.grid:
        yield count, BLOCKS
    for loop in _loops(kernel.statements()):
        if loop.trips is None:
            yield loop.count, ROUNDS


def _loops(body: Sequence[Statement]) -> Iterator[Loop]:
    for s in body:
        if isinstance(s, Loop):
            yield s
        for group in children(s):
            yield from _loops(group)


def _counts_itself(count: ast.expr) -> bool:
    return isinstance(count, ast.Name)


def _least(
    kernel: Kernel, sizes: dict[str, int], name: str, counts: list[tuple[ast.expr, int]]
) -> int:
    """A size that gives these counts, part of the way to the next larger count."""

    def found(size: int) -> list[int | None] | None:
        """The counts at a size, None where a tensor or the grid would be empty; a count that depends on
        where its loop runs is None."""
        values = {**dict(kernel.values), **sizes, name: size}
        try:
            shapes = [n for t in kernel.tensors for n in tensor_shape(t.shape, values)]
            blocks = [int(evaluate(count, values)) for _, count in kernel.grid]
        except ExprError:
            return []
        if min(shapes + blocks, default=1) < 1:
            return None
        return [_known(count, values) for count, _ in counts]

    def enough(size: int) -> bool:
        got = found(size)
        return got is not None and all(
            n is None or n >= least for n, (_, least) in zip(got, counts)
        )

    least = _first(enough)
    if all(n is None for n in found(least) or ()):
        return least
    most = _first(lambda size: size > least and found(size) != found(least)) - 1
    up, down = TAIL
    return least + (most - least) * up // down if most < MAX_SIZE else least


def _known(count: ast.expr, values: Mapping[str, int]) -> int | None:
    try:
        return int(evaluate(count, values))
    except ExprError:
        return None


def _first(holds) -> int:
    """The least size for which a condition holds, if it goes on holding (else some such size)."""
    high = 1
    while high < MAX_SIZE and not holds(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
