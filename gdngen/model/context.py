"""What the names of a spec mean in one variant: values, ranges, dtypes, declared tiles and tensors.

The checks of statements (`tiles.py`, `maps.py`, `regions.py`) ask it, and report through it.
"""

import ast
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gdngen.errors import Location, Report, did_you_mean
from gdngen.language.expr import (
    CONSTANTS,
    ExprError,
    Range,
    Value,
    copied,
    evaluate,
    interval,
    names,
)
from gdngen.language.source import Source
from gdngen.language.syntax import DTYPES, is_reserved
from gdngen.language.tree import Scalar
from gdngen.model import model, types

MAX_ELEMENTS = 2**24


@dataclass
class Budget:
    """Points of maps that may still be tried one by one, in one variant."""

    points: int = 2**18


@dataclass(frozen=True)
class Scope:
    """What names mean at one place: known values, ranges of the others; `guards` hold there."""

    values: Mapping[str, int | str | bool]
    ranges: Mapping[str, Range]
    guards: tuple[ast.expr, ...] = ()
    budget: Budget = field(default_factory=Budget)

    def inside(self, **ranges: Range) -> "Scope":
        return replace(self, ranges={**self.ranges, **ranges})

    def where(self, *guards: ast.expr) -> "Scope":
        return replace(self, guards=self.guards + guards)


class Stop(Exception):
    """This statement can't be resolved further; the report says why."""


