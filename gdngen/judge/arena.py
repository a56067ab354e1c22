"""The judge's shared memory: bytes at addresses, and what statements may not do to one another there.

Memory is an array of *pieces*, the largest unit of bytes that all addresses are multiples of. A piece
holds the value that it is part of, which part, and the buffer through which it was written: so an
element is read back only if all its bytes come from one write of the same element's buffer. Bytes
that another tenant has written since are worth as little as bytes that nothing wrote.
"""

import ast
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gdngen.judge import field
from gdngen.model.model import Buffer

VALUE = 31  # bits of a word that hold the value; above them 4 bits for the part, then the owner
PART = 1 << VALUE
OWNER = VALUE + 4


@dataclass(frozen=True)
class Address:
    """Where a shared buffer's elements lie in the block's shared memory; all in bytes."""

    offset: int
    strides: tuple[int, ...]
    itemsize: int


@dataclass(frozen=True)
class Storage:
    """The elements of one buffer.

    words   a view of the memory, the buffer's shape and then the pieces of an element
    owner   the buffer's number, from 1
    at      first piece of every element, None outside shared memory
    """

    buffer: Buffer
    words: np.ndarray
    owner: int
    at: np.ndarray | None = None
    place: Address | None = None

    @property
    def name(self) -> str:
        return self.buffer.name

    @property
    def pieces(self) -> int:
        return self.words.shape[-1]

    def read(self, where) -> tuple[np.ndarray, np.ndarray | None]:
        """Values of the elements at an index, and where there are none (None: nowhere)."""
        words = self.words[where]
        first = words[..., 0]
        bad = first >> VALUE != self.owner << 4
        for k in range(1, self.pieces):
            bad |= words[..., k] != first + k * PART
        if not bad.any():
            return first & field.P, None
        return np.where(bad, field.mixed("nothing", self.positions(where)), first & field.P), bad

    def write(self, where, values: np.ndarray) -> None:
        for k in range(self.pieces):
            self.words[(*where, k)] = values + ((self.owner << OWNER) + k * PART)

    def positions(self, where) -> np.ndarray:
        """Row-major numbers of the elements at an index."""
        return np.arange(math.prod(self.buffer.shape)).reshape(self.buffer.shape)[where]

    def last_owner(self, where) -> int:
        """Number of the buffer that wrote last to an element's bytes; 0 if none did."""
        owners = self.words[where].reshape(-1) >> OWNER
        return int(next((o for o in owners if o != self.owner), owners[0]))


class BadAddress(Exception):
    """An address that no memory can have; the message says why."""


def private(buffer: Buffer, owner: int) -> Storage:
    """Storage that no other buffer can touch."""
    return Storage(buffer, np.zeros((*buffer.shape, 1), dtype=np.int64), owner)


