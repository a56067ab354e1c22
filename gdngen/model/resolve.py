"""`Spec` and one choice of values -> `Kernel`: declarations and the structure of statements.

What single statements may do is in `tiles.py` and `maps.py`, what names mean in `context.py`.
"""

import ast
import math
from collections.abc import Mapping
from dataclasses import replace

from gdngen.errors import Report, did_you_mean
from gdngen.language import syntax
from gdngen.language.expr import constant, linear, names
from gdngen.language.source import Source
from gdngen.language.syntax import DTYPES, SAMPLES, SCOPES, Choice, Spec, Statement
from gdngen.model import chosen, clips, layouts, maps, model, roles, rounds, scalars
from gdngen.model.context import MAX_ELEMENTS, Context, Scope, Stop
from gdngen.model.tiles import TILE

DEFAULT_TARGETS = ("sm_80", "sm_90")
MAX_THREADS = 1024
MAX_RESIDENT = 32
MAX_ROUNDS = 64


def resolve(spec: Spec, choice: Choice, report: Report) -> model.Kernel | None:
    """The kernel of one variant, or None where its values alone are already wrong."""
    values = chosen.values(spec, choice, report)
    return None if values is None else _Resolver(spec, values, report).kernel()


class _Resolver:
    def __init__(self, spec: Spec, values: Mapping[str, int | str], report: Report):
        self.spec = spec
        options = [k.text for k, _ in spec.options]
        taken = [d.name for d in (*spec.tensors, *spec.buffers)] + [k.text for k, _ in spec.dtypes]
        self.cx = Context(
            report,
            Scope(
                {d.text: values[d.text] for d in spec.dims}
                | {o: chosen.typed(str(values[o])) for o in options},
                {r.text: (1.0, math.inf) for r in spec.runtime},
            ),
            {d: d for d in DTYPES} | {k.text: str(values[k.text]) for k, _ in spec.dtypes},
            frozenset([*taken, spec.kernel]),
        )

    def kernel(self) -> model.Kernel:
        cx = self.cx
        for condition in self.spec.require:
            self.required(condition)
        spec = self.spec = rounds.laid_out(layouts.laid_out(self.spec, cx), cx)
        for declared in (*spec.tensors, *spec.buffers):
            self.declare(declared)
        grid = self.grid()
        self.threads()
        self.spec, read = scalars.resolved(spec, cx)
        parted = roles.resolved(self.spec, cx)
        stages = []
        sides = {n.id for t in cx.tensors.values() for s in t.shape for n in names(s)}
        for stage in self.spec.stages:
            cx.stage = stage.name
            scope = roles.entered(parted, stage.name, cx)
            stages.append(model.Stage(stage.name, stage.where, self.block(stage.body, scope)))
        kernel = model.Kernel(
            spec=spec.file,
            name=spec.kernel,
            module="",
            where=spec.where,
            doc=spec.doc,
            values=tuple(cx.scope.values.items()),
            dims=tuple(d.text for d in spec.dims),
            dtypes=tuple((k.text, cx.dtypes[k.text]) for k, _ in spec.dtypes),
            runtime=tuple(r.text for r in spec.runtime if r.text in sides),
            tensors=tuple(cx.tensors.values()),
            buffers=tuple(cx.buffers.values()),
            grid=grid,
            threads=roles.threads(parted) or cx.threads or 0,
            stages=tuple(s for s in stages if s.body),
            targets=tuple(t.text for t in spec.targets) or DEFAULT_TARGETS,
            reference=spec.reference,
            resident=self.resident(),
            asynchronous=self.holds(self.spec.asynchronous, "async"),
            rounds=self.rounds(read),
            fast_math=self.holds(self.spec.fast_math, "fast_math"),
            ranges=tuple(cx.scope.ranges.items()),
            scalars=read,
            roles=parted,
        )
        used = {name for s in kernel.statements() for name in model.touched(s)}
        return replace(kernel, buffers=tuple(b for b in kernel.buffers if b.name in used))

    def required(self, condition: Source) -> None:
        """An error where a condition does not hold for this variant."""
        cx = self.cx
        try:
            if not cx.static(condition):
                about = dict.fromkeys(n.id for n in names(condition.node))
                have = {**cx.dtypes, **cx.scope.values}
                values = ", ".join(f"{name}={have[name]}" for name in about if name in have)
                raise cx.fail(
                    condition.where(),
                    f"'{ast.unparse(condition.node)}' is required, and does not hold for {values}",
                    "render other values, or take the variant out",
                )
        except Stop:  # reported
            pass

    # -- declarations ------------------------------------------------------------------------

    def declare(self, d: syntax.Tensor | syntax.Buffer) -> None:
        cx = self.cx
        try:
            if d.faulty:
                raise Stop
            if d.when is not None and not cx.static(d.when):
                cx.absent.add(d.name)
            elif isinstance(d, syntax.Tensor):
                cx.tensors[d.name] = self.tensor(d)
            else:
                cx.buffers[d.name] = self.buffer(d)
        except Stop:
            cx.faulty.add(d.name)

    def tensor(self, t: syntax.Tensor) -> model.Tensor:
        sides = [s.of(self.cx.folded(s.node)) for s in t.shape]
        for s in sides:
            self.cx.runtime_size(s, f"a side of '{t.name}'", self.cx.scope)
        dtype = self.cx.dtype(t.dtype, t.name)
        shape = tuple(s.node for s in sides)
        sample = self.cx.word(t.sample, "sample", SAMPLES)
        partly = t.partly is not None and self.cx.static(t.partly)
        return model.Tensor(
            t.name, t.where, t.role, shape, dtype, t.dtype.text, t.doc, sample, partly
        )

    def buffer(self, b: syntax.Buffer) -> model.Buffer:
        cx = self.cx
        shape = tuple(cx.size(s, f"a side of '{b.name}'") for s in b.shape)
        if math.prod(shape) > MAX_ELEMENTS:
            what = f"'{b.name}' has {math.prod(shape):,} elements; at most {MAX_ELEMENTS:,}"
            raise cx.fail(b.where, what)
        live = b.live if self.is_lifetime(b) else None
        reuse = b.reuse if self.is_host(b) else None
        return model.Buffer(
            name=b.name,
            where=b.where,
            scope=cx.word(b.scope, "scope", SCOPES),
            shape=shape,
            shape_text=tuple(ast.unparse(cx.folded(s.node)) for s in b.shape),
            dtype=cx.dtype(b.dtype, b.name),
            dtype_name=b.dtype.text,
            live=(live[0].text, live[1].text) if live else None,
            live_where=(live[0].where, live[1].where) if live else None,
            reuse=reuse.text if reuse else None,
            reuse_where=reuse.where if reuse else None,
            doc=b.doc,
            stages=shape[0] if b.stages is not None else 0,
        )

    def is_lifetime(self, b: syntax.Buffer) -> bool:
        """Whether a declared lifetime names stages, in their order; reported."""
        if b.live is None:
            return False
        first, last = b.live
        stages = [s.name for s in self.spec.stages]
        unknown = [w for w in dict.fromkeys(b.live) if w.text not in stages]
        for word in unknown:
            self.cx.report.error(
                word.where,
                f"unknown stage '{word.text[:40]}' in the lifetime of '{b.name}'"
                f"{did_you_mean(word.text, stages)}",
                f"stages: {' '.join(stages)}",
            )
        if not unknown and stages.index(first.text) > stages.index(last.text):
            what = f"the lifetime of '{b.name}' ends before it starts"
            self.cx.report.error(first.where, what, f"live: {last.text} .. {first.text}")
            return False
        return not unknown

    def is_host(self, b: syntax.Buffer) -> bool:
        buffers = [x.name for x in self.spec.buffers]
        if b.reuse is None or b.reuse.text in buffers:
            return b.reuse is not None
        near = did_you_mean(b.reuse.text, buffers)
        what = f"'{b.name}' reuses an unknown buffer '{b.reuse.text[:40]}'{near}"
        self.cx.report.error(b.reuse.where, what, f"buffers: {' '.join(buffers)}")
        return False

    def grid(self) -> tuple[tuple[str, ast.expr], ...]:
        cx, ranges = self.cx, {}
        grid = [(key, s.of(cx.folded(s.node))) for key, s in self.spec.grid]
        for key, size in grid:
            ranges[key.text] = (0.0, math.inf)
            try:
                what = f"the number of blocks along '{key.text}'"
                _, high = cx.runtime_size(size, what, cx.scope)
                ranges[key.text] = (0.0, high - 1)
            except Stop:
                continue
        cx.scope = cx.scope.inside(**ranges)
        return tuple((key.text, size.node) for key, size in grid)

    def holds(self, source: syntax.Source | None, what: str) -> bool:
        """A condition that is known when rendering; without one, no."""
        try:
            value = source is not None and self.cx.static(source)
            if not isinstance(value, bool):
                where = source.where()
                raise self.cx.fail(where, f"'{what}' is {str(value)[:40]}; true or false is meant")
            return value
        except Stop:
            return False

    def resident(self) -> int:
        source = self.spec.resident
        try:
            return self.cx.size(source, "resident", 1, MAX_RESIDENT) if source else 1
        except Stop:
            return 1

    def rounds(self, read: tuple[model.Scalar, ...]) -> tuple[str, int] | None:
        """How many of a block index a block takes, one after the other; None where it is one."""
        if self.spec.rounds is None:
            return None
        cx, (name, source) = self.cx, self.spec.rounds
        grid = [key.text for key, _ in self.spec.grid]
        wrong = ""
        if name.text not in grid:
            wrong = f"unknown block index '{name.text}'{did_you_mean(name.text, grid)}"
        elif self.spec.asynchronous is None:
            wrong = "only a block that copies by itself takes several: async is not true"
        elif self.spec.roles:
            wrong = "roles have loops of their own"
        elif not self.holds(self.spec.asynchronous, "async"):
            return None
        elif read:
            wrong = f"'{read[0].name}' is read once a block, not once a round"
        try:
            each = cx.size(source, "how many a block takes", 1, MAX_ROUNDS)
            if each > 1 and wrong:
                raise cx.fail(name.where, wrong, f"one: {name.text}: 1")
        except Stop:
            return None
        return (name.text, each) if each > 1 else None

    def threads(self) -> None:
        cx, source = self.cx, self.spec.threads
        if source is None:
            return
        cx.threads = None
        try:
            threads = cx.size(source, "the number of threads", 1, MAX_THREADS)
            if threads % 32:
                hint = f"use {max(32, threads // 32 * 32)}"
                raise cx.fail(source.where(), f"{threads} threads are not whole warps of 32", hint)
            cx.threads = threads
        except Stop:
            pass

    # -- statements --------------------------------------------------------------------------

    def block(self, body: tuple[Statement, ...], scope: Scope) -> tuple[model.Statement, ...]:
        out: list[model.Statement] = []
        for s in body:
            try:
                out += self.statement(s, scope)
            except Stop:  # reported; the next statement may have mistakes of its own
                out.append(maps.broken(self.cx, s))
        return tuple(out)

    def statement(self, s: Statement, scope: Scope) -> list[model.Statement]:
        if s.kind == "broken":
            raise Stop
        if s.when is not None:
            s = Statement(
                "when", s.where, {"cond": s.when}, (replace(s, when=None),), words=s.words
            )
        if s.kind == "when":
            return self.condition(s, scope)
        if s.kind == "copy":
            s = clips.copy(self.cx, s, scope)
        if s.kind == "map":
            return maps.assignments(self.cx, s, scope)
        if s.kind in ("repeat", "loop", "pipelined"):
            return [self.loop(s, scope)]
        return [TILE[s.kind](self.cx, s, scope)]

    def condition(self, s: Statement, scope: Scope) -> list[model.Statement]:
        """A `when` on dims and options picks an arm now; on block or loop indices, in the kernel."""
        cx, cond = self.cx, replace(s["cond"], node=self.cx.folded(s["cond"].node))
        if cx.is_static(cond.node, scope):
            return list(self.block(s.body if cx.static(cond, scope) else s.other, scope))
        cx.known(cond, scope)
        cx.condition(cond, scope)
        at = next(cx.ids)
        then = self.block(s.body, scope.where(cond.node))
        other = self.block(s.other, scope.where(ast.UnaryOp(ast.Not(), cond.node)))
        if not then and not other:
            return []
        return [model.Branch(at, s.where, cx.stage, cond.node, then, other)]

    def loop(self, s: Statement, scope: Scope) -> model.Loop:
        cx, at = self.cx, next(self.cx.ids)
        var, count = (None, s["count"]) if s.kind == "repeat" else s["axis"]
        low, high = cx.runtime_size(count, "the number of rounds", scope)
        if var:
            cx.fresh(var, scope)
        stages = s["stages"]
        default = 2 if s.kind == "pipelined" else 1
        num_stages = cx.size(stages, "stages", 1, 8, scope) if stages else default
        inner = scope.inside(**{var.text: (0.0, high - 1)}) if var else scope
        if var:
            inner = inner.where(_below(var.text, count.node))
        lets = []
        for name, value in s["lets"] or ():
            cx.fresh(name, inner)
            reached = cx.runtime_size(value, f"'{name.text}'", inner, -math.inf)
            inner = inner.inside(**{name.text: reached})
            lets.append((name.text, value.node))
        return model.Loop(
            id=at,
            where=s.where,
            stage=cx.stage,
            kind=s.kind,
            var=var.text if var else None,
            count=count.node,
            trips=constant(linear(count.node, scope.values)),
            runs=low >= 1,
            num_stages=num_stages,
            body=self.block(s.body, inner),
            stages_text=ast.unparse(stages.node) if stages else str(num_stages),
            lets=tuple(lets),
        )


def _below(name: str, count: ast.expr) -> ast.expr:
    """name < count, which holds inside a loop whatever the count is made of."""
    return ast.Compare(ast.Name(name), [ast.Lt()], [count])
