"""Random small kernels, as text and as the facts that `gdngen.plan.compiler` predicts their bytes from."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from gdngen.plan.compiler import Copy, Gemm, Program, Tile
from gdngen.plan.pipeline import Loop, Statement

BODY = " " * 12


@dataclass
class Draft:
    """The text of a kernel in the making: tensors, storages and lines."""

    threads: int = 128
    config: str = '"tl.disable_shared_memory_reuse": True'
    tensors: list[str] = field(default_factory=list)
    tiles: dict[str, Tile] = field(default_factory=dict)
    fragments: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def tile(self, name: str, shape: list[int], dtype: str) -> str:
        self.tiles[name] = Tile(tuple(shape), dtype)
        return name

    def tensor(self, name: str, shape: str, dtype: str) -> str:
        self.tensors.append(f"        {name}: T.Tensor({shape}, '{dtype}'),\n")
        return name

    def fragment(self, name: str, shape: list[int], dtype: str = "float32") -> str:
        self.fragments.append(f"{BODY}{name} = T.alloc_fragment({shape}, '{dtype}')\n")
        return name

    def text(self) -> str:
        tiles = [
            f"{BODY}{name} = T.alloc_shared({list(tile.shape)}, '{tile.dtype}')\n"
            for name, tile in self.tiles.items()
        ]
        lines = [BODY + part + "\n" for line in self.lines for part in line.split("\n")]
        return f"""import tilelang
import tilelang.language as T


@tilelang.jit(pass_configs={{{self.config}}})
def tiny():
    B = T.dynamic("B")
    N = T.dynamic("N")

    @T.prim_func
    def kernel(
{"".join(self.tensors)}    ):
        with T.Kernel(T.ceildiv(N, 64), B, threads={self.threads}) as (c, b):
{"".join(tiles + self.fragments + lines)}
    return kernel
