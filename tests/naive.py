"""Gated DeltaNet by the two naive formulas that FLA publishes beside its kernels, from the mathematics.

FLA's own (`fla.ops.gated_delta_rule.naive`) are taken where that package can be imported, which it can't
without Triton; these are written from the papers (arXiv 2412.06464, 2406.06484), in whatever dtype the
tensors have. Both take q, k [B, T, H, K], v [B, T, H, V], beta and g [B, T, H].
"""

from __future__ import annotations

import torch


def recurrent(q, k, v, g, beta, scale=None, initial_state=None):
    """A token at a time, with the state as a sum of outer products."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    B, T, H, K = k.shape
    S = torch.zeros(B, H, K, v.shape[-1], dtype=q.dtype) if initial_state is None else initial_state
    rows = []
    for t in range(T):
        S = S * g[:, t].exp()[..., None, None]
        written = (v[:, t] - (S * k[:, t, ..., None]).sum(-2)) * beta[:, t, ..., None]
        S = S + k[:, t, ..., None] * written[..., None, :]
        rows.append((S * (scale * q[:, t])[..., None]).sum(-2))
    return torch.stack(rows, 1), S


def chunked(q, k, v, g, beta, scale=None, initial_state=None, chunk=64):
    """Chunk after chunk by the WY representation, its triangular system solved row by row."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q, k, v, g, beta = (x.transpose(1, 2) for x in (q, k, v, g, beta))  # [B, H, T, ...]
    B, H, T, K = k.shape
    S = torch.zeros(B, H, K, v.shape[-1], dtype=q.dtype) if initial_state is None else initial_state
    out = []
    for start in range(0, T, chunk):
        rows = slice(start, start + chunk)
        Q, K_, V, b = q[:, :, rows] * scale, k[:, :, rows], v[:, :, rows], beta[:, :, rows, None]
        d = g[:, :, rows].cumsum(-1)[..., None]
        decay = (d - d.mT).tril().exp().tril()
        A = -((b * K_) @ K_.mT * decay).tril(-1)
        for i in range(1, A.shape[-1]):
            A[..., i, :i] = A[..., i, :i] + (A[..., i, :i, None] * A[..., :i, :i]).sum(-2)
        A = A + torch.eye(A.shape[-1], dtype=A.dtype)
        u, w = A @ (b * V), A @ (b * d.exp() * K_)
        new = u - w @ S
        out.append((Q * d.exp()) @ S + (Q @ K_.mT * decay) @ new)
        last = d[..., -1:, :]
        S = S * last.exp() + (K_ * (last - d).exp()).mT @ new
    return torch.cat(out, 2).transpose(1, 2), S
