"""Statements on whole tiles: copy, fill, gemm, reduce, cumsum, solve, raw. Shapes, dtypes and scopes agree."""

import ast
from collections.abc import Callable

from gdngen.errors import did_you_mean
from gdngen.language.rawcheck import check_raw
from gdngen.language.source import Source
from gdngen.language.syntax import Statement
from gdngen.model import gemms, model, types
from gdngen.model.context import Context, Scope
from gdngen.model.regions import region, shown

MAX_BLOCK = 32  # rows of a diagonal block: a thread keeps a column of it in registers


def copy(cx: Context, s: Statement, scope: Scope) -> model.Copy:
    src, dst = region(cx, s["source"], scope), _target(cx, s, scope)
    if src.shape != dst.shape:
        raise cx.fail(
            s["source"].where(),
            f"a copy of {shown(src.shape)} into {shown(dst.shape)}",
            "both sides of a copy have one shape",
        )
    if src.name == dst.name and src.name in cx.buffers:
        raise cx.fail(
            s["target"].where(),
            f"'{src.name}' is copied onto itself: a race between threads",
            "copy it into another buffer",
        )
    a, b = cx.dtype_of(src.name), cx.dtype_of(dst.name)
    if a != b and not (types.is_float(a) and types.is_float(b)):
        raise cx.fail(
            s["target"].where(),
            f"a copy of {a} into {b}",
            "a copy converts between floats only; use a map with cast",
        )
    return model.Copy(next(cx.ids), s.where, cx.stage, src, dst)


def fill(cx: Context, s: Statement, scope: Scope) -> model.Fill:
    dst, value = _target(cx, s, scope), s["source"]
    cx.known(value, scope)
    kind = cx.type_of(value, value.node, scope)
    if not types.fits(kind, into := cx.dtype_of(dst.name)):
        raise cx.fail(value.where(), f"{kind} does not fit {into}", f"cast(..., {into})")
    return model.Fill(next(cx.ids), s.where, cx.stage, value.node, dst)


def gemm(cx: Context, s: Statement, scope: Scope) -> model.Gemm:
    (a, ta), (b, tb) = gemms.operand(cx, s["a"], scope), gemms.operand(cx, s["b"], scope)
    c = _target(cx, s, scope)
    mnk = gemms.check(cx, s, gemms.Operands(a, b, c, ta, tb))
    accumulate = s["arrow"] == "+>"
    return model.Gemm(next(cx.ids), s.where, cx.stage, a, b, c, ta, tb, accumulate, mnk)


def reduce(cx: Context, s: Statement, scope: Scope) -> model.Reduce:
    src, dst = region(cx, s["source"], scope), _target(cx, s, scope)
    axis = _axis(cx, s, src)
    want = src.shape[:axis] + src.shape[axis + 1 :] or (1,)
    if dst.shape != want:
        raise cx.fail(
            s["target"].where(),
            f"a reduction of {shown(src.shape)} along axis {axis} into {shown(dst.shape)}",
            f"the target is {shown(want)}",
        )
    _tiles_only(cx, s, src, dst)
    a, b = cx.dtype_of(src.name), cx.dtype_of(dst.name)
    if not types.fits(a, b):
        raise cx.fail(
            s["target"].where(), f"a reduction of {a} into {b} loses digits", f"make it {a}"
        )
    accumulate = s["arrow"] == "+>"
    return model.Reduce(next(cx.ids), s.where, cx.stage, s["op"], src, dst, axis, accumulate)


def cumsum(cx: Context, s: Statement, scope: Scope) -> model.Cumsum:
    src, dst = region(cx, s["source"], scope), _target(cx, s, scope)
    axis = _axis(cx, s, src)
    if dst.shape != src.shape:
        raise cx.fail(
            s["target"].where(),
            f"a running sum of {shown(src.shape)} into {shown(dst.shape)}",
            "both have one shape",
        )
    _tiles_only(cx, s, src, dst)
    if len(src.shape) > 2:
        raise cx.fail(
            s["source"].where(), "a running sum is of one or two axes", "give the others an index"
        )
    if (a := cx.dtype_of(src.name)) != (b := cx.dtype_of(dst.name)):
        raise cx.fail(
            s["target"].where(),
            f"a running sum of {a} into {b}",
            "it keeps its dtype; convert with a copy before or after",
        )
    return model.Cumsum(next(cx.ids), s.where, cx.stage, src, dst, axis, s["reverse"])