"""


def load(draft: Draft, name: str, index: str = "c", disable_tma: bool = False) -> tuple[str, Copy]:
    """The line that copies rows of a ragged tensor into a tile, and its facts."""
    tile, rest = draft.tiles[name], draft.tiles[name].shape[1:]
    rows = tile.shape[0]
    tensor = draft.tensor(f"in_{name}", f"[B, N{''.join(f', {d}' for d in rest)}]", tile.dtype)
    where = f"{tensor}[b, {index} * {rows} : ({index} + 1) * {rows}{', :' * len(rest)}]"
    option = ", disable_tma=True" if disable_tma else ""
    copy = Copy(name, tile.dtype, (None, None, *rest), (1, *tile.shape), False, disable_tma)
    return f"T.copy({where}, {name}{option})", copy


def store(
    draft: Draft, name: str, kind: str = "ragged", disable_tma: bool = False, dtype: str = ""
) -> tuple[str, Copy]:
    """The line that copies a tile to a tensor (ragged rows, left half, or whole) and its facts."""
    tile = draft.tiles[name]
    rows, rest, whole = tile.shape[0], tile.shape[1:], name
    dtype = dtype or tile.dtype
    option = ", disable_tma=True" if disable_tma else ""
    if kind == "whole":
        tensor = draft.tensor(f"out_{name}", str(list(tile.shape)), dtype)
        copy = Copy(name, dtype, tile.shape, tile.shape, True, disable_tma, in_bounds=True)
        return f"T.copy({name}, {tensor}{option})", copy
    if kind == "half" and rest:
        rest = (max(8, rest[0] // 2),)
        whole = f"{name}[:, :{rest[0]}]"
    tensor = draft.tensor(f"out_{name}", f"[B, N{''.join(f', {d}' for d in rest)}]", dtype)
    where = f"{tensor}[b, c * {rows} : (c + 1) * {rows}{', :' * len(rest)}]"
    copy = Copy(name, dtype, (None, None, *rest), (1, rows, *rest), True, disable_tma)
    return f"T.copy({whole}, {where}{option})", copy


def operands(seed: int) -> tuple[str, Program]:
    """Gemms of any shape, transposes and slices, with loads and stores.

    A pad of 16 bytes comes before every tile by name, so that offsets show every alignment.
    """
    r = random.Random(seed)
    draft = Draft(threads=r.choice([32, 64, 128, 128, 128, 256, 256]))
    gemms: list[Gemm] = []
    copies: list[Copy] = []

    def add(line_and_copy):
        draft.lines.append(line_and_copy[0])
        copies.append(line_and_copy[1])

    def fresh(shape, dtype):
        return draft.tile(f"a{len(draft.tiles)}t", shape, dtype)

    def finish(name):
        kind = r.choice(["ragged", "ragged", "half", "whole"])
        dtype = r.choice([draft.tiles[name].dtype] * 4 + ["float32", "float16"])
        add(store(draft, name, kind, r.random() < 0.25, dtype))

    def operand(shape, dtype):
        """A tile that fits, a slice of a wider one, or a new one of the exact or double width."""
        wide = [
            name
            for name, tile in draft.tiles.items()
            if tile.dtype == dtype and len(tile.shape) == 2
            if tile.shape[0] == shape[0] and tile.shape[1] >= shape[1]
        ]
        if wide and r.random() < 0.7:
            name = r.choice(wide)
        else:
            name = fresh([shape[0], shape[1] * r.choice([1, 1, 1, 2])], dtype)
            add(load(draft, name))
        exact = list(draft.tiles[name].shape) == shape
        return name, name if exact else f"{name}[:, :{shape[1]}]"

    for index in range(r.choice([0, 1, 1, 1, 2])):
        dtype = r.choice(["float16", "float16", "bfloat16", "float32"])
        m, n = r.choice([16, 32, 64, 64, 128]), r.choice([16, 32, 64, 64, 96, 128])
        k = r.choice([16, 32, 64, 64, 128])
        transpose_a, transpose_b = r.random() < 0.3, r.random() < 0.5
        policy, word = r.choice(
            [("square", "Square"), ("full_row", "FullRow"), ("full_col", "FullCol")]
        )
        if not transpose_a and r.random() < 0.15:
            a, a_text = None, draft.fragment(f"f{index}", [m, k], dtype)
            draft.lines.append(f"T.fill({a_text}, 1.0)")
        else:
            a, a_text = operand([k, m] if transpose_a else [m, k], dtype)
        b, b_text = operand([n, k] if transpose_b else [k, n], dtype)
        acc = draft.fragment(f"acc{index}", [m, n])
        draft.lines.append(
            f"T.gemm({a_text}, {b_text}, {acc}, transpose_A={transpose_a}, "
            f"transpose_B={transpose_b}, clear_accum=True, policy=T.GemmWarpPolicy.{word})"
        )
        gemms.append(
            Gemm(a, b, m, n, k, dtype, "float32", transpose_a, transpose_b, policy),
        )
        if r.random() < 0.5:
            result = fresh([m, n], r.choice([dtype, "float32"]))
            draft.lines.append(f"T.copy({acc}, {result})")
            finish(result)
        else:
            draft.lines.append(
                f"T.copy({acc}, {draft.tensor(f'o{index}', f'[{m}, {n}]', 'float32')})"
            )
    for _ in range(r.choice([0, 1, 2]) or not gemms):
        shape = r.choice(
            [[r.choice([8, 12, 16, 64]), r.choice([16, 32, 64, 128, 256])], [100], [64]]
        )
        name = fresh(shape, r.choice(["float16", "float32", "bfloat16"]))
        add(load(draft, name))
        finish(name)

    program = Program(dict(draft.tiles), tuple(gemms), tuple(copies), draft.threads)
    draft.tensor("pad", "[4]", "float32")
    for name in program.tiles:
        pad = draft.tile(name.replace("t", "d"), [4], "float32")
        draft.lines.insert(0, f"for i in T.Parallel(4):\n    {pad}[i] = pad[i] + 1.0")
        draft.lines.append(f"for i in T.Parallel(4):\n    pad[i] = {pad}[i] * 2.0")
    return draft.text(), Program(dict(draft.tiles), tuple(gemms), tuple(copies), draft.threads)


def lifetimes(seed: int) -> tuple[str, list[frozenset[str]], dict[str, int], list[int]]:
    """Tiles of many sizes that live and die, across loops and branches too.

    Returns the text, what each statement touches, the sizes, and which statements are loops.
    """
    r = random.Random(seed)
    draft = Draft(config="")
    draft.tensor("x", "[B, N]", "float32")
    # Of a fixed length: statements under one and the same guard of a ragged read may be fused.
    draft.tensor("y", "[2048]", "float32")
    names = r.sample(["ab", "B2", "Cc", "d_", "Eq", "f9", "gz", "Hh", "K", "L_1"], r.randint(2, 9))
    sizes = {name: r.choice([128, 256, 384, 512, 1024, 1536, 2048]) for name in names}
    written: list[str] = []
    statements: list[set[str]] = []
    loops: list[int] = []

    def write(indent=""):
        name = r.choice(names)
        read = [other for other in written if r.random() < 0.35][:2]
        count = min(sizes[other] for other in (name, *read))
        value = " + ".join([*(f"{other}[i]" for other in read), "y[i]"])
        draft.lines += [
            f"{indent}for i in T.Parallel({count}):",
            f"{indent}    {name}[i] = {value}",
        ]
        if name not in written:
            written.append(name)
        return {name, *read}

    def read(indent=""):
        name = r.choice(written)
        draft.lines += [
            f"{indent}for i in T.Parallel({sizes[name]}):",
            f"{indent}    x[b, i + {r.randint(1, 9)}] = {name}[i]",
        ]
        return {name}

    statements.append(write())
    for _ in range(r.randint(3, 9)):
        kind = r.choice(["write"] * 5 + ["read"] * 2 + ["loop", "branch", "else"])
        inner = "    "
        if kind == "write":
            statements.append(write())
        elif kind == "read":
            statements.append(read())
        elif kind == "loop":
            draft.lines.append("for q in T.serial(5):")
            loops.append(len(statements))
            statements.append(write(inner) | write(inner) | read(inner))
        else:
            draft.lines.append("if c > 3:")
            arm = [write(inner), write(inner), read(inner)]
            if kind == "else":
                draft.lines.append("else:")
                arm = [set().union(*arm, write(inner), read(inner))]
            # A branch without an else guards its statements one by one.
            statements += arm
    touched = set().union(*statements)
    for name in sorted(touched):
        draft.tile(name, [sizes[name]], "float32")
    bytes_ = {name: 4 * sizes[name] for name in sorted(touched)}
    return draft.text(), [frozenset(touches) for touches in statements], bytes_, loops


def pipelined(seed: int) -> tuple[str, Program, Loop, bool]:
    """A pipelined loop of loads, a gemm and maps; the last value: are its trips symbolic?"""
    r = random.Random(seed)
    draft = Draft(threads=r.choice([128, 128, 256]))
    stages, symbolic = r.choice([0, 1, 2, 2, 3, 4]), r.random() < 0.6
    dtype = r.choice(["float16", "bfloat16", "float32"])
    letters = r.sample("abcdefghiklmopqrstuvwxz", 6)
    before: list[Statement] = []
    body: list[Statement] = []
    inside: list[str] = []
    copies: list[Copy] = []

    def touch(reads=(), writes=()):
        body.append(Statement(frozenset(reads), frozenset(writes)))

    def fetch(name, in_loop):
        line, copy = load(draft, name, "k" if in_loop else "c", r.random() < 0.25)
        statement = Statement(writes=frozenset([name]), load=copy)
        copies.append(copy)
        (inside if in_loop else draft.lines).append(line)
        (body if in_loop else before).append(statement)

    depth, columns = r.choice([32, 64, 128]), r.choice([32, 64, 128])
    a = draft.tile(f"{letters[0]}t0", [64, depth], dtype)
    b = draft.tile(f"{letters[1]}t1", [depth, columns], dtype)
    fetch(a, True)
    fetch(b, r.random() < 0.7)
    gate = mask = None
    if r.random() < 0.5:
        gate = draft.tile(f"{letters[2]}t2", [64], "float32")
        fetch(gate, True)
    if r.random() < 0.3:
        mask = draft.tile(f"{letters[3]}t3", [64, columns], r.choice([dtype, "float32"]))
        fetch(mask, False)
    acc = draft.fragment("acc", [64, columns])
    draft.lines.append(f"T.clear({acc})")
    inside.append(f"T.gemm({a}, {b}, {acc})")
    touch([a, b])
    out = draft.tensor("out", f"[B, N, {columns}]", "float32")
    value, factors = f"{acc}[i, j]", [tile for tile in (gate, mask) if tile]
    if r.random() < 0.5:
        middle = draft.tile(f"{letters[4]}t4", [64, columns], dtype)
        inside.append(f"T.copy({acc}, {middle})")
        touch([], [middle])
        factors.append(middle)
    for tile in factors:
        value += f" * {tile}[i]" if tile == gate else f" * {tile}[i, j]"
    inside.append(f"for i, j in T.Parallel(64, {columns}):\n    {acc}[i, j] = {value}")
    touch(factors)
    inside.append(f"T.copy({acc}, {out}[b, k * 64 : (k + 1) * 64, :])")
    touch()
    trips = "T.ceildiv(N, 64)" if symbolic else "7"
    draft.lines.append(f"for k in T.Pipelined({trips}, num_stages={stages}):")
    draft.lines += ["    " + part for line in inside for part in line.split("\n")]
    if r.random() < 0.5:
        last = draft.tile(f"{letters[5]}t5", [64, columns], r.choice([dtype, "float32"]))
        draft.lines.append(f"T.copy({acc}, {last})")
        line, copy = store(draft, last, disable_tma=r.random() < 0.4)
        draft.lines.append(line)
        copies.append(copy)
    gemm = Gemm(a, b, 64, columns, depth, dtype)
    program = Program(dict(draft.tiles), (gemm,), tuple(copies), draft.threads)
    return draft.text(), program, Loop(stages, tuple(body), tuple(before)), symbolic
