"""Orders of statements: which are legal, which needs the least storage, which moves the fewest.

A block is a list of units (statements; a loop or branch is one unit) with dependences. An order is
legal if it keeps every pair of units of which one writes what the other touches. States of the search
are ideals: sets of units that can have run; what is live after an ideal doesn't depend on the order
inside it, so a few hundred states stand for all orders of a kernel.

Storage comes in classes that don't mix (dtype and height of a tile), so a state's cost is the peak of
each class, and states keep Pareto sets of peaks. The least sum of peaks over all legal orders is a
lower bound for every assignment of slots, and the search says how many states it took.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Vector = tuple[int, ...]
LIMIT = 60_000  # steps of a search, after which it goes on with the best states alone


@dataclass(frozen=True)
class Block:
    """A block to be ordered. Buffers and units are numbered; sets are bit masks.

    before     per unit: units that must run before it
    users      per buffer: units that touch it
    kind       per buffer: its class, or -1 for a fragment
    size       per buffer: bytes
    inside     per unit: peak per class of what lives only inside it
    inplace    per unit: (source, target) pairs: the target may take the source's storage
    fixed      bytes per class that live throughout
    registers  most fragment bytes live at once that an order may need
    """

    before: tuple[int, ...]
    users: tuple[int, ...]
    kind: tuple[int, ...]
    size: tuple[int, ...]
    inside: tuple[Vector, ...]
    inplace: tuple[tuple[tuple[int, int], ...], ...]
    fixed: Vector
    registers: int

    @property
    def classes(self) -> int:
        return len(self.fixed)

    def touched(self, unit: int) -> tuple[int, ...]:
        return tuple(b for b, users in enumerate(self.users) if users >> unit & 1)


@dataclass(frozen=True)
class Best:
    """An order with its peaks, and what the search did: `proven` if it saw every state.

    `floor` is what no order goes below, where that was not seen of this one.
    """

    order: tuple[int, ...]
    peaks: Vector
    states: int
    proven: bool
    floor: int = 0

    @property
    def bytes(self) -> int:
        return sum(self.peaks)

    @property
    def bound(self) -> int:
        """Bytes that no legal order goes below."""
        return self.bytes if self.proven else self.floor


class _Costs:
    """Cost of running a unit after an ideal; remembered, since orders meet in the same states."""

    def __init__(self, block: Block):
        self.block = block
        self.touched = [block.touched(u) for u in range(len(block.before))]
        self.known: dict[tuple[int, int], Vector | None] = {}
        self.live: dict[int, tuple[Vector, int]] = {}

    def base(self, done: int) -> tuple[Vector, int]:
        """Bytes per class and fragment bytes that are live after an ideal."""
        found = self.live.get(done)
        if found is None:
            block = self.block
            classes, registers = list(block.fixed), 0
            for users, kind, size in zip(block.users, block.kind, block.size):
                if users & done and users & ~done:
                    if kind < 0:
                        registers += size
                    else:
                        classes[kind] += size
            found = self.live[done] = tuple(classes), registers
        return found

    def step(self, done: int, unit: int) -> Vector | None:
        """Bytes per class while a unit runs after an ideal; None where fragments don't fit."""
        key = done, unit
        if key in self.known:
            return self.known[key]
        block = self.block
        live, registers = self.base(done)
        classes = list(live)
        for b in self.touched[unit]:
            if not block.users[b] & done:
                if block.kind[b] < 0:
                    registers += block.size[b]
                else:
                    classes[block.kind[b]] += block.size[b]
        after, taken = done | 1 << unit, 0
        for source, target in block.inplace[unit]:
            last = not block.users[source] & ~after
            fresh = not block.users[target] & done
            if last and fresh and not taken >> source & 1 and not taken >> target & 1:
                classes[block.kind[target]] -= block.size[target]
                taken |= 1 << source | 1 << target
        for c, extra in enumerate(block.inside[unit]):
            classes[c] += extra
        fits = registers <= block.registers
        cost = self.known[key] = tuple(classes) if fits else None
        return cost

    def free(self, done: int, unit: int) -> bool:
        """Whether a unit brings nothing new to life: then running it at once is never worse."""
        return all(self.block.users[b] & done for b in self.touched[unit]) and not any(
            self.block.inside[unit]
        )


