"""From where to where each role holds a round of a staged tile: `Kernel` -> `Turns` of every role.

Which use of a round is the first and which the last is found by running the programs; where a
statement is the last use in some rounds only, and nothing behind it is in the others, that is a mistake
of the spec.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gdngen.errors import Location, Report
from gdngen.model import model, roles, rounds
from gdngen.model.model import Branch, Kernel, Leaf, Loop, Role, Statement
from gdngen.roles import unroll
from gdngen.roles.channels import Channel

Site = tuple[int, str, str]  # statement, channel, round as text


@dataclass
class Turns:
    """Of one role: the uses that may be the first of a round, and what the last ones stand behind."""

    first: set[Site] = field(default_factory=set)
    last: dict[int, list[tuple[Channel, ast.expr, Location]]] = field(default_factory=dict)


@dataclass
class _Seen:
    use: rounds.Use
    leaf: Leaf
    first: int = 0
    last: int = 0  # of a round whose place another one needs
    other: int = 0


def turns(kernel: Kernel, channels: Sequence[Channel], report: Report) -> dict[str, Turns]:
    """Of every role, by its name; found by running the programs on every count of rounds that matters."""
    of_tile = {t: c for c in channels for t in c.tiles}
    seen: dict[str, dict[Site, _Seen]] = {r.name: {} for r in kernel.roles}
    used: dict[int, list[rounds.Use]] = {}
    for env in unroll.valuations(kernel):
        counts: dict[str, int] = {}
        order = sorted(kernel.roles, key=lambda r: not any(c.writer is r for c in channels))
        traces = [
            (role, own, _trace(kernel, role, own, of_tile, used))
            for role in order
            for own in unroll.copies(role, env)
        ]
        for role, _, trace in traces:
            for name, uses in trace.items():
                if _writer(channels, name) is role:
                    counts[name] = max([counts.get(name, 0), *(r + 1 for r, _ in uses)])
        for role, _, trace in traces:
            for c in channels:
                if role is c.writer or role in c.readers:
                    uses = trace.get(c.name, [])
                    _note(
                        role, c, uses, counts.get(c.name, 0), seen[role.name], env, kernel, report
                    )
    return {
        role.name: _placed(kernel, role, seen[role.name], channels, report) for role in kernel.roles
    }


def _writer(channels: Sequence[Channel], name: str) -> Role:
    return next(c.writer for c in channels if c.name == name)


Trace = dict[str, list[tuple[int, tuple[Leaf, rounds.Use]]]]


def _trace(
    kernel: Kernel, role: Role, env: unroll.Env, of_tile: Mapping[str, Channel], used
) -> Trace:
    """Channel -> the rounds that a copy of a role uses, in the order in which it does."""
    out: Trace = {}
    for leaf, here in unroll.run(roles.statements(kernel, role), env):
        if leaf.id not in used:
            used[leaf.id] = rounds.uses(leaf, kernel)
        for use in used[leaf.id]:
            channel = of_tile[use.buffer.name]
            at = unroll.number(use.round, here)
            if at is not None:
                out.setdefault(channel.name, []).append((at, (leaf, use)))
    return out


def _note(role, c: Channel, uses, count: int, seen, env, kernel: Kernel, report: Report) -> None:
    """Which uses of one run are the first and the last of their rounds; rounds come one by one."""
    taken = -1
    last: dict[int, Site] = {}
    for at, (leaf, use) in uses:
        site = (leaf.id, c.name, use.key)
        here = seen.setdefault(site, _Seen(use, leaf))
        if at > taken + 1 or at < 0:
            _skipped(role, c, use, taken, at, env, kernel, report)
            return
        if at > taken:
            taken = at
            here.first += 1
        last[at] = site
    if taken + 1 < count and uses:
        _skipped(role, c, uses[-1][1][1], taken, count, env, kernel, report)
        return
    if not uses and count:
        leaf = next(
            x
            for x in _leaves(kernel, role)
            for u in rounds.uses(x, kernel)
            if u.buffer.name in c.tiles
        )
        use = next(u for u in rounds.uses(leaf, kernel) if u.buffer.name in c.tiles)
        _skipped(role, c, use, -1, count, env, kernel, report)
        return
    for at, (leaf, use) in uses:
        here = seen[(leaf.id, c.name, use.key)]
        if last[at] != (leaf.id, c.name, use.key):
            here.other += 1
        elif role is c.writer or at + c.full.slots < count:
            here.last += 1


def _skipped(role, c: Channel, use, taken: int, at: int, env, kernel: Kernel, report) -> None:
    missing = taken + 1
    tile = use.buffer.name
    if at < 0:
        what = f"'{role.name}' uses round {at} of '{tile}'"
        hint = "rounds are counted from 0"
    elif role is c.writer:
        what = f"'{role.name}' writes round {at} of '{tile}' and never round {missing}"
        hint = "rounds are written one by one, from 0 on"
    else:
        what = f"'{role.name}' never takes round {missing} of '{tile}', which '{c.writer.name}' hands on"
        hint = f"take every round in turn; '- skip: {tile}[i]' lets one go by unread"
    report.error(
        use.access.where,
        f"{what} ({numbers(env, kernel)})",
        hint,
        kind=f"rounds {c.name} {role.name}",
    )


def numbers(env: unroll.Env, kernel: Kernel) -> str:
    """The numbers of a run in words; dims are the variant's."""
    dims = dict(kernel.values)
    return "say " + ", ".join(f"{name} = {v}" for name, v in env.items() if name not in dims)


