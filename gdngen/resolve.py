"""`Spec` and one choice of values -> `Kernel`: names, shapes, types and bounds, all checked."""

import ast
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from gdngen import model, spec as syntax, types
from gdngen.errors import Location, Report, did_you_mean
from gdngen.expr import (
    CONSTANTS,
    FUNCTIONS,
    ExprError,
    Range,
    Source,
    constant,
    evaluate,
    interval,
    linear,
    names,
)

MAX_POINTS = 200_000  # of a map, when an index must be tried point by point
MAX_ELEMENTS = 2**24
DEFAULT_TARGETS = ("sm_80", "sm_90")


@dataclass(frozen=True)
class Scope:
    """What names mean at one place: known values, ranges of the others, and map axes."""

    values: Mapping[str, int | str | bool]
    ranges: Mapping[str, Range]
    axes: tuple[model.Axis, ...] = ()

    def inside(self, **ranges: Range) -> "Scope":
        return replace(self, ranges={**self.ranges, **ranges})


class Stop(Exception):
    """This statement can't be resolved further; the report says why."""


def resolve(spec: syntax.Spec, choice: syntax.Choice, report: Report) -> model.Kernel | None:
    """The kernel of one variant, or None where its values alone are already wrong."""
    values = _values(spec, choice, report)
    if values is None:
        return None
    return _Resolver(spec, values, report).kernel()


def _values(spec: syntax.Spec, choice: syntax.Choice, report: Report):
    """dims -> int, options -> word, dtypes -> dtype; None if anything is missing or unknown."""
    given = {k: v for k, v in choice.values if k}
    dims, dtypes = [d.text for d in spec.dims], {k.text: v for k, v in spec.dtypes}
    options = {k.text: v for k, v in spec.options}
    out: dict[str, int | str] = {}
    fine = True
    for name, text in given.items():
        if name in dims and text.isdecimal() and 0 < int(text[:9]) == int(text) <= 65536:
            out[name] = int(text)
        elif name in dims:
            report.error(choice.where, f"{name}={text[:40]}: a dim is a whole number from 1 to 65536")
            fine = False
        elif name in dtypes and text in syntax.DTYPES:
            out[name] = text
        elif name in dtypes:
            near = did_you_mean(text, syntax.DTYPES)
            report.error(choice.where, f"{name}={text[:40]}: not a dtype{near}")
            fine = False
        elif name in options and text in options[name]:
            out[name] = text
        elif name in options:
            words = " ".join(options[name])
            report.error(choice.where, f"{name}={text[:40]}: not a choice", f"choices: {words}")
            fine = False
        else:
            known = [*dims, *dtypes, *options]
            report.error(
                choice.where,
                f"unknown name '{name[:40]}' in variants{did_you_mean(name, known)}",
                f"dims, dtypes and options: {' '.join(known)}",
            )
            fine = False
    for name in dims + [k for k, v in dtypes.items() if v is None]:
        if name not in out and name not in given:
            report.error(choice.where, f"no value for '{name}'", "name it under variants, or with --set")
            fine = False
    out = {k: v for k, v in dtypes.items() if v is not None} | out
    return {k: v[0] for k, v in options.items()} | out if fine else None


def typed(word: str) -> int | str | bool:
    """A choice of an option, as expressions see it."""
    if word in ("true", "false"):
        return word == "true"
    return int(word) if word.isdecimal() and len(word) < 10 else word


