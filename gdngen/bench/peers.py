"""Other kernels of the same mathematics, to be timed beside the generated ones.

A peer says which kernels it has something to set against (`refuses`), and makes a `Contender` for
one: how to hand it our tensors, how to call it, how to read its outputs as ours, and what would be
right. Each gets the same numbers in the layout that it is made for; conversions are not timed.
Packages are imported when a peer joins, never before. Adding a peer is one entry in `PEERS`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gdngen import catalog
from gdngen.bench.chunks import terms
from gdngen.bench.contenders import Bound, Contender, NotServed, compiled
from gdngen.bench.contenders import right as right_of
from gdngen.errors import GdngenError, did_you_mean
from gdngen.language.expr import evaluate
from gdngen.model.model import Kernel

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]

SIXTEEN = ("float16", "bfloat16")
LOG2E = 1.4426950408889634
FLA_CHUNKS = (16, 32, 64)
FLA_SWITCH = "FLA_DISABLE_BACKEND_DISPATCH"  # read once, when fla is imported


@dataclass(frozen=True)
class Peer:
    """`refuses` is the reason why there is nothing to compare with a kernel, '' where there is."""

    name: str
    package: str
    refuses: Callable[[Kernel], str]
    join: Callable[[Kernel, str], Contender]


def chosen(names: str) -> tuple[Peer, ...]:
    """The peers of a comma-separated list, 'all' or 'none'; GdngenError for a name that is no peer's."""
    if names in ("all", "none"):
        return PEERS if names == "all" else ()
    known = {peer.name: peer for peer in PEERS}
    for name in names.split(","):
        if name not in known:
            raise GdngenError(
                f"error: --peers {name}: no such peer{did_you_mean(name, known)}\n"
                f"  help: any of {','.join(known)}, all, or none"
            )
    return tuple(known[name] for name in dict.fromkeys(names.split(",")))


def installed(package: str) -> bool:
    """Whether a package can be imported; '' always can."""
    return not package or importlib.util.find_spec(package) is not None


def contender(peer: Peer, kernel: Kernel, target: str) -> Contender | str:
    """The peer, ready for a kernel on a target; or why it is not timed beside it."""
    try:
        if why := peer.refuses(kernel):
            return why
        if not installed(peer.package):
            return f"the package {peer.package} is not installed"
        return peer.join(kernel, target)
    except Exception as e:  # whatever a foreign package raises while it is imported
        return f"can't be used here: {type(e).__name__}: {e}"


def _is(kernel: Kernel, inputs: str, outputs: str) -> bool:
    roles = {t.name: t.role for t in kernel.tensors}
    return all(roles.get(n) == "in" for n in inputs.split()) and all(
        roles.get(n) == "out" for n in outputs.split()
    )


def _width(kernel: Kernel, name: str) -> int:
    return int(evaluate(kernel.tensor(name).shape[-1], dict(kernel.values)))


# -- FLA -------------------------------------------------------------------------------------------


def _fla_refuses(kernel: Kernel) -> str:
    if not (_is(kernel, "k v g beta", "w u") or _is(kernel, "q k v g beta", "o")):
        return "it computes neither w and u from k, v, g, beta nor o from these and q"
    if (dtype := kernel.tensor("k").dtype) not in SIXTEEN:
        return f"it takes 16-bit keys, not {dtype}"
    if (chunk := terms(kernel).chunk) not in FLA_CHUNKS and _is(kernel, "k v", "w u"):
        return f"it has chunks of 16, 32 or 64, not {chunk}"
    return ""


def _fla(kernel: Kernel, target: str) -> Contender:
    """FLA's own Triton kernels: with the switch set no other backend, such as FlashQLA, is asked."""
    os.environ[FLA_SWITCH] = "1"
    backends = importlib.import_module("fla.backends")
    if not getattr(backends, "_DISPATCH_DISABLED", False):
        raise ImportError(f"fla was imported before {FLA_SWITCH} was set")
    if _is(kernel, "k v g beta", "w u"):
        intra = importlib.import_module("fla.ops.gated_delta_rule.chunk_fwd")
        return _fla_prepare(kernel, intra.chunk_gated_delta_rule_fwd_intra)
    rule = importlib.import_module("fla.ops.gated_delta_rule.chunk").chunk_gated_delta_rule
    return _forward(kernel, "fla", "chunk_gated_delta_rule, Triton", rule)