def _leaves(kernel: Kernel, role: Role) -> list[Leaf]:
    return [leaf for s in roles.statements(kernel, role) for leaf in model.leaves(s)]


# -- where arrivals stand --------------------------------------------------------------------------


def _placed(kernel, role: Role, seen: Mapping[Site, _Seen], channels, report: Report) -> Turns:
    """The statement behind which each round goes: the last that uses it, or what that stands in."""
    turns = Turns(first={site for site, s in seen.items() if s.first})
    chains = _chains(roles.statements(kernel, role))
    ids = {chain: at for at, chain in chains.items()}
    for c in channels:
        groups: dict[tuple, list[_Seen]] = {}
        for (at, name, _), s in seen.items():
            if name == c.name and s.last:
                loop = tuple(step for step in chains[at] if step[2] == "loop")
                groups.setdefault((loop, s.use.key), []).append(s)
        for found in groups.values():
            at = ids[_behind([chains[s.leaf.id] for s in found])]
            lifted = [s for s in found if s.leaf.id == at]
            if lifted and len(found) == 1 and found[0].other:
                _torn(role, c, found, report)
                continue
            s = found[-1]
            turns.last.setdefault(at, []).append((c, s.use.round, s.use.access.where))
    return turns


def _torn(role: Role, c: Channel, found: list[_Seen], report: Report) -> None:
    where, tile = found[0].use.access.where, found[0].use.buffer.name
    report.error(
        where,
        f"'{role.name}' is done with some rounds of '{tile}' here, and with others elsewhere",
        f"say where with 'wait: {tile}[...]': behind it the round goes back",
        kind=f"torn {c.name} {role.name}",
    )


Chain = tuple[
    tuple[int, int, str], ...
]  # (block, position of the statement, its kind), outermost first


def _chains(body: Sequence[Statement]) -> dict[int, Chain]:
    out: dict[int, Chain] = {}
    blocks = [0]

    def walk(body: Sequence[Statement], chain: Chain) -> None:
        blocks[0] += 1
        block = blocks[0]
        for i, s in enumerate(body):
            kind = "loop" if isinstance(s, Loop) else "branch" if isinstance(s, Branch) else "leaf"
            here = (*chain, (block, i, kind))
            out[s.id] = here
            for group in model.children(s):
                walk(group, here)

    walk(body, ())
    return out


def _behind(chains: list[Chain]) -> Chain:
    """The statement behind which all of these are over: of the block that they have in common."""
    depth = 0
    while all(len(c) > depth for c in chains) and len({c[depth][0] for c in chains}) == 1:
        depth += 1
    longest = max(chains, key=lambda c: c[depth - 1][1])
    return longest[:depth]
