"""Located tree -> `Spec`: the shape of a spec checked, its expressions parsed, nothing resolved yet.

What a name means, and whether shapes and types agree, depends on the variant: `resolve.py` says.
"""

import ast
import itertools
import re
from dataclasses import dataclass, field

from gdngen import expr, tree
from gdngen.errors import Location, Report, did_you_mean
from gdngen.expr import Source
from gdngen.tree import Mapping, Node, Scalar, Sequence

MAX_VARIANTS = 512
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "bool")
SCOPES = ("shared", "fragment", "local")
ROLES = ("in", "out", "inout")
SAMPLES = ("normal", "unit", "uniform", "decay", "index", "zeros")
REDUCTIONS = ("max", "min", "sum", "absmax", "abssum")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}\Z")


@dataclass(frozen=True)
class Tensor:
    """A tensor in global memory: role, shape in the order of its layout, dtype (a name)."""

    name: str
    where: Location
    role: str
    shape: tuple[Source, ...]
    dtype: Scalar
    doc: str = ""
    sample: str = "normal"
    when: Source | None = None


@dataclass(frozen=True)
class Buffer:
    """A tile: scope, shape, dtype, declared lifetime (first and last stage), the author's alias."""

    name: str
    where: Location
    scope: str
    shape: tuple[Source, ...]
    dtype: Scalar
    live: tuple[Scalar, Scalar] | None = None
    reuse: Scalar | None = None
    doc: str = ""
    when: Source | None = None


@dataclass(frozen=True)
class Statement:
    """One statement as written. `kind` is its key; what `parts` holds depends on it:

    copy fill reduce cumsum  source, target, arrow        gemm   a, b, target, arrow
    map    axes (name, extent), guard; `body` assignments  assign target, value
    repeat loop pipelined    axes, stages; `body`          when   cond; `body`, `other`
    raw    lines, reads, writes
    """

    kind: str
    where: Location
    parts: dict[str, object] = field(default_factory=dict)
    body: "tuple[Statement, ...]" = ()
    other: "tuple[Statement, ...]" = ()
    when: Source | None = None

    def __getitem__(self, part: str):
        return self.parts.get(part)


@dataclass(frozen=True)
class Stage:
    name: str
    where: Location
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Choice:
    """One combination asked for: name -> value, and where it was."""

    values: tuple[tuple[str, str], ...]
    where: Location


@dataclass(frozen=True)
class Spec:
    file: str
    kernel: str
    where: Location
    doc: str
    dims: tuple[Scalar, ...]
    runtime: tuple[Scalar, ...]
    dtypes: tuple[tuple[Scalar, str | None], ...]
    options: tuple[tuple[Scalar, tuple[str, ...]], ...]
    choices: tuple[Choice, ...]
    filters: tuple[Source, ...]
    tensors: tuple[Tensor, ...]
    grid: tuple[tuple[Scalar, Source], ...]
    threads: Source | None
    targets: tuple[Scalar, ...]
    buffers: tuple[Buffer, ...]
    stages: tuple[Stage, ...]
    reference: str | None = None


KEYS = {
    "spec": "kernel doc dims runtime dtypes options variants tensors grid threads targets buffers "
    "stages reference",
    "variants": "forall where also",
    "tensor": "role shape dtype doc sample when",
    "buffer": "scope shape dtype live reuse doc when",
    "copy": "copy",
    "fill": "fill",
    "gemm": "gemm",
    "map": "map if do",
    "repeat": "repeat do",
    "loop": "loop do",
    "pipelined": "pipelined stages do",
    "reduce": "reduce axis",
    "cumsum": "cumsum axis reverse",
    "when": "do else",
    "raw": "raw reads writes",
}
KINDS = tuple(
    "copy fill gemm map repeat loop pipelined reduce cumsum raw".split()
)  # a `when` beside one of these is its condition; alone, with `do`, it is a statement


def parse(text: str, file: str, report: Report) -> Spec | None:
    """The spec in `text`, or None where it can't be read; every mistake goes to the report."""
    root = tree.parse(text, file, report)
    return _Reader(report, file).spec(root) if root else None


