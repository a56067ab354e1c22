"""How a kernel means its k, v, g and beta, in the terms of the peers; and their WY factors in float64."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdngen import references, samples
from gdngen.expr import evaluate
from gdngen.model import Kernel

if TYPE_CHECKING:
    import torch

LN2 = 0.6931471805599453


@dataclass(frozen=True)
class Terms:
    """How a kernel's k, v, g and beta are meant.

    heads_first   [B, H, T, D] and not [B, T, H, D]
    summed        g is summed along the sequence already, `log2` in powers of two
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


def terms(kernel: Kernel) -> Terms:
    """Read off a kernel with tensors k and g; ValueError where they have no layout known here."""
    k, values = kernel.tensor("k"), dict(kernel.values)
    tiled = samples.tiles(kernel)
    lengths = [i for i, s in enumerate(k.shape) if isinstance(s, ast.Name) and s.id in tiled]
    if len(k.shape) != 4 or lengths not in ([1], [2]):
        raise ValueError("k is neither [B, H, T, D] nor [B, T, H, D]")
    written = kernel.tensor("A")
    chunk = int(evaluate(written.shape[-1], values)) if written else int(values.get("BC", 0))
    summed = kernel.tensor("g").sample == "decay"
    return Terms(lengths == [2], chunk, summed, "log2" in values.values())


def chunk_gates(g: torch.Tensor, chunk: int, summed: bool, log2: bool) -> torch.Tensor:
    """Natural log gates [B, T, H], summed along each chunk, float32.

    summed   whether `g` is summed already, along T or along each chunk: then each chunk starts at
             its first row's value, which no difference within the chunk shows
    log2     whether `g` is in powers of two
    """
    import torch

    wide = g.double() * (LN2 if log2 else 1.0)
    length = wide.shape[1]
    padded = torch.nn.functional.pad(wide, (0, 0, 0, -length % chunk))
    tiles = padded.unflatten(1, (-1, chunk))
    local = tiles - tiles[:, :, :1] if summed else tiles.cumsum(2)
    return local.flatten(1, 2)[:, :length].float().contiguous()


def gated_wy(
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk: int,
    gated: bool = True,
) -> dict[str, torch.Tensor]:
    """A, w and u in float64, of k [B, Hk, T, K], v [B, H, T, V], g and beta [B, H, T]; Hk divides H.

    w is A (beta e^g k) where `gated`, which is what the token recurrence asks for, else A (beta k).
    """
    import torch

    k = k.double().repeat_interleave(v.shape[1] // k.shape[1], 1)
    found = references.get("wy_prepare")({"k": k, "v": v, "g": g, "beta": beta}, {"BC": chunk})
    if not gated:
        return found
    scaled = k * (beta.double() * g.double().exp())[..., None]
    rows = []
    for start in range(0, k.shape[2], chunk):
        at = slice(start, min(start + chunk, k.shape[2]))
        rows.append(found["A"][:, :, at, : at.stop - start] @ scaled[:, :, at])
    return {**found, "w": torch.cat(rows, 2)}
