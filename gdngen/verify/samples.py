"""Sizes and inputs on which a kernel is tried, from what its spec says and nothing else.

A runtime size is a *length* if the kernel walks it tile by tile (`c*BC:(c+1)*BC` along an axis of
that size), else a *count* such as a batch size. Lengths are ragged: no multiple of their tile.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdngen.language.expr import interval, names
from gdngen.model import model
from gdngen.model.model import BYTES, Assign, Kernel, Loop, Span, Statement
from gdngen.model.types import FLOATS
from gdngen.verify.interpret import UNWRITTEN, shape

if TYPE_CHECKING:
    import torch

# Steps of a log gate that is summed along the sequence: e^-0.3 and weaker, a usual one; e^-3, under
# which exp(g_i - g_j) overflows float32 after 30 rows wherever a kernel takes a wrong difference.
MILD, STRONG = 0.3, 3.0
GATES = ("decay", "steps")  # samples that a trial's step is about: summed, and not
STRONG_LENGTH = 40  # 40 * 3 > 88.7, where exp overflows float32
HALF_LENGTH = (5, 8)  # of a tile: the only tile is ragged
LAST_TILE = (9, 16)  # of a tile: so much of the last tile is inside
TRANSFER = 16  # bytes; a GPU moves rows by such units, so rows of a sample are whole ones


@dataclass(frozen=True)
class Trial:
    """Runtime sizes and the step of every `decay` tensor (None: drawn up to `MILD`)."""

    sizes: Mapping[str, int]
    step: float | None = None

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return sizes + (f", {-self.step:g} a step" if self.step is not None else "")


def trials(kernel: Kernel) -> tuple[Trial, ...]:
    """What a kernel is tried on: two batch sizes with ragged lengths, and, where a tensor is sampled
    as `decay`, strong decay that ends in the middle of a tile."""
    out = [Trial(sizes(kernel)), Trial(sizes(kernel, longer=True))]
    if any(t.sample in GATES for t in kernel.tensors):
        long = {name: _strong(tile) for name, tile in tiles(kernel).items()}
        out.append(Trial({**sizes(kernel), **long}, STRONG))
    return tuple(out)


def _strong(tile: int) -> int:
    return STRONG_LENGTH if STRONG_LENGTH % tile else STRONG_LENGTH + tile // 2


def sizes(kernel: Kernel, ragged: bool = True, longer: bool = False) -> dict[str, int]:
    """Small runtime sizes: counts are 2, but the first, the batch, is 1 unless `longer`.

    Lengths are less than a tile, or, `longer`, more than one tile and more than the loads that a
    pipelined loop has in flight; whole tiles where not `ragged`.
    """
    tiled, out = tiles(kernel), {}
    counts = [name for name in kernel.runtime if name not in tiled]
    for name in kernel.runtime:
        if name in counts:
            out[name] = (1 if name == counts[0] and not longer else 2) + parts(kernel).get(name, 0)
            continue
        tile, unit = tiled[name], _unit(kernel, name)
        full = _in_flight(kernel, name) if longer else 0
        up, down = LAST_TILE if longer else HALF_LENGTH
        part = max(1, tile * up // down // unit * unit or unit)
        out[name] = tile * full + part if ragged else tile * (full + 1)
    return out


def parts(kernel: Kernel) -> dict[str, int]:
    """Sizes that count parts of a length -> how many more than parts they are: 1 where the ends of
    the parts are counted, 0 where a row says both ends of one."""
    found = [
        t for t in kernel.tensors if t.sample == "offsets" and isinstance(t.shape[0], ast.Name)
    ]
    return {t.shape[0].id: 2 - len(t.shape) for t in found}


def tiles(kernel: Kernel) -> dict[str, int]:
    """Lengths among the runtime sizes -> the most positions that one statement takes of them."""
    found: dict[str, int] = {}
    for leaf in kernel.leaves():
        for name, axis, width in _widths(kernel, leaf):
            side = kernel.tensor(name).shape[axis]
            if isinstance(side, ast.Name) and side.id in kernel.runtime and width > 1:
                found[side.id] = max(width, found.get(side.id, 1))
    return {name: found[name] for name in kernel.runtime if name in found}


def _widths(kernel: Kernel, leaf: model.Leaf) -> Iterator[tuple[str, int, int]]:
    """(tensor, axis, positions) of every access of a statement to a tensor."""
    for access in leaf.reads() + leaf.writes():
        if kernel.tensor(access.name) is None:
            continue
        if access.region is not None:
            for axis, part in enumerate(access.region.index):
                yield access.name, axis, part.size if isinstance(part, Span) else 1
        elif isinstance(leaf, Assign) and access.index is not None:
            for axis, i in enumerate(access.index):
                # Indices of blocks and loops only move an access: 0 will do for them.
                still = {n.id: (0, 0) for n in names(i)}
                points = {a.name: (0, a.extent - 1) for a in leaf.axes}
                low, high = interval(i, dict(kernel.values), still | points)
                moved = math.isinf(high - low)  # what can't be bounded only moves it, too
                yield access.name, axis, 1 if moved else int(high - low) + 1


def _unit(kernel: Kernel, name: str) -> int:
    """Elements of `name` that make whole transfers, where it is the last axis of a tensor."""
    last = [
        t for t in kernel.tensors if isinstance(t.shape[-1], ast.Name) and t.shape[-1].id == name
    ]
    return max((TRANSFER // BYTES[t.dtype] for t in last), default=1)


def _in_flight(kernel: Kernel, name: str) -> int:
    """Whole tiles of a length that a longer trial has: one, or one more than a pipeline holds."""

    def walk(body: tuple[Statement, ...]) -> Iterator[int]:
        for s in body:
            if isinstance(s, Loop) and name in ast.unparse(s.count):
                yield s.num_stages
            for group in model.children(s):
                yield from walk(group)

    return max((n + 1 for n in walk(kernel.statements()) if n > 1), default=1)


# -- inputs --------------------------------------------------------------------------------------


def inputs(
    kernel: Kernel,
    sizes: Mapping[str, int],
    seed: int = 0,
    step: float | None = None,
    device: str = "cpu",
    restart: bool = False,
) -> dict[str, torch.Tensor]:
    """Every tensor of a kernel, in its own dtype; outputs hold what shows as unwritten.

    sizes   the runtime sizes
    step    how much a `decay` tensor falls a step; drawn between 0 and `MILD` where left out
    device  where torch draws and keeps them; devices draw different numbers from one seed
    restart a `decay` tensor starts anew with every tile, as sums along chunks do: over a long
            sequence the exponential of one that doesn't is 0 all but everywhere
    """
    import torch

    source = torch.Generator(device).manual_seed(seed)
    return {
        t.name: (
            blank(shape(kernel, t.name, sizes), t.dtype, device)
            if t.role == "out"
            else _sample(kernel, t, sizes, source, step, restart)
        )
        for t in kernel.tensors
    }


def blank(shape: tuple[int, ...], dtype: str, device: str = "cpu") -> torch.Tensor:
    """An output before a kernel has run: NaN, or a number that nobody computes."""
    import torch

    kind = getattr(torch, dtype)
    if dtype in FLOATS:
        return torch.full(shape, torch.nan, dtype=kind, device=device)
    least = 0 if dtype == "bool" else max(UNWRITTEN, torch.iinfo(kind).min)
    return torch.full(shape, least, dtype=kind, device=device)


def _sample(
    kernel: Kernel, t: model.Tensor, sizes, source, step: float | None, restart: bool
) -> torch.Tensor:
    import torch

    size = shape(kernel, t.name, sizes)
    like = {"dtype": torch.float64, "device": source.device}

    def uniform() -> torch.Tensor:
        return torch.rand(size, generator=source, **like)

    match t.sample:
        case "uniform":
            data = uniform()
        case "decay" | "steps":
            steps = uniform() * MILD if step is None else torch.full(size, step, **like)
            data = -steps if t.sample == "steps" else -_summed(kernel, t, steps, restart)
        case "index":
            data = uniform().argsort(-1)
        case "offsets":
            walked = tiles(kernel) or [n for n in sizes if n not in parts(kernel)]
            data = _offsets(size, max(sizes[n] for n in walked))
        case "zeros":
            data = torch.zeros(size, **like)
        case kind:
            data = torch.randn(size, generator=source, **like)
            data = data / data.norm(dim=-1, keepdim=True) if kind == "unit" else data
    return data.to(getattr(torch, t.dtype))


def _summed(kernel: Kernel, t: model.Tensor, steps: torch.Tensor, restart: bool) -> torch.Tensor:
    """Sums of steps along the sequence, or along each tile of it."""
    import torch

    axis = _sequence(kernel, t)
    tile = tiles(kernel).get(getattr(t.shape[axis], "id", ""))
    if not restart or tile is None:
        return steps.cumsum(axis)
    return torch.cat([part.cumsum(axis) for part in steps.split(tile, axis)], axis)


def _sequence(kernel: Kernel, t: model.Tensor) -> int:
    """The axis that a tensor is walked along: the last one that is a length, else the last."""
    tiled = tiles(kernel)
    walked = [i for i, s in enumerate(t.shape) if isinstance(s, ast.Name) and s.id in tiled]
    return walked[-1] if walked else len(t.shape) - 1


def _offsets(size: tuple[int, ...], length: int) -> torch.Tensor:
    """[n + 1] positions from 0 to `length`, or [n, 2] where n equal parts of it start and end."""
    import torch

    parts = size[0] if len(size) == 2 else size[0] - 1
    ends = torch.arange(parts + 1) * length // parts
    return ends if len(size) == 1 else torch.stack([ends[:-1], ends[1:]], 1)
