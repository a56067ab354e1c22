"""Is a rendered module right? Run its very text, compare; lower it, compare bytes.

Every output is compared with the spec's own meaning (`interpret.py`, float64) and with the named
reference where the spec has one. On the CPU the text runs by way of `cpu.py`,
or of `coroutines.py` where the kernel has roles; on a GPU as it ships.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdngen import references
from gdngen.model.model import Kernel
from gdngen.model.types import FLOATS
from gdngen.plan.plan import Plan
from gdngen.verify import hopper, samples
from gdngen.verify.interpret import UNWRITTEN, Uninterpretable, interpret

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]
    Run = Callable[[Tensors], None]

# Largest error that passes, by device and by the coarsest float among a kernel's tensors and tiles.
# One rounding of a result is off by at most half a unit in the last place: 4.9e-4 of it in float16,
# 3.9e-3 in bfloat16, 6.0e-8 in float32. On the CPU sums are float32 and so are bfloat16 tiles, which
# leaves that one rounding of a 16-bit result, and of float32 what sums over some hundred terms lose.
# Measured over every variant of specs/: 4.1e-4, 3.4e-3 and 3.8e-7; so the factors are 3, 3 and 10.
# On a GPU 16-bit tiles are rounded at every store, and tensor cores take float32 operands as TF32,
# whose mantissa is as long as float16's: twice what 16 bits get on the CPU, and that for float32 too.
# A missing factor, row or barrier is off by 1e-1 and more, and one stale element shows in `worst`.
TOLERANCE = {
    "cpu": {"float64": 4e-6, "float32": 4e-6, "float16": 1.5e-3, "bfloat16": 1e-2},
    "cuda": {"float64": 4e-6, "float32": 3e-3, "float16": 3e-3, "bfloat16": 2e-2},
}
PRECISION = ("float64", "float32", "float16", "bfloat16")  # the coarsest last


@dataclass(frozen=True)
class Comparison:
    """One output of one run against one right answer.

    error     ||out - ref|| / ||ref||, over all elements; absolute where the reference is 0
    worst     max |out - ref| / max |ref|: one wrong element shows in this one
    missing   elements that the kernel never wrote, or that are NaN or infinite and should not be
    """

    trial: str
    output: str
    against: str
    error: float
    worst: float
    missing: int
    tolerance: float

    @property
    def ok(self) -> bool:
        return not self.missing and self.error <= self.tolerance and self.worst <= self.tolerance

    def __str__(self) -> str:
        lost = f", {self.missing:,} elements unwritten or NaN" if self.missing else ""
        return (
            f"{self.output} against {self.against} at {self.trial}: off by {self.error:.1e}, "
            f"at worst {self.worst:.1e} (at most {self.tolerance:.1e}){lost}"
        )


@dataclass(frozen=True)
class Bytes:
    """Shared bytes of a block on a target: planned, and asked for by the lowered kernel.

    `asked` is None where the compiler refuses the kernel; `refusal` says why.
    """

    target: str
    planned: int
    asked: int | None
    refusal: str = ""

    @property
    def ok(self) -> bool:
        return self.asked == self.planned

    def __str__(self) -> str:
        asked = self.refusal if self.asked is None else f"{self.asked:,} asked for"
        return f"{self.target}: {self.planned:,} bytes planned, {asked}"


@dataclass(frozen=True)
class Code:
    """What ptxas says of a module on a target: registers a thread, bytes a thread of spills."""

    target: str
    registers: int
    spills: int

    def __str__(self) -> str:
        spilled = f" and {self.spills:,} bytes of spills" if self.spills else ""
        return f"{self.registers} registers{spilled} on {self.target}"


@dataclass(frozen=True)
class Verdict:
    """What became of one module. `notes` are no failures; `failures` are, beside the comparisons.

    `code` is of the targets that nvcc compiles for, where it is at hand and was asked.
    """

    module: str
    device: str
    comparisons: tuple[Comparison, ...]
    bytes: tuple[Bytes, ...]
    failures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    code: tuple[Code, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems()

    def problems(self) -> tuple[str, ...]:
        """One line for each thing that is wrong."""
        wrong = [str(c) for c in (*self.comparisons, *self.bytes) if not c.ok]
        return (*self.failures, *wrong)

    def worst(self) -> float:
        """The largest error of all comparisons; NaN if any is."""
        errors = [e for c in self.comparisons for e in (c.error, c.worst)]
        return math.nan if any(map(math.isnan, errors)) else max(errors, default=0.0)

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok, "problems": list(self.problems())}


def verify(
    kernel: Kernel,
    module_path: str | Path,
    plans: Mapping[str, Plan],
    device: str = "cpu",
    trials: tuple[samples.Trial, ...] | None = None,
    compiled: bool = False,
) -> Verdict:
    """Run the module at `module_path` on `device` ('cpu' or 'cuda') and lower it for every target.

    kernel   the author's program; the module may hold another that a planner made of it
    plans    target -> its plan
    trials   sizes and inputs to run on; `samples.trials` where left out
    compiled whether nvcc is asked for registers and spills too
    """
    path = Path(module_path)
    asked = tuple(_bytes(path, target, plan) for target, plan in plans.items())
    code = tuple(c for target in plans if compiled and (c := _code(path, target)))
    unsafe = _unsafe(kernel, path, plans)
    try:
        if device == "cpu" and kernel.roles:
            run, notes = _side_by_side(kernel, path)
        else:
            run, notes = (_cpu if device == "cpu" else _cuda)(path)
        compared, failures = [], []
        for trial in samples.trials(kernel) if trials is None else trials:
            tensors = samples.inputs(kernel, trial.sizes, step=trial.step)
            answers = right_answers(kernel, tensors, trial.sizes)
            run(tensors)
            for against, answer in answers.items():
                compared += [
                    compare(kernel, trial, name, tensors[name], against, right, device)
                    for name, right in answer.items()
                ]
            compared_names = {name for answer in answers.values() for name in answer}
            failures += [
                f"{t.name} at {trial}: nothing to compare it with; name a reference in the spec"
                for t in kernel.tensors
                if t.role != "in" and t.name not in compared_names
            ]
    except Exception as e:  # the compiler's errors are of many types; any of them fails the module
        reason = f"{type(e).__name__}: {str(e).strip() or 'no message'}"
        failures = (*unsafe, f"can't be checked: {reason}")
        return Verdict(kernel.module, device, (), asked, failures, code=code)
    return Verdict(kernel.module, device, tuple(compared), asked, (*unsafe, *failures), notes, code)


def right_answers(kernel: Kernel, tensors: Tensors, sizes: Mapping[str, int]) -> dict[str, Tensors]:
    """Every right answer that there is for these inputs: its name -> the outputs in float64."""
    found: dict[str, Any] = {}
    if kernel.reference:
        reference = references.get(kernel.reference)
        if lacking := reference.lacks([t.name for t in kernel.tensors] + list(kernel.dims)):
            raise ValueError(f"{reference.name} is about {', '.join(lacking)}, left out here")
        outputs = reference(tensors, {**dict(kernel.values), **sizes})
        found[reference.name] = {n: out for n, out in outputs.items() if kernel.tensor(n)}
    try:
        found["its meaning"] = interpret(kernel, tensors, sizes)
    except Uninterpretable:  # raw statements: the reference alone
        pass
    return found


def compare(
    kernel: Kernel,
    trial: samples.Trial,
    name: str,
    out: torch.Tensor,
    against: str,
    right: torch.Tensor,
    device: str = "cpu",
) -> Comparison:
    """An output, as the kernel left it, against float64 values of the same shape."""
    import torch

    exact = kernel.tensor(name).dtype not in FLOATS
    out, right = out.detach().cpu().double(), right.double()
    if exact:
        missing = (out == UNWRITTEN) & (right != UNWRITTEN)
    else:
        missing = ~torch.isfinite(out) & torch.isfinite(right) | torch.isnan(out)
    if kernel.tensor(name).partly:  # what nobody should write, nobody has written
        left = right == UNWRITTEN if exact else torch.isnan(right)
        missing = torch.where(left, out != right if exact else ~torch.isnan(out), missing)
        out, right = (torch.where(left, 0.0, x) for x in (out, right))
    norm, most = float(right.norm()) or 1.0, float(right.abs().max()) or 1.0
    off = out - right
    return Comparison(
        str(trial), name, against, float(off.norm()) / norm, float(off.abs().max()) / most,
        int(missing.sum()), 0.0 if exact else tolerance(kernel, device),
    )  # fmt: skip


def tolerance(kernel: Kernel, device: str) -> float:
    """By the coarsest float that a kernel's tensors and tiles have."""
    floats = [b.dtype for b in (*kernel.tensors, *kernel.buffers) if b.dtype in FLOATS]
    return TOLERANCE[device][max(floats, key=PRECISION.index, default="float64")]


