"""Fragments: registers spread over the threads of a block, which no thread can read from another.

A map may touch a fragment only at the map's own index tuple, so that every thread finds its element
in its own registers. One exception is sound: a row statistic, a 1-D fragment made by `reduce` from a
fragment of the same rows (flash attention's running maximum), read at the row index of a map that
touches such a fragment as well: TileLang replicates it along the row. Anything else is refused; the
compiler itself takes some of it and emits wrong code.
"""

import ast

from gdngen.errors import Report
from gdngen.model import model
from gdngen.model.model import Assign, Buffer, Copy, Cumsum, Fill, Kernel, Leaf, Reduce


def check(kernel: Kernel, report: Report) -> None:
    """Reports every access to a fragment that its layout can't serve."""
    fragments = {b.name: b for b in kernel.buffers if b.scope == "fragment"}
    statistics = row_statistics(kernel, fragments)
    for leaf in kernel.leaves():
        _check_local(leaf, kernel, report)
        if isinstance(leaf, Assign):
            _check_map(leaf, fragments, statistics, kernel, report)
        elif not isinstance(leaf, model.Raw):
            _check_whole(leaf, fragments, report)


def _check_local(leaf: Leaf, kernel: Kernel, report: Report) -> None:
    """A local tile is each thread's own; statements that spread over the threads can't fill or read it."""
    if isinstance(leaf, (Fill, model.Raw, model.Broken)):
        return
    for access in leaf.reads() + leaf.writes():
        buffer = kernel.buffer(access.name)
        if buffer and buffer.scope == "local":
            report.error(
                access.where,
                f"'{buffer.name}' is local: each thread has its own, and this statement is spread over them",
                f"make it a fragment, or shared ({buffer.bytes:,} bytes); fill and raw may use a local tile",
                kind=f"local {buffer.name}",
            )


def row_statistics(kernel: Kernel, fragments: dict[str, Buffer]) -> dict[str, int]:
    """1-D fragments -> rows, for those that a `reduce` of a 2-D fragment makes, or that are computed
    element by element from such; never one that is loaded from memory."""
    made = {
        leaf.dst.name: fragments[leaf.dst.name].shape[0]
        for leaf in kernel.leaves()
        if isinstance(leaf, Reduce)
        and leaf.dst.name in fragments
        and len(fragments[leaf.dst.name].shape) == 1
        and leaf.src.name in fragments
        and len(leaf.src.shape) == 2
        and leaf.axis == 1
    }
    loaded = {
        leaf.dst.name
        for leaf in kernel.leaves()
        if isinstance(leaf, Copy) and leaf.src.name not in fragments
    }
    grown = True
    while grown:
        grown = False
        for leaf in kernel.leaves():
            names = [
                n for n in _elementwise(leaf) if n in fragments and len(fragments[n].shape) == 1
            ]
            if not any(n in made for n in names):
                continue
            for n in names:
                if n not in made:
                    made[n], grown = fragments[n].shape[0], True
    return {n: rows for n, rows in made.items() if n not in loaded}


def _elementwise(leaf: Leaf) -> list[str]:
    """Fragments that a statement ties together element by element."""
    if isinstance(leaf, Assign) and len(leaf.axes) == 1:
        return [a.name for a in leaf.reads() + leaf.writes()]
    if isinstance(leaf, Copy):
        return [leaf.src.name, leaf.dst.name]
    return []


def _check_map(leaf: Assign, fragments, statistics, kernel: Kernel, report: Report) -> None:
    own = tuple(a.name for a in leaf.axes)
    accesses = leaf.reads() + leaf.writes()
    for access in accesses:
        buffer = fragments.get(access.name)
        if buffer is None or _is(access.index, own):
            continue
        row = (
            access.index[0].id
            if len(access.index) == 1 and isinstance(access.index[0], ast.Name)
            else None
        )
        if access.name in statistics and row in own and access in leaf.reads():
            beside = [
                a
                for a in accesses
                if a.name in fragments and len(a.index) == len(own) > 1 and _is(a.index, own)
            ]
            rows = [fragments[a.name].shape[own.index(row)] for a in beside]
            if statistics[access.name] in rows and own.index(row) == 0:
                continue
        report.error(
            access.where,
            f"fragment '{access.name}' is touched at [{_text(access.index)}] in a map over ({', '.join(own)}): "
            "threads can't reach one another's registers",
            _way_out(buffer, own),
            kind=f"fragment {access.name}",
        )


def _way_out(buffer: Buffer, own: tuple[str, ...]) -> str:
    return (
        f"make '{buffer.name}' shared ({buffer.bytes:,} bytes), or touch it at [{', '.join(own)}] only; "
        "a row statistic made by reduce may be read by its row, beside a fragment of those rows"
    )


def _check_whole(leaf: Leaf, fragments, report: Report) -> None:
    """Outside maps a fragment is used whole: a slice would cut through the threads' layout."""
    for access in leaf.reads() + leaf.writes():
        buffer = fragments.get(access.name)
        if buffer and access.region and not access.region.whole:
            report.error(
                access.where,
                f"a part of fragment '{access.name}' is used: its elements are spread over the threads",
                f"use all of it, or make it shared ({buffer.bytes:,} bytes)",
                kind=f"part {access.name}",
            )
    if isinstance(leaf, Cumsum):
        for r in (leaf.src, leaf.dst):
            if r.name in fragments:
                report.error(
                    r.where,
                    f"a running sum over fragment '{r.name}' crosses threads",
                    f"make it shared ({fragments[r.name].bytes:,} bytes)",
                )


def _is(index: tuple[ast.expr, ...], own: tuple[str, ...]) -> bool:
    return len(index) == len(own) and all(
        isinstance(i, ast.Name) and i.id == o for i, o in zip(index, own)
    )


def _text(index: tuple[ast.expr, ...]) -> str:
    return ", ".join(ast.unparse(i) for i in index)
