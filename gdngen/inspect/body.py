"""The body of a kernel, read statement by statement into the tree of `kernel.py`.

Names are followed as Python would bind them; conditions on known sizes take their arm. What is not
understood becomes a note, and the least that is then safe to assume.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from gdngen.inspect import calls
from gdngen.inspect.kernel import (
    Axis,
    Branch,
    Leaf,
    Loop,
    Statement,
    Tile,
    number,
)
from gdngen.inspect.places import Gathered, Missing, Places
from gdngen.inspect.values import (
    Env,
    Held,
    Macro,
    Several,
    Value,
    called,
    dtype_of,
    plain,
)
from gdngen.language import expr

SCOPES = {
    "alloc_shared": "shared",
    "alloc_fragment": "fragment",
    "alloc_local": "local",
    "alloc_var": "local",
    "alloc_barrier": "barrier",
    "alloc_cluster_barrier": "barrier",
    "alloc_tmem": "tensor memory",
}
LOOPS = ("range", "serial", "unroll", "grid", "vectorized", "Persistent", "Serial", "Vectorized")
MACROS_DEEP = 16


class Body(Places):
    """Reads the statements of one kernel."""

    # -- statements

    def block(self, body: Sequence[ast.stmt], env: Env) -> tuple[Statement, ...]:
        return tuple(s for node in body for s in self.statement(node, env))

    def statement(self, node: ast.stmt, env: Env) -> list[Statement]:
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Pass() | ast.Assert() | ast.Return():
                return []
            case ast.Import() | ast.ImportFrom():
                return []
            case ast.Expr(value=ast.Call() as call):
                return self.call(call, env)
            case ast.Assign(targets=[target], value=value):
                return self.assign(node, target, value, env)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                return self.assign(node, target, value, env)
            case ast.AugAssign(target=target, op=op, value=value):
                loaded = _as_load(target)
                total = ast.copy_location(ast.BinOp(loaded, op, value), node)
                return self.assign(node, target, total, env)
            case ast.For():
                return self.loop(node, env)
            case ast.While(test=test, body=body):
                self.forget(body, env)
                return [
                    *self.scalars(node, [test], env),
                    Loop("serial", self.where(node), None, self.block(body, env)),
                ]
            case ast.If():
                return self.branch(node, env)
            case ast.With():
                return self.with_(node, env)
            case ast.FunctionDef():
                env.names[node.name] = Macro(node, env)
                return []
        self.note(node, f"{type(node).__name__.lower()} is not understood: taken as doing nothing")
        return []

    def assign(
        self, node: ast.stmt, target: ast.expr, value: ast.expr, env: Env
    ) -> list[Statement]:
        match target, value:
            case ast.Subscript(), _:
                return self.store(node, target, value, env)
            case (ast.Tuple(elts=names), ast.Tuple(elts=values)) if len(names) == len(values):
                return [s for n, v in zip(names, values) for s in self.assign(node, n, v, env)]
            case ast.Tuple(elts=names), _:
                found = self.folder.fold(value, env)
                several = isinstance(found, Several) and len(found.items) == len(names)
                for i, name in enumerate(names):
                    if isinstance(name, ast.Name):
                        fresh = ast.Name(self.names.fresh(name.id))
                        env.names[name.id] = found.items[i] if several else fresh
                return self.scalars(node, [value], env)
            case ast.Name(id=name), _:
                return self.bind(node, name, value, env)
        self.note(node, "what is assigned here is not understood: taken as nothing")
        return []

    def bind(self, node: ast.stmt, name: str, value: ast.expr, env: Env) -> list[Statement]:
        old = env.get(name)
        kind = called(value.func, env) if isinstance(value, ast.Call) else ""
        if kind in SCOPES:
            self.allocate(name, kind, value, env)
            if kind == "alloc_var" and len(value.args) > 1:
                return [self.var(node, name, env, Gathered())]
            return []
        if kind in ("view", "reshape") and value.args:
            held = self.folder.fold(value.args[0], env)
            if isinstance(held, Held):
                self.rename(held, name, viewed=True)
                env.names[name] = Held(held.tile, name, viewed=True)
                return []
        found = self.region(value, env)
        if found is None:
            found = self.folder.fold(value, env)
        if isinstance(found, Held):
            self.rename(found, name)
            env.names[name] = replace(found, name=name)
            return []
        gathered = self.gather([value], env)
        if isinstance(old, Held) and old.tile in self.vars:
            return [self.var(node, name, env, gathered)]
        if isinstance(old, Held):
            where = self.tiles[old.tile].where.line
            self.note(node, f"'{name}', a tile from line {where}, is bound to something else here")
        if kind.startswith("get_thread_binding") or kind.endswith(("_idx", "thread_id")):
            fresh = self.names.fresh(name)
            self.lanes.add(fresh)
            found = ast.Name(fresh)
        elif isinstance(found, ast.expr) and any(n.id in self.lanes for n in expr.names(found)):
            self.lanes |= {n.id for n in expr.names(found)}
        if isinstance(value, ast.ListComp | ast.DictComp | ast.Lambda):
            self.note(node, "not understood: what this makes is taken as nothing")
        env.names[name] = found
        return [self.leaf("scalar", node, gathered)] if gathered.accesses else []

    def var(self, node: ast.stmt, name: str, env: Env, gathered: Gathered) -> Leaf:
        held = env.get(name)
        gathered.add(self.whole(held, True, self.where(node)))
        return self.leaf("scalar", node, gathered)

    def allocate(self, name: str, kind: str, value: ast.Call, env: Env) -> None:
        scope, where = SCOPES[kind], self.where(value)
        id = self.names.fresh(name)
        env.names[name] = Held(id, name)
        keywords = {k.arg: k.value for k in value.keywords}
        if scope == "barrier":
            given = value.args[0] if value.args else keywords.get("arrive_count")
            counts = self.folder.fold(given, env) if given is not None else None
            slots = len(counts.items) if isinstance(counts, Several) else 1
            self.barriers += 8 * slots
            self.tiles[id] = Tile(id, scope, (slots,), "uint64", where, (name,))
            return
        if kind == "alloc_var":
            given, shape = value.args[0] if value.args else keywords.get("dtype"), Several(())
            self.vars.add(id)
        else:
            given = value.args[1] if len(value.args) > 1 else keywords.get("dtype")
            sides = value.args[0] if value.args else keywords.get("shape")
            shape = self.folder.fold(sides, env) if sides is not None else Several(())
        dtype = dtype_of(self.folder.fold(given, env)) if given is not None else "float32"
        items = shape.items if isinstance(shape, Several) else (shape,)
        sizes = [number(s) if isinstance(s, ast.expr) else None for s in items]
        if None in sizes or dtype is None:
            self.missing.append(self.lacks(name, value, env, dtype, given))
            sizes, dtype = [n or 1 for n in sizes], dtype or "float32"
        static = (
            plain(self.folder.fold(keywords["scope"], env)) == "shared"
            if "scope" in keywords
            else False
        )
        self.tiles[id] = Tile(id, scope, tuple(sizes) or (1,), dtype, where, (name,), static)

    # -- loops, branches

    def loop(self, node: ast.For, env: Env) -> list[Statement]:
        if not isinstance(node.iter, ast.Call):
            self.note(node, "this loop is not understood: its body is taken to run once or more")
            self.unbind(node.target, env)
            return [Loop("serial", self.where(node), None, self.block(node.body, env))]
        kind = called(node.iter.func, env)
        self.forget(node.body, env)
        if kind == "Parallel":
            axes = self.axes(node, node.iter.args, env)
            gathered = Gathered(axes)
            self.inside(node.body, env, gathered)
            return [self.leaf("map", node, gathered)]
        if kind == "Pipelined":
            axes = self.axes(node, node.iter.args[:2], env, bounds=True)
            keywords = {k.arg: k.value for k in node.iter.keywords}
            given = keywords.get(
                "num_stages", node.iter.args[2] if len(node.iter.args) > 2 else None
            )
            stages = 0 if given is None else number(self.folder.scalar(given, env))
            if stages is None:
                what = "the number of stages is not known"
                self.missing.append(Missing(self.where(given), what, self.unknown_in(given, env)))
                stages = 1
            body = self.block(node.body, env)
            return [Loop("pipelined", self.where(node), axes[0].extent, body, stages)]
        if kind not in LOOPS:
            self.note(
                node,
                f"a loop over {ast.unparse(node.iter.func)} is not understood: taken as serial",
            )
        axes = self.axes(node, node.iter.args, env, bounds=kind != "grid")
        if len(node.iter.args) == 1:
            self.rounds[axes[0].id] = ast.unparse(node.iter.args[0])
        body = self.block(node.body, env)
        extents = [a.extent for a in axes]
        trips = None if None in extents else prod(extents)
        return [Loop("serial", self.where(node), trips, body)]

    def axes(
        self, node: ast.For, args: Sequence[ast.expr], env: Env, bounds: bool = False
    ) -> tuple[Axis, ...]:
        """Variables of a loop; with `bounds`, arguments are those of `range`."""
        sizes = [self.folder.scalar(a, env) for a in args]
        starts = [ast.Constant(0)] * len(sizes)
        if bounds and len(sizes) > 1:
            size = self.folder._settled(ast.BinOp(sizes[1], ast.Sub(), sizes[0]))
            if len(sizes) > 2:
                step = number(sizes[2])
                long = number(size)
                known = long is not None and step
                size = ast.Constant(-(-long // step)) if known else self.names.opaque("trips")
            starts, sizes = [sizes[0] if len(sizes) == 2 else self.names.opaque("i")], [size]
        targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        out = []
        for i, target in enumerate(targets):
            if not isinstance(target, ast.Name):
                self.note(target, "this loop variable is not understood")
                continue
            extent = number(sizes[i]) if i < len(sizes) else None
            id = self.names.fresh(target.id)
            first = number(starts[i]) if i < len(starts) else None
            self.ranges[id] = (
                (0, float("inf"))
                if first is not None and first >= 0
                else (-float("inf"), float("inf"))
            )
            if first is not None and extent is not None:
                self.ranges[id] = (first, first + max(extent, 1) - 1)
            whole = extent if first == 0 else None
            env.names[target.id] = ast.Name(id)
            out.append(Axis(id, target.id, whole if whole is not None else extent))
        return tuple(out) or (Axis(self.names.fresh("loop"), "", None),)

    def unbind(self, target: ast.expr, env: Env) -> None:
        for n in ast.walk(target):
            if isinstance(n, ast.Name):
                env.names[n.id] = ast.Name(self.names.fresh(n.id))

    def forget(self, body: Sequence[ast.stmt], env: Env) -> None:
        """Scalars that a loop's body binds are not, inside it, what they were before."""
        bound = {
            n.id
            for s in body
            for n in ast.walk(s)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        for name in sorted(bound):
            if isinstance(env.get(name), ast.expr):
                env.names[name] = ast.Name(self.names.fresh(name))

    def branch(self, node: ast.If, env: Env) -> list[Statement]:
        known = self.folder.truth(node.test, env)
        if known is not None:
            return list(self.block(node.body if known else node.orelse, env))
        test = self.scalars(node, [node.test], env)
        then, other = self.arms(node, env, lambda body: self.block(body, env))
        lanes = self.by_thread(node.test, env) and bool(node.orelse)
        another = not node.orelse and self.is_another_round(node.test, env)
        return [*test, Branch(self.where(node), then, other, lanes, another)]

    def is_another_round(self, test: ast.expr, env: Env) -> bool:
        """Whether a condition says that the loop around has another round: `n + 1 < count`."""
        match test:
            case ast.Compare(
                left=ast.BinOp(left=ast.Name(id=name), op=ast.Add(), right=ast.Constant(value=1)),
                ops=[ast.Lt()],
                comparators=[count],
            ):
                var = env.get(name)
                found = self.rounds.get(var.id) if isinstance(var, ast.Name) else None
                return found == ast.unparse(count)
        return False

    def arms(self, node: ast.If, env: Env, read):
        """Both arms, each with the names as they are before."""
        before = dict(env.names)
        then, first = read(node.body), env.names
        env.names = dict(before)
        other, second = read(node.orelse), env.names
        for name in sorted(first.keys() | second.keys()):
            a, b = first.get(name), second.get(name)
            if a is b or (a is not None and b is not None and _alike(a, b)):
                continue
            if isinstance(a, Held) and isinstance(b, Held):
                self.note(
                    node,
                    f"'{name}' is one tile or another, as a condition says that is known at launch only: "
                    "taken as the first",
                )
            first[name] = a if a is not None else b
            if (
                not isinstance(a, Held)
                and not isinstance(b, Held)
                and a is not None
                and b is not None
            ):
                first[name] = ast.Name(self.names.fresh(name))
        env.names = first
        return then, other

    def by_thread(self, test: ast.expr, env: Env) -> bool:
        folded = self.folder.scalar(test, env)
        if any(n.id in self.lanes for n in expr.names(folded)):
            return True
        calls_ = (called(n.func, env) for n in ast.walk(test) if isinstance(n, ast.Call))
        return any(name.startswith("get_thread_binding") for name in calls_)

    def with_(self, node: ast.With, env: Env) -> list[Statement]:
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and called(call.func, env) in ("ws", "WarpSpecialize"):
                return [Branch(self.where(node), self.block(node.body, env), (), True)]
            self.note(node, f"with {ast.unparse(call)[:40]}: only its body is read")
        return list(self.block(node.body, env))

    # -- a parallel loop

    def inside(self, body: Sequence[ast.stmt], env: Env, got: Gathered) -> None:
        for node in body:
            match node:
                case ast.Assign(targets=[ast.Subscript() as target], value=value):
                    self.element(target, value, env, got)
                case ast.AugAssign(target=ast.Subscript() as target, value=value):
                    self.read(_as_load(target), env, got)
                    self.element(target, value, env, got)
                case ast.If(test=test):
                    known = self.folder.truth(test, env)
                    if known is not None:
                        self.inside(node.body if known else node.orelse, env, got)
                        continue
                    self.read(test, env, got)
                    before, got.guarded = got.guarded, True
                    self.arms(node, env, lambda arm: self.inside(arm, env, got))
                    got.guarded = before
                case ast.For(iter=ast.Call() as iter) if called(iter.func, env) in (
                    *LOOPS,
                    "Parallel",
                ):
                    kind = called(iter.func, env)
                    axes = self.axes(node, iter.args, env, bounds=kind not in ("grid", "Parallel"))
                    before = got.axes
                    if kind == "Parallel":
                        got.axes = (*got.axes, *axes)
                    else:
                        got.inner = (*got.inner, *axes)
                    self.forget(node.body, env)
                    self.inside(node.body, env, got)
                    # The axes of a loop that is nothing but another loop are all the leaf's.
                    if not (kind == "Parallel" and len(body) == 1):
                        got.axes = before
                case ast.Expr(value=ast.Call() as call) if isinstance(
                    self.folder.fold(call.func, env), Macro
                ):
                    self.macro(call, env, got)
                case ast.Expr(value=ast.Call() as call):
                    for access in calls.other(self, call, env, got):
                        got.add(access)
                case _:
                    for made in self.statement(node, env):
                        if isinstance(made, Leaf):
                            got.loads |= made.loads
                            for access in made.accesses:
                                got.add(access)
                        else:
                            self.note(node, "not understood inside a parallel loop")

    def store(self, node: ast.stmt, target: ast.Subscript, value: ast.expr, env: Env):
        """A store that stands by itself."""
        got = Gathered()
        self.element(target, value, env, got)
        return [self.leaf("scalar", node, got)]

    def scalars(self, node: ast.stmt, nodes: Sequence[ast.expr], env: Env) -> list[Statement]:
        got = self.gather(nodes, env)
        return [self.leaf("scalar", node, got)] if got.accesses else []

    # -- calls

    def call(self, node: ast.Call, env: Env) -> list[Statement]:
        found = self.folder.fold(node.func, env) if isinstance(node.func, ast.Name) else None
        if isinstance(found, Macro):
            return self.macro(node, env)
        return calls.read(self, node, env)

    def macro(self, node: ast.Call, env: Env, got: Gathered | None = None) -> list[Statement]:
        """A function of the file, read where it is called."""
        function = env.get(node.func.id)
        if self.deep >= MACROS_DEEP:
            self.note(node, f"{node.func.id} calls itself too deep: taken as doing nothing")
            return []
        inner = Env(function.env)
        params = [a.arg for a in function.node.args.args]
        defaults = function.node.args.defaults
        for param, value in zip(params[len(params) - len(defaults) :], defaults):
            inner.names[param] = self.folder.fold(value, function.env)
        given = [*zip(params, node.args), *((k.arg, k.value) for k in node.keywords)]
        for param, value in given:
            held = self.region(value, env)
            inner.names[param] = self.folder.fold(value, env) if held is None else held
        self.deep += 1
        if got is not None:
            self.inside(function.node.body, inner, got)
            read: tuple[Statement, ...] = ()
        else:
            read = self.block(function.node.body, inner)
        self.deep -= 1
        return list(read)


def _as_load(target: ast.expr) -> ast.expr:
    loaded = expr.copied(target)
    loaded.ctx = ast.Load()
    return ast.copy_location(loaded, target)


def _alike(a: Value, b: Value) -> bool:
    if isinstance(a, ast.AST) and isinstance(b, ast.AST):
        return ast.dump(a) == ast.dump(b)
    return a == b
