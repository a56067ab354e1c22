"""Tiles and tensors as blocks of memory that are read and written a whole region at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gdngen.model.values import along

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Region:
    """A part of a tile; `places` broadcast to its shape."""

    tile: Tile
    places: tuple
    shape: tuple[int, ...]

    def get(self) -> torch.Tensor:
        return self.tile.load(self.places).expand(self.shape)

    def put(self, value: Any) -> None:
        self.tile.store(self.places, value, self.shape)


@dataclass(frozen=True)
class Tile:
    data: torch.Tensor
    outside: float = field(default=float("nan"))

    def __getitem__(self, index: Any) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        if any(isinstance(i, slice) for i in index):
            return self.region(index)
        return self.load(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        import torch

        index = index if isinstance(index, tuple) else (index,)
        shape = torch.broadcast_shapes(*(getattr(i, "shape", ()) for i in index))
        self.store(index, value, shape)

    def region(self, index: Sequence = ()) -> Region:
        index = tuple(index) + (slice(None),) * (self.data.dim() - len(index))
        spans = []
        for i, n in zip(index, self.data.shape):
            if isinstance(i, slice):
                start = 0 if i.start is None else int(i.start)
                spans.append((start, (n if i.stop is None else int(i.stop)) - start))
        places, axis = [], 0
        for i in index:
            if isinstance(i, slice):
                start, size = spans[axis]
                places.append(start + along(axis, len(spans), size))
                axis += 1
            else:
                places.append(i)
        return Region(self, tuple(places), tuple(size for _, size in spans))

    def load(self, index: Sequence) -> torch.Tensor:
        import torch

        places, inside = self.within(index)
        if not self.data.numel():
            return torch.full(inside.shape, self.outside, dtype=self.data.dtype)
        found = self.data[tuple(places)]
        return found if bool(inside.all()) else torch.where(inside, found, self.outside)

    def store(self, index: Sequence, value: Any, shape: Sequence[int]) -> None:
        import torch

        places, inside = self.within(index)
        kept = inside.expand(shape)
        at = tuple(i.expand(shape)[kept] for i in places)
        self.data[at] = torch.as_tensor(value).to(self.data.dtype).expand(shape)[kept]

    def within(self, index: Sequence) -> tuple[list[torch.Tensor], torch.Tensor]:
        import torch

        index = [torch.as_tensor(i).long() for i in index]
        inside = torch.tensor(True)
        for i, n in zip(index, self.data.shape):
            inside = inside & (i >= 0) & (i < n)
        return [i.clamp(0, n - 1) for i, n in zip(index, self.data.shape)], inside


def whole(operand: Tile | Region) -> Region:
    return operand.region() if isinstance(operand, Tile) else operand


def dtype_of(name: str) -> torch.dtype:
    import torch

    return torch.float32 if name == "bfloat16" else getattr(torch, name)


def blank(shape, dtype: str) -> Tile:
    import torch

    kind = dtype_of(dtype)
    return Tile(torch.full(tuple(shape), torch.nan if kind.is_floating_point else 0, dtype=kind))


def stored(data: torch.Tensor) -> torch.Tensor:
    import torch

    return data.detach().to(torch.float32 if data.dtype == torch.bfloat16 else data.dtype).clone()
