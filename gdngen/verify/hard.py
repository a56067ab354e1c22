"""Inputs on which chunk-local inverses are known to go wrong, and what is right for them.

Keys of unit length, as models normalise them, unless a case says otherwise. Gates are log gates a
step; a kernel gets them as its conventions ask. All tensors are [B, heads, T, D] until `inputs` lays
them out as the kernel takes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gdngen import references
from gdngen.model.model import Kernel
from gdngen.verify.samples import blank

BATCH, HEADS = 1, 2
TAIL = 40  # rows of the ragged chunk that 1000 tokens leave in chunks of 64


@dataclass(frozen=True)
class Case:
    """How the inputs of one case are made: each from random ones of the same shape."""

    k: Callable[[Tensor], Tensor] = lambda x: x
    v: Callable[[Tensor], Tensor] = lambda x: x
    beta: Callable[[Tensor], Tensor] = lambda x: x
    step: Callable[[Tensor], Tensor] = lambda x: -0.3 * x
    length: Callable[[int], int] = lambda chunk: chunk + chunk // 2 + 1
    batch: int = BATCH


def _same(x: Tensor) -> Tensor:
    return x[..., :1, :].expand_as(x)


def _alike(x: Tensor) -> Tensor:
    return unit(_same(x) + 0.02 * x)


def _at_cosine(cosine: float) -> Callable[[Tensor], Tensor]:
    """Keys of unit length, any two of them at about this cosine."""

    def keys(x: Tensor) -> Tensor:
        return unit(cosine**0.5 * _same(x) + (1 - cosine) ** 0.5 * x)

    return keys


def _at_the_end(x: Tensor) -> Tensor:
    """Steps of a gate that decays by 20 a step in the last rows, and mildly before."""
    tail = torch.arange(x.shape[-1]) >= x.shape[-1] - TAIL
    return torch.where(tail, -20.0, -0.1 * x)


def _ones(x: Tensor) -> Tensor:
    return torch.ones_like(x)


def _none(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


CASES: Mapping[str, Case] = {
    "ordinary": Case(),
    "identical keys": Case(k=_same, beta=_ones, step=_none),
    "keys that nearly agree": Case(k=_alike, beta=_ones, step=_none),
    "alike in pairs, beta 2": Case(k=lambda x: x[..., ::2, :].repeat_interleave(2, -2)[..., : x.shape[-2], :],
                                   beta=lambda x: 2 * _ones(x), step=_none),
    "keys at cosine 0.8": Case(k=_at_cosine(0.8), beta=_ones, step=_none),
    "keys at cosine 0.95": Case(k=_at_cosine(0.95), beta=_ones, step=_none),
    "keys at cosine 0.999": Case(k=_at_cosine(0.999), beta=_ones, step=_none),
    "beta up to 2": Case(beta=lambda x: 2 * x),
    "beta 2": Case(beta=lambda x: 2 * _ones(x), step=_none),
    "decay of -20 a step": Case(step=lambda x: -20 * _ones(x)),
    "no decay": Case(step=_none),
    "gates that grow": Case(step=lambda x: 0.05 * x),
    "one token": Case(length=lambda chunk: 1),
    "63 tokens": Case(length=lambda chunk: 63),
    "65 tokens": Case(length=lambda chunk: 65),
    "1000 tokens, strong decay at the end": Case(step=_at_the_end, length=lambda chunk: 1000),
    "no sequence": Case(batch=0),
    "whole chunks": Case(length=lambda chunk: 2 * chunk),
    "a short tail": Case(length=lambda chunk: 2 * chunk + 3),
    "zero keys": Case(k=_none),
    "large values": Case(v=lambda x: 1000 * x),
    "values near float16's limit": Case(v=lambda x: (8000 * x).clamp(-3e4, 3e4)),
    "long keys": Case(k=lambda x: 2 * x, beta=lambda x: 0.5 * x),
}  # fmt: skip


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def inputs(case: Case, kernel: Kernel, seed: int = 0) -> dict[str, Tensor]:
    """Every tensor of a kernel, in its dtypes, layout and conventions; outputs are NaN."""
    values = dict(kernel.values)
    length, heads = case.length(values["BC"]), HEADS * values.get("G", 1)
    source = torch.Generator().manual_seed(seed)

    def drawn(make, *shape: int) -> Tensor:
        return make(*shape, generator=source, dtype=torch.float64)

    batch = case.batch
    steps = case.step(drawn(torch.rand, batch, heads, length))
    made = {
        "k": case.k(unit(drawn(torch.randn, batch, HEADS, length, values["DK"]))),
        "v": case.v(drawn(torch.randn, batch, heads, length, values["DV"])),
        "beta": case.beta(drawn(torch.rand, batch, heads, length)),
        "g": steps if values.get("sum") == "inside" else summed(steps, values["BC"]),
    }
    made["g"] = made["g"] / math.log(2) if values.get("base") == "two" else made["g"]
    made |= {"A": torch.empty(batch, heads, length, values["BC"])}
    made |= {"w": torch.empty(batch, heads, length, values["DK"]), "u": made["v"]}
    out = {}
    for t in kernel.tensors:
        x = made[t.name].transpose(1, 2) if values.get("layout") == "bthd" else made[t.name]
        dtype = getattr(torch, t.dtype)
        out[t.name] = (
            blank(tuple(x.shape), t.dtype) if t.role == "out" else x.to(dtype)
        ).contiguous()
    return out


def summed(steps: Tensor, chunk: int) -> Tensor:
    """Log gates summed along each chunk of the last axis."""
    return torch.cat([part.cumsum(-1) for part in steps.split(chunk, -1)], -1)


def unsummed(sums: Tensor, chunk: int) -> Tensor:
    """The log gates of which these are the sums along each chunk."""
    parts = [
        torch.diff(x, dim=-1, prepend=torch.zeros_like(x[..., :1])) for x in sums.split(chunk, -1)
    ]
    return torch.cat(parts, -1)


def right(kernel: Kernel, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A, w and u by a triangular solve in float64, of these very inputs."""
    found = references.get(kernel.reference)(tensors, dict(kernel.values))
    return {name: x for name, x in found.items() if kernel.tensor(name)}