class _Resolver:
    def __init__(self, spec: syntax.Spec, values: dict[str, int | str], report: Report):
        self.spec, self.report, self.chosen = spec, report, values
        dtype_names = [k.text for k, _ in spec.dtypes]
        options = [k.text for k, _ in spec.options]
        self.dtypes = {d: d for d in syntax.DTYPES} | {n: str(values[n]) for n in dtype_names}
        self.scope = Scope(
            {d.text: values[d.text] for d in spec.dims} | {o: typed(str(values[o])) for o in options},
            {r.text: (1.0, math.inf) for r in spec.runtime},
        )
        self.tensors: dict[str, model.Tensor] = {}
        self.buffers: dict[str, model.Buffer] = {}
        self.absent: set[str] = set()
        self.ids = itertools.count()
        self.groups = itertools.count()
        self.stage = ""
        self.threads = 128

    # -- errors and values -------------------------------------------------------------------

    def fail(self, where: Location, what: str, hint: str | None = None, kind: str = "") -> Stop:
        self.report.error(where, what, hint, kind)
        return Stop()

    def known(self, source: Source, scope: Scope, extra: Mapping | set = frozenset()) -> None:
        """Every name of the expression has a meaning here; a did-you-mean for each that has none."""
        wrong = False
        for name in names(source.node):
            meant = name.id in scope.values or name.id in scope.ranges or name.id in extra
            if not meant and name.id not in CONSTANTS and name.id not in self.dtypes:
                wrong = True
                near = [*scope.values, *scope.ranges, *extra]
                hint = f"'{name.id}' is left out by its 'when' in this variant" if name.id in self.absent else None
                self.report.error(
                    source.where(name), f"unknown name '{name.id}'{did_you_mean(name.id, near)}", hint
                )
        if wrong:
            raise Stop

    def static(self, source: Source, scope: Scope | None = None):
        scope = scope or self.scope
        self.known(source, scope)
        try:
            return evaluate(source.node, scope.values)
        except ExprError as e:
            raise self.fail(source.where(e.node), e.what, e.hint) from None

    def size(self, source: Source, what: str, least: int = 1, most: int = MAX_ELEMENTS) -> int:
        value = self.static(source)
        if isinstance(value, float) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.fail(source.where(), f"{what} is {value}; a whole number from {least} to {most:,} is meant")
        return value

    def dtype(self, word, owner: str) -> str:
        if word.text in self.dtypes:
            return self.dtypes[word.text]
        near = did_you_mean(word.text, self.dtypes)
        raise self.fail(word.where, f"unknown dtype '{word.text[:40]}' of '{owner}'{near}",
                        "name it under dtypes, or write float16, bfloat16, float32 ...")  # fmt: skip

    def present(self, when: Source | None) -> bool:
        return when is None or bool(self.static(when))

    # -- the kernel --------------------------------------------------------------------------

    def kernel(self) -> model.Kernel | None:
        spec = self.spec
        self.unique_names()
        for declare in (*spec.tensors, *spec.buffers):
            try:
                if not self.present(declare.when):
                    self.absent.add(declare.name)
                elif isinstance(declare, syntax.Tensor):
                    self.tensors[declare.name] = self.tensor(declare)
                else:
                    self.buffers[declare.name] = self.buffer(declare)
            except Stop:
                self.absent.add(declare.name)
        try:
            grid = tuple(self.grid())
            if spec.threads:
                self.threads = self.size(spec.threads, "threads", 32, 1024)
                if self.threads % 32:
                    raise self.fail(spec.threads.where(), f"{self.threads} threads are not whole warps of 32")
        except Stop:
            return None
        stages = []
        for stage in spec.stages:
            self.stage = stage.name
            stages.append(model.Stage(stage.name, stage.where, self.block(stage.body, self.scope)))
        kernel = model.Kernel(
            spec=spec.file,
            name=spec.kernel,
            module="",
            where=spec.where,
            doc=spec.doc,
            values=tuple((k, v) for k, v in self.scope.values.items()),
            dims=tuple(d.text for d in spec.dims),
            dtypes=tuple((k.text, self.dtypes[k.text]) for k, _ in spec.dtypes),
            runtime=tuple(r.text for r in spec.runtime),
            tensors=tuple(self.tensors.values()),
            buffers=tuple(self.buffers.values()),
            grid=grid,
            threads=self.threads,
            stages=tuple(s for s in stages if s.body),
            targets=tuple(t.text for t in spec.targets) or DEFAULT_TARGETS,
            reference=spec.reference,
            ranges=tuple(self.scope.ranges.items()),
        )
        used = {name for s in kernel.statements() for name in model.touched(s)}
        return replace(kernel, buffers=tuple(b for b in kernel.buffers if b.name in used))

    def unique_names(self) -> None:
        """One name, one meaning: dims, sizes, dtypes, options, tensors, buffers, block indices, stages."""
        spec, seen = self.spec, {}
        groups = (
            ("dim", [(d.text, d.where) for d in spec.dims]),
            ("runtime size", [(r.text, r.where) for r in spec.runtime]),
            ("dtype", [(k.text, k.where) for k, _ in spec.dtypes]),
            ("option", [(k.text, k.where) for k, _ in spec.options]),
            ("tensor", [(t.name, t.where) for t in spec.tensors]),
            ("buffer", [(b.name, b.where) for b in spec.buffers]),
            ("block index", [(k.text, k.where) for k, _ in spec.grid]),
            ("stage", [(s.name, s.where) for s in spec.stages]),
        )
        for kind, entries in groups:
            for name, where in entries:
                if name in FUNCTIONS or name in CONSTANTS or (name in syntax.DTYPES):
                    self.report.error(where, f"a {kind} can't be called '{name}': the language has that name")
                elif name in seen:
                    first, line = seen[name]
                    self.report.error(
                        where, f"a {kind} and a {first} share the name '{name}'", f"the {first} is on line {line}"
                    )
                seen.setdefault(name, (kind, where.line))

    def grid(self) -> Iterator[tuple[str, ast.expr]]:
        ranges = {}
        for key, size in self.spec.grid:
            self.known(size, self.scope)
            low, high = interval(size.node, self.scope.values, self.scope.ranges)
            if high < 1:
                raise self.fail(size.where(), f"the grid has no blocks along '{key.text}'")
            ranges[key.text] = (0.0, high - 1)
            yield key.text, size.node
        self.scope = self.scope.inside(**ranges)

    def tensor(self, t: syntax.Tensor) -> model.Tensor:
        for s in t.shape:
            self.known(s, self.scope)
        dtype = self.dtype(t.dtype, t.name)
        shape = tuple(s.node for s in t.shape)
        return model.Tensor(t.name, t.where, t.role, shape, dtype, t.dtype.text, t.doc, t.sample)

    def buffer(self, b: syntax.Buffer) -> model.Buffer:
        shape = tuple(self.size(s, f"a side of '{b.name}'") for s in b.shape)
        if math.prod(shape) > MAX_ELEMENTS:
            raise self.fail(b.where, f"'{b.name}' has {math.prod(shape):,} elements; at most {MAX_ELEMENTS:,}")
        stages = [s.name for s in self.spec.stages]
        for word in b.live or ():
            if word.text not in stages:
                near = did_you_mean(word.text, stages)
                raise self.fail(
                    word.where, f"unknown stage '{word.text[:40]}' in the lifetime of '{b.name}'{near}",
                    f"stages: {' '.join(stages)}",
                )  # fmt: skip
        if b.live and stages.index(b.live[0].text) > stages.index(b.live[1].text):
            raise self.fail(b.live[0].where, f"the lifetime of '{b.name}' ends before it starts",
                            f"live: {b.live[1].text} .. {b.live[0].text}")  # fmt: skip
        if b.reuse and b.reuse.text not in {x.name for x in self.spec.buffers}:
            near = did_you_mean(b.reuse.text, [x.name for x in self.spec.buffers])
            raise self.fail(b.reuse.where, f"'{b.name}' reuses an unknown buffer '{b.reuse.text[:40]}'{near}")
        return model.Buffer(
            name=b.name,
            where=b.where,
            scope=b.scope,
            shape=shape,
            shape_text=tuple(ast.unparse(s.node) for s in b.shape),
            dtype=self.dtype(b.dtype, b.name),
            dtype_name=b.dtype.text,
            live=(b.live[0].text, b.live[1].text) if b.live else None,
            live_where=(b.live[0].where, b.live[1].where) if b.live else None,
            reuse=b.reuse.text if b.reuse else None,
            reuse_where=b.reuse.where if b.reuse else None,
            doc=b.doc,
        )

    # -- statements --------------------------------------------------------------------------

    def block(self, body: tuple[syntax.Statement, ...], scope: Scope) -> tuple[model.Statement, ...]:
        out: list[model.Statement] = []
        for s in body:
            try:
                out += self.statement(s, scope)
            except Stop:
                continue  # reported; the next statement may have mistakes of its own
        return tuple(out)

    def statement(self, s: syntax.Statement, scope: Scope) -> list[model.Statement]:
        if s.when is not None and s.kind != "when":
            inner = replace(s, when=None)
            s = syntax.Statement("when", s.where, {"cond": s.when}, (inner,))
        if s.kind == "when":
            return self.condition(s, scope)
        if s.kind == "map":
            return self.map(s, scope)
        if s.kind in ("repeat", "loop", "pipelined"):
            return [self.loop(s, scope)]
        return [getattr(self, s.kind)(s, scope)]

    def condition(self, s: syntax.Statement, scope: Scope) -> list[model.Statement]:
        """A `when` on dims and options picks an arm now; on block or loop indices, in the kernel."""
        cond = s["cond"]
        self.known(cond, scope)
        if all(n.id in scope.values or n.id in CONSTANTS for n in names(cond.node)):
            arm = s.body if self.static(cond, scope) else s.other
            return list(self.block(arm, scope))
        self.type_of(cond, cond.node, scope)
        at = next(self.ids)
        then, other = self.block(s.body, scope), self.block(s.other, scope)
        return [model.Branch(at, s.where, self.stage, cond.node, then, other)] if then or other else []

    def loop(self, s: syntax.Statement, scope: Scope) -> model.Loop:
        at = next(self.ids)
        var, count = (None, s["count"]) if s.kind == "repeat" else (s["axis"][0], s["axis"][1])
        self.known(count, scope)
        low, high = interval(count.node, scope.values, scope.ranges)
        trips = constant(linear(count.node, scope.values))
        if high < 1 or (trips is not None and trips < 1):
            raise self.fail(count.where(), f"a loop of {int(high) if math.isfinite(high) else trips} rounds")
        if var:
            self.fresh(var, scope)
        num_stages = self.size(s["stages"], "stages", 1, 8) if s["stages"] else 2 if s.kind == "pipelined" else 1
        inner = scope.inside(**{var.text: (0.0, high - 1)}) if var else scope
        body = self.block(s.body, inner)
        name = var.text if var else None
        return model.Loop(at, s.where, self.stage, s.kind, name, count.node, trips, low >= 1, num_stages, body)

    def fresh(self, name, scope: Scope) -> None:
        taken = {**scope.values, **scope.ranges, **self.tensors, **self.buffers}
        if name.text in taken:
            raise self.fail(name.where, f"'{name.text}' is already a name here", "give the index another name")

    def copy(self, s, scope: Scope) -> model.Copy:
        src, dst = self.region(s["source"], scope), self.region(s["target"], scope)
        self.writable(dst)
        where = s["target"].where()
        if src.shape != dst.shape:
            raise self.fail(s["source"].where(), f"a copy of {_show(src.shape)} into {_show(dst.shape)}",
                            "both sides of a copy have one shape")  # fmt: skip
        a, b = self.dtype_of(src.name), self.dtype_of(dst.name)
        if types.is_float(a) != types.is_float(b):
            raise self.fail(where, f"a copy of {a} into {b}", "a copy converts between floats only; use a map with cast")
        return model.Copy(next(self.ids), s.where, self.stage, src, dst)

    def fill(self, s, scope: Scope) -> model.Fill:
        dst = self.region(s["target"], scope)
        self.writable(dst)
        kind = self.type_of(s["source"], s["source"].node, scope)
        if not types.fits(kind, self.dtype_of(dst.name)):
            raise self.fail(s["source"].where(), f"{kind} does not fit {self.dtype_of(dst.name)}")
        return model.Fill(next(self.ids), s.where, self.stage, s["source"].node, dst)

    def gemm(self, s, scope: Scope) -> model.Gemm:
        (a, ta), (b, tb) = self.operand(s["a"], scope), self.operand(s["b"], scope)
        c = self.region(s["target"], scope)
        self.writable(c)
        for r, source in ((a, s["a"]), (b, s["b"]), (c, s["target"])):
            if r.name in self.tensors:
                raise self.fail(source.where(), f"'{r.name}' is a tensor in global memory",
                                "copy it into a shared buffer first: a gemm works on tiles")  # fmt: skip
            if len(r.shape) != 2:
                raise self.fail(source.where(), f"a gemm works on matrices; '{r.name}' is {_show(r.shape)} here")
        (m, k), (k2, n) = a.shape[:: -1 if ta else 1], b.shape[:: -1 if tb else 1]
        if k != k2 or (m, n) != c.shape:
            raise self.fail(
                s["a"].where(),
                f"shapes don't match: {_show((m, k))} @ {_show((k2, n))} into {_show(c.shape)}",
                f"{_show((m, k))} @ {_show((k, n))} gives {_show((m, n))}" if k == k2 else "transpose one with .T?",
            )
        da, db, dc = (self.dtype_of(r.name) for r in (a, b, c))
        if da != db:
            raise self.fail(s["a"].where(), f"gemm operands of two dtypes: {a.name} {da}, {b.name} {db}",
                            "TileLang refuses mixed operands: give both tiles one dtype")  # fmt: skip
        if dc not in ("float32", "float64", "int32") and dc != da:
            raise self.fail(s["target"].where(), f"a gemm of {da} can't accumulate in {dc}", "use float32")
        if self.buffers[c.name].scope != "fragment":
            raise self.fail(s["target"].where(), f"'{c.name}' is {self.buffers[c.name].scope}; a gemm accumulates in a fragment",
                            "accumulate in a fragment, then copy it")  # fmt: skip
        if self.buffers[b.name].scope != "shared" or self.buffers[a.name].scope == "local":
            wrong = b if self.buffers[b.name].scope != "shared" else a
            raise self.fail(s["b" if wrong is b else "a"].where(), f"'{wrong.name}' is {self.buffers[wrong.name].scope}",
                            "the second operand of a gemm is shared, the first shared or a fragment")  # fmt: skip
        if reason := uncovered(m, n, self.threads):
            raise self.fail(s["target"].where(), f"{self.threads} threads can't cover a gemm tile of {m}x{n}: {reason}",
                            f"use at most {most_threads(m, n)} threads, or a larger tile")  # fmt: skip
        if k % 8:
            raise self.fail(s["a"].where(), f"a gemm sums over a multiple of 8; {k} here", "pad the tile")
        return model.Gemm(
            next(self.ids), s.where, self.stage, a, b, c, ta, tb, s["arrow"] == "+>", (m, n, k)
        )

    def operand(self, source: Source, scope: Scope) -> tuple[model.Region, bool]:
        if isinstance(source.node, ast.Attribute):
            if source.node.attr != "T":
                raise self.fail(source.where(), f"'.{source.node.attr}' has no meaning; .T transposes")
            return self.region(source.of(source.node.value), scope), True
        return self.region(source, scope), False

    def reduce(self, s, scope: Scope) -> model.Reduce:
        src, dst = self.region(s["source"], scope), self.region(s["target"], scope)
        self.writable(dst)
        axis = self.axis(s["axis"], s["source"], src)
        want = src.shape[:axis] + src.shape[axis + 1 :]
        if dst.shape != (want or (1,)):
            raise self.fail(s["target"].where(), f"a reduction of {_show(src.shape)} along axis {axis} into {_show(dst.shape)}",
                            f"the target is {_show(want or (1,))}")  # fmt: skip
        self.tiles_only(s, src, dst)
        a, b = self.dtype_of(src.name), self.dtype_of(dst.name)
        if not types.fits(a, b):
            raise self.fail(s["target"].where(), f"a reduction of {a} into {b} loses digits", "use a wider target")
        return model.Reduce(next(self.ids), s.where, self.stage, s["op"], src, dst, axis, s["arrow"] == "+>")

    def cumsum(self, s, scope: Scope) -> model.Cumsum:
        src, dst = self.region(s["source"], scope), self.region(s["target"], scope)
        self.writable(dst)
        axis = self.axis(s["axis"], s["source"], src)
        if dst.shape != src.shape:
            raise self.fail(s["target"].where(), f"a running sum of {_show(src.shape)} into {_show(dst.shape)}",
                            "both have one shape")  # fmt: skip
        self.tiles_only(s, src, dst)
        if self.dtype_of(src.name) != self.dtype_of(dst.name):
            raise self.fail(s["target"].where(), "a running sum keeps its dtype", "convert with a copy before or after")
        return model.Cumsum(next(self.ids), s.where, self.stage, src, dst, axis, s["reverse"])

    def axis(self, source: Source | None, of: Source, region: model.Region) -> int:
        axis = self.size(source, "the axis", -6, 6) if source else len(region.shape) - 1
        if not -len(region.shape) <= axis < len(region.shape):
            raise self.fail((source or of).where(), f"axis {axis} of a tile with {len(region.shape)} axes")
        return axis % len(region.shape)

    def tiles_only(self, s, *regions: model.Region) -> None:
        for r, part in zip(regions, ("source", "target")):
            if r.name in self.tensors:
                raise self.fail(s[part].where(), f"'{r.name}' is a tensor in global memory", "copy it into a buffer first")

    def raw(self, s, scope: Scope) -> model.Raw:
        from gdngen.rawcheck import check_raw  # the one place that reads foreign text

        accesses = {}
        for part in ("reads", "writes"):
            for name in s[part]:
                if name.text not in self.buffers and name.text not in self.tensors:
                    raise self.fail(name.where, f"unknown name '{name.text}'{did_you_mean(name.text, {**self.buffers, **self.tensors})}")
            accesses[part] = tuple(model.Access(n.text, n.where, False) for n in s[part])
        if s["writes"] == () and s["reads"] == ():
            raise self.fail(s.where, "raw lines without declared reads and writes", "reads: [a], writes: [b]")
        declared = {n.text for part in ("reads", "writes") for n in s[part]}
        meanings = {**scope.values, **scope.ranges, **self.dtypes}
        check_raw(s["lines"], declared, {**self.buffers, **self.tensors}, meanings, self.report)
        for access in accesses["writes"]:
            if access.name in self.tensors and self.tensors[access.name].role == "in":
                raise self.fail(access.where, f"'{access.name}' is an input; it can't be written")
        lines = tuple(s["lines"].text.splitlines())
        return model.Raw(next(self.ids), s.where, self.stage, lines, accesses["reads"], accesses["writes"])

    # -- maps --------------------------------------------------------------------------------

    def map(self, s, scope: Scope) -> list[model.Statement]:
        axes = []
        for name, extent in s["axes"]:
            self.fresh(name, scope)
            size = self.static(extent, scope)
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 65536:
                raise self.fail(extent.where(), f"an extent of {size}", "a whole number from 1 to 65536")
            axes.append(model.Axis(name.text, size, ast.unparse(extent.node)))
        inner = replace(scope.inside(**{a.name: (0.0, a.extent - 1.0) for a in axes}), axes=tuple(axes))
        group, out = next(self.groups), []
        for assign in s.body:
            try:
                out.append(self.assign(assign, s["guard"], tuple(axes), inner, group))
            except Stop:
                continue
        return out

    def assign(self, s, guard: Source | None, axes, scope: Scope, group: int) -> model.Assign:
        target, value = s["target"], s["value"]
        name, index = self.element(target, target.node, scope)
        self.known(value, scope, {**self.tensors, **self.buffers})
        self.writable(model.Region(name, target.where(), (), (), False))
        guards = ()
        used: list[model.Access] = []
        if guard is not None:
            self.known(guard, scope, {**self.tensors, **self.buffers})
            self.type_of(guard, guard.node, scope)
            used += self.elements(guard, guard.node, scope, ())
            guards = (guard.node,)
        kind = self.type_of(value, value.node, scope)
        used += self.elements(value, value.node, scope, guards)
        into = self.dtype_of(name)
        if not types.fits(kind, into):
            raise self.fail(value.where(), f"a store of {kind} into '{name}', which is {into}, loses digits",
                            f"say so: cast(..., {self.dtype_name_of(name)})")  # fmt: skip
        self.in_bounds(name, index, target, target.node, scope, guards)
        covers = self.injective(name, index, target, axes, scope, guards) and guard is None
        for access in used:
            if access.name == name and [ast.dump(i) for i in access.index] != [ast.dump(i) for i in index]:
                raise self.fail(
                    access.where,
                    f"'{name}' is read at another element than the one written here: a race between threads",
                    "write into another buffer, or copy this one first",
                )
        return model.Assign(
            next(self.ids), s.where, self.stage, axes, name, index, value.node,
            guard.node if guard else None, covers, tuple(used), group,
        )  # fmt: skip

    def element(self, source: Source, node: ast.AST, scope: Scope) -> tuple[str, tuple[ast.expr, ...]]:
        """The buffer or tensor and the index of `name[i, j]`."""
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            raise self.fail(source.where(node), "an element is meant here: name[i, j]")
        name = node.value.id
        rank = self.rank(source, node.value)
        index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for i in index:
            if isinstance(i, ast.Slice):
                raise self.fail(source.where(i), "one element is meant here, not a range")
            self.known(source.of(i), scope)
            self.integer(source, i, scope)
        if len(index) != rank:
            raise self.fail(source.where(node), f"'{name}' has {rank} axes, {len(index)} indices given")
        return name, tuple(index)

    def integer(self, source: Source, node: ast.AST, scope: Scope) -> None:
        kind = self.type_of(source, node, scope)
        if types.is_float(kind) or kind == "bool":
            raise self.fail(source.where(node), f"an index is a whole number, not {kind}")

    def elements(self, source: Source, node: ast.AST, scope: Scope, guards) -> list[model.Access]:
        """Every element that an expression reads, bounds checked under the conditions around it."""
        if isinstance(node, ast.Subscript):
            name, index = self.element(source, node, scope)
            self.in_bounds(name, index, source, node, scope, guards)
            return [model.Access(name, source.where(node), False, index)]
        if isinstance(node, ast.Call) and node.func.id == "where":
            c, a, b = node.args
            otherwise = ast.UnaryOp(ast.Not(), c)
            return (
                self.elements(source, c, scope, guards)
                + self.elements(source, a, scope, guards + (c,))
                + self.elements(source, b, scope, guards + (otherwise,))
            )
        if isinstance(node, ast.Name) and (node.id in self.buffers or node.id in self.tensors):
            raise self.fail(source.where(node), f"'{node.id}' is a tile; name an element: {node.id}[i, ...]")
        inside = node.args if isinstance(node, ast.Call) else list(ast.iter_child_nodes(node))
        return [a for child in inside for a in self.elements(source, child, scope, guards)]

    def in_bounds(self, name, index, source: Source, node, scope: Scope, guards) -> None:
        """Every index of a buffer lies within it. Tensors need no check: outside them loads give 0."""
        if name not in self.buffers:
            return
        for axis, (i, extent) in enumerate(zip(index, self.buffers[name].shape)):
            low, high = interval(i, scope.values, scope.ranges)
            if low >= 0 and high < extent:
                continue
            worst = self.try_points([i], scope, guards)
            if worst is not None:
                reached = [p[0] for p in worst]
                if all(0 <= r < extent for r in reached):
                    continue
                low, high = min(reached), max(reached)
            hint = f"axis {axis} of '{name}' has {extent}: 0 to {extent - 1}"
            if math.isinf(low) or math.isinf(high):
                hint += f"; min(max(..., 0), {extent - 1}) keeps it inside"
            raise self.fail(
                source.where(i), f"index {ast.unparse(i)} of '{name}' reaches {_span(low, high)}", hint,
                kind=f"bounds {name} {axis}",
            )  # fmt: skip

    def try_points(self, exprs, scope: Scope, guards) -> list[tuple] | None:
        """Values of the expressions at every point of the map where the guards hold, if they can be tried."""
        free = sorted({n.id for e in (*exprs, *guards) for n in names(e)} - set(scope.values) - set(CONSTANTS))
        needed = {n.id for e in exprs for n in names(e)} - set(scope.values)
        known = [n for n in free if n in scope.ranges and math.isfinite(scope.ranges[n][1])]
        if needed - set(known):
            return None
        sizes = [range(int(scope.ranges[n][0]), int(scope.ranges[n][1]) + 1) for n in known]
        if math.prod(len(s) for s in sizes) > MAX_POINTS:
            return None
        out = []
        for point in itertools.product(*sizes):
            values = {**scope.values, **dict(zip(known, point))}
            try:
                if all(_holds(g, values) for g in guards):
                    out.append(tuple(evaluate(e, values) for e in exprs))
            except ExprError:
                return None
        return out

    def injective(self, name, index, source: Source, axes, scope: Scope, guards) -> bool:
        """Raises where two points of a map write one element; True if every element is written."""
        plain = [i.id for i in index if isinstance(i, ast.Name)]
        shape = self.buffers[name].shape if name in self.buffers else None
        if all(a.name in plain for a in axes):
            extents = {a.name: a.extent for a in axes}
            return len(plain) == len(index) == len(axes) and tuple(extents.get(p) for p in plain) == shape
        fixed = {n: 0 for n, r in scope.ranges.items() if n not in {a.name for a in axes}}
        tried = self.try_points(index, replace(scope, values={**fixed, **scope.values}), guards)
        if tried is None or len(set(tried)) < len(tried):
            missing = [a.name for a in axes if a.name not in {n.id for i in index for n in names(i)}]
            what = f"no index says {' and '.join(missing)}" if missing else "two points meet"
            raise self.fail(
                source.where(), f"several points of the map write one element of '{name}': {what}",
                "every map index must lead to an element of its own",
            )  # fmt: skip
        return shape is not None and len(tried) == math.prod(shape)

    # -- names, regions and types ------------------------------------------------------------

    def rank(self, source: Source, node: ast.Name) -> int:
        if node.id in self.buffers:
            return len(self.buffers[node.id].shape)
        if node.id in self.tensors:
            return len(self.tensors[node.id].shape)
        hint = f"'{node.id}' is left out by its 'when' in this variant" if node.id in self.absent else None
        near = did_you_mean(node.id, {**self.buffers, **self.tensors})
        raise self.fail(source.where(node), f"unknown buffer or tensor '{node.id}'{near}", hint)

    def dtype_of(self, name: str) -> str:
        return (self.buffers.get(name) or self.tensors[name]).dtype

    def dtype_name_of(self, name: str) -> str:
        return (self.buffers.get(name) or self.tensors[name]).dtype_name

    def writable(self, r: model.Region) -> None:
        tensor = self.tensors.get(r.name)
        if tensor and tensor.role == "in":
            raise self.fail(r.where, f"'{r.name}' is an input; it can't be written", "role: out or inout")

    def type_of(self, source: Source, node: ast.AST, scope: Scope) -> str:
        def name_type(n):
            if isinstance(n, ast.Subscript):
                return self.dtype_of(self.element(source, n, scope)[0])
            if n.id in self.dtypes:
                raise ExprError(n, f"'{n.id}' is a dtype; it has a place in cast only")
            value = scope.values.get(n.id)
            if isinstance(value, str):
                raise ExprError(n, f"'{n.id}' is a word; it has a place in 'when' only")
            return types.WEAK_INT if value is not None else "int32"

        try:
            return types.infer(node, name_type, self.dtypes)
        except ExprError as e:
            raise self.fail(source.where(e.node), e.what, e.hint) from None

    def region(self, source: Source, scope: Scope) -> model.Region:
        """`name` or `name[i, a:b, :]`: a rectangle whose sides are known when rendering."""
        node = source.node
        base = node.value if isinstance(node, ast.Subscript) else node
        if not isinstance(base, ast.Name):
            raise self.fail(source.where(), "a tile or tensor is meant here: name or name[i, a:b, :]")
        rank, name = self.rank(source, base), base.id
        index = [ast.Slice()] * rank
        if isinstance(node, ast.Subscript):
            index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if len(index) != rank:
                raise self.fail(source.where(), f"'{name}' has {rank} axes, {len(index)} indices given")
        parts = tuple(self.part(source, name, axis, i, scope) for axis, i in enumerate(index))
        spans = [p for p in parts if isinstance(p, model.Span)]
        whole = all(isinstance(p, model.Span) and p.full for p in parts)
        index = () if not isinstance(node, ast.Subscript) else parts
        shape = tuple(s.size for s in spans)
        if name in self.buffers:
            self.inside(source, name, parts, scope)
        return model.Region(name, source.where(), index, shape, whole)

    def part(self, source: Source, name: str, axis: int, i: ast.AST, scope: Scope):
        if not isinstance(i, ast.Slice):
            self.known(source.of(i), scope)
            self.integer(source, i, scope)
            return model.Point(i)
        if i.step is not None:
            raise self.fail(source.where(i.step), "a range has no step")
        extent = self.extent(name, axis)
        start, stop = i.lower or ast.Constant(0), i.upper or extent
        for end in (start, stop):
            self.known(source.of(end), scope)
        ends = linear(stop, scope.values), linear(start, scope.values)
        size = constant({t: n for t, n in _minus(*ends).items() if n})
        if size is None:
            raise self.fail(source.where(), f"the size of axis {axis} of '{name}' is not known when rendering",
                            "take a range whose ends differ by a known number: c*BC:(c+1)*BC")  # fmt: skip
        if size < 1:
            raise self.fail(source.where(i if i.lower else None), f"an empty range along axis {axis} of '{name}'")
        whole = constant(linear(extent, scope.values)) == size and constant(ends[1]) == 0
        return model.Span(start, stop, size, whole)

    def extent(self, name: str, axis: int) -> ast.expr:
        if name in self.buffers:
            return ast.Constant(self.buffers[name].shape[axis])
        return self.tensors[name].shape[axis]

    def inside(self, source: Source, name: str, parts, scope: Scope) -> None:
        for axis, (p, extent) in enumerate(zip(parts, self.buffers[name].shape)):
            low, high = interval(p.at if isinstance(p, model.Point) else p.start, scope.values, scope.ranges)
            high += 0 if isinstance(p, model.Point) else p.size - 1
            if low < 0 or high >= extent:
                raise self.fail(source.where(), f"axis {axis} of '{name}' is used from {_span(low, high)}",
                                f"it has {extent}: 0 to {extent - 1}")  # fmt: skip