@dataclass
class Context:
    report: Report
    scope: Scope
    dtypes: Mapping[str, str]  # word -> dtype
    taken: frozenset[str]  # names that no index may have
    tensors: dict[str, model.Tensor] = field(default_factory=dict)
    buffers: dict[str, model.Buffer] = field(default_factory=dict)
    scalars: dict[str, str] = field(default_factory=dict)  # what a block reads -> its dtype
    absent: set[str] = field(default_factory=set)  # left out by their `when`
    faulty: set[str] = field(default_factory=set)  # declared with a mistake, reported
    threads: int | None = 128  # None: the spec's own are wrong, reported
    stage: str = ""
    in_role: bool = False
    ids: itertools.count = field(default_factory=itertools.count)
    groups: itertools.count = field(default_factory=itertools.count)

    def fail(self, where: Location, what: str, hint: str | None = None, kind: str = "") -> Stop:
        """Reports; for `raise cx.fail(...)`."""
        self.report.error(where, what, hint, kind)
        return Stop()

    # -- names -------------------------------------------------------------------------------

    def known(self, source: Source, scope: Scope, extra: Mapping | frozenset = frozenset()) -> None:
        """Every name of the expression has a meaning here; a did-you-mean for each that has none."""
        unknown = [
            n
            for n in names(source.node)
            if n.id not in scope.values
            and n.id not in scope.ranges
            and n.id not in extra
            and n.id not in CONSTANTS
            and n.id not in self.dtypes
        ]
        for name in unknown:
            if name.id not in self.faulty:
                self.unknown(source, name, [*scope.values, *scope.ranges, *extra], "name")
        if unknown:
            raise Stop

    def unknown(self, source: Source, name: ast.Name, known, what: str) -> None:
        hint = None
        if name.id in self.absent:
            hint = f"'{name.id}' is left out by its 'when' in this variant"
        elif name.id in self.tensors or name.id in self.buffers:
            hint = f"'{name.id}' is a tile or tensor; sizes and conditions are made of dims and indices"
        text = f"unknown {what} '{name.id[:40]}'{did_you_mean(name.id, known)}"
        self.report.error(source.where(name), text, hint)

    def fresh(self, name: Scalar, scope: Scope) -> None:
        """The name of an index means nothing else here."""
        word = name.text.rstrip("_") if name.text.rstrip("_") == "T" else name.text
        meant = {**scope.values, **scope.ranges}
        if word in meant or name.text in meant or name.text in self.taken or is_reserved(word):
            raise self.fail(
                name.where, f"'{name.text}' is already a name here", "give the index another name"
            )

    def declared(self, source: Source, node: ast.Name) -> model.Tensor | model.Buffer:
        """The tensor or buffer of that name."""
        if found := self.buffers.get(node.id) or self.tensors.get(node.id):
            return found
        if node.id not in self.faulty:
            self.unknown(source, node, {**self.buffers, **self.tensors}, "buffer or tensor")
        raise Stop

    def is_tile(self, name: str) -> bool:
        return name in self.buffers or name in self.tensors

    def dtype_of(self, name: str) -> str:
        return (self.buffers.get(name) or self.tensors[name]).dtype

    def dtype_name_of(self, name: str) -> str:
        return (self.buffers.get(name) or self.tensors[name]).dtype_name

    def writable(self, name: str, where: Location) -> None:
        tensor = self.tensors.get(name)
        if tensor and tensor.role == "in":
            raise self.fail(
                where, f"'{name}' is an input; it can't be written", "role: out or inout"
            )

    # -- values ------------------------------------------------------------------------------

    def is_static(self, node: ast.AST, scope: Scope) -> bool:
        """Whether an expression has a value when rendering."""
        words = (scope.values, CONSTANTS, self.dtypes)
        return all(any(n.id in known for known in words) for n in names(node))

    def folded(self, node: ast.AST) -> ast.AST:
        """The expression with every `where` decided whose condition is known when rendering, and every
        `and` and `or` by those of its parts that are."""

        class Folder(ast.NodeTransformer):
            def visit_Call(folder, n: ast.Call) -> ast.expr:
                if n.func.id in ("where", "select") and self.is_static(n.args[0], self.scope):
                    try:
                        holds = evaluate(n.args[0], {**self.dtypes, **self.scope.values})
                        return folder.visit(n.args[1 if holds else 2])
                    except ExprError:  # reported where the expression is checked
                        pass
                return ast.copy_location(ast.Call(n.func, [folder.visit(a) for a in n.args], []), n)

            def visit_BoolOp(folder, n: ast.BoolOp) -> ast.expr:
                decides = isinstance(n.op, ast.Or)  # an `or` what holds, an `and` what does not
                left = []
                for part in map(folder.visit, n.values):
                    try:
                        known = self.is_static(part, self.scope)
                        holds = known and bool(evaluate(part, {**self.dtypes, **self.scope.values}))
                    except ExprError:  # reported where the expression is checked
                        known = False
                    if not known:
                        left.append(part)
                    elif holds == decides:
                        return ast.copy_location(ast.Constant(decides), n)
                if not left:
                    return ast.copy_location(ast.Constant(not decides), n)
                whole = left[0] if len(left) == 1 else ast.BoolOp(n.op, left)
                return ast.copy_location(whole, n)

        return Folder().visit(copied(node))

    def static(self, source: Source, scope: Scope | None = None) -> Value:
        """The value of an expression of dims, options and dtypes; a dtype is a word, as 'float16'."""
        scope = scope or self.scope
        if any(n.id in scope.ranges for n in names(source.node)):
            free = next(n for n in names(source.node) if n.id in scope.ranges)
            what = f"'{free.id}' is known only when the kernel runs; a size known when rendering is meant"
            raise self.fail(source.where(free), what)
        self.known(source, scope)
        try:
            return evaluate(source.node, {**self.dtypes, **scope.values})
        except ExprError as e:
            raise self.fail(source.where(e.node), e.what, e.hint) from None

    def size(
        self, source: Source, what: str, least: int = 1, most: int = MAX_ELEMENTS, scope=None
    ) -> int:
        value = self.static(source, scope)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            meant = f"a whole number from {least} to {most:,} is meant"
            raise self.fail(source.where(), f"{what} is {str(value)[:40]}; {meant}")
        return value

    def runtime_size(self, source: Source, what: str, scope: Scope, least: int = 1) -> Range:
        """Bounds of a size that may rest on runtime sizes and indices; it may reach `least`."""
        self.known(source, scope)
        self.integer(source, source.node, scope)
        low, high = interval(source.node, scope.values, scope.ranges)
        if high < least:
            raise self.fail(source.where(), f"{what} is {int(high)}; at least {least} is meant")
        return low, high

    def dtype(self, word: Scalar, owner: str) -> str:
        if word.text in self.dtypes:
            return self.dtypes[word.text]
        near = did_you_mean(word.text, self.dtypes)
        raise self.fail(
            word.where,
            f"unknown dtype '{word.text[:40]}' of '{owner}'{near}",
            f"name it under dtypes, or write one of: {' '.join(DTYPES)}",
        )

    def word(self, choice: str | Source, what: str, known: tuple[str, ...]) -> str:
        """One of the known words: as written, or what an expression of dims and options gives."""
        if isinstance(choice, str):
            return choice
        found = self.static(choice)
        if found in known:
            return found
        near = did_you_mean(str(found), known)
        what = f"unknown {what} '{str(found)[:40]}'{near}"
        raise self.fail(choice.where(), what, f"one of: {' '.join(known)}")

    # -- types -------------------------------------------------------------------------------

    def type_of(self, source: Source, node: ast.AST, scope: Scope) -> str:
        """The type of an expression; elements are read as their buffers' dtypes."""
        try:
            types.check(node, scope.values)
            return types.infer(node, lambda n: self._name_type(source, n, scope), self.dtypes)
        except ExprError as e:
            raise self.fail(source.where(e.node), e.what, e.hint) from None

    def _name_type(self, source: Source, n: ast.Name | ast.Subscript, scope: Scope) -> str:
        if isinstance(n, ast.Subscript):
            if not isinstance(n.value, ast.Name):
                raise ExprError(n, "an element is meant here: name[i, j]")
            return self.declared(source, n.value).dtype
        if n.id in self.dtypes:
            raise ExprError(n, f"'{n.id}' is a dtype; it has a place in cast only")
        if self.is_tile(n.id):
            raise ExprError(n, f"'{n.id}' is a tile; name an element: {n.id}[i, ...]")
        value = scope.values.get(n.id)
        if isinstance(value, str):
            raise ExprError(n, f"'{n.id}' is a word; it has a place in 'when' only")
        if isinstance(value, bool):
            return "bool"
        return types.WEAK_INT if value is not None else self.scalars.get(n.id, "int32")

    def integer(self, source: Source, node: ast.AST, scope: Scope) -> None:
        kind = self.type_of(source, node, scope)
        if types.is_float(kind) or kind == "bool":
            raise self.fail(source.where(node), f"a whole number is meant here, not {kind}")

    def condition(self, source: Source, scope: Scope) -> None:
        kind = self.type_of(source, source.node, scope)
        if kind != "bool":
            raise self.fail(source.where(), f"a condition is meant here, not {kind}")
