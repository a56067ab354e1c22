"""Inputs of the forward kernel for Hopper, as its other kernel would make them, and the right outputs."""

import math

import torch

from gdngen.verify import recurrence


def prepared(k, g, beta, chunk: int, segments: int, each: int):
    """k [B, H, T, D], g and beta [B, HV, T] -> a, gx, gl, in float64."""
    batch, heads, length, width = k.shape
    values, chunks = g.shape[1], -(-length // chunk)
    pad = chunks * chunk - length
    k = torch.nn.functional.pad(k, (0, 0, 0, pad)).repeat_interleave(values // heads, 1)
    k = k.view(batch, values, chunks, chunk, width)
    g, beta = (
        torch.nn.functional.pad(x, (0, pad)).view(batch, values, chunks, chunk) for x in (g, beta)
    )
    summed = g.cumsum(-1)
    gamma = (summed[..., :, None] - summed[..., None, :]).tril().exp()
    system = torch.eye(chunk, dtype=k.dtype) + (beta[..., :, None] * gamma * (k @ k.mT)).tril(-1)
    a = torch.linalg.inv(system) * beta[..., None, :]
    two = summed * math.log2(math.e)
    gx = torch.cat([two, -(2**two), 2 ** (two[..., -1:] - two)], -1)
    gl = torch.zeros(batch, values, segments * each, dtype=k.dtype)
    gl[..., :chunks] = summed[..., -1]
    return a, gx, gl.view(batch, values, segments, each)


def forward_case(
    batch, heads, values, length, width, chunk, segments, gate, cutoff, seed=0, states=False, layout="bhtd"
):  # fmt: skip
    """Tensors and sizes for `forward_hopper`, and its outputs by the token recurrence.

    states  whether sequences start from a state, and leave one
    """
    torch.manual_seed(seed)
    double = {"dtype": torch.float64}
    q, k = (
        torch.nn.functional.normalize(torch.randn(batch, heads, length, width, **double), dim=-1)
        for _ in "qk"
    )
    v = torch.randn(batch, values, length, width, **double)
    g = -torch.rand(batch, values, length, **double) * gate
    beta = torch.rand(batch, values, length, **double)
    chunks = -(-length // chunk)
    each = -(-chunks // segments)
    segments = -(-chunks // each)
    a, gx, gl = prepared(k, g, beta, chunk, segments, each)
    scale, cutoff = (torch.tensor([x], **double) for x in (width**-0.5, cutoff))
    count = batch if states else 0
    first = torch.randn(count, values, width, width, **double)
    rows = (x.transpose(1, 2) for x in (q, k, v, g, beta))
    o, final = recurrence.gated_delta_rule(*rows, initial_state=first if states else None)
    want = {"o": o.transpose(1, 2), "final": final[:count]}
    turned = {"q": q, "k": k, "v": v, "o": want["o"]}
    if layout == "bthd":
        turned = {name: x.transpose(1, 2).contiguous() for name, x in turned.items()}
    want["o"] = turned.pop("o")
    tensors = dict(**turned, a=a, gx=gx, gl=gl, scale=scale, cutoff=cutoff, first=first)
    sizes = dict(B=batch, H=heads, HV=values, T=length, NC=chunks, P=segments, SEG=each)
    return tensors, {**sizes, "S": count, "F": count}, want
