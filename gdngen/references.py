"""What some kernels should compute, from the mathematics: a spec names one with `reference: name`.

A reference is never another kernel's algorithm. It takes every tensor of the kernel by its name,
as float64, and the values of dims, options and runtime sizes, and returns float64 outputs. Names
and layouts of the tensors are part of it. Adding one is a function with `@reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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

    def __call__(self, tensors: Tensors, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """`gives` for the inputs in `tensors` (any dtype; worked on as float64, on the CPU)."""
        wide = {name: tensors[name].detach().cpu().double() for name in self.needs}
        return self.compute(wide, values)

    def lacks(self, declared: Iterable[str]) -> tuple[str, ...]:
        """Names of tensors and dims that this reference is about and that are not `declared`."""
        have = set(declared)
        return tuple(n for n in (*self.needs, *self.gives, *self.dims) if n not in have)


_REFERENCES: dict[str, Reference] = {}


def names() -> tuple[str, ...]:
    return tuple(_REFERENCES)


def get(name: str) -> Reference:
    """The reference of that name; KeyError if there is none."""
    return _REFERENCES[name]


def reference(needs: str, gives: str, dims: str = ""):
    """Make a function a reference under its own name."""

    def register(compute):
        name = compute.__name__
        _REFERENCES[name] = Reference(
            name, tuple(needs.split()), tuple(dims.split()), tuple(gives.split()), compute
        )
        return _REFERENCES[name]

    return register


@reference(needs="k v g beta", dims="BC", gives="A w u")
def wy_prepare(tensors: Tensors, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Chunk-local WY factors of Gated DeltaNet, by a triangular solve for each chunk of BC rows:

        (I + strictLower(diag(beta) (Gamma * k k^T))) A = I,  Gamma[i, j] = exp(g[i] - g[j]),
        w = A (beta * k),  u = A (beta * v)

    k [B, H, T, DK], v [B, H, T, DV], g (a log gate summed along T, or along each chunk) and beta
    [B, H, T] -> A [B, H, T, BC], w like k, u like v. Row t of A is its chunk's row; the columns of
    a last chunk that lie past T are 0. (S. Yang, J. Kautz, A. Hatamizadeh: Gated Delta Networks,
    arXiv 2412.06464, section 3.3.)
    """
    import torch

    k, v, g, beta = (tensors[name] for name in ("k", "v", "g", "beta"))
    chunk, length = int(values["BC"]), k.shape[2]
    parts: dict[str, list[torch.Tensor]] = {"A": [], "w": [], "u": []}
    for start in range(0, length, chunk):
        rows = slice(start, min(start + chunk, length))
        kc, vc, gc, bc = k[:, :, rows], v[:, :, rows], g[:, :, rows], beta[:, :, rows, None]
        # Above the diagonal the difference of gates is positive and may overflow; 0 * inf is NaN.
        gates = (gc[..., :, None] - gc[..., None, :]).tril(-1).exp()
        system = torch.tril(bc * gates * (kc @ kc.mT), -1)
        eye = torch.eye(kc.shape[2], dtype=torch.float64).expand_as(system)
        A = torch.linalg.solve_triangular(eye + system, eye, upper=False, unitriangular=True)
        parts["A"].append(torch.nn.functional.pad(A, (0, chunk - A.shape[-1])))
        parts["w"].append(A @ (bc * kc))
        parts["u"].append(A @ (bc * vc))
    return {name: torch.cat(found, 2) for name, found in parts.items()}


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
