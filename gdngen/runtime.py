"""What generated functions call: arguments checked, variants found, kernels compiled once and run.

CUDA tensors run a variant that was planned for their device, on torch's current stream. CPU tensors
run the very same text by way of `cpu.py`: right, and slow. A variant that is not checked in is made
from the specs beside the generated kernels (`fresh.py`). Nothing here knows any particular kernel.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gdngen import catalog, fresh
from gdngen.fresh import Found, Refused

Values = Mapping[str, "int | str"]
Choices = Sequence[tuple[Values, bool]]


class Call:
    """One call of a generated function; every complaint names the function and the argument.

    dtypes  names for dtypes -> the dtypes that each may be; one of several is bound by the first
            tensor that has it
    root    the folder of generated kernels
    """

    def __init__(self, function: str, dtypes: Mapping[str, tuple[str, ...]], root: Path):
        self.function, self.dtypes, self.root = function, dtypes, root
        self.bound: dict[str, tuple[int, str]] = (
            {}
        )  # size -> its value, and the argument it is from
        self.kinds: dict[str, tuple[str, str]] = {}  # the same for dtypes
        self.given: dict[str, torch.Tensor] = {}  # arguments as they were passed
        self.split: dict[str, int] = {}  # arguments that split rows -> how many rows
        self.device: torch.device | None = None
        self.first = ""

    # -- arguments ---------------------------------------------------------------------------

    def wrong(self, argument: str, what: str, kind: type[Exception] = ValueError) -> Exception:
        return kind(f"{self.function}: '{argument}' {what}")

    def tensor(
        self,
        name: str,
        given: Any,
        shape: str,
        dtype: str,
        convert: bool = False,
        optional: bool = False,
        splits: str = "",
    ) -> torch.Tensor:
        """The argument, checked; without rows where it is optional and not given.

        convert   other dtypes are converted, floats to floats and whole numbers to whole numbers
        splits    the size that its numbers split: they ascend from 0 to that size

        Raises TypeError for what is no tensor or of another dtype, ValueError for a shape, device or
        layout that does not fit, NotImplementedError where a gradient would be wanted.
        """
        if given is None and optional:
            return self.new((0, *self.sizes(shape)[1:]), dtype)
        if not isinstance(given, torch.Tensor):
            raise self.wrong(name, f"is {type(given).__name__}, not a tensor", TypeError)
        if self.device is None:
            self.device, self.first = given.device, name
            if given.device.type not in ("cpu", "cuda"):
                raise self.wrong(name, f"is on {given.device}; the CPU and CUDA devices are known")
        if given.device != self.device:
            raise self.wrong(name, f"is on {given.device}, '{self.first}' on {self.device}")
        self.given[name] = given
        given = self._typed(name, given, dtype, convert)
        self._bind(name, given, shape.split())
        if not given.is_contiguous():
            fix = f"pass {name}.contiguous()"
            raise self.wrong(name, f"has strides {given.stride()}, which are not contiguous: {fix}")
        if given.requires_grad and torch.is_grad_enabled():
            what = "requires a gradient, and there is no backward: call under torch.no_grad()"
            raise self.wrong(name, what, NotImplementedError)
        if splits:
            self._check_splits(name, given, self.bound[splits][0])
        return given

    def _check_splits(self, name: str, given: torch.Tensor, size: int) -> None:
        """One look at the numbers for each tensor that is passed: it waits for the device."""
        self.split[name] = size

        def wrong() -> str:
            ends = given.tolist()
            if ends[0] != 0 or ends[-1] != size:
                return f"goes from {ends[0]} to {ends[-1]}, and should go from 0 to {size}"
            falls = next((i for i, (a, b) in enumerate(zip(ends, ends[1:])) if b < a), None)
            return "" if falls is None else f"falls from {ends[falls]} to {ends[falls + 1]}"

        if what := remembered(self.given[name], ("splits", size), wrong):
            raise self.wrong(name, what)

    def pieces(self, name: str, rows: int) -> torch.Tensor:
        """int32 [n, 2]: the first row of each piece of an argument's parts, and where its part ends.

        A piece has `rows` rows, the last of a part fewer. The pieces of part p, which starts at row
        s, stand one behind the other from s // rows + p on, which leaves all others' places free; n is
        total // rows + parts. Places that no piece has start and end where all ends. Without rows
        where the argument isn't given.
        """
        if name not in self.given:
            return self.new((0, 2), "int32")
        given = self.given[name]
        total = self.split[name]
        return remembered(given, ("pieces", rows, total), lambda: _pieces(given, rows, total))

    def _typed(self, name: str, given: torch.Tensor, dtype: str, convert: bool) -> torch.Tensor:
        """The tensor in a dtype that `dtype` allows."""
        allowed = self.dtypes.get(dtype, (dtype,))
        have = str(given.dtype).removeprefix("torch.")
        if convert:
            wanted = getattr(torch, allowed[0])
            if given.dtype.is_floating_point != wanted.is_floating_point or have == "bool":
                raise self.wrong(
                    name, f"is {have}, which does not convert to {allowed[0]}", TypeError
                )
            return given.to(wanted)
        if have not in allowed:
            raise self.wrong(name, f"is {have}; it may be {' or '.join(allowed)}", TypeError)
        if len(allowed) > 1:
            bound, owner = self.kinds.setdefault(dtype, (have, name))
            if bound != have:
                raise self.wrong(
                    name, f"is {have}, and '{owner}' is {bound}: one dtype is meant", TypeError
                )
        return given

    def _bind(self, name: str, given: torch.Tensor, shape: Sequence[str]) -> None:
        """Sizes are what the tensor says, or must agree with what another said."""
        sides = ", ".join(shape)
        if given.dim() != len(shape):
            raise self.wrong(name, f"is [{sides}]; its shape is {tuple(given.shape)}")
        for axis, (side, size) in enumerate(zip(shape, given.shape)):
            if size == 0:
                raise self.wrong(name, f"is empty: its shape is {tuple(given.shape)}")
            known = (
                (int(side), "") if side.isdecimal() else self.bound.setdefault(side, (size, name))
            )
            want, owner = known
            if want != size:
                why = f", and '{owner}' makes {side} {want}" if owner else f", not {want}"
                raise self.wrong(name, f"is [{sides}] and has {size} along axis {axis}{why}")

    def sizes(self, names: str) -> tuple[int, ...]:
        """Sizes that the arguments' shapes gave; the first of an argument left out is 0."""
        return tuple(int(n) if n.isdecimal() else self.bound.get(n, (0,))[0] for n in names.split())

    def dtype(self, name: str) -> str:
        """What a name for dtypes stands for in this call."""
        return self.kinds[name][0] if name in self.kinds else self.dtypes.get(name, (name,))[0]

    def check(self, holds: bool, otherwise: str, **values: Any) -> None:
        """Raises ValueError unless `holds`; `{name}` in the message is the value of that name."""
        if not holds:
            raise ValueError(f"{self.function}: {_filled(otherwise, values)}")

    def number(self, name: str, value: Any) -> torch.Tensor:
        """A number as a kernel takes it: float32 [1] on the call's device."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
            raise self.wrong(name, f"is {value!r}, not a number", TypeError)
        return _number(float(value), self.device)

    # -- tensors and kernels -----------------------------------------------------------------

    def new(self, shape: Sequence[int], dtype: str) -> torch.Tensor:
        return torch.empty(shape, dtype=getattr(torch, self.dtype(dtype)), device=self.device)

    def multiprocessors(self) -> int:
        """Of the call's device; 1 on the CPU."""
        if self.device.type == "cpu":
            return 1
        return torch.cuda.get_device_properties(self.device).multi_processor_count

    def architecture(self) -> int:
        """Of the call's device, say 90; 0 on the CPU."""
        return _device(self.device.type, self.device.index or 0)[0] or 0

    def holds(self, name: str, *conditions: tuple[bool, str, Mapping[str, Any]]) -> bool:
        """Whether all of them hold; of one that does not, what is so instead is there for `why`."""
        wrong = next((c for c in conditions if not c[0]), None)
        listed = _LISTED.get()
        if listed is not None:
            listed.reasons.append((name, _filled(wrong[1], wrong[2]) if wrong else ""))
        return wrong is None

    def fits(self, spec: str, values: Values, choices: Choices = ()) -> bool:
        """Whether `launch` would find a variant for the call's device."""
        where = self.device.type, self.device.index or 0
        return isinstance(_found(self.root, spec, _wishes(values, choices), *where), Found)

    def launch(
        self, spec: str, values: Values, choices: Choices = (), **tensors: torch.Tensor
    ) -> None:
        """Runs the variant of `spec` with these values on the tensors, named as the kernel names them.

        choices  further values, the one preferred first, each with whether it is wished for; the
                 first wish is taken that the device can hold, else the first that it can hold

        Raises NotImplementedError where there is no such variant and none can be made.
        """
        key = _wishes(values, choices)
        listed = _LISTED.get()
        where = self.root, spec, key, self.device.type, self.device.index or 0
        run = _runner(*where) if listed is None else _found(*where)
        if isinstance(run, Refused):
            words = [f"{k}={_word(v)}" for k, v in key[0]]
            raise NotImplementedError(
                f"{self.function}: no kernel of specs/{spec}.yaml with {', '.join(words)} for {self.device}: "
                f"{run.why}"
            )
        if isinstance(run, Found):
            listed.launches.append(Launch(self.root, spec, run, self.device, tensors))
        else:
            run(tensors)


