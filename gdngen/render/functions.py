"""`Pipeline` -> text of the module that people call: one Python function for each of its functions.

The text holds what the spec says, checks and launches in order; how a variant is found, compiled and
run is `runtime.py`'s.
"""

import ast
import itertools
import re
from pathlib import Path

from gdngen.language.expr import CONSTANTS, copied
from gdngen.language.source import Source
from gdngen.language.syntax import DTYPES
from gdngen.model.pipelines import (
    DEVICE,
    Argument,
    Function,
    Made,
    Pipeline,
    Step,
    Value,
)
from gdngen.model.types import INTS
from gdngen.render import render

DEVICE_CALLS = {"sms": "call.multiprocessors()", "sm": "call.architecture()"}


def text(pipeline: Pipeline, spec: str, own: Path | None = None) -> str:
    """The module's text, before formatting; `spec` is the name that its first line gives, templates
    in the folder `own` stand before gdngen's."""

    def filled(made) -> str:
        return made.get_template("pipeline.py.jinja").render(
            header=render.header(spec),
            doc=render.docstring(pipeline.doc or pipeline.name),
            dtypes=dict(pipeline.dtypes),
            functions=[_view(f, pipeline) for f in pipeline.functions],
        )

    return render.with_templates(filled, own)


def _view(f: Function, pipeline: Pipeline) -> dict:
    sides = (s.node for a in f.arguments for s in a.shape)
    bound = dict.fromkeys(n.id for n in sides if isinstance(n, ast.Name))
    given = {a.name for a in f.arguments if a.optional}
    used = {n.id for s in _expressions(f) for n in ast.walk(s.node) if isinstance(n, ast.Name)}
    open_ = {name for name, words in pipeline.dtypes if len(words) > 1}
    words = {*bound, *(a.name for a in f.arguments), *(v.name for v in f.values), *DEVICE}
    write = _Writer(given, dict(pipeline.dtypes), open_, words)
    return {
        "name": f.name,
        "doc": render.docstring(f.doc),
        "parameters": [_parameter(a) for a in f.arguments],
        "rows": _rows(f, pipeline),
        "given": [a.name for a in f.arguments if a.optional and a.name in _tests(f)],
        "tensors": [_bind(a) for a in f.arguments if a.kind == "tensor"],
        "sizes": [name for name in bound if name in used],
        "bound": [name for name in bound],
        "numbers": [(a.name, write(a.default)) for a in f.arguments if a.kind == "number"],
        "checks": [(write(that), repr(text), _braced(text)) for that, text in f.checks],
        "device": [(name, DEVICE_CALLS[name]) for name in DEVICE if name in used],
        "settings": [(v.name, _value(v, f, write)) for v in f.values],
        "made": [_made(m, write) for m in f.tensors],
        "groups": [
            (when, [_step(s, write) for s in steps])
            for when, steps in itertools.groupby(
                f.steps, lambda s: write(s.when, test=True) if s.when else ""
            )
        ],
        "returns": ", ".join(_returned(r.text, f, write) for r in f.returns),
        "keep": [k.text for k in f.keep],
    }


def _expressions(f: Function) -> list[Source]:
    found = [that for that, _ in f.checks] + [s for v in f.values for s in v.of]
    found += [that for v in f.values for that, _ in v.all]
    found += [a.default for a in f.arguments if a.default]
    for m in f.tensors:
        found += [*m.shape, *(s for s in (m.when, m.of, m.number) if s)]
    for s in f.steps:
        found += [*([s.when] if s.when else []), *(v for _, v in s.values + s.tensors)]
        for values, cond in s.choose:
            found += [*(v for _, v in values), *([cond] if cond else [])]
    return found


def _braced(text: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"\{(\w+)\}", text)))


def _tests(f: Function) -> set[str]:
    """Names that stand alone as a condition."""
    found = [s.when.node for s in (*f.tensors, *f.steps) if s.when]
    for s in _expressions(f):
        found += [
            n.args[0] for n in ast.walk(s.node) if isinstance(n, ast.Call) and n.func.id == "where"
        ]
    return {n.id for n in found if isinstance(n, ast.Name)}


def _parameter(a: Argument) -> str:
    if a.kind == "flag":
        return f"{a.name}={a.on}"
    return f"{a.name}=None" if a.optional or a.kind == "number" else a.name


def _rows(f: Function, pipeline: Pipeline) -> list[str]:
    """What the docstring says of each argument: its name, what it is, what it is for."""
    found = []
    for a in f.arguments:
        if a.kind == "tensor":
            words = dict(pipeline.dtypes).get(a.dtype, (a.dtype,))
            dtype = " or ".join(words)
            if a.convert:
                dtype = "whole numbers" if dtype in INTS else "floating point"
            what = f"[{', '.join(ast.unparse(s.node) for s in a.shape)}], {dtype}"
        else:
            default = ast.unparse(a.default.node) if a.default else a.on
            what = f"{'a number' if a.kind == 'number' else 'a flag'}, {default} where left out"
        if a.optional:
            what += ", or None"
        found.append((a.name, what, " ".join(render.docstring(a.doc).split())))
    return render.columns(found)


