"""Kernel -> kernel: the same values computed by a program that needs less storage at once.

Each rewrite is legal by construction, keeps every value bit for bit, and says what it did.
"""

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from gdngen.language import expr
from gdngen.model.model import (
    Access,
    Assign,
    Axis,
    Branch,
    Buffer,
    Copy,
    Gemm,
    Kernel,
    Leaf,
    Loop,
    Point,
    Region,
    Span,
    Stage,
    Statement,
    leaves,
    touched,
)
from gdngen.plan import compiler


@dataclass(frozen=True)
class Change:
    """One thing that a plan does to the author's program; `kind` moved, strips, in place, staged,
    reload or direct; `at` is the id of the statement moved, where one is; `costs` are bytes of alignment.
    """

    kind: str
    text: str
    names: tuple[str, ...]
    at: int = -1
    costs: int = field(default=0, compare=False)  # of a target, which the change is not


def depends(first: Statement, then: Statement) -> bool:
    """Whether two statements must keep their order: one writes what the other touches."""
    a, b = written(first), written(then)
    return not (a.isdisjoint(touched(then)) and b.isdisjoint(touched(first)))


def written(s: Statement) -> frozenset[str]:
    """Names that a statement writes."""
    return frozenset(a.name for leaf in leaves(s) for a in leaf.writes())


# -- order ---------------------------------------------------------------------------------------


def reordered(kernel: Kernel, order: Sequence[int], moved: set[int]) -> Kernel:
    """The kernel's statements in another order (positions in the author's); a moved statement joins
    the stage in which it now runs."""
    old = kernel.statements()
    names = [stage.name for stage in kernel.stages for _ in stage.body]
    where = {s.name: s.where for s in kernel.stages}
    stays = [names[u] for u in order if u not in moved]
    out: list[tuple[str, Statement]] = []
    left = list(stays)
    for position, u in enumerate(order):
        if u in moved:
            following = next((names[v] for v in order[position:] if v not in moved), stays[-1])
            out.append((following, _in_stage(old[u], following)))
        else:
            out.append((left.pop(0), old[u]))
    return replace(kernel, stages=_grouped(out, where))


def _grouped(statements: list[tuple[str, Statement]], where) -> tuple[Stage, ...]:
    groups: list[tuple[str, list[Statement]]] = []
    for name, s in statements:
        if not groups or groups[-1][0] != name:
            groups.append((name, []))
        groups[-1][1].append(s)
    return tuple(Stage(name, where[name], tuple(body)) for name, body in groups)


def _in_stage(s: Statement, stage: str) -> Statement:
    if isinstance(s, Loop):
        return replace(s, stage=stage, body=tuple(_in_stage(x, stage) for x in s.body))
    if isinstance(s, Branch):
        arms = (tuple(_in_stage(x, stage) for x in arm) for arm in (s.then, s.other))
        return replace(s, stage=stage, then=next(arms), other=next(arms))
    return replace(s, stage=stage)


# -- strips --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chain:
    """map -> gemm -> store over a feature dim: tile[i, j] = f(...); acc = a @ tile; out[:, j] = acc.

    `loads` are the copies of tiles that only the map reads, at its own element: they can be read a
    strip at a time too.
    """

    map: Assign
    gemm: Gemm
    store: Copy
    loads: tuple[Copy, ...]


def chains(kernel: Kernel) -> Iterator[Chain]:
    """Chains that can run strip by strip: nothing else touches their tile and accumulator."""
    body = kernel.statements()
    users: dict[str, list[Statement]] = {}
    for s in body:
        for name in touched(s):
            users.setdefault(name, []).append(s)
    for gemm in body:
        if not isinstance(gemm, Gemm) or gemm.accumulate or gemm.transpose_b or not gemm.b.whole:
            continue
        around_tile, around_acc = users[gemm.b.name], users[gemm.c.name]
        if (
            len(around_tile) != 2
            or len(around_acc) != 2
            or gemm.b.name in (gemm.a.name, gemm.c.name)
        ):
            continue
        made, store = around_tile[0], around_acc[1]
        if (
            not isinstance(made, Assign)
            or not isinstance(store, Copy)
            or store.src.name != gemm.c.name
        ):
            continue
        if _stripable(made, gemm, store, kernel) and _adjacent(body, made, gemm, store):
            loads = tuple(
                s
                for s in body
                if isinstance(s, Copy) and _feeds_only(s, made, gemm, users, body, kernel)
            )
            yield Chain(made, gemm, store, loads)


