"""The kernels of a file: functions with a `with T.Kernel(...)`, and the names that they see.

Nothing of the file is run. Module constants, defaults of parameters and `--set` give sizes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from gdngen.errors import Diagnostic, GdngenError, Location, SpecError, did_you_mean
from gdngen.inspect.body import Body
from gdngen.inspect.kernel import Kernel, Tensor, number
from gdngen.inspect.values import (
    Env,
    Library,
    Macro,
    Several,
    Value,
    called,
    dtype_of,
    is_known,
    plain,
    settings_of,
)

LANGUAGE = "tilelang.language"
OFF, AGGRESSIVE = "DISABLE_SHARED_MEMORY_REUSE", "ENABLE_AGGRESSIVE_SHARED_MEMORY_MERGE"
SYMBOLIC = ("dynamic", "symbolic", "const", "var")
TENSORS = ("Tensor", "Buffer", "StridedTensor", "empty")
ASYNC = "USE_ASYNC_COPY"
# A file is read as one tree; what is longer was not written by hand.
LONGEST = 2_000_000


@dataclass(frozen=True)
class Found:
    """A kernel's function, inside which others, from the outermost in."""

    path: tuple[ast.FunctionDef, ...]

    @property
    def name(self) -> str:
        return self.path[-1].name

    @property
    def names(self) -> list[str]:
        return [f.name for f in self.path]


def load(path: Path, function: str | None, settings: Mapping[str, str]) -> list[Kernel]:
    """Every kernel of the file, or the one that `function` names (by its own name or its factory's)."""
    text = _text(path)
    tree = _parsed(path, text)
    found = list(_kernels(tree.body, ()))
    if not found:
        raise GdngenError(
            f"error: {path}: has no kernel\n  help: a kernel is a function with `with T.Kernel(...)`"
        )
    if function is not None:
        chosen = [k for k in found if function in k.names]
        if not chosen:
            names = sorted({name for k in found for name in k.names})
            raise GdngenError(
                f"error: {path}: no kernel is named '{function[:40]}'{did_you_mean(function, names)}\n"
                f"  help: kernels: {' '.join(k.name for k in found)}"
            )
        found = chosen
    used: set[str] = set()
    made = [_read(path, text, tree, k, settings, used) for k in found]
    known = sorted({n for k in found for n in _settable(tree, k)})
    for name in settings:
        if name not in used:
            raise GdngenError(
                f"error: {path}: nothing is named '{name[:40]}' to be set{did_you_mean(name, known)}\n"
                f"  help: names: {' '.join(known)}"
            )
    return made


def _text(path: Path) -> str:
    if path.is_dir():
        raise GdngenError(f"error: {path} is a folder\n  help: name a file, say {path}/kernel.py")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise GdngenError(f"error: {path}: not UTF-8 text (byte {e.start})") from None
    if len(text) > LONGEST:
        raise GdngenError(f"error: {path}: {len(text):,} characters; at most {LONGEST:,}")
    return text


def _parsed(path: Path, text: str) -> ast.Module:
    try:
        return ast.parse(text, str(path))
    except SyntaxError as e:
        where = Location(str(path), e.lineno or 1, e.offset or 1)
        what = f"not Python: {e.msg}"
        raise SpecError([Diagnostic("error", where, what)], {str(path): text}) from None
    except (ValueError, RecursionError, MemoryError) as e:
        raise GdngenError(f"error: {path}: not Python: {e or type(e).__name__}") from None


def _kernels(body: Sequence[ast.stmt], path: tuple[ast.FunctionDef, ...]) -> Iterator[Found]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            inner = (*path, node)
            if _launch(node) is not None:
                yield Found(inner)
            yield from _kernels(node.body, inner)
        elif isinstance(node, ast.If | ast.With | ast.Try | ast.ClassDef):
            yield from _kernels(node.body, path)
            yield from _kernels(getattr(node, "orelse", []), path)


def _launch(function: ast.FunctionDef) -> ast.With | None:
    """The function's own `with T.Kernel(...)`."""
    waiting = list(function.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.With) and any(_is_launch(i.context_expr) for i in node.items):
            return node
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            waiting += [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)]
    return None


def _is_launch(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr="Kernel") | ast.Name(id="Kernel")):
            return True
    return False


def _settable(tree: ast.Module, found: Found) -> set[str]:
    """Names that `--set` may give a value: constants and parameters in sight of a kernel."""
    bodies = [tree.body, *(f.body for f in found.path)]
    names = {a.arg for f in found.path for a in (*f.args.args, *f.args.kwonlyargs)}
    for body in bodies:
        for node in body:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    names |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    return names


