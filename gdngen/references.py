"""What some kernels should compute, from the mathematics: a spec names one with `reference: name`.

A reference is never another kernel's algorithm. It takes every tensor of the kernel by its name,
as float64, and the values of dims, options and runtime sizes, and returns float64 outputs. Names
and layouts of the tensors are part of it. Adding one is a function with `@reference`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gdngen.verify import recurrence

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Reference:
    """One definition: the inputs and dims that it needs, by name, the outputs it gives."""

    name: str
    needs: tuple[str, ...]
    dims: tuple[str, ...]
    gives: tuple[str, ...]
    compute: Callable[[Tensors, Mapping[str, Any]], dict[str, torch.Tensor]]
    optional: frozenset[str] = frozenset()  # tensors that some conventions do without

    def __call__(self, tensors: Tensors, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """`gives` for the inputs in `tensors` (any dtype; worked on as float64, on the CPU)."""
        present = [name for name in self.needs if name in tensors or name not in self.optional]
        wide = {name: tensors[name].detach().cpu().double() for name in present}
        return self.compute(wide, values)

    def lacks(self, declared: Iterable[str]) -> tuple[str, ...]:
        """Names of tensors and dims that this reference is about and that are not `declared`."""
        have = set(declared)
        names = (*self.needs, *self.gives, *self.dims)
        return tuple(n for n in names if n not in have and n not in self.optional)


_REFERENCES: dict[str, Reference] = {}


def names() -> tuple[str, ...]:
    return tuple(_REFERENCES)


def get(name: str) -> Reference:
    """The reference of that name; KeyError if there is none."""
    return _REFERENCES[name]


def reference(needs: str, gives: str, dims: str = ""):
    """Make a function a reference under its own name; `g?` is a tensor that may be left out."""

    def register(compute):
        name = compute.__name__
        lists = [tuple(w.rstrip("?") for w in words.split()) for words in (needs, dims, gives)]
        optional = frozenset(w[:-1] for w in (needs + " " + gives).split() if w.endswith("?"))
        _REFERENCES[name] = Reference(name, *lists, compute, optional)
        return _REFERENCES[name]

    return register


@reference(needs="q? k v g? beta chunks?", dims="BC", gives="A? w u at? gc?")
def wy_prepare(tensors: Tensors, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Chunk-local WY factors of Gated DeltaNet, by a triangular solve for each chunk of BC rows:

        (I + strictLower(diag(beta) (Gamma * k k^T))) A = I,  Gamma[i, j] = exp(g[i] - g[j]),
        w = A (beta * k),  u = A (beta * v)

    and, where q is given, at = tril(Gamma * q k^T) and gc, g summed along each chunk, to base 2.

    q and k [B, H, T, DK], v [B, HV, T, DV], g (log gate) and beta [B, HV, T] -> A [B, HV, T, BC],
    w [B, HV, T, DK], u like v, at like A, gc [B, HV, chunks, BC]; HV is a multiple of H, and heads of k serve HV // H neighbours. Row
    t of A is its chunk's row; the columns of a last chunk that lie past T are 0; there gc is its last sum. (S. Yang, J. Kautz,
    A. Hatamizadeh: Gated Delta Networks, arXiv 2412.06464, section 3.3.) Where chunks [NC, 2] is
    given, chunk c is the rows from chunks[c, 0] on that lie before chunks[c, 1], BC at most.

    Options say which convention is meant, the first where a spec has none:
    gate    tileops as above; fla with w = A (beta * exp(g) * k), for which u - w S is what the token
            recurrence writes into a state S; ungated without g, Gamma = 1
    sum     given: g is summed along T, or along each chunk; inside: it is a step's, to be summed
    base    e: g is a natural logarithm; two: one to base 2
    layout  bhtd as above; bthd with T before the heads, in every tensor but gc
    """
    import torch

    turned = values.get("layout", "bhtd") == "bthd"
    given = {
        name: x.transpose(1, 2) if turned and name != "chunks" else x for name, x in tensors.items()
    }
    v, beta, gate = given["v"], given["beta"], values.get("gate", "tileops")
    share = v.shape[1] // given["k"].shape[1]
    k = given["k"].repeat_interleave(share, 1)
    q = given["q"].repeat_interleave(share, 1) if "q" in given else None
    g = given["g"] if gate != "ungated" else torch.zeros_like(beta)
    g = g * math.log(2) if values.get("base", "e") == "two" else g
    chunk, length = int(values["BC"]), k.shape[2]
    parts: dict[str, list[torch.Tensor]] = {"A": [], "w": [], "u": [], "at": [], "gc": []}
    for rows in _chunks(tensors.get("chunks"), chunk, length):
        kc, vc, gc, bc = k[:, :, rows], v[:, :, rows], g[:, :, rows, None], beta[:, :, rows, None]
        gc = gc.cumsum(2) if values.get("sum", "given") == "inside" else gc
        # Above the diagonal the difference of gates is positive and may overflow; 0 * inf is NaN.
        gates = (gc - gc.mT).tril(-1).exp()
        system = torch.tril(bc * gates * (kc @ kc.mT), -1)
        eye = torch.eye(kc.shape[2], dtype=torch.float64).expand_as(system)
        A = torch.linalg.solve_triangular(eye + system, eye, upper=False, unitriangular=True)
        parts["A"].append(torch.nn.functional.pad(A, (0, chunk - A.shape[-1])))
        parts["w"].append(A @ (bc * (gc.exp() if gate == "fla" else 1) * kc))
        parts["u"].append(A @ (bc * vc))
        if q is not None:
            full = [gc, gc[:, :, -1:].expand(-1, -1, chunk - gc.shape[2], -1)]
            scores = torch.tril(q[:, :, rows] @ kc.mT) * torch.tril(gc - gc.mT).exp()
            parts["at"].append(torch.nn.functional.pad(scores, (0, chunk - scores.shape[-1])))
            parts["gc"].append((torch.cat(full, 2) / math.log(2)).mT)
    found = {name: torch.cat(rows, 2) for name, rows in parts.items() if rows}
    return {name: x.transpose(1, 2) if turned and name != "gc" else x for name, x in found.items()}