def ready(block: Block, done: int) -> list[int]:
    return [u for u, before in enumerate(block.before) if not done >> u & 1 and not before & ~done]


def least(block: Block, limit: int = LIMIT) -> Best | None:
    """The order with the least sum of peaks, over all legal orders unless `limit` steps are taken.

    The author's order and a greedy one come first; the search is for anything better, so it is short
    where they are good. None where the fragments fit in no order that was looked at.
    """
    costs = _Costs(block)
    known = [o for o in (_walked(block, costs, _author), _walked(block, costs, _greedy)) if o]
    best = min(known, key=lambda o: (o.bytes, o.order)) if known else None
    if best and best.bytes == _floor(block, costs):
        return best
    better, states, proven, _ = _search(block, costs, best.bytes - 1 if best else 1 << 62, limit)
    found = better or best
    if found is None or proven:
        return found and Best(found.order, found.peaks, max(1, states), proven)
    found, floor, more = _closed_in(block, costs, found, limit)
    return Best(found.order, found.peaks, states + more, found.bytes == floor, floor)


def _closed_in(block: Block, costs: "_Costs", best: Best, limit: int) -> tuple[Best, int, int]:
    """A better order, or a higher floor, by searches below ceilings between floor and best: the lower
    the ceiling, the fewer states. The order, the floor, and the states."""
    floor, states = _floor(block, costs), 0
    step = math.gcd(*block.size, *block.fixed, *(n for extra in block.inside for n in extra)) or 1
    high = best.bytes - step
    while floor <= high and limit > 0:
        ceiling = floor + (high - floor) // step // 2 * step
        found, met, seen, steps = _search(block, costs, ceiling, limit)
        states, limit = states + met, limit - steps
        if found:
            best = found
        if found or not seen:
            high = min(ceiling, best.bytes) - step
        if seen:
            floor = best.bytes if found else ceiling + step
    return best, min(floor, best.bytes), states


def _search(
    block: Block, costs: "_Costs", ceiling: int, limit: int
) -> tuple[Best | None, int, bool, int]:
    """The best order with a sum of peaks of at most `ceiling`, the ideals met, whether all were, and the
    steps taken."""
    n = len(block.before)
    level: dict[int, list[tuple[Vector, tuple, int]]] = {0: [(tuple(block.fixed), (), 0)]}
    states, steps, proven = 0, 0, True
    for _ in range(n):
        following: dict[int, list[tuple[Vector, tuple, int]]] = {}
        for done, labels in level.items():
            states += 1
            units = ready(block, done)
            units = next(([u] for u in units if costs.free(done, u) and costs.step(done, u)), units)
            for unit in units:
                cost = costs.step(done, unit)
                if cost is None:
                    continue
                steps += len(labels)
                into = following.setdefault(done | 1 << unit, [])
                for peaks, path, moved in labels:
                    joined = tuple(map(max, peaks, cost))
                    if sum(joined) <= ceiling:
                        _keep(into, (joined, (path, unit), moved))
        level = {k: v for k, v in following.items() if v}
        if steps > limit and len(level) > 50:
            proven = False
            level = dict(sorted(level.items(), key=lambda kv: min(sum(v[0]) for v in kv[1]))[:50])
    ends = level.get((1 << n) - 1, [])
    if not ends:
        return None, states, proven, steps
    peaks, path, _ = min(ends, key=lambda label: (sum(label[0]), label[0]))
    return Best(_unwind(path), peaks, states, proven), states, proven, steps


def _author(block: Block, costs: "_Costs", done: int) -> int:
    return min(ready(block, done))


def _greedy(block: Block, costs: "_Costs", done: int) -> int:
    """The ready unit that needs the least, and of those the one that leaves the least alive."""

    def key(unit: int) -> tuple:
        cost = costs.step(done, unit)
        after, _ = costs.base(done | 1 << unit)
        return cost is None, sum(cost or ()), sum(after), unit

    return min(ready(block, done), key=key)


def _walked(block: Block, costs: "_Costs", choose) -> Best | None:
    """The order that a rule of choice makes, or None where fragments don't fit."""
    order, peaks, done = [], tuple(block.fixed), 0
    for _ in block.before:
        unit = choose(block, costs, done)
        cost = costs.step(done, unit)
        if cost is None:
            return None
        peaks = tuple(map(max, peaks, cost))
        order.append(unit)
        done |= 1 << unit
    return Best(tuple(order), peaks, 1, True)


