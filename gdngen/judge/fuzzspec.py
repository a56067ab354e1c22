"""Random specs, as text that goes through the whole front end like an author's.

They have loops (of known and of runtime length, pipelined ones too), branches, accumulations, chains
in place, partial writes, raw lines and several dtypes, and read nothing that is not written. What is
random is asked of `choose(n)`, a number below n: any source of them will do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

ROWS = 32  # of the sequence that a block takes
HEIGHTS, WIDTHS = (16, 32), (16, 32, 64)
FLOATS = ("float32", "float16", "bfloat16")
INPUT = 256  # columns of an input
LIMITS = (3, 5, 8, 12, 20, 40)  # tiles of a spec
DEPTH = 2  # of loops and branches in one another

Choose = Callable[[int], int]


@dataclass(frozen=True)
class Tile:
    name: str
    scope: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def declared(self) -> str:
        return f"  {self.name}: {{scope: {self.scope}, shape: {list(self.shape)}, dtype: {self.dtype}}}"


@dataclass
class Scribe:
    """A spec while it is written: its tiles and tensors so far, and which tiles something reads."""

    choose: Choose
    limit: int
    tiles: list[Tile] = field(default_factory=list)
    tensors: dict[str, str] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    loads: int = 0
    indices: int = 0

    def one(self, options: Sequence):
        return options[self.choose(len(options))]

    def chance(self, part: int, of: int) -> bool:
        return self.choose(of) < part

    # -- tiles -------------------------------------------------------------------------------

    def new(self, scope: str, shape: tuple[int, ...], dtype: str) -> Tile:
        tile = Tile(f"b{len(self.tiles)}", scope, shape, dtype)
        self.tiles.append(tile)
        return tile

    def target(self, have: Sequence[Tile], like: Tile | None = None) -> Tile:
        """A tile to be written in full: mostly a new one, of the shape of `like`."""
        fitting = [t for t in have if len(t.shape) == 2 and (like is None or t.shape == like.shape)]
        if len(self.tiles) >= self.limit and fitting or (fitting and self.chance(1, 5)):
            return self.one(fitting)
        shape = like.shape if like else (self.one(HEIGHTS), self.one(WIDTHS))
        if self.chance(1, 4):
            return self.new("fragment", shape, "float32")
        return self.new("shared", shape, self.one(FLOATS))

    def used(self, *tiles: Tile) -> None:
        self.read |= {t.name for t in tiles}

    # -- statements: each gives its lines and the tiles that it wrote ---------------------------

    def load(self, have, at: str = "", into: Tile | None = None, tensor: str = "x"):
        tile = into or self.target(have)
        self.loads += 1
        name = f"{tensor}_{tile.dtype}"
        columns = INPUT if tensor == "x" else "K"
        self.tensors[name] = f"  {name}: {{role: in, shape: [T, {columns}], dtype: {tile.dtype}}}"
        first = (13 * self.loads) % (INPUT - 64) if tensor == "x" else 0
        start = f"{at}*16+{first}" if at else str(first)
        h, w = tile.shape
        region = f"{name}[c*{ROWS}:c*{ROWS}+{h}, {start}:{start}+{w}]"
        return [f"- copy: {region} -> {tile.name}"], [tile]

    def store(self, have, tile: Tile | None = None, at: str = ""):
        tile = tile or self.one(have)
        name = f"y{len(self.tensors)}"
        self.used(tile)
        h, *rest = tile.shape
        rows = f"c*{ROWS}:c*{ROWS}+{h}"
        if not rest:
            self.tensors[name] = f"  {name}: {{role: out, shape: [T], dtype: {tile.dtype}}}"
            return [f"- copy: {tile.name} -> {name}[{rows}]"], []
        w = rest[0]
        dtype = tile.dtype if self.chance(2, 3) else self.one(FLOATS)
        self.tensors[name] = f"  {name}: {{role: out, shape: [T, {4 * w}], dtype: {dtype}}}"
        columns = f"{at}*{w}:({at}+1)*{w}" if at else f":{w}"
        return [f"- copy: {tile.name} -> {name}[{rows}, {columns}]"], []

    def elementwise(self, have):
        seeds = [t for t in have if len(t.shape) == 2]
        if not seeds:
            return self.load(have)
        like = self.one(seeds)
        out = self.target(have, like)
        return self._map(out, "i, j", dict(zip("ij", out.shape)), have, [like])

    def _map(self, out: Tile, at: str, axes: dict[str, int], have, must=(), guard: str = ""):
        alike = [t for t in have if t.shape == out.shape and (at == "i, j" or t.scope == "shared")]
        if at != "i, j":  # only its own tile at the same index
            alike = [t for t in alike if t is not out]
        sources = [*must, *(self.one(alike) for _ in range(self.choose(3)) if alike)]
        terms = [f"cast({t.name}[i, j], float32)" for t in sources]
        self.used(*sources)
        vectors = [t for t in have if t.scope == "shared" and t.shape == out.shape[:1]]
        if vectors and self.chance(1, 2):
            vector = self.one(vectors)
            self.used(vector)
            terms.append(f"cast({vector.name}[i], float32)")
        turned = [
            t for t in have if t is not out and t.scope == "shared" and t.shape == out.shape[::-1]
        ]
        if turned and at == "i, j" and self.chance(1, 4):
            tile = self.one(turned)
            self.used(tile)
            terms.append(f"cast({tile.name}[j, i], float32)")
        value = f"cast({self.expression(terms or ['1.5'])}, {out.dtype})"
        lines = [f"- map: {{{', '.join(f'{k}: {v}' for k, v in axes.items())}}}"]
        lines += [f"  if: {guard}"] if guard else []
        lines += ["  do:", f"    - {out.name}[{at}] = {value}"]
        return lines, [out]

    def expression(self, terms: list[str]) -> str:
        text = terms[0]
        for t in terms[1:]:
            ways = [f"{text} * {t}", f"({text} - {t})", f"max({text}, {t})", f"({text} + 2 * {t})"]
            ways += [f"select({text} > {t}, {t}, {text})", f"where(i > j, {text}, {t})"]
            text = self.one(ways)
        return self.one([f"exp({text})", f"-({text})", text, f"({text}) * 3"])

    def two_in_a_map(self, have):
        """Two assignments of one map: the second reads what the first wrote, or another tile."""
        seeds = [t for t in have if len(t.shape) == 2]
        if not seeds:
            return self.load(have)
        like = self.one(seeds)
        first, second = self.target(have, like), self.target(have, like)
        axes = dict(zip("ij", like.shape))
        lines, _ = self._map(first, "i, j", axes, have, [like])
        more, _ = self._map(second, "i, j", axes, [*have, first], [self.one([like, first])])
        return lines + more[2:], [first, second]

    def part(self, have):
        """Half of a tile, or the elements where a condition holds, written over its old value."""
        seeds = [t for t in have if len(t.shape) == 2]
        shared = [t for t in seeds if t.scope == "shared"]
        if not seeds or (not shared and self.chance(1, 2)):
            return self.load(have)
        self.used(out := self.one(shared or seeds))
        if not shared or self.chance(1, 2):
            guard = self.one(["i > j", f"c*{ROWS} + i < T", "i < 5"])
            return self._map(out, "i, j", dict(zip("ij", out.shape)), have, guard=guard)
        h, w = out.shape
        if self.chance(1, 2):
            return self._map(out, f"i + {h // 2}, j", {"i": h // 2, "j": w}, have)
        return self._map(out, f"i, j + {w // 2}", {"i": h, "j": w // 2}, have)

    def convert(self, have):
        source = self.one([t for t in have if len(t.shape) == 2] or [None])
        out = source and self.target([t for t in have if t is not source], source)
        if source is None or out is source:
            return self.load(have)
        self.used(source)
        return [f"- copy: {source.name} -> {out.name}"], [out]

    def gemm(self, have):
        shared = [t for t in have if t.scope == "shared" and len(t.shape) == 2]
        pairs = [
            (a, ta, b, tb, (a.shape[ta], b.shape[1 - tb]))
            for a in shared for b in shared for ta in (0, 1) for tb in (0, 1)
            if a.dtype == b.dtype and a.shape[1 - ta] == b.shape[tb]
        ]  # fmt: skip
        if not pairs:
            return self.load(have)
        a, ta, b, tb, shape = self.one(pairs)
        self.used(a, b)
        old = [
            t for t in have if t.scope == "fragment" and t.shape == shape and t.dtype == "float32"
        ]
        out = self.one(old) if old and self.chance(2, 3) else self.new("fragment", shape, "float32")
        arrow = "+>" if out in old and self.chance(1, 2) else "->"
        if arrow == "+>":
            self.used(out)
        product = f"{a.name}{'.T' * ta} @ {b.name}{'.T' * tb}"
        return [f"- gemm: {product} {arrow} {out.name}"], [out]

    def scan(self, have):
        """A running sum, or a sum along rows into a vector."""
        shared = [t for t in have if t.scope == "shared" and len(t.shape) == 2]
        if not shared:
            return self.load(have)
        source = self.one(shared)
        self.used(source)
        if self.chance(1, 2):
            out = self.new("shared", source.shape[:1], "float32")
            op = self.one(["sum", "max", "absmax"])
            return [f"- reduce: {op}({source.name}) -> {out.name}", "  axis: 1"], [out]
        alike = [t for t in shared if (t.shape, t.dtype) == (source.shape, source.dtype)]
        out = (
            self.one(alike) if self.chance(1, 2) else self.new("shared", source.shape, source.dtype)
        )
        axis, reverse = self.choose(2), self.one(["true", "false"])
        return [
            f"- cumsum: {source.name} -> {out.name}",
            f"  axis: {axis}",
            f"  reverse: {reverse}",
        ], [out]

    def fill(self, have):
        out = self.target(have)
        return [f"- fill: {self.one(['0', '1', '2.5'])} -> {out.name}"], [out]

    def raw(self, have):
        shared = [t for t in have if t.scope == "shared"]
        if not shared:
            return self.load(have)
        source, out = self.one(shared), self.one([*shared, self.new("shared", (16, 16), "float32")])
        self.used(source)
        lines = ["- raw: |", f"    T.copy({source.name}, {out.name})"]
        return [*lines, f"  reads: [{source.name}]", f"  writes: [{out.name}]"], [out]

    # -- loops and branches ------------------------------------------------------------------

    def branch(self, have, depth: int, at: str):
        cond = self.one(
            [f"{v} {test}" for v in filter(None, ("c", at)) for test in ("== 0", "> 0")]
        )
        then, made = self.block(have, depth + 1, at, 3)
        lines = [f"- when: {cond}", "  do:", *_inside(then, 4)]
        if not self.chance(2, 3):
            return lines, []
        other, too = self.block(have, depth + 1, at, 3)
        return [*lines, "  else:", *_inside(other, 4)], [t for t in made if t in too]

    def loop(self, have, depth: int, at: str):
        self.indices += 1
        index = f"t{self.indices}"
        kind = self.choose(4)
        if kind == 0:
            body, made = self.block(have, depth + 1, at, 4)
            return [f"- repeat: {2 + self.choose(2)}", "  do:", *_inside(body, 4)], made
        if kind == 1:
            body, made = self.block(have, depth + 1, index, 4)
            count = self.one(["2", "3", "c"])
            made = made if count != "c" else []
            return [f"- loop: {{{index}: {count}}}", "  do:", *_inside(body, 4)], made
        tile = self.new("shared", (self.one(HEIGHTS), 16), self.one(FLOATS))
        first, _ = self.load(have, index, tile, "z")
        rounds = '"ceildiv(K, 16)"'
        if kind == 2:
            body, made = self.block([*have, tile], depth + 1, index, 4)
            made = [tile, *made]
            return [f"- loop: {{{index}: {rounds}}}", "  do:", *_inside(first + body, 4)], made
        body, made = self.block([*have, tile], DEPTH, index, 4, quiet=True)
        head = [f"- pipelined: {{{index}: {rounds}}}", f"  stages: {2 + self.choose(2)}", "  do:"]
        return [*head, *_inside(first + body, 4)], [tile, *made]

    def block(self, have, depth: int, at: str, most: int, quiet: bool = False):
        """A few statements; `quiet` ones load nothing. Gives lines and the tiles surely written."""
        have, lines, made = list(have), [], []
        for _ in range(1 + self.choose(most)):
            more, wrote = self.statement(have, depth, at, quiet)
            lines += more
            for t in wrote:
                have += [t] if t not in have else []
                made += [t] if t not in made else []
        return lines, made

    def statement(self, have, depth: int, at: str, quiet: bool = False):
        kinds = [self.elementwise] * 5 + [self.gemm] * 3 + [self.convert, self.part] * 2
        kinds += [self.two_in_a_map, self.scan, self.fill]
        if have:
            kinds.append(lambda h: self.store(h, at=at))
        if not quiet:
            kinds += [lambda h: self.load(h, at)] * 3 + [self.raw]
        if depth < DEPTH:
            kinds += [lambda h: self.loop(h, depth, at), lambda h: self.branch(h, depth, at)] * 2
        made = self.one(kinds)(have)
        loads = quiet and any("copy: x_" in line for line in made[0])
        return self.store(have, at=at) if loads else made


def _inside(lines: Sequence[str], by: int) -> list[str]:
    return [" " * by + line for line in lines]


def write(choose: Choose) -> str:
    """The text of a random spec."""
    scribe = Scribe(choose, LIMITS[choose(len(LIMITS))])
    have: list[Tile] = []
    stages: list[list[str]] = []
    while len(scribe.tiles) < scribe.limit and len(stages) < 12 or not stages:
        lines, made = scribe.block(have, 0, "", 4)
        have += [t for t in made if t not in have]
        stages.append(lines)
    last = [t for t in have if t.name not in scribe.read or scribe.chance(1, 4)]
    stages.append([line for t in last or have[:1] for line in scribe.store(have, t)[0]])
    if not scribe.tensors:  # all of it stands in branches: nothing would say what T is
        lines, (tile,) = scribe.load(have)
        stages.append(lines + scribe.store(have, tile)[0])
    out = [
        "kernel: fuzzed",
        "runtime: [T, K]",
        "threads: 32",
        f'grid: {{c: "ceildiv(T, {ROWS})"}}',
        "tensors:",
    ]
    out += scribe.tensors.values()
    if not any(name.startswith("z_") for name in scribe.tensors):
        out[1] = "runtime: [T]"
    words = _words("\n".join(line for lines in stages for line in lines))
    out += ["buffers:", *(t.declared for t in scribe.tiles if t.name in words), "stages:"]
    for n, lines in enumerate(stages):
        out += [f"  s{n}:", *_inside(lines, 4)] if lines else []
    return "\n".join(out) + "\n"


def _words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() else " " for c in text).split())