def _minus(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
    return {t: a.get(t, 0) - b.get(t, 0) for t in {**a, **b}}


def _holds(guard: ast.AST, values) -> bool:
    """Whether a condition may hold; one that needs a runtime value may."""
    if isinstance(guard, ast.BoolOp) and isinstance(guard.op, ast.And):
        return all(_holds(g, values) for g in guard.values)
    try:
        return bool(evaluate(guard, values))
    except ExprError:
        return True


def _show(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _span(low: float, high: float) -> str:
    a, b = ("-inf" if math.isinf(low) else int(low)), ("inf" if math.isinf(high) else int(high))
    return f"{a} to {b}" if a != b else str(a)


def most_threads(m: int, n: int, warp: int = 32) -> int:
    """Threads that a gemm tile can occupy: each warp owns a multiple of 16 rows and 8 columns."""
    return max((m // 16) * (n // 8) * warp, 0)


def uncovered(m: int, n: int, threads: int, warp: int = 32) -> str | None:
    """Why no split of the warps into rows x columns covers an m x n tile, or None if one does."""
    warps = threads // warp
    if m % 16 or n % 8:
        return "rows come in sixteens and columns in eights"
    for rows in range(1, warps + 1):
        if warps % rows == 0 and m % (16 * rows) == 0 and n % (8 * (warps // rows)) == 0:
            return None
    return f"{warps} warps of {warp} don't split it into whole 16x8 pieces"
