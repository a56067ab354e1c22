"""Every mistake in a spec: where it is reported, in which words, and with which way out."""

import ast
from pathlib import Path

import pytest
from small_spec import BASE, edited, read
from timing import within

from gdngen import driver
from gdngen.errors import Report, SpecError
from gdngen.language import spec
from gdngen.plan import plan as planning
from gdngen.render import render

SPECS = Path(__file__).parent.parent / "specs"
SECONDS = 1.0  # within which any spec is read or refused

VALUE = "p_f[i, j] * g_s[i]"
ASSIGN = "- t_s[i, j] = p_f[i, j] * g_s[i]"
LOAD_G = "- copy: g[b, c*N:(c+1)*N] -> g_s"
GEMM = "- gemm: x_s @ x_s.T -> p_f"
STORE = "copy: t_s -> y[b, c*N:(c+1)*N, :]"

# (text of the base, what replaces it, words of the message, words of the hint[, line and column])
# » stands before the character that the error points at.
MISTAKES = {
    # -- keys and words
    "unknown key of the spec": (
        "threads: 128",
        "»treads: 128",
        "unknown key 'treads' in spec; did you mean 'threads'?",
        "keys: kernel",
    ),
    "unknown key of a tensor": (
        "shape: [B, T, N]",
        "»shap: [B, T, N]",
        "unknown key 'shap' in tensor; did you mean 'shape'?",
        "keys: role shape",
    ),
    "unknown key of a statement": (
        LOAD_G,
        "- copy: g[b, c*N:(c+1)*N] -> g_s\n      »axes: 1",
        "unknown key 'axes' in copy",
        "keys: copy when",
    ),
    "duplicate key": (
        "threads: 128",
        "threads: 128\n»threads: 64",
        "duplicate key 'threads'",
        "the first is on line 13",
    ),
    "a requirement": (
        "threads: 128",
        "threads: 128\nrequire: [»N % 5 == 0]",
        "'N % 5 == 0' is required, and does not hold for N=",
        "render other values",
    ),
    "missing key": (
        'grid: {c: "ceildiv(T, N)", b: B}\n',
        "",
        "the spec has no 'grid'",
        "gdngen docs",
        (1, 1),
    ),
    "unknown role": (
        "role: out",
        "role: »output",
        "unknown role 'output'; did you mean 'out'?",
        "one of: in out inout",
    ),
    "unknown scope": (
        "p_f: {scope: fragment",
        "p_f: {scope: »fragmnt",
        "unknown scope 'fragmnt'; did you mean 'fragment'?",
        "one of: shared",
    ),
    "unknown sample": (
        "g: {role: in, ",
        "g: {role: in, sample: »gauss, ",
        "unknown sample 'gauss'",
        "one of: normal",
    ),
    "unknown dtype of a dtype": (
        "acc: float32}",
        "acc: »float23}",
        "unknown dtype 'float23'; did you mean 'float32'?",
        "one of: float16",
    ),
    "unknown dtype of a tile": (
        "t_s: {scope: shared, shape: [N, N], dtype: acc",
        "t_s: {scope: shared, shape: [N, N], dtype: »ac",
        "unknown dtype 'ac' of 't_s'; did you mean 'acc'?",
        "name it under dtypes",
    ),
    "no dtype": (
        "y: {role: out, shape: [B, T, N], dtype: io}",
        "»y: {role: out, shape: [B, T, N]}",
        "'y' has no dtype",
        "dtype: float32",
    ),
    "no shape": (
        "y: {role: out, shape: [B, T, N], dtype: io}",
        "»y: {role: out, dtype: io}",
        "'y' has no shape",
        "shape: [BC, DK]",
    ),
    "no role": ("y: {role: out, ", "»y: {", "'y' has no role", "one of: in"),
    "a list for a word": ("role: out", "role: »[out]", "role is one value, not a sequence", ""),
    "a word for a mapping": (
        "dtypes: {io: null, acc: float32}",
        "dtypes: »float32",
        "dtypes is a mapping",
        "",
    ),
    "a word for a list": ("dims: [N, M]", "dims: »N", "the list of dims is a list", ""),
    "unknown reference": (
        "kernel: tiny",
        "kernel: tiny\nreference: »softmx",
        "unknown reference 'softmx'",
        "one of:",
    ),
    # -- statements
    "unknown statement": (
        LOAD_G,
        "- »cpy: g[b, c*N:(c+1)*N] -> g_s",
        "unknown statement 'cpy'; did you mean 'copy'?",
        "kinds: copy fill",
    ),
    "two statements in one": (
        LOAD_G,
        "- copy: g[b, c*N:(c+1)*N] -> g_s\n      »fill: 0 -> t_s",
        "'fill' in a statement that is a copy",
        "'- '",
    ),
    "a word for a statement": (
        LOAD_G,
        "- »g_s",
        "a statement is 'kind: what it does'",
        "kinds: copy",
    ),
    "no arrow": ("t_s -> y[b", "»t_s, y[b", "one -> is meant here", "copy: k[b"),
    "two arrows": (
        "t_s -> y[b, c*N:(c+1)*N, :]",
        "»t_s -> t_s -> y",
        "one -> is meant here",
        "copy: k[b",
    ),
    "accumulating copy": ("t_s -> y[b", "t_s »+> y[b", "+> has no meaning here", "copy: k[b"),
    "gemm of one tile": (
        "x_s @ x_s.T -> p_f",
        "»x_s -> p_f",
        "a product of two tiles is meant here",
        "gemm: A @ B.T",
    ),
    "map with nothing to do": (ASSIGN, "[]", "a map with nothing to do", "do:", (25, 7)),
    "map without indices": (
        "- map: {i: N, j: N}",
        "- map: »N",
        "index names and their extents are meant here",
        "map: {i: BC",
    ),
    "two targets": (
        "t_s[i, j] = p_f",
        "»t_s[i, j] = x_s[i, j] = p_f",
        "one target an assignment",
        "",
    ),
    "a target that is no element": (
        "t_s[i, j] = p_f",
        "»t_s = p_f",
        "an element is meant here",
        "",
    ),
    "an expression for an assignment": (
        "t_s[i, j] = p_f[i, j] * g_s[i]",
        "»p_f[i, j] * g_s[i]",
        "an assignment is meant here",
        "",
    ),
    "a statement in a map": (
        ASSIGN,
        "- »copy: x_s -> t_s",
        "a copy can't stand inside a map",
        "end the map",
    ),
    "bad lifetime": (
        "live: work .. store",
        "live: »work to store",
        "a lifetime is 'stage' or 'first .. last'",
        "live: load .. gate",
    ),
    # -- names
    "unknown name in a shape": (
        "shape: [B, T, N]",
        "shape: [B, »TT, N]",
        "unknown name 'TT'; did you mean 'T'?",
        "",
    ),
    "unknown name in an index": (
        "copy: x[b, c*N",
        "copy: x[»bb, c*N",
        "unknown name 'bb'; did you mean 'b'?",
        "",
    ),
    "unknown name in a value": (
        VALUE,
        "p_f[i, j] * »gs[i]",
        "unknown name 'gs'; did you mean 'g_s'?",
        "",
    ),
    "unknown name in a count": (
        GEMM,
        "- repeat: »Q\n      do: [gemm: x_s @ x_s.T -> p_f]",
        "unknown name 'Q'",
        "",
    ),
    "unknown function": (
        VALUE,
        "»epx(p_f[i, j]) * g_s[i]",
        "unknown function 'epx'; did you mean 'exp'?",
        "functions: where",
    ),
    "arguments of a function": (
        VALUE,
        "»where(p_f[i, j]) * g_s[i]",
        "where takes 3 arguments, 1 given",
        "the condition holds",
    ),
    "unknown tile": (
        "copy: t_s -> y",
        "copy: »ts -> y",
        "unknown buffer or tensor 'ts'; did you mean 't_s'?",
        "",
    ),
    "unknown name in the filter": (
        "io: float16}",
        "io: float16}\n  where: »K == M",
        "unknown name 'K' in the filter of variants",
        "dims",
    ),
    "a tile in a condition": (
        "- gemm: x_s",
        "- when: »g_s == 0\n      gemm: x_s",
        "unknown name 'g_s'",
        "is a tile or tensor",
    ),
    "a runtime size for a tile": (
        "t_s: {scope: shared, shape: [N, N]",
        "t_s: {scope: shared, shape: [N, »T]",
        "'T' is known only when the kernel runs",
        "",
    ),
    "a tensor left out": (
        "g: {role: in, ",
        "g: {role: in, when: M > 9000, ",
        "unknown buffer or tensor 'g'",
        "left out by its 'when'",
        (22, 13),
    ),
    "dim and buffer": (
        "t_s: {scope: shared",
        "»M: {scope: shared",
        "a buffer and a dim share the name 'M'",
        "the dim is on line 2",
    ),
    "tensor and buffer": (
        "  t_s: {scope: shared",
        "  »x: {scope: shared",
        "a buffer and a tensor share the name 'x'",
        "the tensor is on line 9",
    ),
    "stage and buffer": (
        "  store:\n",
        "  »g_s:\n",
        "a stage and a buffer share the name 'g_s'",
        "the buffer is on line 16",
    ),
    "block index and runtime size": (
        "b: B}",
        "»B: B}",
        "a block index and a runtime size share the name 'B'",
        "line 3",
    ),
    "dtype and dim": (
        "acc: float32}",
        "»N: float32}",
        "a dtype and a dim share the name 'N'",
        "line 2",
    ),
    "option and dim": (
        "{mode: [plain",
        "{»M: [plain",
        "an option and a dim share the name 'M'",
        "line 2",
    ),
    "kernel and tensor": (
        "kernel: tiny",
        "kernel: »y",
        "a kernel and a tensor share the name 'y'",
        "line 11",
    ),
    "a dim twice": ("dims: [N, M]", "dims: [N, M, »N]", "two dims share the name 'N'", "line 2"),
    "T and T_": ("dims: [N, M]", "dims: [N, M, T_]", "share the name 'T", "", (3, 14)),
    "index of a dim's name": (
        "map: {i: N, j: N}",
        "map: {i: N, »M: N}",
        "'M' is already a name here",
        "another name",
    ),
    "index of a function's name": (
        "map: {i: N, j: N}",
        "map: {»exp: N, j: N}",
        "'exp' is already a name here",
        "another name",
    ),
    "index of the kernel's name": (
        "map: {i: N, j: N}",
        "map: {i: N, »tiny: N}",
        "'tiny' is already a name here",
        "another name",
    ),
    "a name of the language": (
        "g_s: {scope: shared, shape: [N], dtype: acc",
        "»exp: {scope: shared, shape: [N], dtype: acc",
        "a buffer can't be called 'exp': the language has that name",
        "",
    ),
    "a dtype for a name": (
        "kernel: tiny",
        "kernel: »float16",
        "a kernel can't be called 'float16'",
        "",
    ),
    "a path for a kernel": (
        "kernel: tiny",
        "kernel: »../x",
        "'../x' can't name a kernel",
        "a letter, then",
    ),
    "a name with a space": (
        "kernel: tiny",
        "kernel: »a b",
        "'a b' can't name a kernel",
        "a letter, then",
    ),
    "a keyword for a name": (
        "dims: [N, M]",
        "dims: [N, M, »lambda]",
        "'lambda' can't name a dim",
        "a word of Python",
    ),
    "a dunder for a name": (
        "  load:\n",
        "  »__load__:\n",
        "'__load__' can't name a stage",
        "a letter, then",
    ),
    "a name too long": (
        "kernel: tiny",
        "kernel: »aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "can't name a kernel",
        "64 at most",
    ),
    "a letter of another script": (
        "kernel: tiny",
        "kernel: »tinу",
        "can't name a kernel",
        "a letter, then",
    ),
    "a path for a choice": (
        "[plain, fast]",
        "[plain, »../../x]",
        "'../../x' can't be a choice",
        "part of file names",
    ),
    "a choice twice": ("[plain, fast]", "[plain, »plain]", "the choice 'plain' is named twice", ""),
    "a path for a target": (
        "threads: 128",
        "threads: 128\ntargets: [»../sm_80]",
        "unknown target '../sm_80'; did you mean 'sm_80'?",
        "one of: sm_70",
    ),
    "a target twice": (
        "threads: 128",
        "threads: 128\ntargets: [sm_80, »sm_80]",
        "the target 'sm_80' is named twice",
        "",
    ),
    # -- values and variants
    "an unknown dim in variants": (
        "{N: 64, M: [64, 128]",
        "{»N: 64, K: 3, M: [64, 128]",
        "unknown name 'K' in variants",
        "dims, dtypes and options",
    ),
    "a dim without value": ("{N: 64, M: [64, 128], io", "{»N: 64, io", "no value for 'M'", "--set"),
    "an open dtype without value": (", io: float16}", "}", "no value for 'io'", "--set", (7, 12)),
    "a dim of 0": ("{N: 64,", "{»N: 0,", "N=0: a dim is a whole number from 1 to 65536", ""),
    "a dim in words": ("{N: 64,", "{»N: 6e1,", "N=6e1: a dim is a whole number", ""),
    "a dim of other digits": ("{N: 64,", "{N: »６４,", "can't be a choice", "letters, digits"),
    "an unknown dtype in variants": (
        "io: float16}",
        "io: flaot16}",
        "io=flaot16: not a dtype; did you mean 'float16'?",
        "",
        (7, 12),
    ),
    "a choice that is none": (
        "io: float16}",
        "io: float16, mode: slow}",
        "mode=slow: not a choice",
        "choices: plain fast",
        (7, 12),
    ),
    "no variant": (
        "io: float16}",
        "io: float16}\n  where: »N == 0",
        "no variant passes 'where'",
        "widen",
    ),
    "two variants of one name": (
        "io: float16}",
        "io: float16}\n  also: [{»N: 64, M: 128, io: float16}]",
        "two variants of one name, s_n64_m128_float16",
        "the first is on line 7",
    ),
    "too many variants": (
        "N: 64, M: [64, 128]",
        f"N: {list(range(1, 400))}, M: [64, 128]",
        "798 combinations; at most 512",
        "--set",
        (7, 11),
    ),
    "an empty list": ("M: [64, 128]", "M: »[]", "an empty list of choices", ""),
    "a filter that divides by zero": (
        "io: float16}",
        "io: float16}\n  where: »N % (M - 64) == 0",
        "in the filter of variants: division by zero",
        "",
    ),
    # -- sizes
    "a side of 0": (
        "g_s: {scope: shared, shape: [N]",
        "g_s: {scope: shared, shape: [»N - 64]",
        "a side of 'g_s' is 0",
        "",
    ),
    "a fraction": (
        "g_s: {scope: shared, shape: [N]",
        "g_s: {scope: shared, shape: [»N / 3]",
        "a side of 'g_s' is 21.33",
        "",
    ),
    "a tile too large": (
        "t_s: {scope: shared, shape: [N, N]",
        "»t_s: {scope: shared, shape: [N*N, N*N*2]",
        "'t_s' has 33,554,432 elements; at most 16,777,216",
        "",
    ),
    "a fraction for a tensor": (
        "shape: [B, T, N]",
        "shape: [B, »T / 2, N]",
        "/ divides floats; whole numbers divide with //",
        "",
    ),
    "a tensor of 0": (
        "shape: [B, T, N]",
        "shape: [B, »N - 64, N]",
        "a side of 'y' is 0; at least 1 is meant",
        "",
    ),
    "a word for a side": (
        "shape: [B, T, N]",
        "shape: [B, \"»'T'\", N]",
        "a word has no place in arithmetic",
        "",
    ),
    "no blocks": ('{c: "ceildiv(T, N)"', "{c: »0", "the number of blocks along 'c' is 0", ""),
    "a grid of four": ("b: B}", "b: B, d: 1, »e: 1}", "a grid has 1 to 3 dimensions", ""),
    "a fraction for a grid": ('"ceildiv(T, N)"', "»T / N", "/ divides floats", ""),
    "threads that are no warps": (
        "threads: 128",
        "threads: »100",
        "100 threads are not whole warps of 32",
        "use 96",
    ),
    "too many threads": (
        "threads: 128",
        "threads: »2048",
        "the number of threads is 2048; a whole number from 1 to 1,024",
        "",
    ),
    "threads of a runtime size": (
        "threads: 128",
        "threads: »T",
        "'T' is known only when the kernel runs",
        "",
    ),
    "a size that nothing gives": (
        "runtime: [B, T]",
        "runtime: [B, T, »Z]",
        "nothing says how large 'Z' is",
        "a side of a tensor",
    ),
    "a tower of powers": (VALUE, "p_f[i, j] * »9**9**9", "a power too large", ""),
    "a tower of powers in a size": (
        "g_s: {scope: shared, shape: [N]",
        "g_s: {scope: shared, shape: [»9**9**9]",
        "a power too large",
        "",
    ),
    "a product too large": (
        "g_s: {scope: shared, shape: [N]",
        "g_s: {scope: shared, shape: [»9999999999*9999999999*9999999999]",
        "bits; at most 64",
        "",
    ),
    "a number too long": (
        "scope: shared, shape: [N],",
        "scope: shared, shape: [»" + "9" * 3000 + "],",
        "a number of 9966 bits; at most 64",
        "",
    ),
    "an infinite number": (
        VALUE,
        "p_f[i, j] * »1e999",
        "a number too large for any dtype",
        "write inf",
    ),
    "division by zero": (VALUE, "»p_f[i, j] / (M - M)", "division by zero", ""),
    "modulo zero": ("t_s[i, j] = p_f[i, j]", "t_s[i, »j % 0] = p_f[i, j]", "division by zero", ""),
    "ceildiv by zero": ('"ceildiv(T, N)"', '"»ceildiv(T, N - 64)"', "division by zero", ""),
    "ceil_log2 of a runtime size": ('"ceildiv(T, N)"', '"»ceil_log2(T)"', "'T' is not", ""),
    "no rounds": (
        GEMM,
        "- repeat: »N - 64\n      do: [gemm: x_s @ x_s.T -> p_f]",
        "the number of rounds is 0",
        "",
    ),
    "a fraction of rounds": (
        GEMM,
        "- loop: {d: »N / 2}\n      do: [gemm: x_s @ x_s.T -> p_f]",
        "/ divides floats",
        "",
    ),
    "too many stages": (
        GEMM,
        "- pipelined: {d: N}\n      stages: »9\n      do: [gemm: x_s @ x_s.T -> p_f]",
        "stages is 9; a whole number from 1 to 8",
        "",
    ),
    "an extent of 0": ("map: {i: N, j: N}", "map: {i: N, j: »0}", "the extent of 'j' is 0", ""),
    # -- shapes and types
    "shapes of a copy": (
        "g[b, c*N:(c+1)*N] -> g_s",
        "»g[b, c*N:(c+2)*N] -> g_s",
        "a copy of [128] into [64]",
        "one shape",
    ),
    "axes of a copy": (
        "copy: g[b, c*N:(c+1)*N]",
        "copy: »g[c*N:(c+1)*N]",
        "'g' has 2 axes, 1 indices given",
        "",
    ),
    "a range of unknown size": (
        "copy: g[b, c*N:(c+1)*N]",
        "copy: g[b, »c*N:T]",
        "the size of axis 1 of 'g' is not known when rendering",
        "c*BC:(c+1)*BC",
    ),
    "an empty range": (
        "copy: g[b, c*N:(c+1)*N]",
        "copy: g[b, »c*N:c*N]",
        "an empty range along axis 1 of 'g'",
        "",
    ),
    "a step": ("copy: g[b, c*N:(c+1)*N]", "copy: g[b, c*N:(c+1)*N:»2]", "a range has no step", ""),
    "a whole runtime axis": (
        "copy: g[b, c*N:(c+1)*N]",
        "copy: »g[b, :]",
        "the size of axis 1 of 'g' is not known when rendering",
        "",
    ),
    "an index that is no integer": (
        "copy: g[b,",
        "copy: g[»0.5,",
        "a whole number is meant here, not a number",
        "",
    ),
    "a copy onto itself": (
        "copy: g[b, c*N:(c+1)*N] -> g_s",
        "copy: g_s -> »g_s",
        "'g_s' is copied onto itself",
        "another buffer",
    ),
    "a copy of floats into whole numbers": (
        "g: {role: in, shape: [B, T], dtype: acc}",
        "g: {role: in, shape: [B, T], dtype: int32}",
        "a copy of int32 into float32",
        "map with cast",
        (22, 34),
    ),
    "a write to an input": (
        STORE,
        "copy: t_s -> »x[b, c*N:(c+1)*N, 0:N]",
        "'x' is an input; it can't be written",
        "role: out",
    ),
    "a map that writes an input": (
        "t_s[i, j] = p_f[i, j] * g_s[i]",
        "»x[b, i, j] = cast(p_f[i, j], io)",
        "'x' is an input",
        "role: out",
    ),
    "shapes of a gemm": (
        "gemm: x_s @ x_s.T",
        "gemm: »x_s @ x_s",
        "shapes don't match: [64, 128] @ [64, 128] into [64, 64]",
        ".T",
    ),
    "the target of a gemm": (
        "p_f: {scope: fragment, shape: [N, N]",
        "p_f: {scope: fragment, shape: [N, 2*N]",
        "into [64, 128]",
        "[64, 64] @ [64, 64] gives [64, 64]",
        (24, 13),
    ),
    "gemm operands of two dtypes": (
        "gemm: x_s @ x_s.T",
        "gemm: »x_s @ t_s",
        "gemm operands of two dtypes: x_s float16, t_s float32",
        "one dtype",
    ),
    "a gemm on a tensor": (
        "gemm: x_s @ x_s.T",
        "gemm: x_s @ »x[b, 0:N, 0:N].T",
        "'x' is a tensor in global memory",
        "copy it into a shared buffer",
    ),
    "a gemm into a shared tile": (
        "-> p_f\n",
        "-> »t_s\n",
        "'t_s' is shared; a gemm accumulates in a fragment",
        "then copy it",
    ),
    "a gemm that narrows its sum": (
        "p_f: {scope: fragment, shape: [N, N], dtype: acc",
        "p_f: {scope: fragment, shape: [N, N], dtype: bfloat16",
        "a gemm of float16 can't accumulate in bfloat16",
        "float32",
        (24, 28),
    ),
    "a gemm of one axis": (
        "gemm: x_s @ x_s.T",
        "gemm: »g_s @ x_s.T",
        "a gemm works on matrices; 'g_s' is [64] here",
        "",
    ),
    "a gemm in place": (
        "gemm: x_s @ x_s.T -> p_f",
        "gemm: p_f @ x_s[:, 0:N] -> »p_f",
        "'p_f' is an operand and the target of one gemm",
        "",
    ),
    "an attribute": (
        "gemm: x_s @ x_s.T",
        "gemm: x_s @ »x_s.H",
        "'.H' has no meaning; .T transposes",
        "",
    ),
    "a narrowing store": (
        "t_s: {scope: shared, shape: [N, N], dtype: acc",
        "t_s: {scope: shared, shape: [N, N], dtype: io",
        "a store of float32 into 't_s', which is float16, loses digits",
        "cast(..., io)",
        (27, 23),
    ),
    "types that don't mix": (
        VALUE,
        "»cast(p_f[i, j], io) * cast(g_s[i], bfloat16)",
        "float16 and bfloat16 don't mix",
        "cast",
    ),
    "a cast to nothing": (VALUE, "cast(p_f[i, j], »half)", "unknown name 'half'", ""),
    "a cast to a number": (VALUE, "cast(p_f[i, j], »N)", "a dtype is meant here", "one of:"),
    "a number for a condition": (
        VALUE,
        "where(»i, p_f[i, j], 0)",
        "a condition is meant here, not 'i'",
        "i != 0",
    ),
    "a word in arithmetic": (VALUE, "p_f[i, j] * »mode", "'mode' is a word", ""),
    "a dtype in arithmetic": (VALUE, "p_f[i, j] * »acc", "'acc' is a dtype", ""),
    "a tile in arithmetic": (VALUE, "»p_f * g_s[i]", "'p_f' is a tile; name an element", ""),
    "an axis too far": (
        "- gemm: x_s",
        "- reduce: sum(p_f) -> g_s\n      axis: »2\n    - gemm: x_s",
        "axis 2 of a tile with 2 axes",
        "0 to 1",
    ),
    "the target of a reduction": (
        "- gemm: x_s",
        "- reduce: sum(x_s) -> »t_s\n    - gemm: x_s",
        "a reduction of [64, 64] along axis 1 into [64, 64]",
        "the target is [64]",
    ),
    "an unknown reduction": (
        "- gemm: x_s",
        "- reduce: »mean(x_s) -> g_s\n    - gemm: x_s",
        "a reduction of one tile is meant here",
        "reductions: max min",
    ),
    "the axis of a running sum": (
        "- gemm: x_s",
        "- cumsum: g_s -> g_s\n      axis: »1\n    - gemm: x_s",
        "axis 1 of a tile with 1 axes",
        "",
    ),
    "the dtype of a running sum": (
        "- gemm: x_s",
        "- cumsum: x_s[:, 0:N] -> »t_s\n    - gemm: x_s",
        "a running sum of float16 into float32",
        "keeps its dtype",
    ),
    "a running sum of a tensor": (
        "- gemm: x_s",
        "- cumsum: »g[b, 0:N] -> g_s\n    - gemm: x_s",
        "'g' is a tensor in global memory",
        "copy it",
    ),
    "a solve without a block": (
        GEMM,
        GEMM + "\n    - »solve: t_s -> p_f",
        "a solve has no block",
        "block:",
    ),
    "a solve of another shape": (
        GEMM,
        "- fill: 0 -> t_s\n    - solve: »t_s -> t_s\n      block: 16\n    " + GEMM,
        "a solve of [64, 64] into [64, 64]",
        "the source is [64, 16]",
    ),
    "a block that does not divide": (
        GEMM,
        "- fill: 0 -> t_s\n    - solve: t_s[:, 0:16] -> »t_s\n      block: 24\n    " + GEMM,
        "a solve by blocks of 24 into [64, 64]",
        "blocks divide its side",
    ),
    # -- bounds
    "an index too far": (
        VALUE,
        "p_f[i, j] * g_s[»i + 1]",
        "index i + 1 of 'g_s' reaches 1 to 64",
        "0 to 63",
    ),
    "an index below 0": (
        VALUE,
        "p_f[i, j] * g_s[»i - 1]",
        "index i - 1 of 'g_s' reaches -1 to 62",
        "0 to 63",
    ),
    "a guard of the wrong side": (
        VALUE,
        "where(i > 0, 0, p_f[i, j] * g_s[»i - 1])",
        "index i - 1 of 'g_s' reaches -1",
        "",
    ),
    "a guard that is too weak": (VALUE, "where(i >= 0, g_s[»i - 1], 0)", "reaches -1 to 62", ""),
    "select guards nothing": (VALUE, "select(i > 0, g_s[»i - 1], 0.0)", "reaches -1 to 62", ""),
    "an index of unknown range": (
        VALUE,
        "p_f[i, j] * g_s[»c]",
        "index c of 'g_s' reaches 0 to inf",
        "min(max(..., 0), 63)",
    ),
    "a slice too far": (
        STORE,
        "copy: t_s[»N:2*N, :] -> y[b, c*N:(c+1)*N, :]",
        "axis 0 of 't_s' is used from 64 to 127",
        "0 to 63",
    ),
    "a race over an index": (
        "t_s[i, j] = p_f[i, j] * g_s[i]",
        "»g_s[i] = p_f[i, j]",
        "several points of the map write one element of 'g_s': no index says j",
        "reduce:",
    ),
    "a race of two points": (
        "t_s[i, j] = p_f[i, j] * g_s[i]",
        "»t_s[i // 2, j] = p_f[i, j]",
        "two points meet",
        "",
    ),
    "a race between threads": (
        "t_s[i, j] = p_f[i, j] * g_s[i]",
        "t_s[i, j] = »t_s[j, i] + p_f[i, j]",
        "'t_s' is read at another element than the one written here",
        "another buffer",
    ),
    # -- reads, lifetimes, uses
    "read before write": (
        "- copy: g[b, c*N:(c+1)*N] -> g_s\n",
        "- fill: 0 -> t_s\n",
        "'g_s' is read before it is written, in stage 'work'",
        "copy, fill or gemm",
        (27, 35),
    ),
    "accumulated before written": (
        "x_s.T -> p_f",
        "x_s.T +> »p_f",
        "'p_f' is read before it is written, in stage 'work'",
        "",
    ),
    "written on one path": (
        LOAD_G,
        "- copy: g[b, c*N:(c+1)*N] -> g_s\n      when: c == 0",
        "'g_s' is read before it is written",
        "on every path",
        (28, 35),
    ),
    "written in a loop that may not run": (
        LOAD_G,
        "- loop: {d: c}\n      do: [copy: 'g[b, d*N:(d+1)*N] -> g_s']",
        "'g_s' is read before it is written",
        "",
        (28, 35),
    ),
    "read in a loop before its write": (
        "    - gemm: x_s @ x_s.T -> p_f\n",
        "    - repeat: 2\n      do:\n        - copy: »p_f -> t_s\n        - gemm: x_s @ x_s.T -> p_f\n",
        "'p_f' is read before it is written, in stage 'work'; its first write is on line",
        "",
    ),
    "rows never written": (
        "copy: g[b, c*N:(c+1)*N] -> g_s",
        "copy: g[b, c*N:c*N + 32] -> g_s[0:32]",
        "'g_s' is read from 0 to 63 along axis 0, but only 0 to 31 is ever written",
        "fill the rest",
        (27, 35),
    ),
    "a lifetime that starts late": (
        "live: work .. store",
        "live: »store",
        "'t_s' is used in stage 'work' (line 27), before its lifetime starts with 'store'",
        "live: work .. store",
    ),
    "a lifetime that ends early": (
        "dtype: io, live: load .. work",
        "dtype: io, live: »load",
        "'x_s' is used in stage 'work' (line 24), after its lifetime ends with 'load'",
        "live: load .. work",
    ),
    "an unknown stage": (
        "live: work .. store",
        "live: work .. »stroe",
        "unknown stage 'stroe' in the lifetime of 't_s'; did you mean 'store'?",
        "stages: load work store",
    ),
    "a lifetime backwards": (
        "live: work .. store",
        "live: »store .. work",
        "the lifetime of 't_s' ends before it starts",
        "live: work .. store",
    ),
    "a buffer never used": (
        "buffers:\n",
        "buffers:\n  »z_s: {scope: shared, shape: [N], dtype: io}\n",
        "buffer 'z_s' is never used",
        "take it out",
    ),
    "a tensor never used": (
        "tensors:\n",
        "tensors:\n  »z: {role: in, shape: [N], dtype: io}\n",
        "tensor 'z' is never used",
        "take it out",
    ),
    "reuse of nothing": (
        "live: work .. store}",
        "live: work .. store, reuse: »q_s}",
        "'t_s' reuses an unknown buffer 'q_s'",
        "buffers:",
    ),
    "reuse of itself": (
        "live: work .. store}",
        "live: work .. store, reuse: »t_s}",
        "'t_s' reuses itself",
        "",
    ),
    "reuse of a fragment": (
        "dtype: acc, live: work}",
        "dtype: acc, live: work, reuse: »t_s}",
        "'p_f' is a fragment; only shared buffers reuse storage",
        "",
    ),
    # -- fragments
    "a fragment read across": (
        VALUE,
        "»p_f[j, i] * g_s[i]",
        "fragment 'p_f' is touched at [j, i] in a map over (i, j)",
        "make 'p_f' shared (16,384 bytes)",
    ),
    "a part of a fragment": (
        STORE,
        "copy: »p_f[0:32, :] -> y[b, c*N:c*N+32, :]",
        "a part of fragment 'p_f' is used",
        "16,384 bytes",
    ),
    "a local tile in a map": (
        "g_s: {scope: shared, shape: [N], dtype: acc",
        "g_s: {scope: local, shape: [N], dtype: acc",
        "'g_s' is local: each thread has its own",
        "256 bytes",
        (22, 34),
        (27, 35),
    ),
    # -- YAML
    "a line broken by a colon": (
        LOAD_G,
        "- copy: g[b, c*N»: (c+1)*N] -> g_s",
        "a ': ' breaks this line in two",
        "quote the whole value",
    ),
    "an assignment broken by a colon": (
        ASSIGN,
        "- »t_s[i, j: 3] = p_f[i, j] * g_s[i]",
        "a ': ' breaks this line in two",
        "quote the whole value",
    ),
    "a grid broken by a comma": (
        '"ceildiv(T, N)"',
        "»ceildiv(T, N)",
        "not an expression: '(' was never closed",
        "quote an expression that holds a comma",
    ),
    "a doc broken by a comma": (
        "g: {role: in, ",
        "g: {role: in, doc: a, »b c, ",
        "a comma inside { } or [ ] starts a new entry",
        "quote the value",
    ),
    "an unfinished expression": (
        VALUE,
        "p_f[i, j] * »(g_s[i]",
        "not an expression",
        "quote an expression",
    ),
    "an equals sign in a size": (
        "map: {i: N, j: N}",
        "map: {i: »N = 3, j: N}",
        "not an expression",
        "== compares",
    ),
    "a folded expression": (
        VALUE,
        "p_f[i, j]\n            * g_s[i]",
        "an expression that goes on over the next line",
        "`|` block",
        (27, 11),
    ),
    "a comment in an expression": (
        ASSIGN,
        "- 't_s[i, j] = p_f[i, j] »# * g_s[i]'",
        "the character '#' has no place in an expression",
        "",
    ),
    # -- Python
    "an import": (VALUE, "»__import__('os').system('x')", "unknown function", "functions:"),
    "a lambda": (
        VALUE,
        "(lambda q: q)(p_f[i, j])",
        "a ': ' breaks this line",
        "quote the whole value",
        (27, 11),
    ),
    "an f-string": (VALUE, "»f'{p_f}'", "joinedstr is not part of the expression language", ""),
    "an attribute of a name": (VALUE, "»p_f.__class__", "has no place in an expression", ""),
    "a comprehension": (
        VALUE,
        "»[q for q in g_s]",
        "listcomp is not part of the expression language",
        "",
    ),
    "a conditional expression": (
        VALUE,
        "»1 if i > 0 else 2",
        "ifexp is not part of the expression language",
        "",
    ),
    "a walrus": (VALUE, "(»q := g_s[i])", "namedexpr is not part", ""),
    "a letter of another script in an expression": (
        VALUE,
        "p_f[i, j] * »ɡ_s[i]",
        "the character 'ɡ' has no place in an expression",
        "",
    ),
    "keyword arguments": (VALUE, "»exp(x=1)", "exp takes 1 argument, 0 given", ""),
    "deep parentheses": (
        VALUE,
        "(" * 1500 + "1" + ")" * 1500,
        "too many nested parentheses",
        "",
        (27, 223),
    ),
    "a deep expression": (
        ASSIGN,
        "- »t_s[i, j] = " + "-" * 3000 + "1",
        "an expression nested too deep to read",
        "",
    ),
    "a deep sum": (ASSIGN, "- »t_s[i, j] = " + "+".join(["i"] * 300), "nested deeper than 100", ""),
    "a long expression": (
        ASSIGN,
        "- »t_s[i, j] = max(" + "1234567, " * 600 + "1)",
        "characters; at most 4,000",
        "",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name):
    old, new, words, hint, *places = MISTAKES[name]
    marked = edited((old, new))
    text = marked.replace("»", "")
    if not places:
        before = marked[: marked.index("»")]
        places = [(before.count("\n") + 1, len(before) - before.rfind("\n"))]
    with within(SECONDS):
        errors = read(text).errors
    found = [e for e in errors if words in e.what and hint in (e.hint or "")]
    assert [(e.where.line, e.where.column) for e in found] == places, "\n".join(map(str, errors))


# One of these mistakes makes no other statement wrong, so it is the only thing to be said.
ALONE = """
unknown key of the spec; unknown key of a tensor; unknown scope; unknown dtype of a tile; no shape; no role
unknown statement; no arrow; two targets; unknown name in a value; unknown function; unknown tile
an index too far; shapes of a gemm; a narrowing store; a line broken by a colon; an import; no blocks
threads that are no warps; a fraction for a tensor; a tile too large; a folded expression; a deep sum
""".replace("\n", ";").split(";")


@pytest.mark.parametrize("name", [name.strip() for name in ALONE if name.strip()])
def test_one_mistake_is_one_error(name):
    old, new, *_ = MISTAKES[name]
    errors = read(edited((old, new)).replace("»", "")).errors
    assert len({e.where.line for e in errors}) == 1, "\n".join(map(str, errors))


def test_five_mistakes_are_five_errors():
    names = (
        "unknown key of the spec",
        "shapes of a copy",
        "gemm operands of two dtypes",
        "a buffer never used",
        "an index too far",
    )
    edits = [MISTAKES[n][:2] for n in names]
    text = edited(*((old, new.replace("»", "")) for old, new in edits))
    errors = read(text).errors
    for name in names:
        assert any(MISTAKES[name][2] in e.what for e in errors), name
    assert len({e.where.line for e in errors}) == 5


def test_mistakes_of_every_pass_are_found_together():
    text = edited(
        ("role: out", "role: output"),  # the shape of a spec
        ("g[b, c*N:(c+1)*N] -> g_s", "g[b, c*N:(c+2)*N] -> g_s"),  # a statement
        ("live: work .. store", "live: work"),  # the analysis
        ("p_f[i, j] * g_s[i]", "p_f[j, i] * g_s[i]"),  # the scopes
        (
            "dtype: acc, live: load .. work}",
            "dtype: acc, live: load .. work, reuse: g_s}",
        ),  # the plan
    )
    found = [(e.where.line, e.what) for e in read(text).errors]
    for line, words in (
        (11, "unknown role 'output'"),
        (16, "'g_s' reuses itself"),
        (17, "after its lifetime ends"),
        (22, "a copy of [128] into [64]"),
        (27, "fragment 'p_f' is touched"),
    ):
        assert any(line == at and words in what for at, what in found), (line, words, found)


def test_an_error_shows_its_line_and_a_caret():
    report = Report()
    spec.parse(edited(("role: out", "role: output")), "s.yaml", report)
    with pytest.raises(SpecError) as caught:
        report.stop()
    assert str(caught.value).splitlines() == [
        "s.yaml:11:13: error: unknown role 'output'; did you mean 'out'?",
        "    y: {role: output, shape: [B, T, N], dtype: io}",
        "              ^^^^^^",
        "  help: one of: in out inout",
    ]


# -- lifetimes -----------------------------------------------------------------------------------


def test_a_lifetime_that_is_too_long_is_a_warning_with_the_right_value():
    got = read(edited(("dtype: acc, live: work}", "dtype: acc, live: load .. store}")))
    assert not got.errors
    (warning,) = got.warnings
    assert "the lifetime of 'p_f' is longer than its use" in warning.what
    assert warning.hint == "live: work"
    assert (warning.where.line, warning.where.column) == (18, 59)


def test_a_tile_that_nothing_reads_is_a_warning():
    got = read(
        edited(
            ("    - copy: t_s -> y", "    - copy: p_f -> y"),
            ("live: work}", "live: work .. store}"),
        )
    )
    assert [w.what for w in got.warnings if "never read" in w.what] == [
        "'t_s' is written but never read"
    ]


def test_reuse_of_a_tile_that_is_still_alive_names_both_lines():
    text = edited(
        ("live: work .. store}", "live: work .. store, reuse: h_s}"),
        ("buffers:\n", "buffers:\n  h_s: {scope: shared, shape: [N, N], dtype: acc}\n"),
        ("      do:\n", "      do:\n        - h_s[i, j] = p_f[i, j]\n"),
        ("g_s[i]\n", "g_s[i] + h_s[i, j]\n"),
    )
    (error,) = read(text).errors
    assert (
        "'t_s' (line 18) and 'h_s' (line 15) can't share storage: both live in stage 'work'"
        in error.what
    )


# -- threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "n, threads, words, hint",
    [
        (16, 128, "128 threads can't cover a gemm tile of 16x16: 4 warps", "use 64 threads"),
        (32, 1024, "1024 threads can't cover a gemm tile of 32x32", "use 256 threads"),
        (24, 32, "rows come in sixteens", "pad the tile"),
        (96, 256, None, ""),
        (64, 1024, None, ""),
    ],
)
def test_threads_that_cover_a_gemm(n, threads, words, hint):
    edits = (("{N: 64, M: [64, 128]", f"{{N: {n}, M: 64"), ("threads: 128", f"threads: {threads}"))
    errors = read(edited(*edits)).errors
    if words is None:
        assert not errors
    else:
        assert [words in e.what and hint in e.hint for e in errors] == [True]


