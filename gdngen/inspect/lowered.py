"""What TileLang itself says that a hand-written kernel asks for. This runs the kernel's file."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdngen.verify.lowering import LoweringError, lowered


def asked_bytes(path: Path, factory: str, settings: Mapping[str, object], target: str) -> int:
    """Dynamic and static bytes of the kernel that `factory`, at the top of the file, makes or is."""
    made = getattr(_module(path, settings), factory)
    if hasattr(made, "get_tir"):
        given, config = _accepted(made, settings), dict(made.pass_configs or {})
        return lowered(lambda: made.get_tir(**given), target, config, path.name).bytes
    if hasattr(made, "params"):
        return lowered(lambda: made, target, {}, path.name).bytes
    return lowered(lambda: made(**_accepted(made, settings)), target, {}, path.name).bytes


def _module(path: Path, settings: Mapping[str, object]) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as e:
        raise LoweringError(f"{path}: cannot be run: {type(e).__name__}: {_line(e)}") from e
    for setting, value in settings.items():
        if hasattr(module, setting):
            setattr(module, setting, value)
    return module


def _accepted(factory: Any, settings: Mapping[str, object]) -> dict[str, object]:
    import inspect

    function = getattr(factory, "func", factory)
    function = getattr(function, "orig_func", function)
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    return {n: v for n, v in settings.items() if n in names}


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