def shared(buffers: Sequence[Buffer], addresses: Mapping[str, Address], sizes: Mapping[str, int]):
    """The memory and one `Storage` each; `sizes` has every dtype's bytes. Raises BadAddress."""
    for b in buffers:
        _check_address(b, addresses.get(b.name), sizes[b.dtype])
    places = [addresses[b.name] for b in buffers]
    piece = functools.reduce(
        math.gcd, (n for p in places for n in (p.offset, p.itemsize, *p.strides)), 0
    )
    piece = max(piece, 1)
    ends = [_reach(b, p) for b, p in zip(buffers, places)]
    memory = np.zeros(max(ends, default=0) // piece, dtype=np.int64)
    found = []
    for number, (b, p) in enumerate(zip(buffers, places), 1):
        first, strides = p.offset // piece, [s // piece for s in p.strides]
        at = np.full((), first)
        for n, stride in zip(b.shape, strides):
            at = np.add.outer(at, np.arange(n) * stride)
        words = np.lib.stride_tricks.as_strided(
            memory[first:],
            (*b.shape, p.itemsize // piece),
            [memory.itemsize * s for s in (*strides, 1)],
        )
        found.append(Storage(b, words, number, at, p))
    return memory, found


def _reach(b: Buffer, p: Address) -> int:
    """The end of a buffer's last byte."""
    return p.offset + sum(s * (n - 1) for s, n in zip(p.strides, b.shape)) + p.itemsize


def _check_address(b: Buffer, p: Address | None, itemsize: int) -> None:
    if p is None:
        raise BadAddress(f"'{b.name}' has no address")
    if p.itemsize != itemsize or len(p.strides) != len(b.shape):
        raise BadAddress(f"the address of '{b.name}' is of another dtype or rank")
    if p.offset < 0 or p.offset % itemsize or any(s % itemsize or s < 0 for s in p.strides):
        raise BadAddress(f"'{b.name}' is not aligned to its {itemsize} bytes")
    reach = itemsize
    for stride, n in sorted((s, n) for s, n in zip(p.strides, b.shape) if n > 1):
        if stride < reach:
            raise BadAddress(f"elements of '{b.name}' lie on one another")
        reach = stride * (n - 1) + reach


@dataclass(frozen=True)
class Touch:
    """One use of a buffer in a map: at `index` (what was written), which is `where` as arrays."""

    storage: Storage
    index: tuple[ast.expr, ...]
    where: tuple
    active: np.ndarray | bool
    is_write: bool
    id: int


class Hazards:
    """Which buffers meet in shared memory, and whether threads of one statement meet there."""

    def __init__(self, size: int, storages: Iterable[Storage]):
        self.size = size
        self.storages = {s.name: s for s in storages}
        self._meet: dict[tuple[str, str], bool] = {}

    def meet(self, a: str, b: str) -> bool:
        """Whether two buffers have a byte of shared memory in common; those outside it never have."""
        if not {a, b} <= self.storages.keys():
            return False
        key = (a, b) if a < b else (b, a)
        if key not in self._meet:
            x, y = self.storages[a], self.storages[b]
            self._meet[key] = common(x, ..., y, ...)
        return self._meet[key]

    def race(self, touches: Sequence[Touch], grid: tuple[int, ...]) -> tuple[Touch, Touch] | None:
        """A write and another use, at different points of a map, of one byte; points run in any order."""
        writes = [t for t in touches if t.is_write]
        if not any(self._may_race(w, t) for w in writes for t in touches if t is not w):
            return None
        point = np.arange(math.prod(grid)).reshape(grid)
        writer = np.full(self.size, -1)
        by = np.full(self.size, -1)
        for n, w in enumerate(writes):
            for spots, who in _spots(w, point, grid):
                if hit := _first(writer[spots], who):
                    return w, writes[by[spots[hit[0]]]]
                writer[spots], by[spots] = who, n
        for t in touches:
            for spots, who in _spots(t, point, grid):
                if hit := _first(writer[spots], who):
                    return writes[by[spots[hit[0]]]], t
        return None

    def _may_race(self, w: Touch, t: Touch) -> bool:
        if w.storage.place == t.storage.place and _same(w.index, t.index):
            return False
        return self.meet(w.storage.name, t.storage.name)


def _spots(t: Touch, point: np.ndarray, grid: tuple[int, ...]):
    """(pieces touched, their points) for each piece of an element."""
    at = np.broadcast_to(t.storage.at[t.where], grid)
    active = np.broadcast_to(t.active, grid)
    for k in range(t.storage.pieces):
        yield at[active] + k, point[active]


def _first(writer: np.ndarray, who: np.ndarray) -> tuple[int] | None:
    found = np.flatnonzero((writer >= 0) & (writer != who))
    return (int(found[0]),) if found.size else None


@functools.lru_cache(maxsize=65536)
def _text(index: tuple[ast.expr, ...]) -> tuple[str, ...]:
    return tuple(ast.dump(i) for i in index)


def _same(a: tuple[ast.expr, ...], b: tuple[ast.expr, ...]) -> bool:
    return a is b or _text(a) == _text(b)


def common(x: Storage, here, y: Storage, there) -> bool:
    """Whether the elements of x at an index and those of y at another have a byte in common."""
    a, b = x.at[here], y.at[there]
    if not a.size or not b.size:
        return False
    if a.max() + x.pieces <= b.min() or b.max() + y.pieces <= a.min():
        return False
    low = int(min(a.min(), b.min()))
    taken = np.zeros(int(max(a.max() + x.pieces, b.max() + y.pieces)) - low, dtype=bool)
    for k in range(x.pieces):
        taken[a.reshape(-1) + (k - low)] = True
    return any(taken[b.reshape(-1) + (k - low)].any() for k in range(y.pieces))
