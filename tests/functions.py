"""The generated functions, rendered into a folder of a test's own with just the kernels that it calls."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import torch
from rendering import SPECS

from gdngen import driver
from gdngen.plan import Wish

CHUNK = {"layout": "bthd", "gate": "fla", "sum": "given", "base": "two", "outputs": "wu"}


class Package:
    """A folder like generated/; `add` renders a variant into it, `module` is what people import."""

    def __init__(self, root: Path):
        self.root, self.manifest = root, {}
        name, text = driver.pipeline(SPECS / "gated_delta_rule.yaml")
        (root / name).write_text(text)
        found = importlib.util.spec_from_file_location(f"functions_{root.name}", root / name)
        self.module: ModuleType = importlib.util.module_from_spec(found)
        found.loader.exec_module(self.module)

    def add(self, spec: str, **settings) -> None:
        words = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in settings.items()}
        loaded = driver.load(SPECS / f"{spec}.yaml", words)
        for m in driver.modules(loaded, Wish()):
            path = self.root / m.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(m.text)
            self.manifest[m.path] = driver.entry(m)
        (self.root / "manifest.json").write_text(json.dumps(self.manifest))

    def chunked(self, io: str, DK: int, DV: int, varlen=False, G=1, BC=64, BV=32, stages=2) -> None:
        """The kernels of `chunk_gated_delta_rule` for one shape."""
        dims = {"BC": BC, "DK": DK, "io": io, "varlen": varlen}
        self.add("cumsum", BC=BC, varlen=varlen, base="two")
        self.add("prepare_blocked", **dims, DV=DV, G=G, **CHUNK)
        self.add("scores", **dims)
        self.add("forward", **dims, DV=DV, BV=BV, stages=stages, turned=DK % 64 != 0)


def inputs(io, B=1, T=100, H=1, HV=1, DK=64, DV=64, decay=0.1, unit=True, seed=0) -> tuple:
    """q, k, v, g, beta as a model has them: rows of q and k of length 1 where `unit`."""
    source = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=source)

    def uniform() -> torch.Tensor:
        return torch.rand((B, T, HV), generator=source)

    q, k = normal(B, T, H, DK), normal(B, T, H, DK)
    if unit:
        q, k = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
    kind = getattr(torch, io)
    return q.to(kind), k.to(kind), normal(B, T, HV, DV).to(kind), -uniform() * decay, uniform()


def error(found: torch.Tensor, right: torch.Tensor) -> float:
    """||found - right|| / ||right||; inf where an element is not finite or `right` is 0 and found isn't."""
    found = found.detach().cpu().double()
    if found.shape != right.shape or not found.isfinite().all():
        return float("inf")
    norm = float(right.norm())
    off = float((found - right).norm())
    return off / norm if norm else (0.0 if off == 0 else float("inf"))
