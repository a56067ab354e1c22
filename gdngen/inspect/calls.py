"""What each call of a kernel touches: copies, gemms, reductions and the like."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from gdngen.inspect.kernel import (
    Access,
    Gemm,
    Move,
    Part,
    Reduce,
    Span,
    Statement,
    Tensor,
    number,
)
from gdngen.inspect.values import Env, Held, called, plain

if TYPE_CHECKING:
    from gdngen.inspect.body import Body, Gathered

COPIES = ("copy", "tma_copy", "async_copy")
GEMMS = ("gemm", "gemm_v1", "gemm_v2", "wgmma_gemm", "tcgen05_gemm")
# What orders threads, tells the compiler something, or prints: it touches no tile's elements.
SILENT = tuple(
    "annotate_l2_hit_ratio annotate_min_blocks_per_sm annotate_restrict_buffers annotate_safe_value "
    "assume barrier_arrive barrier_wait cp_async_barrier_noinc dec_max_nreg device_assert "
    "disable_warp_group_reg_alloc evaluate fence_proxy_async func_attr inc_max_nreg mbarrier_arrive "
    "mbarrier_expect_tx mbarrier_init mbarrier_wait_parity no_set_max_nreg pdl_sync pdl_trigger print "
    "set_max_nreg sync_grid sync_threads sync_warp tma_store_arrive tma_store_wait use_swizzle "
    "wait_wgmma warpgroup_arrive warpgroup_commit_batch warpgroup_wait ptx_wait_group "
    "ptx_commit_group".split()
)
GEMM_ARGUMENTS = ("A", "B", "C", "transpose_A", "transpose_B", "policy", "clear_accum")


def read(body: Body, node: ast.Call, env: Env) -> list[Statement]:
    """The statement that a call is; none where it touches nothing."""
    name = called(node.func, env)
    if name in SILENT:
        return []
    if name == "annotate_layout":
        _layouts(body, node, env)
        return []
    if name in COPIES and len(node.args) >= 2:
        return _copy(body, node, env, name)
    if name in GEMMS and len(node.args) >= 3:
        return _gemm(body, node, env)
    if name in ("clear", "fill") and node.args:
        into = _operand(body, node.args[0], env)
        got = body.gather(node.args[1:], env)
        if isinstance(into, Access):
            got.add(replace(into, write=True))
            return [body.leaf("fill", node, got)]
    if name.startswith("reduce") and len(node.args) >= 2:
        return _reduce(body, node, env, name)
    if name == "cumsum" and node.args:
        return _cumsum(body, node, env)
    got = body.gather([], env)
    for access in other(body, node, env, got):
        got.add(access)
    return [body.leaf("call", node, got)] if got.accesses or got.loads else []


def other(body: Body, node: ast.Call, env: Env, got: Gathered) -> list[Access]:
    """Accesses of a call of no known meaning: all that it is given is read, and may be written."""
    name = called(node.func, env)
    if name in SILENT:
        return []
    given = [*node.args, *(k.value for k in node.keywords)]
    found: list[Access] = []
    for part in given:
        held = body.folder.fold(part, env) if isinstance(part, ast.Name) else None
        inside = body.folder.fold(part.value, env) if isinstance(part, ast.Subscript) else None
        if isinstance(held, Held):
            found.append(body.whole(held, False, body.where(part)))
        elif isinstance(inside, Held):
            found.append(body.access(inside, part, env, False, got))
        else:
            body.read(part, env, got)
    if name.startswith("atomic"):  # atomic_add(where, value)
        return [*found[1:], *(replace(a, write=True, exact=False) for a in found[:1]), *found[:1]]
    if found:
        names = ", ".join(dict.fromkeys(a.name for a in found))
        what = ast.unparse(node.func)[:40]
        body.note(
            node, f"what {what} does to {names} is not known: taken as reading and writing it"
        )
    return [*found, *(replace(a, write=True, exact=False) for a in found)]


def _layouts(body: Body, node: ast.Call, env: Env) -> None:
    for given in node.args[:1]:
        for key in given.keys if isinstance(given, ast.Dict) else ():
            held = body.folder.fold(key, env) if key is not None else None
            if isinstance(held, Held):
                body.layouts.append(held.tile)


def _operand(body: Body, node: ast.expr, env: Env) -> Access | tuple[Tensor, tuple | None] | None:
    """A tile or a part of one, as read; or a tensor with its index (None: all of it)."""
    if isinstance(node, ast.Subscript):
        found = body.folder.fold(node.value, env)
        if isinstance(found, Held):
            return body.access(found, node, env, False)
        if isinstance(found, Tensor):
            return found, body.parts(node, found.shape, env) or ()
        return None
    found = body.folder.fold(node, env)
    if isinstance(found, Held):
        return body.whole(found, False, body.where(node))
    return (found, None) if isinstance(found, Tensor) else None


def _copy(body: Body, node: ast.Call, env: Env, name: str) -> list[Statement]:
    source, target = (_operand(body, a, env) for a in node.args[:2])
    got = body.gather([], env)
    for given in node.args[:2]:  # indices may read tiles too
        for part in ast.walk(given) if isinstance(given, ast.Subscript) else ():
            if isinstance(part, ast.Subscript) and part is not given:
                body.read(part, env, got)
    sides = {"source": source, "target": target}
    for side, operand in sides.items():
        if operand is None:
            body.note(node, f"the {side} of this copy is not understood: taken as nothing")
    source, target = _sized(body, source, target), _sized(body, target, source)
    detail = None
    keywords = {k.arg: k.value for k in node.keywords}
    off = "disable_tma" in keywords and body.folder.truth(keywords["disable_tma"], env)
    for store, inner, outer in ((False, target, source), (True, source, target)):
        if isinstance(inner, Access) and isinstance(outer, tuple):
            tensor, part = outer
            tile = replace(inner, write=not store)
            detail = Move(tile, tensor, part, store, bool(off), name == "tma_copy")
    if isinstance(source, Access):
        got.add(source)
    if isinstance(target, Access):
        got.add(replace(target, write=True))
    got.loads |= isinstance(source, tuple)
    return [replace(body.leaf("copy", node, got), detail=detail)]


def _sized(body: Body, one, other):
    """An operand of a copy as a part: an element there is the first corner of what the other side is
    as large as, on the last axes."""
    extents = _extents(body, other)
    if isinstance(one, tuple):
        tensor, parts = one
        if parts is None:
            parts = tuple(Span(ast.Constant(0), number(side)) for side in tensor.shape)
            known = extents or []
            parts = tuple(
                (
                    Span(p.start, p.size if p.size is not None else known[i - len(parts)])
                    if p.size is not None or len(parts) - i <= len(known)
                    else p
                )
                for i, p in enumerate(parts)
            )
            return tensor, parts
        return tensor, _grown(parts, extents)
    if isinstance(one, Access) and one.element and extents:
        parts = _grown(one.index, extents)
        held = Held(one.tile, one.name)
        return body.bounded(held, parts, one.write, one.where, frozenset())
    return one


def _grown(parts: tuple[Part, ...], extents: list[int | None] | None) -> tuple[Part, ...]:
    if any(isinstance(p, Span) for p in parts) or not extents:
        return parts
    sizes = [1] * (len(parts) - len(extents)) + list(extents)[-len(parts) :]
    return tuple(Span(p, size) for p, size in zip(parts, sizes))


def _extents(body: Body, operand) -> list[int | None] | None:
    """The sizes of the axes of a part that are longer than one; None where it is a corner only."""
    if isinstance(operand, Access):
        shape = body.tiles[operand.tile].shape
        if not operand.index:
            return list(shape)
        if operand.element:
            return None
        sizes = [p.size if isinstance(p, Span) else 1 for p in operand.index]
    elif isinstance(operand, tuple):
        tensor, parts = operand
        if parts is None:
            return [number(side) for side in tensor.shape]
        if not any(isinstance(p, Span) for p in parts):
            return None
        sizes = [p.size if isinstance(p, Span) else 1 for p in parts]
    else:
        return None
    while len(sizes) > 1 and sizes[0] == 1:
        sizes = sizes[1:]
    return sizes


def _gemm(body: Body, node: ast.Call, env: Env) -> list[Statement]:
    given = dict(zip(GEMM_ARGUMENTS, node.args)) | {k.arg: k.value for k in node.keywords}
    a, b, c = (_operand(body, given[n], env) for n in "ABC")
    if not all(isinstance(x, Access) for x in (a, b, c)):
        body.note(node, "an operand of this gemm is not understood: taken as nothing")
        known = [x for x in (a, b, c) if isinstance(x, Access)]
        got = body.gather([], env)
        for x in known:
            got.add(replace(x, write=x is c, exact=False))
        return [body.leaf("call", node, got)]

    def flag(name: str) -> bool:
        return name in given and bool(body.folder.truth(given[name], env))

    policy = ast.unparse(given["policy"]).rpartition(".")[2].lower() if "policy" in given else ""
    policy = {"fullrow": "full_row", "fullcol": "full_col"}.get(policy, "square")
    got, clear = body.gather([], env), flag("clear_accum")
    for x in (a, b) if clear else (a, b, c):
        got.add(x)
    c = replace(c, write=True)
    got.add(c)
    detail = Gemm(a, b, c, flag("transpose_A"), flag("transpose_B"), clear, policy)
    return [replace(body.leaf("gemm", node, got), detail=detail)]


def _reduce(body: Body, node: ast.Call, env: Env, name: str) -> list[Statement]:
    source, target = (_operand(body, a, env) for a in node.args[:2])
    keywords = {k.arg: k.value for k in node.keywords}
    rest = node.args[3:] if name == "reduce" else node.args[2:]
    axis = keywords.get("dim", rest[0] if rest else None)
    clear = keywords.get("clear", rest[1] if len(rest) > 1 else None)
    got = body.gather([], env)
    if not isinstance(source, Access) or not isinstance(target, Access):
        body.note(node, "an operand of this reduction is not understood: taken as nothing")
        return []
    got.add(source)
    if clear is not None and body.folder.truth(clear, env) is not True:
        got.add(target)
    target = replace(target, write=True)
    got.add(target)
    at = -1 if axis is None else plain(body.folder.fold(axis, env))
    rank = len(body.tiles[source.tile].shape)
    detail = Reduce(source, target, (at if isinstance(at, int) else -1) % rank)
    return [replace(body.leaf("reduce", node, got), detail=detail)]


def _cumsum(body: Body, node: ast.Call, env: Env) -> list[Statement]:
    keywords = {k.arg: k.value for k in node.keywords}
    given = node.args[1] if len(node.args) > 1 else keywords.get("dst", node.args[0])
    source, target = _operand(body, node.args[0], env), _operand(body, given, env)
    got = body.gather([], env)
    for operand, write in ((source, False), (target, True)):
        if isinstance(operand, Access):
            got.add(replace(operand, write=write))
        elif operand is None:
            body.note(node, "an operand of this running sum is not understood: taken as nothing")
    return [body.leaf("cumsum", node, got)]
