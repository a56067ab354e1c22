"""How a kernel means its k, v, g and beta, and the same in the terms of its peers."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdngen import references
from gdngen.language.expr import evaluate
from gdngen.model.model import Kernel
from gdngen.verify import samples

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]

LN2 = 0.6931471805599453


@dataclass(frozen=True)
class Terms:
    """How a kernel's k, v, g and beta are meant.

    heads_first   [B, H, T, D] and not [B, T, H, D]
    summed        g is summed along each chunk already; `log2` that it is to base 2
    """

    heads_first: bool
    chunk: int
    summed: bool
    log2: bool

    def turned(self, t: torch.Tensor) -> torch.Tensor:
        """From the kernel's layout to the other, or back."""
        return t.transpose(1, 2).contiguous()

    def length_first(self, t: torch.Tensor) -> torch.Tensor:
        """In [B, T, H, ...]."""
        return self.turned(t) if self.heads_first else t

    def heads(self, t: torch.Tensor) -> torch.Tensor:
        """In [B, H, T, ...]."""
        return t if self.heads_first else self.turned(t)

    def gates(self, g: torch.Tensor) -> torch.Tensor:
        """Natural log gates in [B, T, H], summed along each chunk, as float32."""
        return chunk_gates(self.length_first(g), self.chunk, self.summed, self.log2)

    def right(self, tensors: Tensors, gate: str) -> Tensors:
        """A, w and u in float64, in the kernel's layout, by a convention of `wy_prepare`."""
        g = self.gates(tensors["g"])
        given = {**tensors, "g": self.turned(g) if self.heads_first else g}
        layout = "bhtd" if self.heads_first else "bthd"
        values = {"BC": self.chunk, "gate": gate, "layout": layout}
        return references.get("wy_prepare")(given, values)


def terms(kernel: Kernel) -> Terms:
    """Read off a kernel with tensors k and g; ValueError where they have no layout known here."""
    k, values = kernel.tensor("k"), dict(kernel.values)
    tiled = samples.tiles(kernel)
    lengths = [i for i, s in enumerate(k.shape) if isinstance(s, ast.Name) and s.id in tiled]
    if len(k.shape) != 4 or lengths not in ([1], [2]):
        raise ValueError("k is neither [B, H, T, D] nor [B, T, H, D]")
    written = kernel.tensor("A")
    chunk = int(evaluate(written.shape[-1], values)) if written else int(values.get("BC", 0))
    summed = values.get("sum", "given") == "given"
    return Terms(lengths == [2], chunk, summed, values.get("base", "e") == "two")


def chunk_gates(g: torch.Tensor, chunk: int, summed: bool, log2: bool) -> torch.Tensor:
    """Natural log gates [B, T, H], summed along each chunk, float32.

    summed   whether `g` is summed already; `log2` whether it is in powers of two
    """
    import torch

    wide = g.double() * (LN2 if log2 else 1.0)
    if not summed:
        wide = torch.cat([part.cumsum(1) for part in wide.split(chunk, 1)], 1)
    return wide.float().contiguous()
