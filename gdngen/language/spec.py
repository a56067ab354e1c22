"""Located tree -> `Spec`: the shape of a spec checked, its expressions parsed, nothing resolved yet.

What a name means, and whether shapes and types agree, depends on the variant: `resolve.py` says.
"""

import ast
import itertools
import re

from gdngen import references
from gdngen.devices import devices
from gdngen.errors import Location, Report
from gdngen.language import tree
from gdngen.language.source import Source
from gdngen.language.statements import StatementReader
from gdngen.language.syntax import (
    DTYPES,
    MAX_GRID,
    MAX_VARIANTS,
    ROLES,
    SAMPLES,
    SCOPES,
    WORD,
    Buffer,
    Choice,
    Layout,
    Role,
    Spec,
    Tensor,
    Walk,
    is_reserved,
)
from gdngen.language.tree import Mapping, Node, Scalar, Sequence

RESERVED = "T"  # what a module calls TileLang: a spec's T is rendered as T_


def parse(text: str, file: str, report: Report) -> Spec | None:
    """The spec in `text`, or None where it can't be read; every mistake goes to the report."""
    if not file.isprintable():
        report.error(
            Location(repr(file), 1, 1), "the name of a spec has characters that don't print"
        )
        return None
    root = tree.parse(text, file, report)
    if root is None:
        return None
    spec = _Reader(report, file).spec(root)
    _unique_names(spec, report)
    return spec


