"""What is timed: something to call on a kernel's tensors, and what would be right for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdngen import references
from gdngen.model.model import Kernel
from gdngen.verify import lowering
from gdngen.verify.interpret import interpret

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]


class NotServed(Exception):
    """A contender has no kernel for these tensors; the message says why."""


@dataclass(frozen=True)
class Bound:
    """A contender with its tensors: `call` is what is timed, `outputs` reads what it returned."""

    call: Callable[[], Any]
    outputs: Callable[[Any], Tensors]


@dataclass(frozen=True)
class Contender:
    """Something to time. `right` gives float64 outputs for our tensors (on the CPU) and sizes.

    path   of the generated module that it runs, if it does: it has to be compiled first
    """

    who: str
    what: str
    bind: Callable[[Tensors], Bound]
    right: Callable[[Tensors, Mapping[str, int]], Tensors]
    path: Path | None = None


@cache
def compiled(path: Path) -> Any:
    """The kernel of a module, from TileLang's cache on disk if it was compiled before."""
    return lowering.load(path)()


def ours(kernel: Kernel, path: Path) -> Contender:
    """The generated kernel itself."""

    def bind(tensors: Tensors) -> Bound:
        run = compiled(path)
        written = {t.name: tensors[t.name] for t in kernel.tensors if t.role != "in"}
        return Bound(partial(run, *tensors.values()), lambda _: written)

    return Contender("gdngen", path.name, bind, partial(right, kernel), path)


def right(kernel: Kernel, tensors: Tensors, sizes: Mapping[str, int]) -> Tensors:
    """The named reference's answer; the kernel's own meaning where none is named."""
    if kernel.reference:
        return references.get(kernel.reference)(tensors, {**dict(kernel.values), **sizes})
    return interpret(kernel, tensors, sizes)