def _floor(block: Block, costs: "_Costs") -> int:
    """What some one statement needs of each class, whatever the order."""
    most = list(block.fixed)
    for unit, touched in enumerate(costs.touched):
        need = [f + extra for f, extra in zip(block.fixed, block.inside[unit])]
        for b in touched:
            if block.kind[b] >= 0:
                need[block.kind[b]] += block.size[b]
        for _, target in block.inplace[unit]:
            need[block.kind[target]] -= block.size[target]
        most = [max(m, n) for m, n in zip(most, need)]
    return sum(most)


def fewest_moves(block: Block, ceiling: int, limit: int = 30_000) -> Best | None:
    """The order that moves the fewest units, with a sum of peaks of at most `ceiling`; then least bytes.

    A unit that keeps its place relative to the others that keep theirs is not moved. Orders with no
    move are tried first, then with one, and so on. None if there is no such order, or if none was
    found in `limit` steps.
    """
    costs, steps = _Costs(block), 0
    for most in range(len(block.before)):
        found, taken = _with_moves(block, costs, ceiling, most, limit - steps)
        steps += taken
        if found or steps >= limit:
            return found
    return None


def _with_moves(
    block: Block, costs: "_Costs", ceiling: int, most: int, limit: int
) -> tuple[Best | None, int]:
    """The best order with at most `most` moves, and the steps taken."""
    n, steps = len(block.before), 0
    level: dict[tuple[int, int], list[tuple[Vector, tuple, int]]] = {
        (0, -1): [(tuple(block.fixed), (), 0)]
    }
    for _ in range(n):
        following: dict[tuple[int, int], list[tuple[Vector, tuple, int]]] = {}
        for (done, last), labels in level.items():
            for unit in ready(block, done):
                cost = costs.step(done, unit)
                if cost is None:
                    continue
                steps += len(labels)
                for peaks, path, moved in labels:
                    joined = tuple(map(max, peaks, cost))
                    if sum(joined) > ceiling:
                        continue
                    after = done | 1 << unit
                    if unit > last:
                        _keep_moves(
                            following.setdefault((after, unit), []), (joined, (path, unit), moved)
                        )
                    if moved < most:
                        _keep_moves(
                            following.setdefault((after, last), []),
                            (joined, (path, unit), moved + 1),
                        )
        level = following
        if steps > limit:
            return None, steps
    ends = [label for labels in level.values() for label in labels]
    if not ends:
        return None, steps
    peaks, path, _ = min(ends, key=lambda label: (label[2], sum(label[0]), _unwind(label[1])))
    return Best(_unwind(path), peaks, steps, True), steps


def moves(order: Sequence[int]) -> tuple[int, ...]:
    """The fewest units that have to move to make this order of the author's: all but a longest
    increasing run."""
    best: list[tuple[int, tuple[int, ...]]] = []
    for i, unit in enumerate(order):
        longest = max((b for j, b in enumerate(best) if order[j] < unit), default=(0, ()))
        best.append((longest[0] + 1, longest[1] + (unit,)))
    kept = max(best, default=(0, ()))[1]
    return tuple(u for u in order if u not in kept)


def _keep(labels: list, new: tuple) -> None:
    """Adds a label unless one there is as good in every class; drops those that it beats."""
    for old in labels:
        if all(a <= b for a, b in zip(old[0], new[0])):
            return
    labels[:] = [old for old in labels if not all(a <= b for a, b in zip(new[0], old[0]))]
    labels.append(new)


def _keep_moves(labels: list, new: tuple) -> None:
    for old in labels:
        if old[2] <= new[2] and all(a <= b for a, b in zip(old[0], new[0])):
            return
    labels[:] = [
        old
        for old in labels
        if not (new[2] <= old[2] and all(a <= b for a, b in zip(new[0], old[0])))
    ]
    labels.append(new)


def _unwind(path: tuple) -> tuple[int, ...]:
    out = []
    while path:
        path, unit = path
        out.append(unit)
    return tuple(reversed(out))
