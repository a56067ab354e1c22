"""A spec as written: its shape checked and its expressions parsed, but no name resolved yet.

The tables say which keys and words the language has; the reference (docs/spec.md) lists the same,
and a test compares them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gdngen.errors import Location
from gdngen.language.expr import CONSTANTS, FUNCTIONS
from gdngen.language.source import Source
from gdngen.language.tree import Scalar

MAX_VARIANTS = 512
MAX_STATEMENTS = 1000
MAX_AXES = 6
MAX_GRID = 3

DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "bool")
SCOPES = ("shared", "fragment", "local")
ROLES = ("in", "out", "inout")
SAMPLES = ("normal", "unit", "uniform", "decay", "steps", "index", "offsets", "zeros")
REDUCTIONS = ("max", "min", "sum", "absmax", "abssum")
POLICIES = ("separate", "match", "share", "widen", "lean")  # of sharing storage: see plan.py
POLICY = "policy"  # a variant may name one: it is rendered under that one too
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}\Z")
WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]{0,63}\Z")  # a choice of an option, a target

KEYS = {
    "spec": "kernel doc warn dims runtime dtypes options variants tensors grid threads resident async rounds fast_math targets buffers "
    "stages layouts scalars roles require reference",
    "role": "warps warpgroups each registers runs doc",
    "walk": "sum over until most",
    "layout": "when swap tensors grid",
    "variants": "forall where also",
    "tensor": "role shape dtype doc sample partly when",
    "buffer": "scope shape dtype live reuse stages doc when",
    "copy": "copy",
    "fill": "fill",
    "gemm": "gemm",
    "map": "map if do",
    "repeat": "repeat do",
    "loop": "loop let do",
    "pipelined": "pipelined stages do",
    "reduce": "reduce axis",
    "cumsum": "cumsum axis reverse",
    "solve": "solve block",
    "when": "when do else",
    "raw": "raw reads writes",
    "skip": "skip",
    "wait": "wait",
}

# A `when` beside one of these is its condition; alone, with `do`, it is a statement.
KINDS = (
    "copy",
    "fill",
    "gemm",
    "map",
    "repeat",
    "loop",
    "pipelined",
    "reduce",
    "cumsum",
    "solve",
    "raw",
    "skip",
    "wait",
)


def is_reserved(name: str) -> bool:
    """Whether the language itself has a name."""
    return name in FUNCTIONS or name in CONSTANTS or name in DTYPES


@dataclass(frozen=True)
class Tensor:
    """A tensor in global memory: role, shape in the order of its layout, dtype (a name).

    `faulty`, here and on a buffer: a part of it could not be read, so nothing follows from the rest.
    """

    name: str
    where: Location
    role: str
    shape: tuple[Source, ...]
    dtype: Scalar
    doc: str = ""
    sample: str | Source = "normal"
    when: Source | None = None
    faulty: bool = False
    partly: Source | None = None


@dataclass(frozen=True)
class Buffer:
    """A tile: scope, shape, dtype, declared lifetime (first and last stage), the author's alias;
    `stages` of it where roles pass it on, round after round."""

    name: str
    where: Location
    scope: str | Source
    shape: tuple[Source, ...]
    dtype: Scalar
    live: tuple[Scalar, Scalar] | None = None
    reuse: Scalar | None = None
    doc: str = ""
    when: Source | None = None
    faulty: bool = False
    stages: Source | None = None


@dataclass(frozen=True)
class Role:
    """A part of a block's threads with a program of its own: the stages that it `runs`.

    `unit` says what `count` counts: warps or warpgroups. With `each` every one of them runs the
    program by itself, and `each` is the name of its number.
    """

    name: str
    where: Location
    unit: str
    count: Source
    each: Scalar | None
    registers: Source | None
    runs: tuple[Scalar, ...]
    doc: str = ""


@dataclass(frozen=True)
class Walk:
    """How many terms `over` = 0, 1, ... it takes for their sum to come down to `until`; at most `most`."""

    where: Location
    over: Scalar
    sum: Source
    until: Source
    most: Source


@dataclass(frozen=True)
class Statement:
    """One statement as written. `kind` is its key; what `parts` holds depends on it:

    copy fill          source, target          gemm    a, b, target, arrow
    reduce             op, source, target, arrow, axis
    cumsum             source, target, axis, reverse
    solve              source, target, block
    map                axes (name, extent), guard; `body` assignments
    assign             target, value           raw     lines, reads, writes
    repeat             count; `body`           when    cond; `body`, `other`
    loop               axis (name, extent), let (name, value); `body`
    pipelined          axis (name, extent), stages; `body`
    skip wait          tile
    broken             nothing: its mistake is reported, `words` are what it mentions
    """

    kind: str
    where: Location
    parts: dict[str, object] = field(default_factory=dict)
    body: "tuple[Statement, ...]" = ()
    other: "tuple[Statement, ...]" = ()
    when: Source | None = None
    words: tuple[str, ...] = ()  # every name in its text

    def __getitem__(self, part: str):
        return self.parts.get(part)


@dataclass(frozen=True)
class Stage:
    name: str
    where: Location
    body: tuple[Statement, ...]


def rewritten(stages: tuple[Stage, ...], of: Callable[[Source], Source]) -> tuple[Stage, ...]:
    """Stages with another expression for each that a statement holds by itself."""

    def body(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(
            replace(
                s,
                parts={k: of(x) if isinstance(x, Source) else x for k, x in s.parts.items()},
                body=body(s.body),
                other=body(s.other),
            )
            for s in statements
        )

    return tuple(Stage(s.name, s.where, body(s.body)) for s in stages)


@dataclass(frozen=True)
class Layout:
    """Two axes that change places in some tensors (None: in all) where a condition holds; `grid` names
    the block indices in the order that suits it, the innermost first."""

    where: Location
    swap: tuple[int, int]
    tensors: tuple[Scalar, ...] | None
    when: Source | None
    grid: tuple[Scalar, ...] | None = None


@dataclass(frozen=True)
class Choice:
    """One combination asked for: name -> value, and where it was. `filtered` by `where` or not."""

    values: tuple[tuple[str, str], ...]
    where: Location
    filtered: bool = False


@dataclass(frozen=True)
class Spec:
    file: str
    kernel: str
    where: Location
    doc: str
    dims: tuple[Scalar, ...]
    runtime: tuple[Scalar, ...]
    dtypes: tuple[tuple[Scalar, str | Source | None], ...]
    options: tuple[tuple[Scalar, tuple[str, ...]], ...]
    choices: tuple[Choice, ...]
    filters: tuple[Source, ...]
    tensors: tuple[Tensor, ...]
    grid: tuple[tuple[Scalar, Source], ...]
    threads: Source | None
    resident: Source | None
    asynchronous: Source | None
    rounds: tuple[Scalar, Source] | None  # a block index, and how many of it a block takes
    fast_math: Source | None
    warn: Scalar | None
    targets: tuple[Scalar, ...]
    buffers: tuple[Buffer, ...]
    stages: tuple[Stage, ...]
    reference: str | None = None
    layouts: tuple[Layout, ...] = ()
    scalars: tuple[tuple[Scalar, Source | Walk], ...] = ()
    roles: tuple[Role, ...] = ()
    require: tuple[Source, ...] = ()