def _read(
    path: Path, text: str, tree, found: Found, given: Mapping[str, str], used: set[str]
) -> Kernel:
    body = Body(str(path), text.splitlines())
    outside = _Outside(body, settings_of(given), used)
    try:
        kernel = outside.kernel(tree, found)
    except RecursionError:
        raise GdngenError(f"error: {path}: nested too deep to be read") from None
    if body.missing:
        first = min(body.missing, key=lambda m: m.where)
        names = sorted({n for m in body.missing for n in m.names})
        hint = " ".join(f"--set {n}=VALUE" for n in names) or "write it as a number"
        wrong = Diagnostic("error", first.where, first.what, hint)
        raise SpecError([wrong], {str(path): text})
    return kernel


class _Outside:
    """Reads what stands around a kernel's body: the module, factories, the signature, the launch."""

    def __init__(self, body: Body, settings: Mapping[str, ast.Constant], used: set[str]):
        self.body, self.settings, self.used = body, settings, used
        self.reuse, self.waits = "default", False
        self.shown: dict[str, object] = {}
        self.dicts: dict[str, ast.Dict] = {}

    def kernel(self, tree: ast.Module, found: Found) -> Kernel:
        env = Env(names={"T": Library("T")})  # what T is when the file is a piece of another
        self.statements(tree.body, env, found)
        for function in found.path:
            self.options(function, env)
            env = Env(env)
            self.parameters(function, env)
            if function is not found.path[-1]:
                self.statements(function.body, env, found)
        launch = _launch(found.path[-1])
        self.statements(found.path[-1].body, env, found, until=launch)
        self.launch(launch, env)
        statements = self.body.block(launch.body, env)
        body = self.body
        return Kernel(
            found.name,
            found.path[0].name,
            body.where(found.path[-1]),
            self.shown,
            body.threads,
            body.grid,
            body.ranges,
            body.tiles,
            statements,
            body.barriers,
            self.reuse,
            self.waits,
            tuple(body.notes.values()),
            tuple(body.layouts),
        )

    def setting(self, name: str) -> ast.Constant | None:
        if name in self.settings:
            self.used.add(name)
            self.shown[name] = self.settings[name].value
            return self.settings[name]
        return None

    def parameters(self, function: ast.FunctionDef, env: Env) -> None:
        args = [*function.args.posonlyargs, *function.args.args]
        defaults = dict(zip([a.arg for a in reversed(args)], reversed(function.args.defaults)))
        for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults):
            args.append(a)
            if d is not None:
                defaults[a.arg] = d
        for a in args:
            tensor = self.tensor(a.arg, a.annotation, env) if a.annotation is not None else None
            value: Value | None = tensor or self.setting(a.arg)
            if value is None and a.arg in defaults:
                value = self.body.folder.fold(defaults[a.arg], env)
                if is_known(value) and not isinstance(value, Several):
                    self.shown[a.arg] = plain(value)
            env.names[a.arg] = value if value is not None else self.unknown(a.arg)

    def unknown(self, name: str) -> ast.Name:
        return ast.Name(self.body.names.fresh(name))

    def tensor(self, name: str, node: ast.expr, env: Env) -> Tensor | None:
        """The tensor that an annotation, or a call of `T.empty`, declares."""
        match node:
            case ast.Call(func=func, args=args, keywords=keywords):
                given = {k.arg: k.value for k in keywords}
                parts = [*args[:1], *([given["shape"]] if "shape" in given else [])]
                dtype = args[-1] if len(args) > 1 else given.get("dtype")
            case ast.Subscript(value=func, slice=ast.Tuple(elts=[shape, dtype])):
                parts = [shape]
            case _:
                return None
        if called(func, env) not in TENSORS or not parts:
            return None
        shape = self.body.folder.fold(parts[0], env)
        items = shape.items if isinstance(shape, Several) else (shape,)
        sides = tuple(s if isinstance(s, ast.expr) else self.unknown("side") for s in items)
        named = dtype_of(self.body.folder.fold(dtype, env)) if dtype is not None else "float32"
        return Tensor(name, sides, named or "unknown")

    def statements(
        self, body: Sequence[ast.stmt], env: Env, found: Found, until: ast.stmt | None = None
    ) -> None:
        """Names that statements outside the launch bind."""
        for node in body:
            if node is until:
                return
            match node:
                case ast.Import(names=names):
                    for n in names:
                        library = (
                            "T" if n.name == LANGUAGE and n.asname else n.name.partition(".")[0]
                        )
                        env.names[n.asname or n.name.partition(".")[0]] = _library(library)
                case ast.ImportFrom(module=module, names=names):
                    for n in names:
                        env.names[n.asname or n.name] = _imported(module or "", n.name)
                case ast.FunctionDef():
                    env.names[node.name] = Macro(node, env)
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict() as value):
                    self.dicts[name] = value
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    env.names[name] = self.value(name, value, env)
                case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=value):
                    tensor = self.tensor(name, kind, env)
                    if tensor is not None:
                        env.names[name] = tensor
                    elif value is not None:
                        env.names[name] = self.value(name, value, env)
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value):
                    self.unpacked(targets, value, env)
                case ast.If(test=test, body=then, orelse=other):
                    known = self.body.folder.truth(test, env)
                    if known is None and _binds(node):
                        self.forget(node, env)
                    elif known is not None:
                        self.statements(then if known else other, env, found, until)
                case ast.For() | ast.While() | ast.With() | ast.Try() | ast.AugAssign():
                    self.forget(node, env)

    def value(self, name: str, node: ast.expr, env: Env) -> Value:
        given = self.setting(name)
        if given is not None:
            return given
        if isinstance(node, ast.Call):
            kind = called(node.func, env)
            if kind in SYMBOLIC:
                return self.unknown(name)
            if kind == "empty" and (tensor := self.tensor(name, node, env)):
                return tensor
        value = self.body.folder.fold(node, env)
        if isinstance(value, ast.Name) and value.id.startswith("unknown"):
            return self.unknown(name)
        return value

    def unpacked(self, targets: Sequence[ast.expr], node: ast.expr, env: Env) -> None:
        value = self.body.folder.fold(node, env)
        items = value.items if isinstance(value, Several) else ()
        for i, target in enumerate(targets):
            if isinstance(target, ast.Name):
                found = self.setting(target.id)
                if found is None:
                    found = items[i] if i < len(items) else self.unknown(target.id)
                env.names[target.id] = found

    def forget(self, node: ast.stmt, env: Env) -> None:
        for name in _binds(node):
            env.names[name] = self.setting(name) or self.unknown(name)

    def launch(self, node: ast.With, env: Env) -> None:
        for item in node.items:
            if not _is_launch(item.context_expr):
                continue
            call, body = item.context_expr, self.body
            sizes = [body.folder.scalar(a, env) for a in call.args]
            keywords = {k.arg: k.value for k in call.keywords}
            if "threads" in keywords:
                value = body.folder.fold(keywords["threads"], env)
                counts = (
                    [plain(v) for v in value.items]
                    if isinstance(value, Several)
                    else [plain(value)]
                )
                body.threads = prod(counts) if all(isinstance(c, int) for c in counts) else None
            if item.optional_vars is None:
                continue
            targets = item.optional_vars
            names = targets.elts if isinstance(targets, ast.Tuple) else [targets]
            for i, target in enumerate(names):
                if not isinstance(target, ast.Name):
                    continue
                id = body.names.fresh(target.id)
                env.names[target.id] = ast.Name(id)
                body.ranges[id] = (0, float("inf"))
                if i < len(sizes):
                    body.grid[id] = sizes[i]
                    extent = number(sizes[i])
                    if extent is not None:
                        body.ranges[id] = (0, max(extent, 1) - 1)

    def options(self, function: ast.FunctionDef, env: Env) -> None:
        """What a `tilelang.jit` decorator says of the compiler's merging."""
        for decorator in function.decorator_list:
            if not isinstance(decorator, ast.Call):
                continue
            for keyword in decorator.keywords:
                if keyword.arg != "pass_configs":
                    continue
                given = self.named(keyword.value, env)
                if not isinstance(given, ast.Dict):
                    self.body.note(
                        keyword.value, "these pass_configs are not read: defaults are assumed"
                    )
                    continue
                for key, value in zip(given.keys, given.values):
                    on = self.body.folder.truth(value, env)
                    text = ast.unparse(key).upper().replace(".", "_") if key is not None else ""
                    if OFF in text and on:
                        self.reuse = "off"
                    elif AGGRESSIVE in text and on and self.reuse != "off":
                        self.reuse = "aggressive"
                    elif ASYNC in text and on is False:
                        self.waits = True

    def named(self, node: ast.expr, env: Env) -> ast.expr:
        """The dict that a module's name stands for."""
        if isinstance(node, ast.Name) and node.id in self.dicts:
            return self.dicts[node.id]
        return node


def _library(name: str) -> Library:
    return Library(name if name in ("T", "tilelang", "math") else "")


def _imported(module: str, name: str) -> Library:
    if (module, name) == ("tilelang", "language"):
        return Library("T")
    if module.split(".")[0] in ("tilelang", "math"):
        return Library(f"of:{name}")
    return Library("")


def _binds(node: ast.stmt) -> list[str]:
    stores = (n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return sorted({n.id for n in stores})
