"""The judge's numbers: elements of a prime field, so that equality is exact.

Sums and products are the field's. All else (exp, max, a comparison of data) is an uninterpreted
function: a hash of its arguments, so no result can hide an argument. Rounding to a dtype is such a
function too, with the two properties that every real rounding has: what a dtype can hold stays as it
is, and what a narrow dtype can hold, a wider one can. Elements are int64 in [0, P).
"""

import functools
import math
import zlib

import numpy as np

P = 2**31 - 1
HALF, LOW = 16, 2**16 - 1
TERMS = 64  # of a product summed at once: LOW * P * TERMS is below 2**53
ROWS = 64  # and columns multiplied at once: for larger products numpy starts threads, at more cost than gain

_ODD = np.uint64(0x9E3779B97F4A7C15)
_LAST = np.uint64(0xD6E8FEB86659FD93)

# An element that a dtype can hold has the bits 01 in every pair of bits that the dtype lists. The
# dtypes listed nowhere (float64, int64) hold every element; zero is held by all.
_PAIRS = {
    "float32": (0,),
    "int32": (1,),
    "float16": (0, 2),
    "bfloat16": (0, 3),
    "int16": (0, 1, 4),
    "int8": (0, 1, 2, 3, 4, 5),
    "bool": (0, 1, 2, 3, 4, 5, 6),
}


def add(a, b) -> np.ndarray:
    return (a + b) % P


def negate(a) -> np.ndarray:
    return -a % P


def multiply(a, b) -> np.ndarray:
    return a * b % P


def total(a: np.ndarray, axis: int) -> np.ndarray:
    return a.sum(axis=axis) % P


def running(a: np.ndarray, axis: int) -> np.ndarray:
    return np.cumsum(a, axis=axis) % P


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The matrix product a @ b."""
    out = np.empty((a.shape[0], b.shape[1]), dtype=np.int64)
    for m in range(0, a.shape[0], ROWS):
        for n in range(0, b.shape[1], ROWS):
            out[m : m + ROWS, n : n + ROWS] = _product(a[m : m + ROWS], b[:, n : n + ROWS])
    return out


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """By halves of a's elements in float64, whose sums of `TERMS` terms are exact."""
    out = np.zeros((a.shape[0], b.shape[1]), dtype=np.int64)
    high, low, right = (a >> HALF).astype(float), (a & LOW).astype(float), b.astype(float)
    for k in range(0, a.shape[1], TERMS):
        part = slice(k, k + TERMS)
        upper = (high[:, part] @ right[part]).astype(np.int64) % P << HALF
        out = (out + upper + (low[:, part] @ right[part]).astype(np.int64)) % P
    return out


def inverse(packed: np.ndarray, block: int) -> np.ndarray:
    """[n, block] -> [n, n]: (I + strictly lower part)^-1 of each of n // block diagonal blocks."""
    out = np.zeros((packed.shape[0],) * 2, dtype=np.int64)
    for first in range(0, packed.shape[0], block):
        here = slice(first, first + block)
        found = np.eye(block, dtype=np.int64)
        for i in range(1, block):
            found[i] = negate(product(packed[first + i : first + i + 1, :i], found[:i]))[0]
            found[i, i] = 1
        out[here, here] = found
    return out


@functools.cache
def salt(name: str) -> int:
    """A number for a name, the same in every process."""
    return zlib.crc32(name.encode()) * 0x9E3779B1 + 1


def mixed(name: str, *parts) -> np.ndarray:
    """The uninterpreted function `name` of its arguments (arrays that broadcast): 30-bit elements."""
    h = np.uint64(salt(name))
    for part in parts:
        h = (h ^ np.asarray(part, dtype=np.int64).view(np.uint64)) * _ODD
        h = h ^ (h >> np.uint64(29))
    h = h * _LAST
    return np.asarray((h ^ (h >> np.uint64(32))) >> np.uint64(34)).astype(np.int64)


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """What a store of x into a dtype keeps."""
    pairs = _PAIRS.get(dtype)
    if pairs is None:
        return x
    mask = sum(3 << 2 * i for i in pairs)
    held = sum(1 << 2 * i for i in pairs)
    kept = ((x & mask) == held) | (x == 0)
    return np.where(kept, x, (mixed(dtype, x) & ~mask) | held)


def number(v) -> np.ndarray:
    """The element of a Python number or of an array of integers, bools or floats."""
    x = np.asarray(v)
    if x.dtype.kind != "f":
        return x.astype(np.int64) % P
    whole = np.isfinite(x) & (np.abs(x) < 2.0**53) & (x == np.floor(x))
    if whole.all():
        return x.astype(np.int64) % P
    bits = mixed("float", x.astype(np.float64).view(np.int64))
    return np.where(whole, np.where(whole, x, 0).astype(np.int64) % P, bits)


def drawn(name: str, seed: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """The values of a tensor: elements that its dtype can hold."""
    at = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    return rounded(mixed(name, seed, at), dtype)
