"""Run a generated kernel of roles on the CPU: its very text, with every copy of a role a coroutine.

The module is executed over a `tilelang.language` of our own (`language.py`), in Python: TileLang has no
roles on a CPU. Roles take turns as chance has it, between any two statements, and at barriers until
parity lets them by (as in `interleave.py`, which does the same to the program that the text was
rendered from). Tiles start as NaN.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gdngen.judge.interleave import Deadlock
from gdngen.model import roles
from gdngen.model.model import Kernel
from gdngen.verify.interpret import bind_sizes, one_thread
from gdngen.verify.language import Language, Probed
from gdngen.verify.memory import Tile, stored

if TYPE_CHECKING:
    import torch

NOTES = (
    "bfloat16 is stored as float32 on the CPU",
    "roles ran as coroutines, in an order that chance picks",
)


def run(
    kernel: Kernel, path: str | Path, tensors: Mapping[str, torch.Tensor], seed: int = 0
) -> None:
    """Every block of the kernel whose text is at `path`; outputs are written in place.

    Raises Deadlock where every role waits.
    """
    path = Path(path)
    code = builtins.compile(_pointwise(ast.parse(path.read_text())), str(path), "exec")
    held = {name: Tile(stored(data), outside=0.0) for name, data in tensors.items()}
    sizes = bind_sizes(kernel, tensors)
    grid: list[int] = []
    function = _function(code, path.stem, Language(sizes, held, None, grid), held)
    try:
        function()
    except Probed:
        pass
    chance = random.Random(seed)
    with one_thread():
        for at in itertools.product(*map(range, grid)):
            block = _Block(at, chance)
            for role in kernel.roles:
                for copy in range(role.copies):
                    first = role.first + copy * roles.groups(role) * roles.GROUP
                    one = Coroutine(role.name, first, role.threads, block)
                    language = Language(sizes, held, one, grid)
                    one.start(_function(code, path.stem, language, held))
            block.go()
    for name, tile in held.items():
        tensors[name].copy_(tile.data)


def _function(code, name: str, language: Language, held) -> Callable[[], None]:
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
        self.runs: list[Coroutine] = []
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


class Coroutine:
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
