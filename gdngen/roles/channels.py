"""Who hands what on to whom: staged tiles, the role that writes each, and those that read it.

Tiles that one role has copied in, round by round together, share barriers: a full one, at which it
says that a round is there, and a free one, at which readers say that they are done with it.
"""

from dataclasses import dataclass

from gdngen.errors import Report
from gdngen.model import model, roles, rounds
from gdngen.model.model import Copy, Kernel, Leaf, Role
from gdngen.roles.sync import Barrier


@dataclass(frozen=True)
class Channel:
    """`loaded` by copies from tensors, or written by threads."""

    name: str
    tiles: tuple[str, ...]
    writer: Role
    readers: tuple[Role, ...]
    loaded: bool
    full: Barrier
    free: Barrier


def channels(kernel: Kernel, report: Report) -> tuple[Channel, ...]:
    """The channels of a kernel, in the order of their tiles; mistakes are reported."""
    groups: dict[tuple, list[str]] = {}
    writers: dict[str, Role] = {}
    for b in kernel.buffers:
        writer = _writer(kernel, b, report) if b.stages else None
        if writer is None:
            continue
        leaves = [leaf for leaf in _leaves(kernel, writer) if _writes(leaf, b.name)]
        kinds = {is_load(leaf, kernel) for leaf in leaves}
        if len(kinds) > 1:
            what = (
                f"'{b.name}' is copied in from a tensor and written by threads of '{writer.name}'"
            )
            report.error(leaves[-1].where, what, "one or the other: a round is handed on as one")
            continue
        keys = {u.key for leaf in leaves for u in rounds.uses(leaf, kernel) if u.writes}
        together = (writer.name, b.stages, *sorted(keys)) if kinds == {True} else (b.name,)
        groups.setdefault(together, []).append(b.name)
        writers[b.name] = writer
    loads = [key[0] for key in groups if len(key) > 1]
    out = []
    for key, tiles in groups.items():
        loaded = len(key) > 1
        name = key[0] if loaded and loads.count(key[0]) == 1 else tiles[0]
        out.append(_channel(kernel, name, tiles, writers[tiles[0]], loaded))
    return tuple(out)


def is_load(leaf: Leaf, kernel: Kernel) -> bool:
    """Whether the copy engine does a statement: from a tensor to a staged tile."""
    to = kernel.buffer(leaf.dst.name) if isinstance(leaf, Copy) else None
    return to is not None and to.stages > 0 and kernel.tensor(leaf.src.name) is not None


def is_store(leaf: Leaf, kernel: Kernel) -> bool:
    """Whether the copy engine does a statement: from a shared tile to a tensor."""
    of = kernel.buffer(leaf.src.name) if isinstance(leaf, Copy) else None
    return of is not None and of.scope == "shared" and kernel.tensor(leaf.dst.name) is not None


def _leaves(kernel: Kernel, role: Role):
    return [leaf for s in roles.statements(kernel, role) for leaf in model.leaves(s)]


def _writes(leaf: Leaf, name: str) -> bool:
    return any(a.name == name for a in leaf.writes())


def _writer(kernel: Kernel, b: model.Buffer, report: Report) -> Role | None:
    """The role that hands a tile on: it writes, and others read. A reader may use up what it read."""
    writing = [r for r in kernel.roles if any(_writes(x, b.name) for x in _leaves(kernel, r))]
    reading = [r for r in kernel.roles if _reads(kernel, r, b.name)]
    only = [r for r in writing if r not in reading] or writing
    if len(only) != 1:
        names = " and ".join(f"'{r.name}'" for r in only) or "no role"
        report.error(
            b.where, f"'{b.name}' is staged, and {names} writes it", "one role writes a tile"
        )
        return None
    others = [r for r in reading if r is not only[0]]
    if not others:
        what = f"'{b.name}' is staged, and no role but '{only[0].name}', which writes it, reads it"
        report.error(b.where, what, "take 'stages' out: what a role keeps to itself needs none")
        return None
    if len(writing) > 1 and len(others) > 1:
        second = next(r for r in writing if r is not only[0])
        leaf = next(x for x in _leaves(kernel, second) if _writes(x, b.name))
        names = " and ".join(f"'{r.name}'" for r in others)
        what = f"'{second.name}' writes '{b.name}' while others read it: {names} do"
        report.error(leaf.where, what, "a reader may write a tile that it alone reads")
        return None
    return only[0]


def _reads(kernel: Kernel, role: Role, name: str) -> bool:
    return any(a.name == name for leaf in _leaves(kernel, role) for a in leaf.reads()) or any(
        isinstance(x, model.Skip) and x.tile.name == name for x in _leaves(kernel, role)
    )


def _channel(kernel: Kernel, name: str, tiles: list[str], writer: Role, loaded: bool) -> Channel:
    slots = kernel.buffer(tiles[0]).stages
    readers = tuple(
        r for r in kernel.roles if r is not writer and any(_reads(kernel, r, t) for t in tiles)
    )
    full = Barrier(f"{name}_full", slots, writer.threads * writer.copies)
    free = Barrier(f"{name}_free", slots, sum(r.threads * r.copies for r in readers))
    return Channel(name, tuple(tiles), writer, readers, loaded, full, free)
