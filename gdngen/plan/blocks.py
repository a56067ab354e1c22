"""A kernel's statements as a block to be ordered: dependences, who uses what, what may be in place."""

from collections.abc import Mapping
from dataclasses import replace

from gdngen.model.analysis import Analysis, analyse
from gdngen.model.model import Branch, Kernel, Leaf, Statement, leaves, touched
from gdngen.plan import rewrite
from gdngen.plan import slots as packing
from gdngen.plan.order import Block


def block_of(kernel: Kernel, mixed: bool = False, views: frozenset[str] = frozenset()) -> Block:
    """The kernel's statements as a block to be ordered; what pipelined loops load is left out.

    Every value of a buffer counts on its own. `mixed` puts all storage into one class, so that the
    least peak is the least live bytes; `views` are tiles that may lie on such of another dtype.
    """
    body = kernel.statements()
    found = analyse(kernel)
    touches = [frozenset(touched(s)) for s in body]
    writes = [rewrite.written(s) for s in body]
    shared = [b for b in kernel.shared() if b.name not in found.private]
    fragments = [b for b in kernel.buffers if b.scope == "fragment"]
    kind_of = packing.classes_of(kernel, views)
    classes = [kind_of[b.name] for b in shared]
    kinds = {b.name: 0 if mixed else classes.index(c) for b, c in zip(shared, classes)}
    values = [
        (b, users) for b in shared + fragments for users in _values(b.name, body, touches, found)
    ]
    values = [(b, users) for b, users in values if not _inside_one(users, body)]
    count = max(kinds.values(), default=-1) + 1

    def held(name: str, unit: int) -> int | None:
        """The number of the value of a buffer that a unit touches."""
        return next(
            (i for i, (b, us) in enumerate(values) if b.name == name and us >> unit & 1), None
        )

    def inplace(unit: int) -> tuple[tuple[int, int], ...]:
        pairs = packing.inplace_pairs(body[unit], kernel)
        found_pairs = ((held(a, unit), held(b, unit)) for a, b in pairs)
        return tuple((a, b) for a, b in found_pairs if a is not None and b is not None)

    def inside(unit: int) -> tuple[int, ...]:
        """What a loop or branch takes, by class, beyond all values that it shares with others."""
        peaks = _peaks(body[unit], kernel, found, kinds, count)
        for b, users in values:
            if b.name in kinds and users >> unit & 1 and not isinstance(body[unit], Leaf):
                peaks[kinds[b.name]] -= b.bytes
        return tuple(peaks)

    units = range(len(body))
    block = Block(
        before=tuple(
            _mask(i for i in range(u) if writes[i] & touches[u] or writes[u] & touches[i])
            for u in units
        ),
        users=tuple(users for _, users in values),
        kind=tuple(kinds.get(b.name, -1) for b, _ in values),
        size=tuple(b.bytes for b, _ in values),
        inside=tuple(inside(u) for u in units),
        inplace=tuple(inplace(u) for u in units),
        fixed=(0,) * count,
        registers=1 << 62,
    )
    return replace(block, registers=_author_registers(block))


def _values(
    name: str, body: tuple[Statement, ...], touches: list[frozenset[str]], found: Analysis
) -> list[int]:
    """Units that touch a buffer, by the value that they find or leave in it: a unit before which it
    holds nothing starts another. No legal order changes that, as it writes what the others touch.
    """
    out: list[int] = []
    for unit, s in enumerate(body):
        if name in touches[unit]:
            held = isinstance(s, Branch) or name in found.before[next(leaves(s)).id]
            if not out or not held:
                out.append(0)
            out[-1] |= 1 << unit
    return out


def _inside_one(users: int, body: tuple[Statement, ...]) -> bool:
    """Whether one loop or branch is all that touches a value."""
    return users & (users - 1) == 0 and not isinstance(body[users.bit_length() - 1], Leaf)


def _mask(units) -> int:
    out = 0
    for u in units:
        out |= 1 << u
    return out


def _peaks(
    s: Statement, kernel: Kernel, found: Analysis, kinds: Mapping[str, int], count: int
) -> list[int]:
    """The most bytes of each class, of those that a loop or branch touches, live at a statement in it."""
    peaks, own = [0] * count, frozenset(touched(s)) & kinds.keys()
    if isinstance(s, Leaf):
        return peaks
    for leaf in leaves(s):
        now = [0] * count
        for name in found.live[leaf.id] & own:
            now[kinds[name]] += kernel.buffer(name).bytes
        for source, target in packing.inplace_pairs(leaf, kernel):
            if {source, target} <= own and source not in found.after[leaf.id]:
                now[kinds[target]] -= kernel.buffer(target).bytes
        peaks = [max(a, b) for a, b in zip(peaks, now)]
    return peaks


def _author_registers(block: Block) -> int:
    """Most fragment bytes live at once in the author's order: no order may need more."""
    most = done = 0
    for unit in range(len(block.before)):
        now = 0
        for users, kind, size in zip(block.users, block.kind, block.size):
            if kind < 0 and (users >> unit & 1 or (users & done and users & ~done)):
                now += size
        most, done = max(most, now), done | 1 << unit
    return most