def _chunks(table: torch.Tensor | None, chunk: int, length: int) -> list[slice]:
    """The rows of every chunk: `chunk` of them each, from the first on or from where a table says."""
    starts = [(start, length) for start in range(0, length, chunk)]
    if table is not None:
        starts = [(start, end) for start, end in table.int().tolist()]
    return [slice(start, min(start + chunk, end)) for start, end in starts]


@reference(needs="a b", gives="c")
def matmul(tensors: Tensors, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """c = a @ b; a [M, K], b [K, N] -> c [M, N]."""
    return {"c": tensors["a"] @ tensors["b"]}


@reference(needs="x", gives="y")
def softmax(tensors: Tensors, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """y = exp(x) / sum(exp(x)) along the last axis of x; y has the shape of x."""
    return {"y": tensors["x"].softmax(-1)}


@reference(needs="x before", gives="y")
def shifted_rms_norm(tensors: Tensors, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """y[t] = d[t] / sqrt(mean(d[t]^2) + 1e-6) with d[t] = x[t] - x[t-1] and x[-1] = before.

    x [B, T, D], before [B, D] -> y [B, T, D].
    """
    import torch

    x = tensors["x"]
    d = torch.diff(torch.cat([tensors["before"][:, None], x], 1), dim=1)
    return {"y": d / (d.square().mean(-1, keepdim=True) + 1e-6).sqrt()}


@reference(needs="x", gives="y")
def l2norm(tensors: Tensors, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Rows of x [..., D] brought to length 1, 1e-6 added to their sum of squares."""
    return {"y": recurrence.normalised(tensors["x"])}


@reference(needs="q k v g beta scale first cu?", gives="o final", dims="DK DV")
def recurrence_by_token(tensors: Tensors, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Gated DeltaNet by its definition (`recurrence.py`), o and final of whole sequences.

    q, k [B, T, H, DK], v [B, T, H, R, DV], g and beta [B, T, H, R], scale [1], first
    [S, H, R, DK, DV]: R heads of values share one of keys. Where cu [N + 1] is given, B is 1 and
    sequence n is rows cu[n] .. cu[n + 1] - 1, else a batch is a sequence. Sequence n starts from
    first[n], from 0 where n >= S; final [F, H, R, DK, DV] has no value where there is no sequence.
    Option norm: rows of q and k are brought to length 1 first.
    """
    import torch

    q, k = tensors["q"], tensors["k"]
    v, g, beta = (tensors[name].flatten(2, 3) for name in ("v", "g", "beta"))
    sequences = [(b, 0, v.shape[1]) for b in range(len(v))]
    if "cu" in tensors:
        ends = tensors["cu"].int().tolist()
        sequences = [(0, start, stop) for start, stop in zip(ends, ends[1:])]
    first = tensors["first"].flatten(1, 2)
    heads = tensors["v"].shape[2:4]
    shape = (int(values["F"]), v.shape[2], k.shape[-1], v.shape[-1])
    o = torch.full_like(v, torch.nan)
    final = torch.full(shape, torch.nan, dtype=torch.float64)
    for n, (b, start, stop) in enumerate(sequences):
        rows, one = slice(start, stop), slice(b, b + 1)
        part, last = recurrence.gated_delta_rule(
            *(x[one, rows] for x in (q, k, v, g, beta)),
            float(tensors["scale"]),
            first[n : n + 1] if n < len(first) else None,
            bool(values.get("norm")),
        )
        o[one, rows] = part
        final[n : n + 1] = last[: len(final) - n]
    return {"o": o.unflatten(2, heads), "final": final.unflatten(1, heads)}