def solve(cx: Context, s: Statement, scope: Scope) -> model.Solve:
    src, dst = region(cx, s["source"], scope), _target(cx, s, scope)
    _tiles_only(cx, s, src, dst)
    block = cx.size(s["block"], "the block of a solve", 4, MAX_BLOCK)
    rows = dst.shape[0] if dst.shape else 0
    if dst.shape != (rows, rows) or rows % block:
        raise cx.fail(
            s["target"].where(),
            f"a solve by blocks of {block} into {shown(dst.shape)}",
            "the target is square, and blocks divide its side",
        )
    if block % 4:
        what = f"a block of {block} rows; its rows are read by fours"
        raise cx.fail(s["block"].where(), what, "use 16, what a gemm takes")
    if src.shape != (rows, block):
        raise cx.fail(
            s["source"].where(),
            f"a solve of {shown(src.shape)} into {shown(dst.shape)}",
            f"the source is {shown((rows, block))}: the diagonal blocks, one below the other",
        )
    for r, part in ((src, "source"), (dst, "target")):
        if cx.buffers[r.name].scope != "shared" or not r.whole:
            what = f"a solve works on whole shared tiles, and '{r.name}' is {'a part' if not r.whole else 'not shared'}"
            raise cx.fail(s[part].where(), what, "threads read one another's rows")
    if (kind := cx.dtype_of(src.name)) != "float32":
        raise cx.fail(s["source"].where(), f"a solve of {kind}", "substitution is done in float32")
    if not types.is_float(kind := cx.dtype_of(dst.name)):
        raise cx.fail(
            s["target"].where(), f"a solve into {kind}", "the inverse is made of fractions"
        )
    if cx.threads and cx.threads < rows:
        what = f"a solve of {rows} columns by {cx.threads} threads; each column has a thread of its own"
        raise cx.fail(s["target"].where(), what, f"use {-(-rows // 32) * 32} threads")
    text = ast.unparse(s["block"].node)
    return model.Solve(next(cx.ids), s.where, cx.stage, src, dst, block, text)


def raw(cx: Context, s: Statement, scope: Scope) -> model.Raw:
    tiles = {**cx.buffers, **cx.tensors}
    for word in (*s["reads"], *s["writes"]):
        if word.text not in tiles:
            what = f"unknown buffer or tensor '{word.text}'{did_you_mean(word.text, tiles)}"
            raise cx.fail(word.where, what)
    if not s["writes"]:
        raise cx.fail(s.where, "raw lines that declare no writes", "reads: [a], writes: [b]")
    for word in s["writes"]:
        cx.writable(word.text, word.where)
    reads, writes = ([word.text for word in s[part]] for part in ("reads", "writes"))
    meanings = {**scope.values, **scope.ranges, **cx.dtypes}
    check_raw(s["lines"], reads, writes, tiles, meanings, cx.report)
    lines = tuple(s["lines"].text.split("\n"))
    used, changed = (
        tuple(model.Access(w.text, w.where, False) for w in s[part]) for part in ("reads", "writes")
    )
    return model.Raw(next(cx.ids), s.where, cx.stage, lines, used, changed)


def skip(cx: Context, s: Statement, scope: Scope) -> model.Skip:
    return model.Skip(next(cx.ids), s.where, cx.stage, _staged(cx, s, scope))


def wait(cx: Context, s: Statement, scope: Scope) -> model.Await:
    """Of a tile, or of one round of a staged one."""
    if not cx.in_role:
        hint = "leave it out: without roles a statement is done before the next begins"
        raise cx.fail(s.where, "a wait outside a role", hint)
    tile = region(cx, s["tile"], scope)
    if tile.name in cx.tensors:
        raise cx.fail(s["tile"].where(), f"'{tile.name}' is a tensor; a wait is for a tile")
    return model.Await(next(cx.ids), s.where, cx.stage, tile)


def _staged(cx: Context, s: Statement, scope: Scope) -> model.Region:
    tile = region(cx, s["tile"], scope)
    if tile.name in cx.tensors or not cx.buffers[tile.name].stages:
        what = f"'{tile.name}' is not staged: there is no round of it to let go by"
        raise cx.fail(s["tile"].where(), what, "give it stages, or take the line out")
    return tile


TILE: dict[str, Callable[[Context, Statement, Scope], model.Leaf]] = {
    f.__name__: f for f in (copy, fill, gemm, reduce, cumsum, solve, raw, skip, wait)
}


def _target(cx: Context, s: Statement, scope: Scope) -> model.Region:
    target = region(cx, s["target"], scope)
    cx.writable(target.name, target.where)
    return target


def _axis(cx: Context, s: Statement, of: model.Region) -> int:
    source: Source | None = s["axis"]
    rank = len(of.shape)
    axis = cx.size(source, "the axis", -6, 6) if source else rank - 1
    if not -rank <= axis < rank:
        where = (source or s["source"]).where()
        raise cx.fail(
            where, f"axis {axis} of a tile with {rank} axes", f"0 to {rank - 1}" if rank else None
        )
    return axis % rank


def _tiles_only(cx: Context, s: Statement, *regions: model.Region) -> None:
    for r, part in zip(regions, ("source", "target")):
        if r.name in cx.tensors:
            what = f"'{r.name}' is a tensor in global memory"
            raise cx.fail(s[part].where(), what, "copy it into a buffer first")