class _Reader(StatementReader):
    def spec(self, root: Mapping) -> Spec:
        root = self.keys(root, "spec")
        for key in ("kernel", "tensors", "grid", "stages"):
            if root.get(key) is None:
                self.error(root.where, f"the spec has no '{key}'", "`gdngen docs` has every key")
        kernel = self.scalar(root.get("kernel"), "kernel")
        named = self.name(kernel, "kernel") if kernel else None
        choices, filters = self.variants(root)
        dims, tensors = self.names(root.get("dims"), "dim"), self.tensors(root)
        return Spec(
            file=self.file,
            kernel=named.text if named else "kernel",
            where=kernel.where if kernel else root.where,
            doc=self.doc(root),
            dims=dims,
            runtime=self.names(root.get("runtime"), "runtime size"),
            dtypes=tuple(self.dtypes(root)),
            options=tuple(self.options(root)),
            choices=choices,
            filters=filters,
            tensors=tensors,
            grid=tuple(self.grid(root)),
            threads=self.expr(root.get("threads"), "threads"),
            resident=self.expr(root.get("resident"), "resident"),
            asynchronous=self.expr(root.get("async"), "async"),
            rounds=self.rounds(root),
            fast_math=self.expr(root.get("fast_math"), "fast_math"),
            warn=self.scalar(root.get("warn"), "warn"),
            targets=tuple(self.targets(root)),
            buffers=self.buffers(root),
            stages=self.stages(root),
            layouts=tuple(self.layouts(root)),
            scalars=tuple(self.scalars(root)),
            roles=tuple(self.roles(root)),
            require=tuple(self.require(root)),
            reference=self.reference(root, [d.text for d in dims] + [t.name for t in tensors]),
        )

    # -- names and values --------------------------------------------------------------------

    def dtypes(self, root: Mapping):
        for key, node in self.mapping(root.get("dtypes"), "dtypes").entries:
            value = self.scalar(node, "a dtype")
            if not self.name(key, "dtype") or value is None:
                continue
            open_ = value.text in ("null", "~", "")  # every variant names it
            yield key, None if open_ else self.choice(value, "dtype", DTYPES) or "float32"

    def options(self, root: Mapping):
        for key, node in self.mapping(root.get("options"), "options").entries:
            choices = self.choices(node)
            if self.name(key, "option") and choices:
                yield key, tuple(c.text for c in choices)

    def choices(self, node: Node) -> tuple[Scalar, ...]:
        """One word or a list of different ones."""
        nodes = node.items if isinstance(node, Sequence) else (node,)
        found: dict[str, Scalar] = {}
        for word in (s for n in nodes if (s := self.scalar(n, "a choice"))):
            if not WORD.match(word.text):
                hint = "a choice becomes part of file names: letters, digits, _ and . (64 at most)"
                self.error(word.where, f"'{word.text[:40]}' can't be a choice", hint)
            elif word.text in found:
                self.error(word.where, f"the choice '{word.text}' is named twice")
            else:
                found[word.text] = word
        if not nodes:
            self.error(node.where, "an empty list of choices")
        return tuple(found.values())

    def grid(self, root: Mapping):
        entries = self.mapping(root.get("grid"), "grid").entries
        if root.get("grid") is not None and not 1 <= len(entries) <= MAX_GRID:
            at = entries[MAX_GRID][0] if entries else root.get("grid")
            self.error(
                at.where, f"a grid has 1 to {MAX_GRID} dimensions", 'grid: {c: "ceildiv(T, BC)"}'
            )
        for key, node in entries[:MAX_GRID]:
            if self.name(key, "block index"):
                size = self.expr(node, "a grid size")
                yield key, size or Source(ast.Constant(1), key)

    def targets(self, root: Mapping):
        known = [name for name, d in devices().items() if d.target == name]
        seen = set()
        for node in self.items(root.get("targets"), "targets"):
            target = self.scalar(node, "a target")
            if target is None:
                continue
            if target.text in seen:
                self.error(target.where, f"the target '{target.text}' is named twice")
            elif self.word(target, "target", tuple(known)):
                seen.add(target.text)
                yield target

    def scalars(self, root: Mapping):
        for key, node in self.mapping(root.get("scalars"), "scalars").entries:
            value = self.walk(node) if isinstance(node, Mapping) else self.expr(node, "a scalar")
            if self.name(key, "scalar") and value:
                yield key, value

    def walk(self, written: Mapping) -> Walk | None:
        """A scalar that is counted: {sum: "g[b, t]", over: t, until: -12, most: n}."""
        if written.entries and self.broken(written.entries[0][0]):
            return None
        node = self.keys(written, "walk")
        for key in ("sum", "over", "until", "most"):
            if node.get(key) is None:
                hint = 'n: {sum: "g[b, t]", over: t, until: -12, most: T} counts terms of a sum'
                self.error(node.where, f"a scalar that is counted has no '{key}'", hint)
                return None
        over = self.scalar(node.get("over"), "over")
        parts = [self.expr(node.get(key), f"'{key}'") for key in ("sum", "until", "most")]
        if not over or not self.name(over, "index") or not all(parts):
            return None
        return Walk(node.where, over, *parts)

    def roles(self, root: Mapping):
        for key, value in self.mapping(root.get("roles"), "roles").entries:
            node = self.keys(self.mapping(value, f"role '{key.text[:40]}'"), "role")
            units = [unit for unit in ("warps", "warpgroups") if node.get(unit) is not None]
            if len(units) != 1:
                what = f"'{key.text[:40]}' has {'both warps and' if units else 'no warps or'} warpgroups"
                self.error(key.where, what, "load: {warps: 1}, or state: {warpgroups: 2}")
                continue
            each = self.scalar(node.get("each"), "each")
            runs = node.get("runs")
            stages = self.names(runs, "stage") if isinstance(runs, Sequence) else (runs or key,)
            count = self.expr(node.get(units[0]), units[0])
            registers = self.expr(node.get("registers"), "registers")
            if (
                not self.name(key, "role")
                or count is None
                or (each and not self.name(each, "index"))
            ):
                continue
            if not all(isinstance(s, Scalar) for s in stages):
                self.error(runs.where, "stages are meant here", "runs: [first, rest]")
                continue
            doc = self.doc(node)
            yield Role(key.text, key.where, units[0], count, each, registers, stages, doc)

    def rounds(self, root: Mapping) -> tuple[Scalar, Source] | None:
        node = root.get("rounds")
        if node is None:
            return None
        entries = self.mapping(node, "rounds").entries
        if len(entries) != 1:
            self.error(node.where, "'rounds' names one block index and a number", "rounds: {c: 4}")
            return None
        key, value = entries[0]
        found = self.expr(value, "how many a block takes")
        return (key, found) if found else None

    def layouts(self, root: Mapping):
        hint = "layouts: [{when: order == 'bthd', swap: [1, 2], tensors: [q, k]}]"
        for item in self.items(root.get("layouts"), "layouts"):
            node = self.keys(self.mapping(item, "a layout"), "layout")
            axes = [self.scalar(a, "an axis") for a in self.items(node.get("swap"), "swap")]
            if len(axes) != 2 or not all(a and re.fullmatch("[0-5]", a.text) for a in axes):
                self.error(item.where, "a layout swaps two axes, counted from 0", hint)
                continue
            swap = int(axes[0].text), int(axes[1].text)
            tensors = self.names(node.get("tensors"), "tensor") if node.get("tensors") else None
            grid = self.names(node.get("grid"), "grid") if node.get("grid") else None
            if (when := self.expr(node.get("when"), "when")) or node.get("when") is None:
                yield Layout(item.where, swap, tensors, when, grid)

    def require(self, root: Mapping):
        for node in self.items(root.get("require"), "require") if root.get("require") else ():
            if found := self.expr(node, "a condition"):
                yield found

    def reference(self, root: Mapping, declared: list[str]) -> str | None:
        """The name of a known reference whose tensors and dims the spec has, by their names."""
        node = root.get("reference")
        name = self.word(node, "reference", references.names())
        if name and (lacking := references.get(name).lacks(declared)):
            self.error(
                node.where,
                f"reference '{name}' is about {', '.join(lacking)}, which this spec has not",
                "name tensors and dims as the reference does, or leave it out: the spec itself is one",
            )
        return name

    # -- variants ----------------------------------------------------------------------------

    def variants(self, root: Mapping) -> tuple[tuple[Choice, ...], tuple[Source, ...]]:
        node = self.keys(self.mapping(root.get("variants"), "variants"), "variants")
        where = self.expr(node.get("where"), "where")
        groups: list[tuple[Mapping, bool]] = []
        if (forall := node.get("forall")) is not None:
            groups.append((self.mapping(forall, "forall"), True))
        for item in self.items(node.get("also"), "also") if node.get("also") else ():
            groups.append((self.mapping(item, "a variant"), False))
        if not groups:
            groups.append((Mapping((), node.where), False))
        out: list[Choice] = []
        for group, filtered in groups:
            lists = [(key, self.choices(value)) for key, value in group.entries]
            count = len(out) + _product(len(values) for _, values in lists)
            if count > MAX_VARIANTS:
                self.error(
                    group.where,
                    f"{_many(count)} combinations; at most {MAX_VARIANTS} are rendered from a spec",
                    "shorten the lists; any other combination renders with --set",
                )
                break
            for values in itertools.product(*(v for _, v in lists)):
                pairs = tuple((key.text, value.text) for (key, _), value in zip(lists, values))
                out.append(Choice(pairs, lists[0][0].where if lists else group.where, filtered))
        return tuple(out), ((where,) if where else ())

    # -- tensors and buffers -----------------------------------------------------------------

    def tensors(self, root: Mapping) -> tuple[Tensor, ...]:
        out = []
        for key, value in self.mapping(root.get("tensors"), "tensors").entries:
            node = self.keys(self.mapping(value, f"tensor '{key.text[:40]}'"), "tensor")
            shape, dtype = self.shape(node, key), self.dtype(node, key)
            role = self.needed(node, key, "role", ROLES)
            sample = self.choice(node.get("sample"), "sample", SAMPLES) or "normal"
            when, doc = self.expr(node.get("when"), "when"), self.doc(node)
            partly = self.expr(node.get("partly"), "partly")
            if not self.name(key, "tensor"):
                continue
            faulty = not (shape and dtype and role) or (when is None) != (node.get("when") is None)
            if partly and role == "in":
                self.error(partly.where(), f"'{key.text}' is only read", "leave 'partly' out")
            dtype, role = dtype or key, role or "inout"
            out.append(
                Tensor(key.text, key.where, role, shape, dtype, doc, sample, when, faulty, partly)
            )
        return tuple(out)

    def buffers(self, root: Mapping) -> tuple[Buffer, ...]:
        out = []
        for key, value in self.mapping(root.get("buffers"), "buffers").entries:
            node = self.keys(self.mapping(value, f"buffer '{key.text[:40]}'"), "buffer")
            shape, dtype = self.shape(node, key), self.dtype(node, key)
            scope = self.needed(node, key, "scope", SCOPES, self.choice)
            live, reuse = self.live(node.get("live")), self.scalar(node.get("reuse"), "reuse")
            stages = self.expr(node.get("stages"), "stages")
            when, doc = self.expr(node.get("when"), "when"), self.doc(node)
            if not self.name(key, "buffer"):
                continue
            faulty = not (shape and dtype and scope) or (when is None) != (node.get("when") is None)
            faulty = faulty or (stages is None) != (node.get("stages") is None)
            dtype, scope = dtype or key, scope or "shared"
            meant = (scope, shape, dtype, live, reuse, doc, when, faulty, stages)
            out.append(Buffer(key.text, key.where, *meant))
        return tuple(out)

    def needed(self, node: Mapping, owner: Scalar, key: str, known: tuple[str, ...], read=None):
        """One of the known words; what `read` makes of it where more than a word may stand there."""
        if node.get(key) is None:
            self.error(
                owner.where, f"'{owner.text[:40]}' has no {key}", f"one of: {' '.join(known)}"
            )
        return (read or self.word)(node.get(key), key, known)

    def shape(self, node: Mapping, owner: Scalar) -> tuple[Source, ...]:
        """The sizes; none where any of them is wrong."""
        shape = node.get("shape")
        if shape is None:
            self.error(owner.where, f"'{owner.text[:40]}' has no shape", "shape: [BC, DK]")
            return ()
        sizes = [self.expr(item, "a size") for item in self.items(shape, "a shape")]
        if isinstance(shape, Sequence) and not 1 <= len(sizes) <= 6:
            self.error(shape.where, "a shape has 1 to 6 sizes")
            return ()
        return tuple(sizes) if all(sizes) else ()

    def dtype(self, node: Mapping, owner: Scalar) -> Scalar | None:
        if node.get("dtype") is None:
            self.error(owner.where, f"'{owner.text[:40]}' has no dtype", "dtype: float32")
        return self.scalar(node.get("dtype"), "a dtype")

    def live(self, node: Node | None) -> tuple[Scalar, Scalar] | None:
        """`first .. last`, or one stage."""
        scalar = self.scalar(node, "live")
        if scalar is None:
            return None
        if not re.fullmatch(r"\s*[^\s.]+(\s*\.\.\s*[^\s.]+)?\s*", scalar.text):
            self.error(
                scalar.where, "a lifetime is 'stage' or 'first .. last'", "live: load .. gate"
            )
            return None
        ends = list(re.finditer(r"[^\s.]+", scalar.text))
        words = [Scalar(m[0], scalar.at(0, m.start(), len(m[0]))) for m in ends]
        return words[0], words[-1]


