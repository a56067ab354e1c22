"""Run a generated kernel's very text on the CPU.

The module is executed with an `import` of its own that hands it stand-ins for `tilelang` and
`tilelang.language` (see `standin.py`); nothing outside the module, `sys.modules` included, is
touched. Every block of the grid runs, one after the other, compiled by TileLang's target `c`.
"""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdngen.verify import versions

# A view is the bytes of another dtype.
COMPILE_FLAGS = ["-O1", "-fno-strict-aliasing"]  # run once: compiling is what takes time


@dataclass(frozen=True)
class Param:
    """One tensor of a kernel's signature: its name, symbolic shape and dtype as in the text."""

    name: str
    shape: tuple[str, ...]
    dtype: str


@dataclass(frozen=True)
class CpuKernel:
    """A kernel compiled for the CPU; calling it writes the output tensors in place."""

    name: str
    params: tuple[Param, ...]
    bf16_as_float32: bool
    _run: Any = field(repr=False)

    def __call__(self, **tensors: Any) -> None:
        self.run(tensors)

    def run(self, tensors: dict[str, Any]) -> None:
        """Run on one torch tensor for each parameter, of the parameter's dtype and on the CPU.

        Raises TypeError for a tensor that is missing, unknown, or of another dtype or rank.
        """
        names = [param.name for param in self.params]
        if set(tensors) != set(names):
            raise TypeError(f"{self.name}: takes {names}, got {sorted(tensors)}")
        for param in self.params:
            tensor = tensors[param.name]
            if str(tensor.dtype) != f"torch.{param.dtype}" or tensor.dim() != len(param.shape):
                raise TypeError(
                    f"{self.name}: {param.name} is {param.dtype}[{', '.join(param.shape)}], "
                    f"got {tensor.dtype} {tuple(tensor.shape)}"
                )
        stored = {name: _stored(tensors[name]) for name in names}
        self._run(*stored.values())
        for name, tensor in stored.items():
            if tensor is not tensors[name]:
                tensors[name].copy_(tensor)


def _stored(tensor: Any) -> Any:
    """The contiguous tensor that target `c` works on; `tensor` itself where it already is one."""
    import torch

    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).contiguous()


def compile(path: str | Path) -> CpuKernel:
    """Compile the one `@tilelang.jit` factory of the module at `path` for the CPU."""
    import tilelang
    from tvm.target import Target

    path = Path(path)
    text = path.read_text()
    bf16 = re.search(r"""["']bfloat16["']|\bT\.bfloat16\b""", text) is not None
    declared: list[tuple[Any, str]] = []
    factory = load(path, declared, bf16 and re.search(r"\bT\.(view|reshape)\(", text) is not None)
    with Target("c"):
        prim_func = factory.get_tir()
        kernel = tilelang.compile(
            prim_func,
            target="c",
            target_host="c",
            execution_backend="cython",
            # Vectorised loops do not compile for float16 on target `c`.
            pass_configs=versions.disable_vectorize(),
            compile_flags=COMPILE_FLAGS,
        )
    buffers = [prim_func.buffer_map[var] for var in prim_func.params]
    # A signature may be evaluated more than once: the last evaluation declared these buffers.
    dtypes = [dtype for _, dtype in declared[-len(buffers) :]]
    params = tuple(
        Param(buffer.name, tuple(getattr(dim, "name", str(dim)) for dim in buffer.shape), dtype)
        for buffer, dtype in zip(buffers, dtypes)
    )
    return CpuKernel(factory.__name__, params, bf16, kernel)


def load(path: Path, declared: list[tuple[Any, str]], bf16_views: bool) -> Any:
    """Execute the module at `path` over the stand-ins and return its factory."""
    import tilelang

    from . import standin

    language = standin.language(declared, bf16_views)
    factories: list[Any] = []

    def jit(func=None, **options):
        if func is None:
            return lambda func: jit(func, **options)
        factory = tilelang.jit(func)
        factory.__name__ = func.__name__
        factories.append(factory)
        return factory

    facade = standin.StandIn(tilelang, {"language": language, "jit": jit})

    def import_(name, globals=None, locals=None, fromlist=(), level=0):
        if name == "tilelang" or (name == "tilelang.language" and not fromlist):
            return facade
        if name == "tilelang.language":
            return language
        return builtins.__import__(name, globals, locals, fromlist, level)

    module = {
        "__name__": path.stem,
        "__file__": str(path),
        "__builtins__": {**vars(builtins), "__import__": import_},
    }
    # The text must not inherit this file's `from __future__ import annotations`.
    exec(builtins.compile(path.read_text(), str(path), "exec", dont_inherit=True), module)
    if len(factories) != 1:
        raise ValueError(f"{path}: has {len(factories)} kernel factories, not one")
    return factories[0]
