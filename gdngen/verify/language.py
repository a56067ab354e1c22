"""What a generated kernel of roles calls `T`, in Python, for one coroutine of one block.

A parallel loop is one round with all indices at once. Products and copies that run on take place at
once, or at the wait for them, as chance has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gdngen.judge.interleave import EARLY, PhaseBarrier
from gdngen.model.values import along
from gdngen.verify.memory import Tile, blank, dtype_of, whole

if TYPE_CHECKING:
    import torch

    from gdngen.verify.coroutines import Coroutine

IGNORED = (
    "annotate_layout annotate_min_blocks_per_sm set_max_nreg fence_proxy_async use_swizzle "
    "sync_warp annotate_restrict_buffers"
).split()


class Probed(Exception):
    """The grid is known."""


class Language:
    """What the text calls `T`, for one coroutine; without one it finds out the grid."""

    def __init__(self, sizes, held, one: Coroutine | None, grid: list[int]):
        self._sizes, self._held, self._one, self._grid = sizes, held, one, grid
        for name in IGNORED:
            setattr(self, name, lambda *_, **__: None)

    # declarations

    def dynamic(self, name: str) -> int:
        return self._sizes[name]

    def Tensor(self, shape, dtype):
        return None

    def macro(self, function):
        return function

    def Kernel(self, *grid: int, threads: int) -> Any:
        if self._one is None:
            self._grid[:] = map(int, grid)
            raise Probed
        return _Entered(self._one.block.at)

    def get_thread_binding(self) -> int:
        return self._one.thread

    def alloc_shared(self, shape, dtype) -> Tile:
        return self._one.shared(lambda: blank(shape, dtype))

    def alloc_fragment(self, shape, dtype) -> Tile:
        return blank(shape, dtype)

    alloc_local = alloc_fragment

    def alloc_var(self, dtype) -> None:
        return None  # the text assigns to its name

    def alloc_barrier(self, arrive_count: int | list[int]) -> list[PhaseBarrier]:
        counts = arrive_count if isinstance(arrive_count, list) else [arrive_count]
        return self._one.shared(lambda: [PhaseBarrier(n) for n in counts])

    # loops

    def serial(self, count) -> range:
        return range(int(count))

    unroll = serial

    def Parallel(self, *extents: int) -> Iterator:
        points = tuple(along(i, len(extents), n) for i, n in enumerate(extents))
        yield points if len(points) > 1 else points[0]
        self._one.stop()

    def points(self, *extents: int) -> Iterator:
        for point in itertools.product(*map(range, extents)):
            yield point if len(point) > 1 else point[0]
        self._one.stop()

    # statements

    def copy(self, src, dst) -> None:
        whole(dst).put(whole(src).get().reshape(whole(dst).shape))
        self._one.stop()

    def clear(self, dst) -> None:
        self.fill(dst, 0)

    def fill(self, dst, value) -> None:
        whole(dst).put(value)
        self._one.stop()

    def wgmma_gemm(self, a, b, c, transpose_A=False, transpose_B=False, clear_accum=False) -> None:
        one, target = self._one, whole(c)

        def work() -> None:
            x, y = whole(a).get(), whole(b).get()
            made = (x.mT if transpose_A else x).float() @ (y.mT if transpose_B else y).float()
            target.put(made if clear_accum else made + target.get())

        one.products.append(work)
        if one.block.chance.random() < EARLY:
            _finish(one.products, 0)
        elif clear_accum:
            target.put(float("nan"))
        one.stop()

    def wait_wgmma(self, pending: int) -> None:
        _finish(self._one.products, pending)
        self._one.stop()

    def tma_copy(self, src, dst, barrier: PhaseBarrier | None = None) -> None:
        one, to, of = self._one, whole(dst), whole(src)

        def work() -> None:
            to.put(of.get().reshape(to.shape))

        later = barrier.bringing if barrier else one.stores
        later.append(work)
        if one.block.chance.random() < EARLY:
            later.remove(work)
            work()
        one.stop()

    def tma_store_wait(self, pending: int) -> None:
        _finish(self._one.stores, pending)
        self._one.stop()

    def sync_threads(self, barrier: int, threads: int) -> None:
        if threads != self._one.threads:
            raise ValueError(
                f"{threads} threads meet, of {self._one.threads} of '{self._one.role}'"
            )

    def barrier_arrive(self, barrier: PhaseBarrier) -> None:
        barrier.arrive(self._one.threads)
        self._one.stop()

    def barrier_wait(self, barrier: PhaseBarrier, parity: int) -> None:
        while not barrier.passes(int(parity)):
            self._one.stop(f"'{self._one.role}' waits, at {self._one.block.at}")

    # expressions

    def cast(self, value, dtype) -> torch.Tensor:
        import torch

        return torch.as_tensor(value).to(dtype_of(dtype))

    def Select(self, cond, a, b) -> torch.Tensor:
        import torch

        return torch.where(torch.as_tensor(cond), torch.as_tensor(a), torch.as_tensor(b))

    if_then_else = Select

    def min(self, a, b):
        return _either("minimum", min, a, b)

    def max(self, a, b):
        return _either("maximum", max, a, b)

    def ceildiv(self, a: int, b: int) -> int:
        return -(-a // b)

    def __getattr__(self, name: str) -> Callable:
        """exp2, log, sqrt and what else is called the same in torch."""
        import torch

        if name.startswith("_"):
            raise AttributeError(name)
        return lambda value: getattr(torch, name)(torch.as_tensor(value))


class _Entered:
    def __init__(self, at: tuple[int, ...]):
        self.at = at

    def __enter__(self):
        return self.at if len(self.at) > 1 else self.at[0]

    def __exit__(self, *_) -> None:
        return None


def _finish(work: list[Callable[[], None]], pending: int) -> None:
    while len(work) > pending:
        work.pop(0)()


def _either(name: str, plain: Callable, a, b):
    import torch

    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return getattr(torch, name)(torch.as_tensor(a), torch.as_tensor(b))
    return plain(a, b)