def _feeds_only(load: Copy, made: Assign, gemm: Gemm, users, body, kernel: Kernel) -> bool:
    """Whether a tile is loaded for the map alone, which reads it at its own element."""
    tile = kernel.buffer(load.dst.name)
    if tile is None or kernel.tensor(load.src.name) is None or users[tile.name] != [load, made]:
        return False
    last = load.src.index[-1] if load.src.index else None
    reads = [a.index for a in made.used if a.name == tile.name]
    same = all(all(map(expr.same, index, made.index)) for index in reads)
    at = {s.id: i for i, s in enumerate(body)}
    waits = body[at[load.id] + 1 : at[gemm.id]]
    return (
        same
        and load.dst.whole
        and tile.shape == kernel.buffer(made.name).shape
        and isinstance(last, Span)
        and not any(depends(load, s) for s in waits if s is not made)
    )


def _stripable(made: Assign, gemm: Gemm, store: Copy, kernel: Kernel) -> bool:
    """The map's last axis is the tile's column, so a strip of columns can be computed alone."""
    own = [a.name for a in made.axes]
    plain = [i.id for i in made.index if isinstance(i, ast.Name)]
    last = store.dst.index[-1] if store.dst.index else None
    return (
        made.covers
        and len(own) == 2
        and plain == own
        and made.name == gemm.b.name
        and kernel.tensor(store.dst.name) is not None
        and isinstance(last, Span)
        and last.size == gemm.mnk[1]
        and len(store.dst.shape) == 2
    )


def _adjacent(
    body: Sequence[Statement], made: Statement, gemm: Statement, store: Statement
) -> bool:
    """The map can wait for the gemm, and the store follow it at once."""
    at = {s.id: i for i, s in enumerate(body)}
    waits = body[at[made.id] + 1 : at[gemm.id]]
    follows = body[at[gemm.id] + 1 : at[store.id]]
    return not any(depends(made, s) for s in waits) and not any(depends(s, store) for s in follows)