@dataclass(frozen=True)
class Launch:
    """A kernel that a function would run, and on what."""

    root: Path
    spec: str
    found: Found
    device: torch.device
    tensors: Mapping[str, torch.Tensor]


@dataclass
class _Listing:
    """What a call would run, and for each condition of its spec why it does not hold, or nothing."""

    launches: list[Launch]
    reasons: list[tuple[str, str]]


_LISTED: ContextVar[_Listing | None] = ContextVar("listed", default=None)


def _listing(function: Callable[..., Any], args: tuple, named: dict[str, Any]) -> _Listing:
    found = _Listing([], [])
    before = _LISTED.set(found)
    try:
        function(*args, **named)
    finally:
        _LISTED.reset(before)
    return found


def launches(function: Callable[..., Any], *args: Any, **named: Any) -> list[Launch]:
    """The kernels that a call of a generated function runs, in order; none is compiled or run."""
    return _listing(function, args, named).launches


def why(function: Callable[..., Any], *args: Any, **named: Any) -> str:
    """Which kernels a call of a generated function runs, and which conditions of its spec chose them."""
    found = _listing(function, args, named)
    lines = [f"{name}: {'no, ' + reason if reason else 'yes'}" for name, reason in found.reasons]
    for launch in found.launches:
        values = ", ".join(f"{k}={_word(v)}" for k, v in launch.found.values)
        lines.append(f"specs/{launch.spec}.yaml ({values}): {launch.found.path.name}")
    return "\n".join(lines)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _filled(text: str, values: Mapping[str, Any]) -> str:
    """A message with `{name}` written as the value of that name."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def _pieces(ends: torch.Tensor, rows: int, total: int) -> torch.Tensor:
    """The table of `Call.pieces`; ends [parts + 1] ascend from 0 to `total`. Nothing waits for a GPU."""
    ends = ends.long()
    parts = len(ends) - 1
    slots = ends[:-1] // rows + torch.arange(parts, device=ends.device)  # ascend by 1 at least
    each = torch.arange(total // rows + parts, device=ends.device)
    part = torch.searchsorted(slots, each, right=True) - 1
    first = ends[part] + (each - slots[part]) * rows
    table = torch.stack([first, ends[part + 1]], 1)
    return torch.where((first < ends[part + 1])[:, None], table, total).int()


_MEMORY: dict[tuple, tuple[weakref.ref, int, Any]] = {}
MOST_REMEMBERED = 64


def remembered(of: torch.Tensor, key: tuple, make: Callable[[], Any]) -> Any:
    """What `make` gives for a tensor, made once for as long as the tensor is as it was."""
    if of.is_inference():  # nothing says whether it has changed
        return make()
    found = _MEMORY.get((id(of), *key))
    if found and found[0]() is of and found[1] == of._version:
        return found[2]
    if len(_MEMORY) >= MOST_REMEMBERED:
        _MEMORY.clear()
    value = make()
    _MEMORY[id(of), *key] = weakref.ref(of), of._version, value
    return value


@functools.lru_cache(maxsize=64)
def _number(value: float, device: torch.device) -> torch.Tensor:
    return torch.full((1,), value, dtype=torch.float32, device=device)


def _wishes(values: Values, choices: Choices) -> tuple[tuple[tuple[str, Any], ...], ...]:
    """What may be run, the one preferred first."""
    wished = [v for v, wish in choices if wish] + [v for v, wish in choices if not wish]
    return tuple(tuple(sorted({**values, **more}.items())) for more in wished or [{}])


def alternative(launch: Launch, values: Values) -> Found | Refused:
    """The variant with other values in place of those that a launch has."""
    wished = (tuple(sorted({**dict(launch.found.values), **values}.items())),)
    where = launch.device.type, launch.device.index or 0
    return _found(launch.root, launch.spec, wished, *where)


Wishes = tuple[tuple[tuple[str, Any], ...], ...]


@functools.cache
def _found(root: Path, spec: str, wished: Wishes, kind: str, index: int) -> Found | Refused:
    """The first wish that is checked in and that a device can run; else the first that can be made for
    it; else why the first can't."""
    arch, limit = _device(kind, index)
    for values in wished:
        if found := _checked_in(root, spec, dict(values), arch, limit):
            return found
    made = (
        fresh.variant(root.parent / "specs" / f"{spec}.yaml", dict(values), arch, limit)
        for values in wished
    )
    first = next(made)
    return next((f for f in (first, *made) if isinstance(f, Found)), first)