def _fla_prepare(kernel: Kernel, intra: Callable) -> Contender:
    """Two kernels and A's zeros; g in powers of two, w carries e^g."""
    means = terms(kernel)

    def bind(tensors: Tensors) -> Bound:
        k, v, beta = (means.length_first(tensors[n]) for n in ("k", "v", "beta"))
        g = means.gates(tensors["g"]) * LOG2E
        call = partial(intra, k=k, v=v, g=g, beta=beta, chunk_size=means.chunk)
        back = means.turned if means.heads_first else (lambda t: t)
        return Bound(call, lambda out: {n: back(t) for n, t in zip(("w", "u", "A"), out)})

    def right(tensors: Tensors, sizes: Mapping[str, int]) -> Tensors:
        return means.right(tensors, "fla")

    return Contender("fla", "chunk_gated_delta_rule_fwd_intra, Triton", bind, right)


# -- whole forwards --------------------------------------------------------------------------------


def _flashqla_refuses(kernel: Kernel) -> str:
    if not _is(kernel, "q k v g beta", "o"):
        return "it serves the whole forward only: it forms no w and u"
    if (dtype := kernel.tensor("k").dtype) not in SIXTEEN:
        return f"it takes 16-bit keys, not {dtype}"
    dims = (_width(kernel, "k"), _width(kernel, "v"))
    return "" if dims == (128, 128) else f"it has dims 128 and 128, not {dims[0]} and {dims[1]}"


def _flashqla(kernel: Kernel, target: str) -> Contender:
    rule = importlib.import_module("flash_qla").chunk_gated_delta_rule
    return _forward(kernel, "flashqla", "chunk_gated_delta_rule", rule)


def _forward(kernel: Kernel, who: str, what: str, rule: Callable) -> Contender:
    """A `chunk_gated_delta_rule` with FLA's arguments; g are log gates of single steps."""
    means = terms(kernel)
    if means.summed or means.log2:
        raise ValueError("it takes the log gate of each step")

    def bind(tensors: Tensors) -> Bound:
        import torch

        given = {n: means.length_first(tensors[n]) for n in ("q", "k", "v", "g", "beta")}
        scale = dict(kernel.values).get("scale")
        run = torch.no_grad()(rule)  # nothing is kept for a backward
        back = means.turned if means.heads_first else (lambda t: t)
        return Bound(partial(run, **given, scale=scale), lambda out: {"o": back(out[0])})

    return Contender(who, what, bind, partial(right_of, kernel))


# -- the reviewed kernel ---------------------------------------------------------------------------

NEUMANN = "prepare"  # the spec of it


def _neumann_entry(kernel: Kernel, target: str | None) -> str | None:
    """The checked-in Neumann kernel of the same dims and dtype, if there is one."""
    values = dict(kernel.values) | dict(kernel.dtypes)
    wanted = {n: values.get(n) for n in ("BC", "DK", "DV", "io")}
    found, _ = catalog.entries(NEUMANN, "lean", target, wanted)
    return next(iter(found), None)


def _neumann_refuses(kernel: Kernel) -> str:
    if not _is(kernel, "k v g beta", "w u"):
        return "it computes A, w and u from k, v, g and beta"
    if Path(kernel.spec).stem == NEUMANN:
        return "it is this very kernel"
    return "" if _neumann_entry(kernel, None) else "generated/ has none with these dims and dtype"


def _neumann(kernel: Kernel, target: str) -> Contender:
    """In [B, H, T, D], natural log gates summed along each chunk; w does not carry e^g."""
    entry = _neumann_entry(kernel, target)
    if entry is None:
        raise LookupError(f"generated/ has none for {target}")
    path, means = catalog.GENERATED / entry, terms(kernel)

    def arguments(tensors: Tensors) -> Tensors:
        k, v, beta = (means.heads(tensors[n]) for n in ("k", "v", "beta"))
        return {"k": k, "v": v, "g": means.gates(tensors["g"]).transpose(1, 2).contiguous(),
                "beta": beta.float()}  # fmt: skip

    def bind(tensors: Tensors) -> Bound:
        given = arguments(tensors)
        k, v = given["k"], given["v"]
        if k.shape[1] != v.shape[1]:
            raise NotServed("it has as many key heads as value heads")
        made = {"A": k.new_empty(*k.shape[:3], means.chunk), "w": k.new_empty(k.shape)}
        made["u"] = v.new_empty(v.shape)
        run = compiled(path)
        back = (lambda t: t) if means.heads_first else means.turned
        call = partial(run, *given.values(), *made.values())
        return Bound(call, lambda _: {n: back(t) for n, t in made.items()})

    def right(tensors: Tensors, sizes: Mapping[str, int]) -> Tensors:
        return means.right(tensors, "tileops")

    return Contender("neumann", entry, bind, right, path)


PEERS = (
    Peer("fla", "fla", _fla_refuses, _fla),
    Peer("flashqla", "flash_qla", _flashqla_refuses, _flashqla),
    Peer("neumann", "", _neumann_refuses, _neumann),
)
