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
    tensors = dict(**turned, a=a, gx=gx, gl=gl, scale=scale, cutoff=cutoff, first=_states(first))
    sizes = dict(B=batch, H=heads, HV=values, T=length, NC=chunks, P=segments, SEG=each, Q=1)
    return tensors, {**sizes, "S": count, "F": count}, want


def _states(first):
    """[S, HV, DK, DV] as the kernel of its width takes them: the wide one may have some for each segment."""
    return first[:, :, None] if first.shape[-1] == 128 else first


def ragged_case(lengths, heads, values, width, chunk, gate, seed=0):
    """As `forward_case`, in layout bthd, of sequences one behind the other, each with states.

    Slots of `a` and `gx` that belong to no sequence are NaN; that of an empty one is as
    `forward_prepare` leaves it, of rows that neither decay nor write.
    """
    cu = torch.tensor([0, *lengths]).cumsum(0)
    total, count = int(cu[-1]), len(lengths)
    chunks = total // chunk + count
    double = {"dtype": torch.float64}
    a = torch.full((1, values, chunks, chunk, chunk), torch.nan, **double)
    gx = torch.full((1, values, chunks, 3 * chunk), torch.nan, **double)
    torch.manual_seed(seed)
    first = torch.randn(count, values, width, width, **double)
    parts, final = [], first.clone()
    for n, length in enumerate(lengths):
        slot = int(cu[n]) // chunk + n
        if not length:
            a[:, :, slot] = 0
            gx[:, :, slot] = torch.tensor([0, -1, 1], **double).repeat_interleave(chunk)
            continue
        rows = (1, length)
        q, k = (
            torch.nn.functional.normalize(torch.randn(*rows, heads, width, **double), dim=-1)
            for _ in "qk"
        )
        v = torch.randn(*rows, values, width, **double)
        g, beta = (torch.rand(*rows, values, **double) for _ in "gb")
        own = -(-length // chunk)
        turned = (x.transpose(1, 2) for x in (k, -gate * g, beta))
        ours = slice(slot, slot + own)
        a[:, :, ours], gx[:, :, ours], _ = prepared(*turned, chunk, 1, own)
        o, last = recurrence.gated_delta_rule(
            q, k, v, -gate * g, beta, initial_state=first[n : n + 1]
        )
        parts.append((q, k, v, o))
        final[n] = last[0]
    q, k, v, o = (torch.cat(x, 1) for x in zip(*parts))
    scale, cutoff = (torch.tensor([x], **double) for x in (width**-0.5, -40.0))
    gl = torch.zeros(1, values, 1, chunks, **double)
    tensors = dict(q=q, k=k, v=v, a=a, gx=gx, gl=gl, scale=scale, cutoff=cutoff, first=_states(first), cu=cu.int())  # fmt: skip
    sizes = dict(B=1, H=heads, HV=values, T=total, NC=chunks, P=1, SEG=chunks, M=count + 1, Q=1)
    return tensors, {**sizes, "S": count, "F": count}, {"o": o, "final": final}
