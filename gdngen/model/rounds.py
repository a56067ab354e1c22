"""Staged tiles: `k_s[i]` is what a role hands on in round `i`, and lies in one of a few places.

A spec counts rounds without end; the tile's first axis is the places, round `i` in place `i % stages`.
Every use is written out so, `k_s[i]` as `k_s[i % S, :, :]`, and nothing behind needs to know more.
"""

import ast
import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gdngen.language import expr
from gdngen.language.source import Source
from gdngen.language.syntax import Spec, rewritten
from gdngen.model.context import Context, Stop
from gdngen.model.model import Access, Await, Buffer, Kernel, Leaf, Region, Skip
from gdngen.model.regions import indices

MAX_STAGES = 8


def laid_out(spec: Spec, cx: Context) -> Spec:
    """The spec with the places of staged tiles for a first axis; mistakes are reported."""
    staged: dict[str, ast.expr] = {}
    buffers = []
    for b in spec.buffers:
        if b.stages is not None and not b.faulty:
            try:
                cx.size(b.stages, f"the stages of '{b.name}'", 1, MAX_STAGES)
                staged[b.name] = b.stages.node
                b = replace(b, shape=(b.stages, *b.shape))
            except Stop:  # reported
                b = replace(b, faulty=True)
        buffers.append(b)
    if not staged:
        return spec
    ranks = {b.name: len(b.shape) for b in buffers}
    writer = _Rounds(staged, ranks, cx)
    stages = rewritten(spec.stages, writer.written_out)
    return replace(spec, buffers=tuple(buffers), stages=stages)


@dataclass(frozen=True)
class _Rounds:
    staged: Mapping[str, ast.expr]
    ranks: Mapping[str, int]
    cx: Context

    def written_out(self, source: Source) -> Source:
        """The expression with every round in its place; a staged tile without one is a mistake."""
        bare = [n for n in _bare(source.node) if n.id in self.staged]
        for n in bare:
            what = f"'{n.id}' is staged: which round of it?"
            self.cx.report.error(source.where(n), what, f"{n.id}[i], for round i")
        return replace(source, node=_Placer(self).visit(expr.copied(source.node)))


class _Placer(ast.NodeTransformer):
    def __init__(self, rounds: _Rounds):
        self.rounds = rounds

    def visit_Subscript(self, n: ast.Subscript) -> ast.Subscript:
        self.generic_visit(n)
        name = n.value.id if isinstance(n.value, ast.Name) else ""
        if name not in self.rounds.staged or isinstance(indices(n)[0], ast.Slice):
            return n  # a range of rounds is reported with the other ranges of unknown size
        at, *rest = indices(n)
        place = ast.copy_location(ast.BinOp(at, ast.Mod(), self.rounds.staged[name]), at)
        rest += [ast.Slice()] * (self.rounds.ranks[name] - 1 - len(rest))
        whole = ast.Tuple([place, *rest], ast.Load()) if rest else place
        return ast.copy_location(ast.Subscript(n.value, whole, n.ctx), n)


def _bare(node: ast.AST):
    """Names that stand without an index."""
    if isinstance(node, ast.Name):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        named = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
        if not (named and child is node.value):
            yield from _bare(child)


# -- behind ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Use:
    """What a statement does with one round of a staged tile."""

    buffer: Buffer
    round: ast.expr
    access: Access
    writes: bool

    @functools.cached_property
    def key(self) -> str:
        """The round as text: equal where the rounds are equal on the face of it."""
        return ast.unparse(self.round)


def uses(leaf: Leaf, kernel: Kernel) -> list[Use]:
    """Rounds of staged tiles that a statement reads, then those that it writes or lets go."""
    reads, writes = leaf.reads(), leaf.writes()
    if isinstance(leaf, (Skip, Await)):
        reads = (Access(leaf.tile.name, leaf.tile.where, False, region=leaf.tile),)
    found = [(a, False) for a in reads] + [(a, True) for a in writes]
    out = []
    for access, writing in found:
        buffer = kernel.buffer(access.name)
        if buffer is not None and buffer.stages:
            out.append(Use(buffer, round_of(access), access, writing))
    return out


def round_of(access: Access) -> ast.expr:
    """The round that an access to a staged tile is of."""
    first = access.index[0] if access.index else _first(access.region)
    return first.left


def _first(region: Region) -> ast.expr:
    return region.index[0].at