def test_a_gemm_sums_over_whole_instructions():
    (error,) = read(edited(("M: [64, 128]", "M: 72"))).errors
    assert "a gemm of float16 sums over a multiple of 16; 72 here" in error.what


# -- what must not be refused --------------------------------------------------------------------

GOOD = {
    "a guard by where": [(VALUE, "where(i > 0, p_f[i, j] * g_s[i - 1], 0)")],
    "a guard by not": [(VALUE, "where(not i > 0, 0, p_f[i, j] * g_s[i - 1])")],
    "the other side of a guard": [(VALUE, "where(i == 0, 0, p_f[i, j] * g_s[i - 1])")],
    "a guard of two indices": [(VALUE, "where(i > j, p_f[i, j] * g_s[i - j - 1], 0)")],
    "a guard by and": [(VALUE, "where(c > 0 and 0 < i and i < N - 1, g_s[i + 1] + g_s[i - 1], 0)")],
    "a chain of comparisons": [
        (VALUE, "p_f[i, j] * where(0 < i < N - 1, g_s[i + 1] + g_s[i - 1], 0)")
    ],
    "an index by where": [(VALUE, "p_f[i, j] * g_s[where(i > 0, i - 1, 0)]")],
    "a clamped index": [(VALUE, "p_f[i, j] * g_s[min(max(c - 1, 0), N - 1)]")],
    "a cyclic index of a shared tile": [(VALUE, "p_f[i, j] * g_s[(i + 1) % N]")],
    "the if of a map": [
        ("{i: N, j: N}\n", "{i: N, j: N}\n      if: i >= j and c*N + i < T\n"),
        (VALUE, "g_s[i - j]"),
    ],
    "one element a point": [
        ("{i: N, j: N}", "{i: N, j: N // 2, q: 2}"),
        (ASSIGN, "- t_s[i, j*2 + q] = g_s[i]"),
    ],
    "an element of another tile": [
        (VALUE, "p_f[i, j] * g_s[min(max(cast(g_s[i], int32), 0), N - 1)]")
    ],
    "a runtime value": [(VALUE, "where(c*N + i < T, p_f[i, j] * g_s[i], -inf)")],
    "a loop of rows": [
        (
            "    - gemm",
            "    - loop: {d: N // 16}\n      do:\n        - fill: 0 -> t_s[d*16:(d+1)*16, :]\n    - gemm",
        ),
        (VALUE, "t_s[i, j] * p_f[i, j]"),
    ],
    "a row of a loop": [(GEMM, GEMM + "\n    - loop: {d: N}\n      do: [fill: '0 -> t_s[d, :]']")],
    "one loop's end in another's count": [
        (
            GEMM,
            "- loop: {d: c}\n      do: [fill: 0 -> p_f]\n    - loop: {e: c}\n      do: [copy: p_f -> t_s]\n    "
            + GEMM,
        )
    ],
    "the first round of a loop": [
        (
            GEMM,
            "- loop: {d: 4}\n      do:\n        - {fill: 0 -> p_f, when: d == 0}\n        - gemm: x_s @ x_s.T +> p_f",
        )
    ],
    "both arms": [
        (
            GEMM,
            "- when: c == 0\n      do: [fill: 0 -> p_f]\n      else: [gemm: x_s @ x_s.T -> p_f]",
        ),
    ],
    "one condition twice": [
        (
            GEMM,
            "- {fill: 0 -> t_s, when: c == 0}\n    - "
            + GEMM[2:]
            + "\n    - {copy: t_s -> p_f, when: c == 0}",
        )
    ],
    "nested conditions": [
        (
            GEMM,
            GEMM + "\n    - when: c == 0\n      do: [{fill: 0 -> t_s, when: b == 0}]"
            "\n    - when: b == 0\n      do: [{copy: t_s -> p_f, when: c == 0}]",
        )
    ],
    "a condition inside a loop": [
        (
            GEMM,
            GEMM + "\n    - {fill: 0 -> t_s, when: c == 0}"
            "\n    - loop: {d: 2}\n      do: [{copy: t_s -> p_f, when: c == 0}]",
        )
    ],
    "a condition of a block that bounds an index": [
        (
            GEMM,
            GEMM + "\n    - loop: {d: N}\n      do: [{copy: 't_s[d - 1, :] -> t2_s', when: d > 0}]",
        ),
        ("buffers:\n", "buffers:\n  t2_s: {scope: shared, shape: [N], dtype: acc}\n"),
        (LOAD_G, LOAD_G + "\n    - fill: 0 -> t_s\n    - fill: 0 -> t2_s"),
        ("live: work .. store", "live: load .. store"),
        (VALUE, "p_f[i, j] * g_s[i] + t2_s[j]"),
    ],
    "a dtype in a condition": [(GEMM, GEMM + "\n      when: io == float16"), (LOAD_G, LOAD_G)],
    "a word in a condition": [(GEMM, GEMM + "\n      when: mode == 'plain'")],
    "a dtype in a filter": [
        ("io: float16}", "io: float16}\n  where: io == 'float16' and mode == 'plain'")
    ],
    "a stage of the kernel's name": [("kernel: tiny", "kernel: work")],
    "a `|` block": [
        (ASSIGN, "- |\n          t_s[i, j] = (p_f[i, j]\n                       * g_s[i])")
    ],
    "a tensor read element by element": [(VALUE, "p_f[i, j] * g[b, c*N + i] * g_s[i]")],
    "a map of one point, wherever it writes": [
        (GEMM, GEMM + "\n    - map: {e: 1}\n      do: ['g_s[c % N] = 0.0']")
    ],
    "raw lines": [
        (
            GEMM,
            "- raw: |\n        # as they come\n        for q in range(2):\n            T.gemm(x_s, x_s, p_f, transpose_B=True)\n"
            "      reads: [x_s]\n      writes: [p_f]",
        )
    ],
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_right_is_not_refused(name):
    errors = read(edited(*GOOD[name])).errors
    assert not errors, "\n".join(map(str, errors))


def test_the_base_is_faultless():
    got = read(BASE)
    assert not got.errors and not got.warnings
    assert [k.module for k, _ in got.kernels] == ["s_n64_m64_float16", "s_n64_m128_float16"]


KERNELS = sorted(p for p in SPECS.rglob("*.yaml") if not driver.is_pipeline(p))


@pytest.mark.parametrize("path", KERNELS, ids=lambda p: p.stem)
def test_specs_of_the_repository_are_faultless(path):
    got = read(path.read_text(), path.as_posix())
    assert not got.errors and not got.warnings and got.kernels


# -- fragments -----------------------------------------------------------------------------------

FRAGMENTS = """\
kernel: fragments
dims: [C, D]
runtime: [T]
variants: {forall: {C: 64, D: 64}}
tensors:
  k: {role: in, shape: [T, D], dtype: float32}
  beta_g: {role: in, shape: [T], dtype: float32}
  y: {role: out, shape: [T, D], dtype: float32}
grid: {c: "ceildiv(T, C)"}
threads: 128
buffers:
  k_s: {scope: shared, shape: [C, D], dtype: float32}
  r_s: {scope: shared, shape: [C], dtype: float32}
  beta: {scope: fragment, shape: [C], dtype: float32}
  gram: {scope: fragment, shape: [C, C], dtype: float32}
  top: {scope: fragment, shape: [C], dtype: float32}
  old: {scope: fragment, shape: [C], dtype: float32}
  out_s: {scope: shared, shape: [C, C], dtype: float32}
stages:
  load:
    - copy: k[c*C:(c+1)*C, :] -> k_s
    - copy: beta_g[c*C:(c+1)*C] -> beta
    - copy: beta_g[c*C:(c+1)*C] -> r_s
    - gemm: k_s @ k_s.T -> gram
    - reduce: max(gram) -> top
    - copy: top -> old
  work:
    - map: {i: C, j: C}
      do:
        - out_s[i, j] = VALUE
    - map: {i: C}
      do:
        - old[i] = old[i] + beta[i] + r_s[i]
    - copy: old -> r_s
  store:
    - copy: out_s -> y[c*C:(c+1)*C, :]
"""


@pytest.mark.parametrize(
    "value, index",
    [
        ("k_s[i, j] * beta[i]", "i"),  # the reviewed mistake: no other fragment says where row i is
        ("gram[i, j] * beta[i]", "i"),  # loaded from memory, so it is spread as a copy spreads it
        ("gram[i, j] * beta[j]", "j"),
        ("gram[j, i]", "j, i"),
        ("gram[(i + 1) % C, j]", "(i + 1) % C, j"),
        ("k_s[i, j] * top[i]", "i"),  # beside shared tiles only
        ("gram[i, j] * top[j]", "j"),
    ],
)
def test_a_fragment_that_threads_cannot_reach_is_refused_with_its_price(value, index):
    errors = [e for e in read(FRAGMENTS.replace("VALUE", value)).errors]
    (error,) = errors
    name = "gram" if index != "i" and index != "j" else "top" if "top" in value else "beta"
    assert f"fragment '{name}' is touched at [{index}] in a map over (i, j)" in error.what
    assert "threads can't reach one another's registers" in error.what
    price = "16,384" if name == "gram" else "256"
    assert f"make '{name}' shared ({price} bytes)" in error.hint


def test_beta_as_a_fragment_is_refused_in_both_loops():
    text = FRAGMENTS.replace("VALUE", "gram[i, j] * r_s[i]").replace(
        "    - copy: old -> r_s",
        "    - map: {i_s: C, i_k: D}\n      do: ['k_s[i_s, i_k] = k_s[i_s, i_k] * beta[i_s]']\n    - copy: old -> r_s",
    )
    (error,) = read(text).errors
    assert "fragment 'beta' is touched at [i_s] in a map over (i_s, i_k)" in error.what
    assert "make 'beta' shared (256 bytes)" in error.hint


def test_a_rotated_fragment_of_one_axis_is_refused():
    text = FRAGMENTS.replace("VALUE", "gram[i, j]").replace(
        "old[i] + beta[i]", "old[i] + beta[(i + 1) % C]"
    )
    (error,) = read(text).errors
    assert "fragment 'beta' is touched at [(i + 1) % C] in a map over (i)" in error.what


@pytest.mark.parametrize(
    "value", ["gram[i, j] - top[i]", "gram[i, j] - old[i]", "exp(gram[i, j] - top[i]) * r_s[j]"]
)
def test_a_row_statistic_beside_a_fragment_of_its_rows_is_legal(value):
    got = read(FRAGMENTS.replace("VALUE", value))
    assert not got.errors


def test_a_column_statistic_is_no_row_statistic():
    text = FRAGMENTS.replace("VALUE", "gram[i, j] - top[i]").replace(
        "reduce: max(gram) -> top", "reduce: max(gram) -> top\n      axis: 0"
    )
    assert "fragment 'top' is touched at [i]" in read(text).errors[0].what


def test_the_running_maximum_of_flash_attention_is_legal():
    got = read(FLASH)
    assert not got.errors, "\n".join(map(str, got.errors))
    assert not got.warnings


FLASH = """\
kernel: attention
dims: [M, N, D]
runtime: [H, S]
dtypes: {io: float16, acc: float32}
variants: {forall: {M: 64, N: 64, D: 64}}
tensors:
  q: {role: in, shape: [H, S, D], dtype: io}
  k: {role: in, shape: [H, S, D], dtype: io}
  v: {role: in, shape: [H, S, D], dtype: io}
  o: {role: out, shape: [H, S, D], dtype: io}
grid: {m: "ceildiv(S, M)", h: H}
threads: 128
buffers:
  q_s: {scope: shared, shape: [M, D], dtype: io}
  k_s: {scope: shared, shape: [N, D], dtype: io}
  v_s: {scope: shared, shape: [N, D], dtype: io}
  s_f: {scope: fragment, shape: [M, N], dtype: acc}
  p_f: {scope: fragment, shape: [M, N], dtype: io}
  o_f: {scope: fragment, shape: [M, D], dtype: acc}
  top: {scope: fragment, shape: [M], dtype: acc}
  last: {scope: fragment, shape: [M], dtype: acc}
  scale: {scope: fragment, shape: [M], dtype: acc}
  part: {scope: fragment, shape: [M], dtype: acc}
  sum: {scope: fragment, shape: [M], dtype: acc}
stages:
  start:
    - copy: q[h, m*M:(m+1)*M, :] -> q_s
    - fill: 0 -> o_f
    - fill: 0 -> sum
    - fill: -inf -> top
  walk:
    - pipelined: {n: "ceildiv(S, N)"}
      do:
        - copy: k[h, n*N:(n+1)*N, :] -> k_s
        - copy: v[h, n*N:(n+1)*N, :] -> v_s
        - gemm: q_s @ k_s.T -> s_f
        - map: {i: M, j: N}
          do:
            - s_f[i, j] = where(n*N + j < S, s_f[i, j], -inf)
        - copy: top -> last
        - reduce: max(s_f) +> top
          axis: 1
        - map: {i: M}
          do:
            - scale[i] = exp(last[i] - top[i])
        - map: {i: M, j: N}
          do:
            - s_f[i, j] = exp(s_f[i, j] - top[i])
        - reduce: sum(s_f) -> part
          axis: 1
        - map: {i: M}
          do:
            - sum[i] = sum[i] * scale[i] + part[i]
        - map: {i: M, j: D}
          do:
            - o_f[i, j] = o_f[i, j] * scale[i]
        - copy: s_f -> p_f
        - gemm: p_f @ v_s +> o_f
  finish:
    - map: {i: M, j: D}
      do:
        - o_f[i, j] = o_f[i, j] / sum[i]
    - copy: o_f -> o[h, m*M:(m+1)*M, :]
"""


# -- raw lines -----------------------------------------------------------------------------------

RAW = {
    "__import__('os')": "only functions of T may be called",
    "open('x')": "only functions of T may be called",
    "T.clear(p_f.__class__)": "only T.name may be used",
    "T.clear(T.exp.__globals__)": "only T.name may be used",
    "T.__dict__": "T.__dict__ has no place",
    "T.import_source('x')": "T.import_source has no place",
    "T.call_extern('int32', 'f')": "T.call_extern has no place",
    "T.call_intrin('handle', 'tir.call_extern', 'system')": "T.call_intrin has no place",
    "T.alloc_shared([64], 'float32')": "T.alloc_shared has no place",
    "T.view(p_f, [64])": "T.view has no place",
    "(lambda: 0)()": "lambda has no place",
    "T.fill(p_f, f'{x_s}')": "joinedstr has no place",
    "import os": "import has no place",
    "def f(): pass": "functiondef has no place",
    "class A: pass": "classdef has no place",
    "with x_s: pass": "with has no place",
    "while True: pass": "while has no place",
    "del x_s": "delete has no place",
    "global x_s": "global has no place",
    "[q for q in x_s]": "listcomp has no place",
    "T = x_s": "'T' can't be given another meaning",
    "range = T.exp": "'range' can't be given another meaning",
    "x_s = p_f": "'x_s' can't be given another meaning",
    "_q = 1": "'_q' can't be given another meaning",
    "x_s[0, 0] = 1": "'x_s' is written but not declared so",
    "T.copy(x_s, t_s)": "'t_s' is used but not declared",
    "T.copy(x_s, q_s)": "unknown name 'q_s' in raw lines; did you mean 'x_s'?",
    "T.copy(x_s, (p_f)": "raw lines are not Python",
    "print": "unknown name 'print'",
}


@pytest.mark.parametrize("line", RAW)
def test_raw_lines_reach_nothing_but_tilelang(line):
    raw = f"- raw: |\n        T.clear(p_f)\n        {line}\n      reads: [x_s]\n      writes: [p_f]"
    errors = read(edited((GEMM, raw))).errors
    assert any(RAW[line] in e.what and e.where.line == 26 for e in errors), "\n".join(
        map(str, errors)
    )


def test_raw_lines_point_at_the_column():
    raw = "- raw: |\n        T.clear(p_f)\n        T.copy(x_s, T.import_source)\n      reads: [x_s]\n      writes: [p_f]"
    (error,) = read(edited((GEMM, raw))).errors
    assert (error.where.line, error.where.column) == (26, 21)


@pytest.mark.parametrize("escape", ["\\f", "\\v", "\\r", "\\x85", "\\L", "\\P", "\\0", "\\u202e"])
def test_a_character_that_ends_a_line_for_some_readers_only_is_refused(escape):
    """Python's parser reads `# \\f import os` as one comment, but str.splitlines makes two lines of it."""
    raw = f'- raw: "T.clear(p_f) # {escape}import os"\n      reads: [x_s]\n      writes: [p_f]'
    (error,) = read(edited((GEMM, raw))).errors
    assert "has no place in a spec: it does not print" in error.what and error.where.line == 24


# -- YAML ----------------------------------------------------------------------------------------

BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20)
)
HOSTILE = {
    "nothing": ("", "a spec is a mapping"),
    "a word": ("kernel", "a spec is a mapping"),
    "a list": ("- a\n- b", "a spec is a mapping"),
    "two documents": ("a: 1\n---\nb: 2", "a second document"),
    "a bracket left open": ("a: [1, 2\nb: 3", "not YAML"),
    "a quote left open": ("a: 'x\nb: 3", "not YAML: found unexpected end of stream"),
    "a tab": ("a:\n\tb: 1", "not YAML"),
    "bad indentation": ("a:\n   b: 1\n  c: 2", "not YAML"),
    "a bomb of anchors": (BOMB, "anchors and aliases are not read"),
    "an alias": ("a: *b", "anchors and aliases are not read"),
    "an anchor on a key": ("&a a: 1", "anchors and aliases are not read"),
    "a merge": ("a: 1\n<<: {b: 2}", "unknown key '<<' in spec"),
    "a tag": ("a: !!python/object/apply:os.system ['x']", "tags are not read"),
    "a tag on a key": ("!!int a: 1", "tags are not read"),
    "a list for a key": ("? [a, b]\n: 1", "a key must be a word"),
    "a mapping for a key": ("{a: 1}: 1", "a key must be a word"),
    "a null byte": ("kernel: a\0b", "the character U+0000"),
    "an escaped null byte": ('kernel: "a\\0b"', "the character U+0000"),
    "half a character": ("kernel: \ud800", "the character U+D800"),
    "a mark inside": ("kernel: a\ufeffb", "the character U+FEFF"),
    "a line separator": ("kernel: a\u2028b", "the character U+2028"),
    "a space that does not break": ("kernel:\u00a0b", "the character U+00A0"),
    "deep lists": ("a: " + "[" * 100_000, "nest"),
    "deep mappings": ("a: " + "{a: " * 40_000, "nest"),
    "deep blocks": ("- " * 99_999 + "a", "nested deeper than 32 levels"),
    "deep keys": ("? " * 99_999 + "a", "nested deeper than 32 levels"),
    "deep indentation": (
        "\n".join(" " * i + "a:" for i in range(400)),
        "nested deeper than 32 levels",
    ),
    "10 MB": ("a" * 10_000_000, "a spec of 10,000,000 characters; at most 200,000"),
    "many values": ("a: [" + "1, " * 60_000 + "]", "more than 20,000 values"),
    "many keys": ("\n".join(f"a{i}: 1" for i in range(9_000)), "unknown key 'a0' in spec"),
    "a long key": ("a" * 100_000 + ": 1", "breaks this line"),
    "many colons": ("a" + ":" * 100_000, "a"),
    "another version": ("%YAML 3.0\n---\na: 1", "not YAML: found incompatible YAML document"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused_at_once(name):
    text, words = HOSTILE[name]
    with within(SECONDS):
        errors = read(text).errors
    assert any(words in e.what for e in errors), errors[0].what[:200]
    assert all(e.where.line >= 1 and e.where.column >= 1 for e in errors)


HOSTILE_SPECS = {
    "many statements": lambda: edited((STORE, "\n    - ".join([STORE] * 1500))),
    "a mistake in many statements and variants": lambda: edited(
        (VALUE, "q_s[i, j]"),
        (STORE, "\n    - ".join([STORE] * 300)),
        ("N: 64, M: [64, 128]", f"N: 64, M: {list(range(16, 1616, 16))}"),
    ),
    "many mistakes": lambda: edited(
        (ASSIGN, "\n        ".join(f"- t_s[i, j] = q{i}[i]" for i in range(900)))
    ),
    "many unused buffers": lambda: edited(
        (
            "buffers:\n",
            "buffers:\n"
            + "".join(f"  u{i}: {{scope: shared, shape: [N], dtype: io}}\n" for i in range(2000)),
        )
    ),
    "many lists": lambda: edited(
        ("N: 64, M: [64, 128]", ", ".join(f"N{i}: [1, 2, 3, 4]" for i in range(900)))
    ),
    "points that must be tried": lambda: edited(
        ("M: [64, 128]", "M: 128"),
        (ASSIGN, "\n        ".join(["- t_s[(i * 7 + j) % N, (j * 3 + i * i) % N] = g_s[i]"] * 20)),
    ),
    "maps too large to try": lambda: edited(
        ("{i: N, j: N}", "{i: 60000, j: 60000}"), (ASSIGN, "- t_s[(i * j) % N, j % N] = 0")
    ),
    "deep conditions": lambda: edited((VALUE, "where(i > 0, " * 90 + "1.0" + ", 0.0)" * 90)),
    "loops in loops": lambda: edited(
        (
            GEMM,
            GEMM
            + "\n    - "
            + "".join(f"{{loop: {{d{i}: 2}}, do: [" for i in range(12))
            + "{fill: 0 -> t_s}"
            + "]}" * 12,
        )
    ),
}


@pytest.mark.parametrize("name", HOSTILE_SPECS)
def test_a_hostile_spec_is_read_or_refused_soon(name):
    text = HOSTILE_SPECS[name]()
    with within(2 * SECONDS):
        read(text)


@pytest.mark.parametrize(
    "text", ["\ufeff" + BASE, BASE.replace("\n", "\r\n"), BASE + "\n\n", "\n# a comment\n" + BASE]
)
def test_a_spec_saved_by_another_editor_reads_the_same(text):
    got = read(text)
    assert not got.errors and len(got.kernels) == 2


@pytest.mark.parametrize(
    "name", ["my spec.yaml", "../x;y.yaml", "2pass.yaml", "é.yaml", "-.yaml", "a/b.c.yaml"]
)
def test_file_names_of_kernels_are_plain_words(name):
    for kernel, _ in read(BASE, name).kernels:
        assert kernel.module.isidentifier() and kernel.module.isascii()


def test_a_file_name_with_a_line_break_is_refused():
    assert "don't print" in read(BASE, "a\nimport os.yaml").errors[0].what


# -- what is rendered ----------------------------------------------------------------------------

DOC = 'a """ \\N{no}; import os \\'


@pytest.mark.parametrize(
    "old, new",
    [
        ("kernel: tiny", f"kernel: tiny\ndoc: '{DOC}'"),
        ("g: {role: in, ", f"g: {{role: in, doc: '{DOC}', "),
        ("g_s: {scope: shared, ", f"g_s: {{scope: shared, doc: '{DOC}', "),
    ],
)
def test_words_of_a_spec_stay_words(old, new):
    """What a module runs does not depend on its spec's docs."""
    plain, odd = (_statements(read(text)) for text in (BASE, edited((old, new))))
    assert plain == odd


def _statements(got) -> list[str]:
    kernel, found = got.kernels[0]
    text = render.render(planning.plan(kernel, found, planning.Wish("separate"), "sm_80"))
    return [ast.dump(node) for node in ast.parse(text).body[1:]]