def errors(kernel: Kernel, tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """||out - right|| / ||right|| of every output; inf where the output is NaN.

    An output that is next to nothing beside what it is made of (w under strong decay) is measured
    against 1e-4 of that: below it, 16 bits have no digits left and nobody can tell.
    """
    return off(right(kernel, tensors), tensors, tensors["v"])


def off(want: Mapping[str, Tensor], found: Mapping[str, Tensor], v: Tensor) -> dict[str, float]:
    """The same of what was found, in the layout of what is right."""
    out = {}
    for name, right in want.items():
        rows = math.prod(right.shape[:-1])
        made_of = rows**0.5 if name in ("A", "w") else float(v.double().norm())
        error = float((found[name].double() - right).norm())
        least = max(float(right.norm()), 1e-4 * made_of) or 1.0  # all of nothing: absolute
        out[name] = math.inf if math.isnan(error) else error / least if error else 0.0
    return out


# -- the recurrence, token by token ----------------------------------------------------------------


def recurrence(k: Tensor, v: Tensor, step: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    """S_t = e^(g_t) S_(t-1) + beta_t k_t (v_t - (e^(g_t) S_(t-1))^T k_t)^T, for one head; S is [DK, DV]."""
    for kt, vt, gt, bt in zip(k, v, step, beta):
        state = gt.exp() * state
        state = state + bt * torch.outer(kt, vt - kt @ state)
    return state


def by_chunks(k: Tensor, w: Tensor, u: Tensor, g: Tensor, chunk: int, state: Tensor) -> Tensor:
    """The same state from w and u of convention fla: v' = u - w S, S' = e^(g_end) S + (e^(g_end - g) k)^T v'."""
    for kc, wc, uc, gc in zip(*(x.split(chunk) for x in (k, w, u, g))):
        fresh = uc - wc @ state
        state = gc[-1].exp() * state + ((gc[-1] - gc).exp()[:, None] * kc).mT @ fresh
    return state
