"""A pipeline spec -> `Pipeline`: functions of tensors that are made of kernels, for people to call.

    arguments  tensors with shape and dtype, numbers and flags, in the order of the signature
    values     sizes worked out from the arguments' own, such as the dims that a kernel is picked by
    tensors    what is allocated on the way; one whose `when` does not hold is None
    steps      kernels of other specs, in order: which variant, and which tensor is which
    returns    what comes back; `keep`, what a backward would take

A side of an argument that is a plain name is bound to the size found there. `texts.py` of no kernel
is read here: `runtime.py` finds the variant when the function is called.
"""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

from gdngen.errors import Location, Report, did_you_mean
from gdngen.language import tree
from gdngen.language.expr import CONSTANTS, FUNCTIONS, names
from gdngen.language.reading import Reader
from gdngen.language.source import Source
from gdngen.language.syntax import DTYPES, KEYS
from gdngen.language.tree import Mapping, Node, Scalar, Sequence

OWN_KEYS = {
    "pipeline": "pipeline doc dtypes functions",
    "function": "doc arguments checks values tensors steps returns keep",
    "argument": "shape dtype convert optional splits number flag doc",
    "check": "that else",
    "value": "of fits all",
    "made": "shape dtype when pieces of number doc",
    "step": "kernel when set choose tensors",
}
SPEC = re.compile(r"[A-Za-z]\w*(/[A-Za-z]\w*)*\Z")  # a file below specs/, without suffix
DEVICE = (
    "sms",
    "sm",
)  # of the tensors' device: multiprocessors, 1 on the CPU; architecture, say 90, or 0
CALLABLE = ("where", "min", "max", "abs", "ceildiv")  # functions that size expressions may call


@dataclass(frozen=True)
class Argument:
    """One parameter: a tensor (`shape` and `dtype`), a number with a default, or a flag.

    convert   a tensor of any float dtype is taken, and converted
    optional  None may be given
    splits    the size that the tensor's numbers split: 0, ..., that size, ascending
    """

    name: str
    where: Location
    kind: str  # tensor, number, flag
    shape: tuple[Source, ...] = ()
    dtype: str = ""
    convert: bool = False
    optional: bool = False
    splits: str = ""
    default: Source | None = None  # of a number
    on: bool = False  # default of a flag
    doc: str = ""


@dataclass(frozen=True)
class Made:
    """A tensor that the function allocates, where `when` holds.

    With `number` it is that number, as a kernel takes one. With `pieces`, an argument that splits rows into sequences, it is not empty but a table [n, 2]: the
    first row of each piece of at most `of` rows of a sequence, and where its sequence ends.
    """

    name: str
    where: Location
    shape: tuple[Source, ...]
    dtype: str
    when: Source | None
    doc: str
    pieces: str = ""
    of: Source | None = None
    number: Source | None = None


@dataclass(frozen=True)
class Step:
    """One kernel: the spec it comes from, what picks its variant, and its tensors by its own names.

    `choose` are further values, the one preferred first, each with the condition under which it is.
    """

    kernel: Scalar
    when: Source | None
    values: tuple[tuple[str, Source], ...]
    choose: tuple[tuple[tuple[tuple[str, Source], ...], Source | None], ...]
    tensors: tuple[tuple[Scalar, Source], ...]


@dataclass(frozen=True)
class Value:
    """A size worked out from others: the first of `of`, or, with `fits`, the first with which the
    device holds a variant of every step that runs this kernel; or, with `all`, whether every one of
    these conditions holds, each with what is so where it does not."""

    name: str
    of: tuple[Source, ...]
    fits: str = ""
    all: tuple[tuple[Source, str], ...] = ()


@dataclass(frozen=True)
class Function:
    name: str
    where: Location
    doc: str
    arguments: tuple[Argument, ...]
    checks: tuple[tuple[Source, str], ...]
    values: tuple[Value, ...]
    tensors: tuple[Made, ...]
    steps: tuple[Step, ...]
    returns: tuple[Scalar, ...]
    keep: tuple[Scalar, ...]


