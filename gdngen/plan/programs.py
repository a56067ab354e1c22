"""The programs that `lean` chooses among: the author's, with chains in strips, with second loads."""

from collections.abc import Iterator
from dataclasses import replace

from gdngen.model.model import Copy, Kernel, leaves, touched
from gdngen.plan import direct, rewrite
from gdngen.plan.rewrite import Chain, Change

Program = tuple[Kernel, tuple[Change, ...]]


def programs(kernel: Kernel, allow_reload: bool) -> Iterator[Program]:
    """The author's program, the same with its chains in strips, and, if asked, with second loads: by
    copies, or by the maps themselves."""
    for program, changes in _stripped(kernel):
        yield program, changes
        if allow_reload:
            yield from _reloaded(program, changes)
    for program, changes in _direct(kernel) if allow_reload else ():
        yield from ((p, changes + more) for p, more in _stripped(program))


def _direct(kernel: Kernel) -> Iterator[Program]:
    """Each tile that maps can do without left out alone, and all of them."""
    found = list(direct.reads(kernel))
    for chosen in [(r,) for r in found] + ([tuple(found)] if len(found) > 1 else []):
        program = kernel
        for read in chosen:
            program = direct.read_directly(program, read)
        yield program, tuple(direct.said(read, kernel) for read in chosen)


def _stripped(kernel: Kernel) -> Iterator[Program]:
    """Every chain in the widest strips below each limit, its own loads whole or in strips too."""
    yield kernel, ()
    found = list(rewrite.chains(kernel))
    legal = {c.gemm.id: rewrite.widths(c, kernel) for c in found}
    for limit in sorted({w for sizes in legal.values() for w in sizes}, reverse=True):
        for with_loads in (False, True):
            cut = [
                (chain if with_loads else replace(chain, loads=()), width)
                for chain in found
                for width in legal[chain.gemm.id]
                if width <= limit < chain.gemm.mnk[1]
            ]
            widest = {chain.gemm.id: (chain, width) for chain, width in reversed(cut)}
            if with_loads and not any(chain.loads for chain, _ in widest.values()):
                continue
            program = kernel
            for chain, width in widest.values():
                program = rewrite.in_strips(program, chain, width)
            if widest:
                yield program, tuple(_strips(chain, width) for chain, width in widest.values())


def _strips(chain: Chain, width: int) -> Change:
    names = [load.dst.name for load in chain.loads] + [chain.gemm.b.name, chain.gemm.c.name]
    text = f"{', '.join(names)} in strips of {width} of {chain.gemm.mnk[1]} columns"
    return Change("strips", text, tuple(names))


def _reloaded(kernel: Kernel, changes: tuple[Change, ...]) -> Iterator[Program]:
    """Every tile that one copy loads and several statements read, loaded again before a later reader."""
    body = kernel.statements()
    for load in body:
        if not isinstance(load, Copy) or kernel.tensor(load.src.name) is None:
            continue
        name = load.dst.name
        buffer = kernel.buffer(name)
        writers = [s for s in body if name in {a.name for leaf in leaves(s) for a in leaf.writes()}]
        readers = [s for s in body if name in touched(s) and s is not load]
        if buffer is None or buffer.scope != "shared" or writers != [load]:
            continue
        for later in readers[1:]:
            text = f"{name} loaded again before line {later.where.line}: {buffer.bytes:,} bytes more traffic a block"
            yield rewrite.reload(kernel, name, later.id), changes + (
                Change("reload", text, (name,)),
            )
