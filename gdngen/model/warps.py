"""Which gemms split their tile over the warps by rows alone.

A product leaves its rows and columns in the registers of the warps that computed them. Where such a
fragment goes on to be the first operand of a gemm, each warp needs whole rows of it, so every product
that meets it element by element must be split by rows too; others are split as the compiler likes.
"""

from gdngen.model.model import Assign, Copy, Gemm, Kernel, Leaf


def by_rows(kernel: Kernel) -> frozenset[int]:
    """Ids of the gemms that meet a fragment operand, directly or through maps and copies."""
    fragments = {b.name for b in kernel.buffers if b.scope == "fragment"}
    gemms = [leaf for leaf in kernel.leaves() if isinstance(leaf, Gemm)]
    held = {g.a.name for g in gemms} & fragments
    ties = [_tied(leaf) & fragments for leaf in kernel.leaves()]
    ties += [frozenset({g.a.name, g.c.name}) for g in gemms if g.a.name in fragments]
    while grown := {n for tie in ties if tie & held for n in tie} - held:
        held |= grown
    return frozenset(g.id for g in gemms if {g.a.name, g.c.name} & held)


def _tied(leaf: Leaf) -> frozenset[str]:
    """Tiles that a statement touches element by element."""
    if isinstance(leaf, (Assign, Copy)):
        return frozenset(a.name for a in leaf.reads() + leaf.writes())
    return frozenset()
