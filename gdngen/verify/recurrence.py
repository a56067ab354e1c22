"""Gated DeltaNet by its definition, a token at a time, in float64: what every kernel is held against.

    S_t = e^{g_t} S_{t-1} + k_t beta_t (v_t - (e^{g_t} S_{t-1})^T k_t)^T,   o_t = scale * S_t^T q_t

for each head (S. Yang, J. Kautz, A. Hatamizadeh: Gated Delta Networks, arXiv 2412.06464, equation 10,
with the gate as its logarithm). No chunk appears in it, so no chunked formula can hide behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

NORM_EPS = 1e-6  # added to the sum of squares of a row that is normalised


def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    l2norm: bool = False,
    device: str = "cpu",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and the last state, float64.

    q, k           [B, T, HK, DK]; head h of v has head h // (H // HK) of these
    v              [B, T, H, DV]
    g, beta        [B, T, H]: log gate (0 keeps the state), and how much of a row is written
    scale          DK ** -0.5 where left out
    initial_state  [B, H, DK, DV]; 0 where left out
    l2norm         whether rows of q and k are first brought to length 1
    device         where it is worked out, and where the results are

    Returns o [B, T, H, DV] and the state [B, H, DK, DV]. Raises ValueError where H is no multiple of HK.
    """
    import torch

    q, k, v, g, beta = (x.detach().to(device).double() for x in (q, k, v, g, beta))
    heads, key_heads = v.shape[2], k.shape[2]
    if heads % key_heads:
        raise ValueError(f"{heads} heads can't share {key_heads} heads of keys")
    if l2norm:
        q, k = normalised(q), normalised(k)
    q, k = (x.repeat_interleave(heads // key_heads, 2) for x in (q, k))
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    shape = (v.shape[0], heads, k.shape[-1], v.shape[-1])
    state = torch.zeros(shape, dtype=torch.float64, device=device)
    if initial_state is not None:
        state = initial_state.detach().to(device).double().clone()
    rows = []
    for t in range(v.shape[1]):
        state, row = step(q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t], state)
        rows.append(scale * row)
    return torch.stack(rows, 1) if rows else v.clone(), state


def step(q, k, v, g, beta, state) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of every sequence and head: the next state, and S^T q (not scaled).

    q, k [B, H, DK], v [B, H, DV], g and beta [B, H], state [B, H, DK, DV].
    """
    import torch

    state = state * g.exp()[..., None, None]
    held = torch.einsum("bhkv,bhk->bhv", state, k)
    state = state + torch.einsum("bhk,bhv->bhkv", k, beta[..., None] * (v - held))
    return state, torch.einsum("bhkv,bhk->bhv", state, q)


def normalised(x: torch.Tensor) -> torch.Tensor:
    """Rows of x brought to length 1; a row of zeros stays one."""
    return x / (x.square().sum(-1, keepdim=True) + NORM_EPS).sqrt()