def _product(sizes) -> int:
    """How many combinations; past a thousand million nobody needs to know."""
    total = 1
    for size in sizes:
        total = min(total * size, 10**9)
    return total


def _many(count: int) -> str:
    return f"{count:,}" if count < 10**9 else "more than a thousand million"


def _unique_names(spec: Spec, report: Report) -> None:
    """One name, one meaning: two things of one name would be one variable of the kernel."""
    groups = (
        ("dim", [(d.text, d.where) for d in spec.dims]),
        ("runtime size", [(r.text, r.where) for r in spec.runtime]),
        ("dtype", [(k.text, k.where) for k, _ in spec.dtypes]),
        ("option", [(k.text, k.where) for k, _ in spec.options]),
        ("tensor", [(t.name, t.where) for t in spec.tensors]),
        ("buffer", [(b.name, b.where) for b in spec.buffers]),
        ("block index", [(k.text, k.where) for k, _ in spec.grid]),
        ("scalar", [(k.text, k.where) for k, _ in spec.scalars]),
        ("stage", [(s.name, s.where) for s in spec.stages]),
        ("role", [(r.name, r.where) for r in spec.roles]),
        ("kernel", [(spec.kernel, spec.where)]),
    )
    seen: dict[str, tuple[str, int]] = {}
    for kind, entries in groups:
        for name, where in entries:
            spelled = name.rstrip("_") if name.rstrip("_") == RESERVED else name
            first, line = seen.get(spelled, (None, 0))
            if is_reserved(name):
                what = f"{_a(kind)} can't be called '{name}': the language has that name"
                report.error(where, what, "choose another name")
            elif first and {kind, first} not in (
                {"kernel", "stage"},
                {"role", "stage"},
            ):  # a stage is only a comment
                both = f"two {kind}s" if kind == first else f"{_a(kind)} and {_a(first)}"
                what = f"{both} share the name '{name}'"
                note = (
                    "; T is TileLang in a kernel, so a spec's T is T_ there"
                    if spelled == RESERVED
                    else ""
                )
                report.error(where, what, f"the {first} is on line {line}{note}")
            seen.setdefault(spelled, (kind, where.line))


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
