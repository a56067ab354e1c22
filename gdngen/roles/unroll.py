"""Programs of roles run out: every statement that they do, in order, for numbers of rounds given.

How often roles go round may rest on what is known only at launch. Protocols repeat themselves after as
many rounds as their tiles have places, and parities after twice as many, so a few counts show all.
"""

import ast
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from gdngen.language import expr
from gdngen.language.expr import ExprError, evaluate
from gdngen.model import roles, rounds
from gdngen.model.model import (
    Branch,
    Kernel,
    Leaf,
    Loop,
    Role,
    Statement,
    children,
    leaves,
)

Env = dict[str, int]

MORE = 2  # rounds beyond two turns through all places


def run(body: Sequence[Statement], env: Env) -> Iterator[tuple[Leaf, Env]]:
    """Each leaf as it is done, with the numbers that hold there.

    Of a branch that rests on other numbers both arms are gone through, one after the other.
    """
    for s in body:
        if isinstance(s, Leaf):
            yield s, env
        elif isinstance(s, Branch):
            holds = number(s.cond, env)
            if holds is None or holds:
                yield from run(s.then, env)
            if holds is None or not holds:
                yield from run(s.other, env)
        else:
            count = number(s.count, env)
            for at in range(1 if count is None else count):
                inner = {**env, s.var: at} if s.var and count is not None else dict(env)
                for name, value in s.lets:
                    if (found := number(value, inner)) is not None:
                        inner[name] = found
                yield from run(s.body, inner)


def number(node: ast.expr, env: Mapping[str, int]) -> int | None:
    """The value of an expression, None where it rests on what is not known."""
    try:
        return int(evaluate(node, env))
    except (ExprError, ValueError, TypeError):
        return None


def copies(role: Role, env: Env) -> Iterator[Env]:
    """The numbers of each copy of a role."""
    for at in range(role.copies):
        yield {**env, role.each: at} if role.each else env


def valuations(kernel: Kernel) -> list[Env]:
    """Numbers for all that rounds rest on: each from its least to where protocols repeat themselves."""
    slots = max((b.stages for b in kernel.buffers), default=1)
    dims = {name: v for name, v in kernel.values if not isinstance(v, str)}
    known = {s.name: s for s in kernel.scalars}
    free, made = _unknowns(kernel, dims)
    ranges = dict(kernel.ranges)
    lists = []
    for name in free:
        low, high = ranges.get(name, (-math.inf, math.inf))
        first = int(max(low, -1))
        lists.append(range(first, int(min(high, 2 * slots + MORE)) + 1))
    out = []
    for values in itertools.product(*lists):
        env = {**dims, **dict(zip(free, values))}
        for name in made:
            env[name] = number(known[name].value, env)
        out.append(env)
    return out


def _unknowns(kernel: Kernel, dims: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Names that rounds rest on: those that may be anything, and scalars that follow from them."""
    own: set[str] = set(dims) | {r.each for r in kernel.roles if r.each}
    found: dict[str, None] = {}
    for role in kernel.roles:
        _controls(roles.statements(kernel, role), kernel, {}, found)
    found = {n: None for n in found if n not in own}
    scalars = {s.name: s for s in kernel.scalars}
    made: dict[str, None] = {}
    grown = True
    while grown:
        grown = False
        for name in list(found):
            scalar = scalars.get(name)
            if scalar is None or name in made or scalar.walk or not _plain(scalar.value):
                continue
            parts = [n.id for n in expr.names(scalar.value) if n.id not in own]
            if any(p in found for p in parts):
                made[name] = None
                found |= dict.fromkeys(parts)
                grown = True
    order = [s.name for s in kernel.scalars if s.name in made]
    return [n for n in found if n not in made], order


def rests_on(node: ast.expr) -> frozenset[str]:
    """Names that an expression is made of."""
    return frozenset(n.id for n in expr.names(node))


def _plain(node: ast.expr) -> bool:
    return not any(isinstance(n, ast.Subscript) for n in ast.walk(node))


def _controls(
    body: Sequence[Statement],
    kernel: Kernel,
    bound: Mapping[str, frozenset[str]],
    found: dict[str, None],
) -> None:
    """Collects the names that rounds of staged tiles rest on; `bound` says what indices and lets do."""

    def rest(node: ast.expr) -> None:
        for n in expr.names(node):
            for name in sorted(bound[n.id]) if n.id in bound else (n.id,):
                found.setdefault(name)

    for s in body:
        if isinstance(s, Leaf):
            for use in rounds.uses(s, kernel):
                rest(use.round)
            continue
        inner = dict(bound)
        if isinstance(s, Loop):
            if any(rounds.uses(leaf, kernel) for leaf in leaves(s)):
                rest(s.count)
            if s.var:
                inner[s.var] = frozenset()
            for name, value in s.lets:
                parts = [inner.get(n.id, frozenset({n.id})) for n in expr.names(value)]
                inner[name] = frozenset().union(*parts)
        for group in children(s):
            _controls(group, kernel, inner, found)
