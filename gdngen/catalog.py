"""Finds generated kernels by what they are, from the manifest beside them."""

import importlib.util
import json
import sys
from functools import cache
from pathlib import Path

from gdngen.resources import GENERATED


@cache
def manifest(root: Path = GENERATED) -> dict[str, dict]:
    try:
        return json.loads((root / "manifest.json").read_text())
    except FileNotFoundError:
        raise LookupError(f"no kernels in {root}: it has no manifest.json") from None


def entries(
    spec: str, policy: str | None, target: str | None, values: dict, root: Path = GENERATED
):
    """Paths of the kernels that fit, and of all kernels of the spec."""
    of_spec = [p for p in manifest(root) if p.rpartition("/")[0] in (spec, f"examples/{spec}")]
    fitting = [
        p
        for p in of_spec
        if all(manifest(root)[p]["values"].get(k) == v for k, v in values.items())
        and policy in (None, manifest(root)[p]["policy"])
        and (target is None or target in manifest(root)[p]["targets"])
    ]
    return fitting, of_spec


def find(spec: str, policy: str | None, target: str | None, values: dict, root: Path = GENERATED):
    """The `@tilelang.jit` factory of the one kernel that fits; LookupError otherwise.

    Of a variant's files for several targets, the one for this machine's GPU; without one, the first.
    """
    fitting, of_spec = entries(spec, policy, target, values, root)
    listed = manifest(root)
    if len(fitting) > 1 and policy is None:  # the default policy's, where others are kept beside it
        named = [p for p in fitting if not p.removesuffix(".py").endswith(listed[p]["policy"])]
        fitting = named or fitting
    if len(fitting) > 1 and target is None and len({listed[p]["variant"] for p in fitting}) == 1:
        here = _target()
        fitting = [p for p in fitting if here in listed[p]["targets"]] or fitting[:1]
    if len(fitting) != 1:
        asked = ", ".join(f"{k}={v}" for k, v in values.items()) or "anything"
        known = "\n  ".join(fitting or of_spec or sorted({p.rpartition("/")[0] for p in listed}))
        what = f"{len(fitting)} kernels of" if fitting else "no kernel of" if of_spec else "no spec"
        raise LookupError(f"{what} '{spec}' with {asked}; there is:\n  {known}")
    return load(root / fitting[0], listed[fitting[0]]["kernel"])


def _target() -> str | None:
    """The target that this machine's GPU is, say 'sm_90'; None where there is no NVIDIA GPU."""
    import torch

    if not torch.cuda.is_available() or torch.version.hip:
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def below(path: Path, root: Path = GENERATED) -> str:
    """A kernel's file as the manifest names it."""
    return path.relative_to(root).as_posix()


def load(path: Path, kernel: str):
    """Imports one generated module (once) and returns its factory."""
    name = "_".join(("gdngen_generated", *path.resolve().parts[1:])).removesuffix(".py")
    if name not in sys.modules:
        found = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(found)
        sys.modules[name] = module
        try:
            found.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return getattr(sys.modules[name], kernel)