def _bind(a: Argument) -> str:
    shape = " ".join(ast.unparse(s.node) for s in a.shape)
    flags = "".join(f", {flag}=True" for flag in ("convert", "optional") if getattr(a, flag))
    flags += f', splits="{a.splits}"' if a.splits else ""
    return f'{a.name} = call.tensor("{a.name}", {a.name}, "{shape}", "{a.dtype}"{flags})'


def _value(v: Value, f: Function, write: "_Writer") -> str:
    if v.all:
        conditions = ", ".join(_condition(that, text, write) for that, text in v.all)
        return f'call.holds("{v.name}", {conditions})'
    if not v.fits:
        return write(v.of[0])
    fits = [f"call.fits({_variant(_step(s, write))})" for s in f.steps if s.kernel.text == v.fits]
    ways = ", ".join(map(write, v.of))
    return f"next(({v.name} for {v.name} in [{ways}] if {' and '.join(fits)}), {write(v.of[0])})"


def _condition(that: Source, text: str, write: "_Writer") -> str:
    values = "".join(f", {n}={n}" for n in _braced(text))
    return f"({write(that)}, {text!r}, dict({values[2:]}))"


def _variant(step: dict) -> str:
    """What picks a variant, as `Call.launch` and `Call.fits` take it."""

    def values(pairs) -> str:
        return f"dict({', '.join(f'{k}={v}' for k, v in pairs)})"

    ways = ", ".join(f"({values(way)}, {cond})" for way, cond in step["choose"])
    return f'"{step["kernel"]}", {values(step["settings"])}' + (f", [{ways}]" if ways else "")


def _made(m: Made, write: "_Writer") -> str:
    if m.number:
        return f'{m.name} = call.number("{m.name}", {write(m.number)})'
    if m.pieces:
        return f'{m.name} = call.pieces("{m.pieces}", {write(m.of)})'
    sides = [write(s) for s in m.shape]
    if m.when:
        sides[0] = f"{sides[0]} if {write(m.when, test=True)} else 0"
    return f'{m.name} = call.new([{", ".join(sides)}], "{m.dtype}")'


def _step(s: Step, write: "_Writer") -> dict:
    found = {
        "kernel": s.kernel.text,
        "settings": [(k, write(v, option=True)) for k, v in s.values],
        "choose": [
            ([(k, write(v, option=True)) for k, v in values], write(cond) if cond else "True")
            for values, cond in s.choose
        ],
        "tensors": [(k.text, write(v)) for k, v in s.tensors],
    }
    return {**found, "variant": _variant(found)}


def _returned(name: str, f: Function, write: "_Writer") -> str:
    when = next((m.when for m in f.tensors if m.name == name), None)
    return f"{name} if {write(when, test=True)} else None" if when else name


class _Writer:
    """Expressions of a pipeline spec as Python's."""

    def __init__(self, given: set[str], dtypes: dict[str, tuple[str, ...]], open_: set[str], words):
        self.given, self.dtypes, self.open, self.words = given, dtypes, open_, words

    def __call__(self, source: Source, option: bool = False, test: bool = False) -> str:
        node = source.node
        known = {*self.words, *self.dtypes, *CONSTANTS}
        if option and isinstance(node, ast.Name) and node.id not in known:
            return repr(node.id)  # the choice of an option
        if option and isinstance(node, ast.Constant):
            return repr(node.value)
        python = _Python(self.given, self.dtypes, self.open)
        made = (python.test if test else python.visit)(copied(node))
        return ast.unparse(ast.fix_missing_locations(made))


class _Python(ast.NodeTransformer):
    def __init__(self, given: set[str], dtypes: dict[str, tuple[str, ...]], open_: set[str]):
        self.given, self.dtypes, self.open = given, dtypes, open_

    def test(self, n: ast.expr) -> ast.expr:
        """A condition; an argument that may be left out stands for whether it is given."""
        if isinstance(n, ast.Name) and n.id in self.given:
            return ast.Name(f"has_{n.id}")
        return self.visit(n)

    def visit_Name(self, n: ast.Name) -> ast.expr:
        if n.id in self.open:
            return ast.parse(f'call.dtype("{n.id}")', mode="eval").body
        if n.id in self.dtypes:
            return ast.Constant(self.dtypes[n.id][0])
        if n.id in DTYPES:
            return ast.Constant(n.id)
        return ast.Constant(n.id == "true") if n.id in ("true", "false") else n

    def visit_Subscript(self, n: ast.Subscript) -> ast.expr:
        """The same elements in another shape; `:` keeps the first side, which may be 0."""
        sides = n.slice.elts if isinstance(n.slice, ast.Tuple) else [n.slice]
        rows = ast.parse(f"len({n.value.id})", mode="eval").body
        args = [rows if isinstance(s, ast.Slice) else self.visit(s) for s in sides]
        return ast.Call(ast.Attribute(n.value, "view"), args, [])

    def visit_Call(self, n: ast.Call) -> ast.expr:
        args = [self.visit(a) for a in n.args]
        match n.func.id:
            case "where":
                return ast.IfExp(self.test(n.args[0]), args[1], args[2])
            case "ceildiv":
                return ast.UnaryOp(
                    ast.USub(), ast.BinOp(ast.UnaryOp(ast.USub(), args[0]), ast.FloorDiv(), args[1])
                )
        return ast.Call(n.func, args, [])