def widths(chain: Chain, kernel: Kernel) -> list[int]:
    """Strip widths that divide the chain's columns and that the threads cover, widest first."""
    m, n, k = chain.gemm.mnk
    dtype = kernel.buffer(chain.gemm.b.name).dtype
    return [
        w
        for w in range(n // 2, 31, -1)
        if n % w == 0
        and w % 16 == 0
        and all(
            compiler.covers(compiler.Gemm("a", "b", m, w, k, dtype), kernel.threads, t)
            for t in kernel.targets
        )
    ]


def in_strips(kernel: Kernel, chain: Chain, width: int) -> Kernel:
    """The chain as a loop over strips of `width` columns; its tiles and accumulator shrink to one strip."""
    n = chain.gemm.mnk[1]
    var = fresh(kernel, "d")
    start = ast.BinOp(ast.Name(var), ast.Mult(), ast.Constant(width))
    column = chain.map.axes[1].name
    swap = {column: ast.BinOp(start, ast.Add(), ast.Name(column))}
    loaded = {load.dst.name for load in chain.loads}
    size_text = kernel.buffer(chain.gemm.b.name).shape_text[-1]
    count = ast.BinOp(ast.parse(size_text, mode="eval").body, ast.FloorDiv(), ast.Constant(width))
    stage = chain.gemm.stage
    loads = [
        replace(load, stage=stage, src=_strip(load.src, var, width), dst=_narrowed(load.dst, width))
        for load in chain.loads
    ]
    made = replace(
        chain.map,
        stage=stage,
        axes=(chain.map.axes[0], Axis(column, width, str(width))),
        value=_swapped(chain.map.value, swap, loaded),
        used=tuple(a if a.name in loaded else _swapped_access(a, swap) for a in chain.map.used),
        guard=_swapped(chain.map.guard, swap, loaded) if chain.map.guard is not None else None,
    )
    m, _, k = chain.gemm.mnk
    gemm = replace(
        chain.gemm,
        b=_narrowed(chain.gemm.b, width),
        c=_narrowed(chain.gemm.c, width),
        mnk=(m, width, k),
    )
    store = replace(
        chain.store,
        stage=stage,
        src=_narrowed(chain.store.src, width),
        dst=_strip(chain.store.dst, var, width),
    )
    body = (*loads, made, gemm, store)
    loop = Loop(
        next_id(kernel), chain.gemm.where, stage, "loop", var, count, n // width, True, 1, body
    )
    narrow = {chain.gemm.b.name, chain.gemm.c.name, *loaded}
    buffers = tuple(
        (
            replace(b, shape=b.shape[:-1] + (width,), shape_text=b.shape_text[:-1] + (str(width),))
            if b.name in narrow
            else b
        )
        for b in kernel.buffers
    )
    gone = {chain.map.id, chain.store.id, *(load.id for load in chain.loads)}
    stages = tuple(
        replace(
            s, body=tuple(loop if x.id == chain.gemm.id else x for x in s.body if x.id not in gone)
        )
        for s in kernel.stages
    )
    return replace(kernel, buffers=buffers, stages=tuple(s for s in stages if s.body))


def _strip(r: Region, var: str, width: int) -> Region:
    """The d-th strip of columns of a region of a tensor."""
    last: Span = r.index[-1]
    d = ast.Name(var)
    if last.full or _is_zero(last.start):
        start: ast.expr = ast.BinOp(d, ast.Mult(), ast.Constant(width))
        following = ast.BinOp(d, ast.Add(), ast.Constant(1))
        stop: ast.expr = ast.BinOp(following, ast.Mult(), ast.Constant(width))
    else:
        start = ast.BinOp(last.start, ast.Add(), ast.BinOp(d, ast.Mult(), ast.Constant(width)))
        stop = ast.BinOp(start, ast.Add(), ast.Constant(width))
    strip = Span(start, stop, width, False)
    return replace(r, index=r.index[:-1] + (strip,), shape=r.shape[:-1] + (width,), whole=False)


def _is_zero(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _narrowed(r: Region, width: int) -> Region:
    return Region(r.name, r.where, (), r.shape[:-1] + (width,), True)


def _swapped(node: ast.AST, swap: dict[str, ast.expr], keep: Collection[str] = ()) -> ast.AST:
    """A copy with names swapped for expressions, but not inside elements of the buffers in `keep`."""

    class Swap(ast.NodeTransformer):
        def visit_Subscript(self, n: ast.Subscript):
            return n if n.value.id in keep else self.generic_visit(n)

        def visit_Name(self, n: ast.Name):
            return swap.get(n.id, n)

    return Swap().visit(expr.copied(node))


def _swapped_access(a: Access, swap: dict[str, ast.expr]) -> Access:
    return replace(a, index=tuple(_swapped(i, swap) for i in a.index)) if a.index else a


def at(copy: Copy, name: str, value: ast.expr) -> Copy:
    """The copy where a name has this value."""
    swap = {name: value}

    def moved(part: Point | Span) -> Point | Span:
        if isinstance(part, Point):
            return Point(_swapped(part.at, swap))
        return replace(part, start=_swapped(part.start, swap), stop=_swapped(part.stop, swap))

    src, dst = (replace(r, index=tuple(map(moved, r.index))) for r in (copy.src, copy.dst))
    return replace(copy, src=src, dst=dst)


def fresh(kernel: Kernel, wish: str) -> str:
    """A name that nothing in the kernel has."""
    taken = (
        {b.name for b in kernel.buffers}
        | {t.name for t in kernel.tensors}
        | set(dict(kernel.values))
    )
    taken |= set(kernel.runtime) | {n for n, _ in kernel.grid} | {n for n, _ in kernel.dtypes}
    for leaf in kernel.leaves():
        taken |= {a.name for a in leaf.axes} if isinstance(leaf, Assign) else set()
    taken |= {s.name for s in kernel.scalars}
    taken |= {s.var for s in _loops(kernel.statements()) if s.var}
    while wish in taken:
        wish += "_"
    return wish


def _loops(body: Sequence[Statement]) -> Iterator[Loop]:
    for s in body:
        if isinstance(s, Loop):
            yield s
            yield from _loops(s.body)
        elif isinstance(s, Branch):
            yield from _loops(s.then + s.other)


def next_id(kernel: Kernel) -> int:
    """An id that no statement has."""
    return 1 + max(_ids(kernel.statements()), default=0)


def _ids(body: Sequence[Statement]) -> Iterator[int]:
    for s in body:
        yield s.id
        for group in (
            (s.body,) if isinstance(s, Loop) else (s.then, s.other) if isinstance(s, Branch) else ()
        ):
            yield from _ids(group)


def hoisted(kernel: Kernel, s: Statement) -> Kernel:
    """A statement moved up within its stage, to right behind the last one that it depends on."""

    def moved(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        if s not in body:
            return body
        ahead, behind = body[: body.index(s)], body[body.index(s) + 1 :]
        free = 0
        while free < len(ahead) and not depends(ahead[-1 - free], s):
            free += 1
        at = len(ahead) - free
        return (*ahead[:at], s, *ahead[at:], *behind)

    return replace(kernel, stages=tuple(replace(g, body=moved(g.body)) for g in kernel.stages))


# -- reload and stage-out ------------------------------------------------------------------------


def reload(kernel: Kernel, name: str, before: int) -> Kernel:
    """Loads a tile a second time, into a buffer of its own, for the readers from the statement
    `before` (an id) on."""
    again = fresh(kernel, f"{name}_again")
    load = next(s for s in kernel.statements() if isinstance(s, Copy) and s.dst.name == name)
    second = replace(load, id=next_id(kernel), dst=replace(load.dst, name=again))
    out, seen = [], False
    for stage in kernel.stages:
        body = []
        for s in stage.body:
            if s.id == before:
                seen = True
                body.append(replace(second, stage=stage.name))
            body.append(renamed(s, name, again) if seen else s)
        out.append(replace(stage, body=tuple(body)))
    old = kernel.buffer(name)
    twin = replace(old, name=again, live=None, live_where=None, reuse=None, reuse_where=None)
    return replace(kernel, stages=tuple(out), buffers=kernel.buffers + (twin,))


def renamed(s: Statement, old: str, new: str) -> Statement:
    """The statement with one buffer's name changed."""
    if isinstance(s, Loop):
        return replace(s, body=tuple(renamed(x, old, new) for x in s.body))
    if isinstance(s, Branch):
        arms = (tuple(renamed(x, old, new) for x in arm) for arm in (s.then, s.other))
        return replace(s, then=next(arms), other=next(arms))
    changes = {}
    for part in ("src", "dst", "a", "b", "c"):
        r = getattr(s, part, None)
        if isinstance(r, Region) and r.name == old:
            changes[part] = replace(r, name=new)
    if isinstance(s, Assign):
        swap = {old: ast.Name(new)}
        changes = {
            "name": new if s.name == old else s.name,
            "value": _swapped(s.value, swap),
            "guard": _swapped(s.guard, swap) if s.guard is not None else None,
            "used": tuple(replace(a, name=new) if a.name == old else a for a in s.used),
        }
    return replace(s, **changes)


def staged(kernel: Kernel, store: Copy, tile: str) -> Kernel:
    """The store of a fragment made in two steps: into a new shared tile of the output's dtype, then out."""
    tensor, fragment = kernel.tensor(store.dst.name), kernel.buffer(store.src.name)
    out = Buffer(
        name=tile,
        where=store.where,
        scope="shared",
        shape=fragment.shape,
        shape_text=fragment.shape_text,
        dtype=tensor.dtype,
        dtype_name=tensor.dtype_name,
        live=None,
        live_where=None,
        reuse=None,
        reuse_where=None,
        doc="",
    )
    whole = Region(tile, store.where, (), store.src.shape, True)
    first = replace(store, dst=whole)
    second = replace(store, id=next_id(kernel), src=whole)
    stages = tuple(
        replace(s, body=_split(s.body, store.id, (first, second))) for s in kernel.stages
    )
    return replace(kernel, buffers=kernel.buffers + (out,), stages=stages)


def _split(body: Sequence[Statement], at: int, pieces: tuple[Leaf, ...]) -> tuple[Statement, ...]:
    out: list[Statement] = []
    for s in body:
        if s.id == at:
            out += pieces
        elif isinstance(s, Loop):
            out.append(replace(s, body=_split(s.body, at, pieces)))
        elif isinstance(s, Branch):
            out.append(
                replace(s, then=_split(s.then, at, pieces), other=_split(s.other, at, pieces))
            )
        else:
            out.append(s)
    return tuple(out)