def _device(kind: str, index: int) -> tuple[int | None, int | None]:
    """A GPU's architecture, say 90, and the bytes of shared memory that a block may have; no limits on
    the CPU."""
    if kind == "cpu":
        return None, None
    props = torch.cuda.get_device_properties(index)
    return props.major * 10 + props.minor, props.shared_memory_per_block_optin


def _checked_in(
    root: Path, spec: str, values: Values, arch: int | None, limit: int | None
) -> Found | None:
    """A variant planned for a device's architecture, or for the newest one before it, in no more
    shared memory than a block may have. The CPU runs any."""
    fitting, _ = catalog.entries(spec, None, None, values, root)
    listed = catalog.manifest(root)
    if arch is None:
        path = min(fitting, default=None)
    else:
        planned = [
            (int(target.removeprefix("sm_")), path)
            for path in sorted(fitting)
            for target, need in listed[path]["targets"].items()
            if target.startswith("sm_") and need["dynamic"] + need["static"] <= limit
        ]
        path = max((p for p in planned if p[0] <= arch), key=lambda p: p[0], default=(0, None))[1]
    if path is None:
        return None
    e = listed[path]
    names, outputs = tuple(e["tensors"]), tuple(e["outputs"])
    return Found(root / path, e["kernel"], names, outputs, tuple(sorted(values.items())))


@functools.cache
def _runner(
    root: Path, spec: str, wished: Wishes, kind: str, index: int
) -> Callable[[Mapping[str, torch.Tensor]], None] | Refused:
    """The compiled kernel of what is found."""
    found = _found(root, spec, wished, kind, index)
    return found if isinstance(found, Refused) else compiled(found, kind, index)


@functools.cache
def compiled(
    found: Found, kind: str, index: int = 0
) -> Callable[[Mapping[str, torch.Tensor]], None]:
    """A kernel, ready for a device, as a function of its tensors by name."""
    names = found.tensors
    if kind == "cpu":
        from gdngen.verify import cpu

        on_cpu = cpu.compile(found.path)
        return lambda tensors: on_cpu.run({name: tensors[name] for name in names})
    with torch.cuda.device(index):
        kernel = catalog.load(found.path, found.kernel)()

    def run(tensors: Mapping[str, torch.Tensor]) -> None:
        with torch.cuda.device(index):
            kernel(*(tensors[name] for name in names))

    return run
