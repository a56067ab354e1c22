"""Run a generated kernel of roles on the CPU: its very text, with every copy of a role a coroutine.

The module is executed over a `tilelang.language` of this file's own, in Python: TileLang has no roles on
a CPU. A parallel loop is one round with all indices at once. Roles take turns as chance has it, between
any two statements, and at barriers until parity lets them by; products and copies that run on take
place at once, or at the wait for them (as in `interleave.py`, which does the same to the program that
the text was rendered from). Tiles start as NaN.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gdngen.judge.interleave import EARLY, Deadlock, PhaseBarrier
from gdngen.model import roles
from gdngen.model.model import Kernel
from gdngen.verify.interpret import bind_sizes, one_thread

if TYPE_CHECKING:
    import torch

NOTES = (
    "bfloat16 is stored as float32 on the CPU",
    "roles ran as coroutines, in an order that chance picks",
)
IGNORED = (
    "annotate_layout annotate_min_blocks_per_sm set_max_nreg fence_proxy_async use_swizzle "
    "sync_warp annotate_restrict_buffers"
).split()


def run(
    kernel: Kernel, path: str | Path, tensors: Mapping[str, torch.Tensor], seed: int = 0
) -> None:
    """Every block of the kernel whose text is at `path`; outputs are written in place.

    Raises Deadlock where every role waits.
    """
    path = Path(path)
    code = builtins.compile(_pointwise(ast.parse(path.read_text())), str(path), "exec")
    held = {name: _Tile(_stored(data), outside=0.0) for name, data in tensors.items()}
    sizes = bind_sizes(kernel, tensors)
    grid: list[int] = []
    function = _function(code, path.stem, _Language(sizes, held, None, grid), held)
    try:
        function()
    except _Probed:
        pass
    chance = random.Random(seed)
    with one_thread():
        for at in itertools.product(*map(range, grid)):
            block = _Block(at, chance)
            for role in kernel.roles:
                for copy in range(role.copies):
                    first = role.first + copy * roles.groups(role) * roles.GROUP
                    one = _Coroutine(role.name, first, role.threads, block)
                    language = _Language(sizes, held, one, grid)
                    one.start(_function(code, path.stem, language, held))
            block.go()
    for name, tile in held.items():
        tensors[name].copy_(tile.data)


def _function(code, name: str, language: _Language, held) -> Callable[[], None]:
    """The kernel as this language has it, on these tensors."""
    found: list[Callable] = []
    language.prim_func = lambda function: found.append(function) or function
    facade = SimpleNamespace(
        language=language,
        jit=lambda **_: lambda factory: factory,
        PassConfigKey=_Anything(),
    )

    def import_(name, globals=None, locals=None, fromlist=(), level=0):
        return language if name == "tilelang.language" and fromlist else facade

    module = {"__name__": name, "__builtins__": {**vars(builtins), "__import__": import_}}
    exec(code, module)
    (factory,) = [f for n, f in module.items() if callable(f) and getattr(f, "__name__", "") == n]
    factory()
    (function,) = found
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return lambda: function(*(held[n.rstrip("_") if n not in held else n] for n in names))


class _Pointwise(ast.NodeTransformer):
    """Where a parallel loop branches, its points come one by one."""

    def visit_For(self, n: ast.For) -> ast.For:
        self.generic_visit(n)
        call = n.iter
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "T.Parallel":
            if any(isinstance(x, ast.If) for s in n.body for x in ast.walk(s)):
                call.func = ast.copy_location(ast.parse("T.points", mode="eval").body, call.func)
        return n


def _pointwise(tree: ast.Module) -> ast.Module:
    return ast.fix_missing_locations(_Pointwise().visit(tree))


def _stored(data: torch.Tensor) -> torch.Tensor:
    import torch

    return data.detach().to(torch.float32 if data.dtype == torch.bfloat16 else data.dtype).clone()


class _Probed(Exception):
    """The grid is known."""


class _Left(BaseException):
    """A coroutine that nobody will resume."""


class _Anything:
    def __getattr__(self, name: str) -> str:
        return name


# -- turns -----------------------------------------------------------------------------------------


class _Block:
    """One block: what its roles share, and whose turn it is."""

    def __init__(self, at: tuple[int, ...], chance: random.Random):
        self.at, self.chance = at, chance
        self.runs: list[_Coroutine] = []
        self.shared: list[Any] = []  # allocations, in the order in which every role comes by them

    def go(self) -> None:
        waiting, stuck = list(self.runs), {}
        try:
            while waiting:
                ready = [r for r in waiting if id(r) not in stuck]
                if not ready:
                    raise Deadlock("; ".join(stuck.values()))
                one = self.chance.choice(ready)
                said = one.resume()
                if one.over:
                    waiting.remove(one)
                if said is None:
                    stuck.clear()
                else:
                    stuck[id(one)] = said
        finally:
            for one in waiting:
                one.leave()


class _Coroutine:
    """A copy of a role, in a thread of its own that runs while it is its turn."""

    def __init__(self, role: str, thread: int, threads: int, block: _Block):
        self.role, self.thread, self.threads, self.block = role, thread, threads, block
        self.products: list[Callable[[], None]] = []
        self.stores: list[Callable[[], None]] = []
        self.mine, self.yours = threading.Semaphore(0), threading.Semaphore(0)
        self.over = self.left = False
        self.said: str | None = None
        self.error: BaseException | None = None
        self.allocated = 0
        block.runs.append(self)

    def start(self, function: Callable[[], None]) -> None:
        def body() -> None:
            self.mine.acquire()
            try:
                if not self.left:
                    function()
            except _Left:
                pass
            except BaseException as e:  # for whoever resumes it
                self.error = e
            self.over, self.said = True, None
            self.yours.release()

        threading.Thread(target=body, daemon=True).start()

    def resume(self) -> str | None:
        """Goes on to its next stop; what it waits for there, if it does."""
        self.mine.release()
        self.yours.acquire()
        if self.error:
            raise self.error
        return self.said

    def leave(self) -> None:
        if not self.over:
            self.left = True
            self.mine.release()
            self.yours.acquire()

    def stop(self, waiting: str | None = None) -> None:
        self.said = waiting
        self.yours.release()
        self.mine.acquire()
        if self.left:
            raise _Left

    def shared(self, make: Callable[[], Any]) -> Any:
        if self.allocated == len(self.block.shared):
            self.block.shared.append(make())
        self.allocated += 1
        return self.block.shared[self.allocated - 1]


# -- storage ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Region:
    """A part of a tile; `places` broadcast to its shape."""

    tile: _Tile
    places: tuple
    shape: tuple[int, ...]

    def get(self) -> torch.Tensor:
        return self.tile.load(self.places).expand(self.shape)

    def put(self, value: Any) -> None:
        self.tile.store(self.places, value, self.shape)


@dataclass(frozen=True)
class _Tile:
    data: torch.Tensor
    outside: float = field(default=float("nan"))

    def __getitem__(self, index: Any) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        if any(isinstance(i, slice) for i in index):
            return self.region(index)
        return self.load(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        import torch

        index = index if isinstance(index, tuple) else (index,)
        shape = torch.broadcast_shapes(*(getattr(i, "shape", ()) for i in index))
        self.store(index, value, shape)

    def region(self, index: Sequence = ()) -> _Region:
        from gdngen.model.values import along

        index = tuple(index) + (slice(None),) * (self.data.dim() - len(index))
        spans = []
        for i, n in zip(index, self.data.shape):
            if isinstance(i, slice):
                start = 0 if i.start is None else int(i.start)
                spans.append((start, (n if i.stop is None else int(i.stop)) - start))
        places, axis = [], 0
        for i in index:
            if isinstance(i, slice):
                start, size = spans[axis]
                places.append(start + along(axis, len(spans), size))
                axis += 1
            else:
                places.append(i)
        return _Region(self, tuple(places), tuple(size for _, size in spans))

    def load(self, index: Sequence) -> torch.Tensor:
        import torch

        places, inside = self.within(index)
        if not self.data.numel():
            return torch.full(inside.shape, self.outside, dtype=self.data.dtype)
        found = self.data[tuple(places)]
        return found if bool(inside.all()) else torch.where(inside, found, self.outside)

    def store(self, index: Sequence, value: Any, shape: Sequence[int]) -> None:
        import torch

        places, inside = self.within(index)
        kept = inside.expand(shape)
        at = tuple(i.expand(shape)[kept] for i in places)
        self.data[at] = torch.as_tensor(value).to(self.data.dtype).expand(shape)[kept]

    def within(self, index: Sequence) -> tuple[list[torch.Tensor], torch.Tensor]:
        import torch

        index = [torch.as_tensor(i).long() for i in index]
        inside = torch.tensor(True)
        for i, n in zip(index, self.data.shape):
            inside = inside & (i >= 0) & (i < n)
        return [i.clamp(0, n - 1) for i, n in zip(index, self.data.shape)], inside


def _whole(operand: _Tile | _Region) -> _Region:
    return operand.region() if isinstance(operand, _Tile) else operand


# -- the language ----------------------------------------------------------------------------------


class _Language:
    """What the text calls `T`, for one coroutine; without one it finds out the grid."""

    def __init__(self, sizes, held, one: _Coroutine | None, grid: list[int]):
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
            raise _Probed
        return _Entered(self._one.block.at)

    def get_thread_binding(self) -> int:
        return self._one.thread

    def alloc_shared(self, shape, dtype) -> _Tile:
        return self._one.shared(lambda: _blank(shape, dtype))

    def alloc_fragment(self, shape, dtype) -> _Tile:
        return _blank(shape, dtype)

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
        from gdngen.model.values import along

        points = tuple(along(i, len(extents), n) for i, n in enumerate(extents))
        yield points if len(points) > 1 else points[0]
        self._one.stop()

    def points(self, *extents: int) -> Iterator:
        for point in itertools.product(*map(range, extents)):
            yield point if len(point) > 1 else point[0]
        self._one.stop()

    # statements

    def copy(self, src, dst) -> None:
        _whole(dst).put(_whole(src).get().reshape(_whole(dst).shape))
        self._one.stop()

    def clear(self, dst) -> None:
        self.fill(dst, 0)

    def fill(self, dst, value) -> None:
        _whole(dst).put(value)
        self._one.stop()

    def wgmma_gemm(self, a, b, c, transpose_A=False, transpose_B=False, clear_accum=False) -> None:
        one, target = self._one, _whole(c)

        def work() -> None:
            x, y = _whole(a).get(), _whole(b).get()
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
        one, to, of = self._one, _whole(dst), _whole(src)

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

        return torch.as_tensor(value).to(_dtype(dtype))

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


def _dtype(name: str) -> torch.dtype:
    import torch

    return torch.float32 if name == "bfloat16" else getattr(torch, name)


def _blank(shape, dtype: str) -> _Tile:
    import torch

    kind = _dtype(dtype)
    return _Tile(torch.full(tuple(shape), torch.nan if kind.is_floating_point else 0, dtype=kind))


def _finish(work: list[Callable[[], None]], pending: int) -> None:
    while len(work) > pending:
        work.pop(0)()


def _either(name: str, plain: Callable, a, b):
    import torch

    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return getattr(torch, name)(torch.as_tensor(a), torch.as_tensor(b))
    return plain(a, b)