@dataclass(frozen=True)
class Pipeline:
    """`dtypes` are names for dtypes; one of several is bound by the first tensor that has it."""

    file: str
    name: str
    doc: str
    dtypes: tuple[tuple[str, tuple[str, ...]], ...]
    functions: tuple[Function, ...]


def is_pipeline(text: str) -> bool:
    """Whether the text is of a pipeline and not of a kernel: one key at the margin tells."""
    return any(line.startswith("pipeline:") for line in text.splitlines())


def parse(text: str, file: str, report: Report) -> Pipeline | None:
    """The pipeline in `text`, or None where it can't be read; every mistake goes to the report."""
    root = tree.parse(text, file, report)
    return None if root is None else _Reader(report, file).pipeline(root)


class _Reader(Reader):
    table = KEYS | OWN_KEYS

    def pipeline(self, root: Mapping) -> Pipeline:
        root = self.keys(root, "pipeline")
        named = self.name(self.scalar(root.get("pipeline"), "pipeline"), "pipeline")
        self.dtypes = dict(self.dtype_names(root))
        functions = tuple(
            self.function(key, value)
            for key, value in self.mapping(root.get("functions"), "functions").entries
            if self.name(key, "function")
        )
        if not functions:
            self.error(root.where, "a pipeline has no 'functions'", "functions: {f: {...}}")
        name = named.text if named else "pipeline"
        return Pipeline(self.file, name, self.doc(root), tuple(self.dtypes.items()), functions)

    def dtype_names(self, root: Mapping):
        for key, node in self.mapping(root.get("dtypes"), "dtypes").entries:
            nodes = node.items if isinstance(node, Sequence) else (node,)
            words = tuple(w for n in nodes if (w := self.word(n, "dtype", DTYPES)))
            if self.name(key, "dtype") and words:
                yield key.text, words

    def function(self, key: Scalar, value: Node) -> Function:
        node = self.keys(self.mapping(value, f"function '{key.text}'"), "function")
        arguments = tuple(self.arguments(node))
        bound = {s.node.id for a in arguments for s in a.shape if isinstance(s.node, ast.Name)}
        known = bound | {a.name for a in arguments if a.kind != "tensor"} | {*DEVICE}
        known |= {a.name for a in arguments if a.optional}  # whether it is given
        for a in arguments:
            for s in (*a.shape, *([a.default] if a.default else [])):
                self.sizes(s, known)
        known |= set(self.dtypes)
        values = []
        for name, item in self.mapping(node.get("values"), "values").entries:
            if self.name(name, "value") and (found := self.value(name, item, known)):
                values.append(found)
                known.add(name.text)
        splits = {a.name: a.splits for a in arguments if a.splits}
        for a in arguments:
            if a.splits and a.splits not in bound:
                self.error(a.where, f"'{a.name}' splits an unknown size '{a.splits}'")
        made = tuple(self.made(node, known, splits))
        everything = {a.name for a in arguments} | {m.name for m in made}
        self.unique([*arguments, *made], known - {a.name for a in arguments})
        steps = tuple(
            self.step(n, known, everything) for n in self.items(node.get("steps"), "steps")
        )
        for v in values:
            if v.fits and v.fits not in {s.kernel.text for s in steps}:
                self.error(key.where, f"no step runs '{v.fits}', which '{v.name}' should fit")
        return Function(
            name=key.text,
            where=key.where,
            doc=self.doc(node),
            arguments=arguments,
            checks=tuple(self.checks(node, known)),
            values=tuple(values),
            tensors=made,
            steps=steps,
            returns=self.tensor_names(node, "returns", everything),
            keep=self.tensor_names(node, "keep", everything),
        )

    def value(self, name: Scalar, item: Node, known: set[str]) -> Value | None:
        if not isinstance(item, Mapping):
            found = self.expr(item, "a value")
            return Value(name.text, (found,)) if found and self.sizes(found, known) else None
        own = self.keys(item, "value")
        if own.get("all"):
            known = known | set(DTYPES)
            conditions = tuple(self.checks(own, known, "all"))
            return Value(name.text, (), all=conditions) if conditions else None
        of = [self.expr(i, "a value") for i in self.items(own.get("of"), "a list of values")]
        fits = self.scalar(own.get("fits"), "a kernel")
        if not of or fits is None:
            self.error(
                item.where,
                "a value of several says which fits; a condition, what all must hold",
                "{of: [64, 32], fits: forward}, or {all: [{that: DK == DV, else: they differ}]}",
            )
            return None
        good = all(s and self.sizes(s, known) for s in of)
        return Value(name.text, tuple(of), fits.text) if good else None

    def unique(self, declared: list, sizes: set[str]) -> None:
        seen: dict[str, Location] = {}
        for d in declared:
            if d.name in sizes or d.name in seen:
                self.error(d.where, f"two things share the name '{d.name}'", "rename one")
            seen.setdefault(d.name, d.where)

    def arguments(self, node: Mapping):
        for key, value in self.mapping(node.get("arguments"), "arguments").entries:
            own = self.keys(self.mapping(value, f"argument '{key.text[:40]}'"), "argument")
            if not self.name(key, "argument"):
                continue
            kinds = [k for k in ("shape", "number", "flag") if own.get(k) is not None]
            if len(kinds) != 1:
                self.error(key.where, f"'{key.text}' is a shape, a number or a flag", "flag: false")
                continue
            common = {"name": key.text, "where": key.where, "doc": self.doc(own)}
            if kinds[0] == "flag":
                on = self.yes(own, "flag")
                yield Argument(kind="flag", on=on, **common)
            elif kinds[0] == "number":
                default = self.expr(own.get("number"), "a number")
                yield Argument(kind="number", default=default, **common)
            else:
                yield Argument(
                    kind="tensor",
                    shape=self.shape(own),
                    dtype=self.dtype(own, key),
                    convert=self.yes(own, "convert"),
                    optional=self.yes(own, "optional"),
                    splits=self.splits(own),
                    **common,
                )

    def yes(self, node: Mapping, key: str) -> bool:
        return self.word(node.get(key), key, ("true", "false")) == "true"

    def splits(self, node: Mapping) -> str:
        word = self.scalar(node.get("splits"), "a size")
        return word.text if word and self.name(word, "size") else ""

    def shape(self, node: Mapping) -> tuple[Source, ...]:
        sides = [self.expr(item, "a size") for item in self.items(node.get("shape"), "a shape")]
        return tuple(s for s in sides if s)

    def dtype(self, node: Mapping, owner: Scalar) -> str:
        if node.get("dtype") is None:
            self.error(owner.where, f"'{owner.text[:40]}' has no dtype", "dtype: float32")
        return self.word(node.get("dtype"), "dtype", (*self.dtypes, *DTYPES)) or "float32"

    def made(self, node: Mapping, known: set[str], splits: dict[str, str]):
        for key, value in self.mapping(node.get("tensors"), "tensors").entries:
            own = self.keys(self.mapping(value, f"tensor '{key.text[:40]}'"), "made")
            when = self.expr(own.get("when"), "when")
            shape = self.shape(own)
            for s in (*shape, *([when] if when else [])):
                self.sizes(s, known)
            if number := self.expr(own.get("number"), "a number"):
                if self.name(key, "tensor") and self.sizes(number, known):
                    where, doc = key.where, self.doc(own)
                    yield Made(key.text, where, (), "float32", when, doc, number=number)
                continue
            pieces, of = self.word(own.get("pieces"), "argument", tuple(splits)), None
            if pieces:
                of = self.expr(own.get("of"), "how many rows a piece has")
                if of is None or not self.sizes(of, known):
                    self.error(key.where, f"'{key.text}' has pieces of no size", "of: BC")
                    continue
            if self.name(key, "tensor"):
                dtype = "int32" if pieces else self.dtype(own, key)
                yield Made(key.text, key.where, shape, dtype, when, self.doc(own), pieces or "", of)

    def checks(self, node: Mapping, known: set[str], key: str = "checks"):
        for item in self.items(node.get(key), key) if node.get(key) else ():
            own = self.keys(self.mapping(item, "a check"), "check")
            that, otherwise = self.expr(own.get("that"), "that"), self.scalar(
                own.get("else"), "else"
            )
            if that is None or otherwise is None:
                self.error(item.where, "a check is a condition and what is wrong else", "else: ...")
            elif self.sizes(that, known) and self.message(otherwise, known):
                yield that, otherwise.text

    def message(self, text: Scalar, known: set[str]) -> bool:
        """Whether every brace of a message is one of `{name}`, a known name; reported."""
        rest = re.sub(r"\{(\w+)\}", lambda m: "" if m[1] in known else m[0], text.text)
        if "{" in rest or "}" in rest:
            what = "braces of a message hold the name of a size, a value or a flag"
            self.error(text.where, what, "known: " + " ".join(sorted(known)))
            return False
        return True

    def step(self, item: Node, known: set[str], tensors: set[str]) -> Step:
        node = self.keys(self.mapping(item, "a step"), "step")
        kernel = self.scalar(node.get("kernel"), "kernel")
        if kernel is None:
            self.error(node.where, "a step has no kernel", "kernel: prepare")
        elif not SPEC.match(kernel.text):
            self.error(kernel.where, f"'{kernel.text[:40]}' can't name a spec", "kernel: prepare")
        when = self.expr(node.get("when"), "when")
        if when:
            self.sizes(when, known)
        words = known | set(self.dtypes) | set(DTYPES)
        choose = []
        for way in self.items(node.get("choose"), "choose") if node.get("choose") else ():
            own = self.mapping(way, "a choice")
            rest = Mapping(tuple((k, v) for k, v in own.entries if k.text != "when"), own.where)
            cond = self.expr(own.get("when"), "when")
            if cond is None or self.sizes(cond, known):
                choose.append((self.pairs(rest, words), cond))
        given = []
        for key, value in self.mapping(node.get("tensors"), "tensors").entries:
            found = self.expr(value, "a tensor")
            if found and self.sizes(found, known | tensors, views=tensors):
                given.append((key, found))
        values = self.pairs(self.mapping(node.get("set"), "set"), words)
        return Step(kernel or Scalar("", node.where), when, values, tuple(choose), tuple(given))

    def pairs(self, node: Mapping, words: set[str]) -> tuple[tuple[str, Source], ...]:
        found = [
            (k.text, self.expr(v, "a value")) for k, v in node.entries if self.name(k, "value")
        ]
        return tuple((k, s) for k, s in found if s and self.sizes(s, words, options=True))

    def tensor_names(self, node: Mapping, key: str, known: set[str]) -> tuple[Scalar, ...]:
        scalars = self.names(node.get(key), "tensor") if node.get(key) else ()
        for s in scalars:
            if s.text not in known:
                near = did_you_mean(s.text, known)
                self.error(s.where, f"unknown tensor '{s.text}'{near}", f"{key} names tensors")
        return scalars

    def sizes(
        self, source: Source, known: Iterable[str], options: bool = False, views: Iterable[str] = ()
    ) -> bool:
        """Whether an expression is of known names and of what Python can compute; reported.

        With `options` a lone unknown word stands for itself: the choice of an option. `views` are
        names of tensors that `name[:, H, R]` may give another shape.
        """
        for n in ast.walk(source.node):
            if isinstance(n, ast.Call) and n.func.id not in CALLABLE and n.func.id in FUNCTIONS:
                self.error(source.where(n), f"'{n.func.id}' has no place in a size", f"{CALLABLE}")
                return False
            if (
                isinstance(n, ast.Subscript)
                and isinstance(n.value, ast.Name)
                and n.value.id in views
            ):
                continue
            if isinstance(n, (ast.Subscript, ast.MatMult, ast.Attribute)):
                self.error(source.where(n), "an expression of sizes and flags is meant here")
                return False
        if options and isinstance(source.node, ast.Name):
            return True
        known = set(known) | set(CONSTANTS)
        for n in names(source.node):
            if n.id not in known:
                near = did_you_mean(n.id, known)
                self.error(
                    source.where(n),
                    f"unknown name '{n.id[:40]}'{near}",
                    "sizes: " + " ".join(sorted(known)),
                )
                return False
        return True
