"""The generated functions, inputs for them, and how far results are off."""

from __future__ import annotations

import torch

from generated.gated_delta_rule import (
    chunk_gated_delta_rule,
    fused_recurrent_gated_delta_rule,
)

__all__ = ["chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule", "inputs", "error"]


def inputs(io, B=1, T=100, H=1, HV=1, DK=64, DV=64, decay=0.1, unit=True, seed=0) -> tuple:
    """q, k, v, g, beta as a model has them: rows of q and k of length 1 where `unit`."""
    source = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=source)

    def uniform() -> torch.Tensor:
        return torch.rand((B, T, HV), generator=source)

    q, k = normal(B, T, H, DK), normal(B, T, H, DK)
    if unit:
        q, k = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
    kind = getattr(torch, io)
    return q.to(kind), k.to(kind), normal(B, T, HV, DV).to(kind), -uniform() * decay, uniform()


def error(found: torch.Tensor, right: torch.Tensor) -> float:
    """||found - right|| / ||right||; inf where an element is not finite or `right` is 0 and found isn't."""
    found = found.detach().cpu().double()
    if found.shape != right.shape or not found.isfinite().all():
        return float("inf")
    norm = float(right.norm())
    off = float((found - right).norm())
    return off / norm if norm else (0.0 if off == 0 else float("inf"))