def on_gpu() -> bool:
    """Whether this machine has a GPU that kernels can run on."""
    import torch

    return torch.cuda.is_available()


def _cpu(path: Path) -> tuple[Run, tuple[str, ...]]:
    from gdngen.verify import cpu

    kernel = cpu.compile(path)
    notes = ("bfloat16 is stored as float32 on the CPU",) if kernel.bf16_as_float32 else ()
    return kernel.run, notes


def _side_by_side(kernel: Kernel, path: Path) -> tuple[Run, tuple[str, ...]]:
    """A kernel of roles, which TileLang has for GPUs alone."""
    from gdngen.verify import coroutines

    return lambda tensors: coroutines.run(kernel, path, tensors), coroutines.NOTES


def _cuda(path: Path) -> tuple[Run, tuple[str, ...]]:
    from gdngen.verify import lowering

    kernel = lowering.load(path)()

    def run(tensors: Tensors) -> None:
        """Outputs come back into the CPU tensors."""
        import torch

        there = {name: tensor.cuda() for name, tensor in tensors.items()}
        kernel(*there.values())
        torch.cuda.synchronize()
        for name, tensor in there.items():
            tensors[name].copy_(tensor)

    return run, ()


def _unsafe(kernel: Kernel, path: Path, plans: Mapping[str, Plan]) -> tuple[str, ...]:
    """Storage that a pipelined loop's loads may overwrite; what is not lowered is told elsewhere."""
    from gdngen.verify import lowering

    found: tuple[str, ...] = ()
    for target, plan in plans.items():
        if hopper.applies(kernel, target):
            try:
                lowered = lowering.cached_lower(path, target)
            except lowering.LoweringError:
                continue
            found += hopper.problems(kernel, plan.slots, lowered)
    return found


def _bytes(path: Path, target: str, plan: Plan) -> Bytes:
    from gdngen.verify import lowering

    try:
        return Bytes(target, plan.asked, lowering.cached_lower(path, target).bytes)
    except lowering.LoweringError as e:
        return Bytes(target, plan.asked, None, str(e))


def _code(path: Path, target: str) -> Code | None:
    """None where nvcc doesn't compile for the target, is not at hand, or the module isn't lowered."""
    from gdngen.verify import lowering

    if not target.startswith("sm_"):
        return None
    try:
        found = lowering.cached_registers(lowering.cached_lower(path, target).source, target)
    except lowering.LoweringError:
        return None  # what is refused is told with the bytes
    return found and Code(target, found.registers, found.spills)
