"""What a kernel's source touches, place by place: tiles by their names, elements and parts of them.

`body.py` reads statements; here are the names and tiles that it has gathered, and the accesses that
expressions make.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

from gdngen.errors import Location
from gdngen.inspect.kernel import Access, Axis, Leaf, Note, Part, Span, Tile, number
from gdngen.inspect.values import Env, Folder, Held, Library, Names, Several, Tensor
from gdngen.language import expr


@dataclass
class Gathered:
    """Accesses of one leaf as they are read."""

    axes: tuple[Axis, ...] = ()
    inner: tuple[Axis, ...] = ()
    accesses: list[Access] = field(default_factory=list)
    loads: bool = False
    guarded: bool = False

    def add(self, access: Access) -> None:
        if not access.write:
            mine = [a for a in self.accesses if a.write and a.exact and a.tile == access.tile]
            same = any(_dumped(a.index) == _dumped(access.index) for a in mine)
            access = replace(access, anew=same)
        self.accesses.append(access)


def _dumped(index: tuple[Part, ...]) -> list[str]:
    return [f"{ast.dump(p.start)}+{p.size}" if isinstance(p, Span) else ast.dump(p) for p in index]


@dataclass(frozen=True)
class Missing:
    """Something that must be known, and the names that nothing gives a value to."""

    where: Location
    what: str
    names: list[str]


class Places:
    """Names, tiles and notes of one kernel, as far as it is read."""

    def __init__(self, file: str, lines: Sequence[str]):
        self.file, self.lines = file, lines
        self.names = Names()
        self.folder = Folder(self.names, lambda tile: self.tiles[tile].shape)
        self.tiles: dict[str, Tile] = {}
        self.vars: set[str] = set()  # tiles that are assigned to by name
        self.rounds: dict[str, str] = {}  # of a loop's variable: how many there are, as written
        self.ranges: dict[str, tuple[float, float]] = {}
        self.grid: dict[str, ast.expr] = {}
        self.notes: dict[tuple[int, str], Note] = {}
        self.layouts: list[str] = []
        self.missing: list[Missing] = []
        self.lanes: set[str] = set()  # names that differ from thread to thread
        self.threads: int | None = 128
        self.barriers = 0
        self.deep = 0

    def where(self, node: ast.AST) -> Location:
        line = self.lines[node.lineno - 1] if node.lineno <= len(self.lines) else ""
        if isinstance(node, ast.FunctionDef) and f"def {node.name}" in line:
            return Location(
                self.file,
                node.lineno,
                line.index(node.name, line.index("def ")) + 1,
                len(node.name),
            )
        column = len(line.encode()[: node.col_offset].decode(errors="replace"))
        width = 1
        if getattr(node, "end_lineno", None) == node.lineno:
            width = len(
                line.encode()[node.col_offset : node.end_col_offset].decode(errors="replace")
            )
        return Location(self.file, node.lineno, column + 1, max(1, width))

    def note(self, node: ast.AST, what: str, harmless: bool = False) -> None:
        where = self.where(node)
        self.notes.setdefault((where.line, what), Note(where, what, harmless))

    def rename(self, held: Held, name: str, viewed: bool = False) -> None:
        tile = self.tiles[held.tile]
        names = (*(n for n in tile.names if n != name), name)
        self.tiles[held.tile] = replace(tile, names=names, viewed=tile.viewed or viewed)

    def lacks(self, name: str, value: ast.Call, env: Env, dtype, given) -> Missing:
        """What is not known of a tile: all is read on, so that everything is asked for at once."""
        wanted = [*value.args[:1], *([given] if dtype is None and given is not None else [])]
        names = sorted({n for w in wanted for n in self.unknown_in(w, env)})
        what = "the dtype" if dtype is None else "the size"
        return Missing(self.where(value), f"{what} of '{name}' is not known", names)

    def unknown_in(self, node: ast.expr, env: Env) -> list[str]:
        """Names of the source in an expression that have no value; of those that hold one another's,
        the ones that started it."""
        out = []
        for n in ast.walk(node):
            if isinstance(n, ast.Name) and not isinstance(env.get(n.id), Library):
                found = env.get(n.id)
                if found is None or (isinstance(found, ast.expr) and number(found) is None):
                    deeper = [m.id for m in expr.names(found)] if found is not None else []
                    out += [m for m in deeper if not m.startswith("unknown")] or [n.id]
                elif isinstance(found, Several):
                    parts = [p for p in found.items if isinstance(p, ast.expr)]
                    out += [m.id for p in parts for m in expr.names(p)]
        return out

    def element(self, target: ast.Subscript, value: ast.expr, env: Env, got: Gathered) -> None:
        self.read(value, env, got)
        for part in indices(target):
            self.read(part, env, got)
        held = self.folder.fold(target.value, env)
        if isinstance(held, Held):
            got.add(self.access(held, target, env, True, got))

    def gather(self, nodes: Sequence[ast.expr], env: Env) -> Gathered:
        got = Gathered()
        for node in nodes:
            self.read(node, env, got)
        return got

    def read(self, node: ast.expr, env: Env, got: Gathered) -> None:
        """Adds every tile that an expression reads."""
        match node:
            case ast.Subscript(value=inner):
                for part in indices(node):
                    self.read(part, env, got)
                found = self.folder.fold(inner, env) if not isinstance(inner, ast.Call) else None
                if isinstance(found, Held):
                    got.add(self.access(found, node, env, False, got))
                elif isinstance(found, Tensor):
                    got.loads = True
                elif not isinstance(inner, ast.Name | ast.Attribute):
                    self.read(inner, env, got)
            case ast.Name():
                found = env.get(node.id)
                if isinstance(found, Held):
                    got.add(self.whole(found, False, self.where(node)))
            case ast.Attribute():
                return
            case ast.Call(args=args, keywords=keywords):
                for part in [*args, *(k.value for k in keywords)]:
                    self.read(part, env, got)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.read(child, env, got)

    def whole(self, held: Held, write: bool, where: Location) -> Access:
        tile = self.tiles[held.tile]
        if held.window:
            return self.bounded(held, held.window, write, where, frozenset())
        return Access(held.tile, held.name, write, (), tile.box, True, where)

    def access(
        self, held: Held, node: ast.Subscript, env: Env, write: bool, got: Gathered | None = None
    ) -> Access:
        """An element of a tile, or a part of it."""
        tile, where = self.tiles[held.tile], self.where(node)
        parts = self.parts(node, tile.shape, env)
        if held.viewed:  # of what the view's indices are there is no telling
            return Access(held.tile, held.name, write, (), tile.box, False, where)
        if held.window or parts is None:
            if parts is None:
                self.note(node, f"'{held.name}' has {len(tile.shape)} axes: taken as all of it")
            inside = self.whole(held, write, where)
            return replace(inside, exact=False)
        axes = (*got.axes, *got.inner) if got is not None and got.axes else ()
        made = self.bounded(held, parts, write, where, frozenset(a.id for a in axes))
        return replace(made, exact=made.exact and not (got is not None and got.guarded))

    def bounded(
        self, held: Held, parts: tuple[Part, ...], write: bool, where: Location, own: frozenset[str]
    ) -> Access:
        """An access with the box that its index keeps to. `own`: loop variables whose whole loop the
        leaf runs."""
        tile, box, exact, seen = self.tiles[held.tile], [], True, set()
        for part, side in zip(parts, tile.shape):
            at, size = (part.start, part.size) if isinstance(part, Span) else (part, 1)
            low, high = expr.interval(at, {}, self.ranges)
            length = size if size is not None else side
            low = int(max(0, low)) if isfinite(low) else 0
            high = int(min(side, high + length)) if isfinite(high) else side
            box.append((min(low, side), max(min(low, side), high)))
            alone = isinstance(at, ast.Name) and at.id in own and at.id not in seen
            seen |= {at.id} if alone else set()
            exact &= size is not None and (number(at) is not None or alone)
        return Access(held.tile, held.name, write, parts, tuple(box), exact, where)

    def parts(self, node: ast.Subscript, shape: Sequence, env: Env) -> tuple[Part, ...] | None:
        """The index of an element or a part; None where it has not one for every axis."""
        given = indices(node)
        if len(given) != len(shape):
            return None
        out: list[Part] = []
        for part, side in zip(given, shape):
            if not isinstance(part, ast.Slice):
                out.append(self.folder.scalar(part, env))
                continue
            end = ast.Constant(side) if isinstance(side, int) else side
            start = self.folder.scalar(part.lower, env) if part.lower else ast.Constant(0)
            stop = self.folder.scalar(part.upper, env) if part.upper else end
            out.append(Span(start, number(ast.BinOp(stop, ast.Sub(), start))))
        return tuple(out)

    def region(self, node: ast.expr, env: Env) -> Held | None:
        """A name's part of a tile, `P[:, :D]`; None for anything else."""
        if not isinstance(node, ast.Subscript):
            return None
        held = self.folder.fold(node.value, env)
        if not isinstance(held, Held) or held.viewed or held.window:
            return None
        parts = self.parts(node, self.tiles[held.tile].shape, env)
        if parts is None or not any(isinstance(p, Span) for p in parts):
            return None
        spans = tuple(p if isinstance(p, Span) else Span(p, 1) for p in parts)
        return replace(held, window=spans)

    def leaf(self, kind: str, node: ast.AST, got: Gathered) -> Leaf:
        return Leaf(
            kind, self.where(node), tuple(got.accesses), got.axes, got.inner, loads=got.loads
        )


def indices(node: ast.Subscript) -> list[ast.expr]:
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