class _Reader:
    def __init__(self, report: Report, file: str):
        self.report, self.file = report, file
        self.error = report.error

    # -- pieces ------------------------------------------------------------------------------

    def keys(self, node: Mapping, level: str, extra: str = "") -> None:
        known = (KEYS[level] + " " + extra).split()
        for key, value in node.entries:
            if key.text in known:
                continue
            if any(c in key.text for c in "[(@") or "->" in key.text:
                self.error(
                    key.where,
                    "a ': ' breaks this line in two, so YAML reads a key where an expression was meant",
                    "quote the whole value, or write the colon without a space after it",
                )
            elif any(c in key.text for c in " )]"):
                self.error(
                    key.where,
                    "a comma inside { } or [ ] starts a new entry here",
                    "quote the value that holds the comma",
                )
            else:
                self.error(
                    key.where,
                    f"unknown key '{key.text[:40]}' in {level}{did_you_mean(key.text, known)}",
                    f"keys: {' '.join(known)}",
                )

    def mapping(self, node: Node | None, what: str) -> Mapping:
        if isinstance(node, Mapping):
            return node
        if node is not None and not (isinstance(node, Scalar) and not node.text):
            self.error(node.where, f"{what} is a mapping")
        return Mapping((), node.where if node else Location(self.file, 1, 1))

    def items(self, node: Node | None, what: str) -> tuple[Node, ...]:
        if isinstance(node, Sequence):
            return node.items
        if node is not None:
            self.error(node.where, f"{what} is a list")
        return ()

    def scalar(self, node: Node | None, what: str) -> Scalar | None:
        if isinstance(node, Scalar):
            return node
        if node is not None:
            self.error(node.where, f"{what} is one value, not a {type(node).__name__.lower()}")
        return None

    def word(self, node: Node | None, what: str, known: tuple[str, ...], default: str) -> str:
        word = self.scalar(node, what)
        if word is None:
            return default
        if word.text not in known:
            self.error(
                word.where,
                f"unknown {what} '{word.text[:40]}'{did_you_mean(word.text, known)}",
                f"one of: {' '.join(known)}",
            )
            return default
        return word.text

    def name(self, scalar: Scalar, what: str) -> Scalar | None:
        if NAME.match(scalar.text):
            return scalar
        self.error(
            scalar.where,
            f"'{scalar.text[:40]}' can't name a {what}",
            "a name is a letter, then letters, digits and _ (64 at most)",
        )
        return None

    def names(self, node: Node | None, what: str) -> tuple[Scalar, ...]:
        scalars = [self.scalar(item, f"a {what}") for item in self.items(node, f"the list of {what}s")]
        return tuple(n for s in scalars if s and (n := self.name(s, what)))

    def expr(self, node: Node | None, what: str) -> Source | None:
        scalar = self.scalar(node, what)
        return expr.parse(scalar, self.report) if scalar and self.one_line(scalar) else None

    def one_line(self, scalar: Scalar) -> bool:
        """A plain scalar that YAML folds over lines would give wrong columns; a `|` block doesn't."""
        lines = self.report.sources[self.file].splitlines()
        line = lines[scalar.where.line - 1]
        if not scalar.quoted and not line[scalar.where.column - 1 :].startswith(scalar.text):
            self.error(
                scalar.where,
                "an expression that goes on over the next line",
                "keep it on one line, or put it in a `|` block",
            )
            return False
        return True

    def shape(self, node: Node | None, owner: Scalar) -> tuple[Source, ...]:
        if node is None:
            self.error(owner.where, f"'{owner.text}' has no shape", "shape: [BC, DK]")
        sizes = [self.expr(item, "a size") for item in self.items(node, "a shape")]
        if isinstance(node, Sequence) and not 1 <= len(sizes) <= 6:
            self.error(node.where, "a shape has 1 to 6 sizes")
        return tuple(s for s in sizes if s)

    def dtype(self, node: Node | None, owner: Scalar) -> Scalar:
        if node is None:
            self.error(owner.where, f"'{owner.text}' has no dtype", "dtype: float32")
        return self.scalar(node, "a dtype") or Scalar("float32", owner.where)

    def doc(self, node: Mapping) -> str:
        text = self.scalar(node.get("doc"), "doc")
        return text.text.strip() if text else ""

    # -- the parts of a spec -----------------------------------------------------------------

    def spec(self, root: Mapping) -> Spec | None:
        self.keys(root, "spec")
        for key in ("kernel", "tensors", "grid", "stages"):
            if root.get(key) is None:
                self.error(root.where, f"the spec has no '{key}'", "see docs/spec.md")
        kernel = self.scalar(root.get("kernel"), "kernel")
        named = self.name(kernel, "kernel") if kernel else None
        dtypes = [
            (key, None if value.text in ("null", "~", "") else self.dtype_word(value))
            for key, node in self.mapping(root.get("dtypes"), "dtypes").entries
            if self.name(key, "dtype") and (value := self.scalar(node, "a dtype"))
        ]
        options = [
            (key, tuple(c.text for c in choices))
            for key, node in self.mapping(root.get("options"), "options").entries
            if self.name(key, "option") and (choices := self.choices_of(node))
        ]
        choices, filters = self.variants(root)
        targets = self.items(root.get("targets"), "targets") if root.get("targets") else ()
        grid = [
            (key, self.expr(node, "a grid size") or Source(ast.Constant(1), key))
            for key, node in self.mapping(root.get("grid"), "grid").entries
            if self.name(key, "block index")
        ]
        if len(grid) > 3:
            self.error(grid[3][0].where, "a grid has at most three dimensions")
        reference = self.scalar(root.get("reference"), "reference")
        return Spec(
            file=self.file,
            kernel=named.text if named else "kernel",
            where=kernel.where if kernel else root.where,
            doc=self.doc(root),
            dims=self.names(root.get("dims"), "dim"),
            runtime=self.names(root.get("runtime"), "runtime size"),
            dtypes=tuple(dtypes),
            options=tuple(options),
            choices=choices,
            filters=filters,
            tensors=self.tensors(root),
            grid=tuple(grid),
            threads=self.expr(root.get("threads"), "threads"),
            targets=tuple(t for n in targets if (t := self.scalar(n, "a target"))),
            buffers=self.buffers(root),
            stages=self.stages(root),
            reference=reference.text if reference else None,
        )

    def dtype_word(self, value: Scalar) -> str:
        return self.word(value, "dtype", DTYPES, "float32")

    def choices_of(self, node: Node) -> tuple[Scalar, ...]:
        nodes = node.items if isinstance(node, Sequence) else (node,)
        found = tuple(s for n in nodes if (s := self.scalar(n, "a choice")))
        if not found:
            self.error(node.where, "an empty list of choices")
        return found

    def variants(self, root: Mapping) -> tuple[tuple[Choice, ...], tuple[Source, ...]]:
        node = self.mapping(root.get("variants"), "variants")
        self.keys(node, "variants")
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
            lists = [(key, self.choices_of(value)) for key, value in group.entries]
            count = 1
            for _, values in lists:
                count *= len(values)
            if count > MAX_VARIANTS:
                self.error(
                    group.where,
                    f"{count:,} combinations; at most {MAX_VARIANTS} variants are rendered from a spec",
                    "shorten the lists; any other combination renders with --set",
                )
                continue
            for values in itertools.product(*(v for _, v in lists)):
                pairs = tuple((key.text, value.text) for (key, _), value in zip(lists, values))
                at = lists[0][0].where if lists else group.where
                out.append(Choice(pairs + ((("", "forall"),) if filtered else ()), at))
        return tuple(out), ((where,) if where else ())

    def tensors(self, root: Mapping) -> tuple[Tensor, ...]:
        out = []
        for key, value in self.mapping(root.get("tensors"), "tensors").entries:
            node = self.mapping(value, f"tensor '{key.text[:40]}'")
            self.keys(node, "tensor")
            if not self.name(key, "tensor"):
                continue
            if node.get("role") is None:
                self.error(key.where, f"'{key.text}' has no role", f"one of: {' '.join(ROLES)}")
            out.append(
                Tensor(
                    name=key.text,
                    where=key.where,
                    role=self.word(node.get("role"), "role", ROLES, "in"),
                    shape=self.shape(node.get("shape"), key),
                    dtype=self.dtype(node.get("dtype"), key),
                    doc=self.doc(node),
                    sample=self.word(node.get("sample"), "sample", SAMPLES, "normal"),
                    when=self.expr(node.get("when"), "when"),
                )
            )
        return tuple(out)

    def buffers(self, root: Mapping) -> tuple[Buffer, ...]:
        out = []
        for key, value in self.mapping(root.get("buffers"), "buffers").entries:
            node = self.mapping(value, f"buffer '{key.text[:40]}'")
            self.keys(node, "buffer")
            if not self.name(key, "buffer"):
                continue
            if node.get("scope") is None:
                self.error(key.where, f"'{key.text}' has no scope", f"one of: {' '.join(SCOPES)}")
            reuse = self.scalar(node.get("reuse"), "reuse")
            out.append(
                Buffer(
                    name=key.text,
                    where=key.where,
                    scope=self.word(node.get("scope"), "scope", SCOPES, "shared"),
                    shape=self.shape(node.get("shape"), key),
                    dtype=self.dtype(node.get("dtype"), key),
                    live=self.live(node.get("live")),
                    reuse=reuse,
                    doc=self.doc(node),
                    when=self.expr(node.get("when"), "when"),
                )
            )
        return tuple(out)

    def live(self, node: Node | None) -> tuple[Scalar, Scalar] | None:
        """`first .. last`, or one stage."""
        scalar = self.scalar(node, "live")
        if scalar is None:
            return None
        ends = list(re.finditer(r"[^\s.]+", scalar.text))
        if not re.fullmatch(r"\s*[^\s.]+(\s*\.\.\s*[^\s.]+)?\s*", scalar.text):
            self.error(scalar.where, "a lifetime is 'stage' or 'first .. last'", "live: load .. gate")
            return None
        words = [Scalar(m[0], scalar.at(0, m.start(), len(m[0]))) for m in ends]
        return words[0], words[-1]

    # -- statements --------------------------------------------------------------------------

    def stages(self, root: Mapping) -> tuple[Stage, ...]:
        out = []
        for key, value in self.mapping(root.get("stages"), "stages").entries:
            if self.name(key, "stage"):
                out.append(Stage(key.text, key.where, self.block(value)))
        return tuple(out)

    def block(self, node: Node | None) -> tuple[Statement, ...]:
        statements = (self.statement(item) for item in self.items(node, "a group of statements"))
        return tuple(s for s in statements if s)

    def statement(self, node: Node) -> Statement | None:
        if not isinstance(node, Mapping) or not node.entries:
            self.error(
                node.where,
                "a statement is 'kind: what it does'",
                f"kinds: {' '.join(KINDS)} when; assignments stand under a map's do",
            )
            return None
        kinds = [key for key, _ in node.entries if key.text in KINDS]
        if not kinds and node.get("when") is not None:
            return self.when(node)
        if not kinds:
            key = node.entries[0][0]
            self.keys(Mapping((node.entries[0],), node.where), "when") if any(
                c in key.text for c in "[(@"
            ) else self.error(
                key.where,
                f"unknown statement '{key.text[:40]}'{did_you_mean(key.text, KINDS + ('when',))}",
                f"kinds: {' '.join(KINDS)} when",
            )
            return None
        if len(kinds) > 1:
            self.error(
                kinds[1].where, f"'{kinds[1].text}' in a statement that is a {kinds[0].text}",
                "one statement an item: start a new line with '- '",
            )  # fmt: skip
            return None
        key = kinds[0]
        self.keys(node, key.text, "when")
        made = getattr(self, "_" + key.text)(node, key)
        if made is None:
            return None
        parts, body = made
        when = self.expr(node.get("when"), "when") if node.get("when") else None
        return Statement(key.text, key.where, parts, body, when=when)

    def when(self, node: Mapping) -> Statement | None:
        self.keys(node, "when", "when")
        cond = self.expr(node.get("when"), "a condition")
        if node.get("do") is None:
            self.error(node.where, "a 'when' with nothing to do", "when: DK == DV, then do: [...]")
        if cond is None:
            return None
        body = self.block(node.get("do")) if node.get("do") else ()
        other = self.block(node.get("else")) if node.get("else") else ()
        return Statement("when", node.key("when").where, {"cond": cond}, body, other)

    def arrow(self, scalar: Scalar | None, hint: str, arrows=("->",)):
        """`source -> target`: the two expressions and the arrow, or None."""
        if scalar is None or not self.one_line(scalar):
            return None
        found = list(re.finditer(r"->|\+>", scalar.text))
        if len(found) != 1:
            self.error(scalar.where, f"one {' or '.join(arrows)} is meant here", hint)
            return None
        at = found[0]
        if at[0] not in arrows:
            self.error(scalar.at(0, at.start(), 2), f"{at[0]} has no meaning here", hint)
            return None
        text = scalar.text
        left = expr.parse(scalar, self.report, text[: at.start()])
        right = expr.parse(scalar, self.report, text[at.end() :], at.end())
        return (left, right, at[0]) if left and right else None

    def _move(self, node: Mapping, key: Scalar, hint: str, arrows=("->",)):
        found = self.arrow(self.scalar(node.get(key.text), key.text), hint, arrows)
        return dict(zip(("source", "target", "arrow"), found)) if found else None

    def _copy(self, node, key):
        parts = self._move(node, key, "copy: k[b, h, c*BC:(c+1)*BC, :] -> k_s")
        return parts and (parts, ())

    def _fill(self, node, key):
        parts = self._move(node, key, "fill: 0 -> acc")
        return parts and (parts, ())

    def _gemm(self, node, key):
        hint = "gemm: A @ B.T -> C overwrites, gemm: A @ B.T +> C accumulates"
        parts = self._move(node, key, hint, ("->", "+>"))
        if not parts:
            return None
        product = parts.pop("source")
        if not isinstance(product.node, ast.BinOp) or not isinstance(product.node.op, ast.MatMult):
            self.error(product.where(), "a product of two tiles is meant here", hint)
            return None
        a, b = product.of(product.node.left), product.of(product.node.right)
        return {"a": a, "b": b, **parts}, ()

    def _map(self, node, key):
        axes = self.axes(node.get("map"), "map: {i: BC, j: DK}")
        guard = self.expr(node.get("if"), "a condition") if node.get("if") else None
        body = []
        for item in self.items(node.get("do"), "the assignments of a map"):
            if isinstance(item, Mapping) and item.entries:
                self.keys(item, "map")
                continue
            line = self.scalar(item, "an assignment")
            source = line and self.one_line(line) and expr.parse(line, self.report, mode="exec")
            if source:
                body += self.assignment(source)
        if node.get("do") is None:
            self.error(key.where, "a map with nothing to do", "do: ['w[i, j] = k[i, j] * beta[i]']")
        return {"axes": axes, "guard": guard}, tuple(body)

    def assignment(self, source: Source) -> list[Statement]:
        node = source.node
        if isinstance(node, ast.Assign):
            if len(node.targets) > 1:
                self.error(source.where(), "one target an assignment")
                return []
            target, value = node.targets[0], node.value
        else:  # x[i] += e is x[i] = x[i] + e
            if type(node.op) not in expr.BINARY:
                self.error(source.where(), "only + - * / // % may stand before =")
                return []
            target = node.target
            value = ast.copy_location(ast.BinOp(target, node.op, node.value), node.value)
        if not isinstance(target, ast.Subscript):
            self.error(source.where(target), "an element is meant here: name[i, j] = ...")
            return []
        parts = {"target": source.of(target), "value": source.of(value)}
        return [Statement("assign", source.where(target), parts)]

    def axes(self, node: Node | None, hint: str) -> tuple[tuple[Scalar, Source], ...]:
        if not isinstance(node, Mapping) or not node.entries:
            self.error(node.where, "index names and their extents are meant here", hint)
            return ()
        return tuple(
            (key, size)
            for key, value in node.entries
            if self.name(key, "index") and (size := self.expr(value, "an extent"))
        )

    def _repeat(self, node, key):
        count = self.expr(node.get("repeat"), "a count")
        body = self.block(node.get("do"))
        return ({"count": count}, body) if count else None

    def _loop(self, node, key):
        axes = self.axes(node.get(key.text), f"{key.text}: {{d: DK // BC}}")
        if len(axes) > 1:
            self.error(axes[1][0].where, "a loop has one index; put a second loop inside it")
        stages = self.expr(node.get("stages"), "stages") if node.get("stages") else None
        body = self.block(node.get("do"))
        return ({"axis": axes[0], "stages": stages}, body) if axes else None

    _pipelined = _loop

    def _reduce(self, node, key):
        hint = f"reduce: max(x) -> m, with axis: 1; reductions: {' '.join(REDUCTIONS)}"
        scalar = self.scalar(node.get(key.text), key.text)
        found = re.match(r"\s*([A-Za-z_]\w*)\s*(?=\()", scalar.text) if scalar else None
        if not found or found[1] not in REDUCTIONS:
            where = scalar.at(0, 0, found.end()) if found else node.where
            self.error(where, "a reduction of one tile is meant here", hint)
            return None
        rest = Scalar(scalar.text[found.end() :], scalar.at(0, found.end()), scalar.quoted)
        split = self.arrow(rest, hint, ("->", "+>"))
        if not split:
            return None
        axis = self.expr(node.get("axis"), "an axis") if node.get("axis") else None
        return {"op": found[1], **dict(zip(("source", "target", "arrow"), split)), "axis": axis}, ()

    def _cumsum(self, node, key):
        parts = self._move(node, key, "cumsum: g_s -> g_sum, with axis: 0 and reverse: false")
        if not parts:
            return None
        axis = self.expr(node.get("axis"), "an axis") if node.get("axis") else None
        reverse = self.word(node.get("reverse"), "reverse", ("true", "false"), "false")
        return {**parts, "axis": axis, "reverse": reverse == "true"}, ()

    def _raw(self, node, key):
        lines = self.scalar(node.get("raw"), "raw")
        if not lines:
            return None
        used = {
            part: self.names(node.get(part), "buffer") if node.get(part) else ()
            for part in ("reads", "writes")
        }
        return {"lines": lines, **used}, ()
