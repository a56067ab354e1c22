"""Whole forwards and steps of decoding, judged and timed beside other packages' functions.

Every contender is a function with FLA's arguments and is called with the very same tensors. What is
right comes from the recurrence, a token at a time in float64 (`recurrence.py`), and is compared over
all outputs of the timed shape itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from gdngen import catalog
from gdngen.bench import bench, gpu, peers, timings
from gdngen.bench.building import Built
from gdngen.bench.timings import Row, Run, Skipped
from gdngen.errors import GdngenError, did_you_mean
from gdngen.model.model import BYTES
from gdngen.verify import recurrence, verify

if TYPE_CHECKING:
    import torch

    from gdngen import runtime

    Given = dict[str, Any]

PIPELINE = "gated_delta_rule"  # the spec of ours
FUNCTIONS = {"forward": "chunk_gated_delta_rule", "decode": "fused_recurrent_gated_delta_rule"}
DTYPES = ("bfloat16", "float16", "float32")
DEVICE = "cuda"
NUMBERS = ("usual", "no_decay", "strong_decay", "same_keys")
# Steps of a log gate: so weak that a state outlives its chunk; so strong that none does.
MILD, STRONG = 0.1, 20.0


@dataclass(frozen=True)
class Case:
    """A call: which function, and on what.

    B, H, HV, T, DK, DV   sizes, as FLA names them: H heads of keys, HV of values
    N         where not 0, so many sequences of random lengths, some empty, lie in one batch
    states    whether there is a state in and one out; a step of decoding has both
    norm      whether rows of q and k are normalised inside
    numbers   one of NUMBERS
    """

    kind: str
    B: int = 2
    H: int = 32
    HV: int = 32
    T: int = 8192
    DK: int = 128
    DV: int = 128
    io: str = "bfloat16"
    N: int = 0
    states: bool = False
    norm: bool = False
    numbers: str = "usual"

    @property
    def variant(self) -> str:
        words = [FUNCTIONS[self.kind], f"k{self.DK}", f"v{self.DV}", self.io]
        words += ["norm"] if self.norm else []
        words += ["states"] if self.states and self.kind == "forward" else []
        words += [self.numbers] if self.numbers != NUMBERS[0] else []
        return "_".join(words)

    @property
    def shape(self) -> str:
        sizes = f"B={self.B},H={self.H},HV={self.HV},T={self.T}"
        return sizes + (f",N={self.N}" if self.N else "")

    @property
    def sequences(self) -> int:
        return self.N or self.B

    @property
    def least(self) -> int:
        """The fewest bytes that must move: arguments read once, results written once."""
        keys, values = self.B * self.T * self.H, self.B * self.T * self.HV
        rows = 2 * keys * self.DK + 2 * values * self.DV
        state = self.sequences * self.HV * self.DK * self.DV if self.states else 0
        return BYTES[self.io] * rows + 4 * (2 * values + 2 * state)


SIZES = tuple(f.name for f in fields(Case) if f.type == "int")


def case(kind: str, sizes: dict[str, int], io: str) -> Case:
    """A case of these sizes, usual ones for the rest: one token and states for decoding.

    Raises GdngenError for a size that there is none of, and for a dtype that is not served.
    """
    if io not in DTYPES:
        raise GdngenError(
            f"error: --set io={io}{did_you_mean(io, DTYPES)}: any of {' '.join(DTYPES)}"
        )
    for name in sizes:
        if name not in SIZES:
            raise GdngenError(
                f"error: --shape: {FUNCTIONS[kind]} has no size '{name}'{did_you_mean(name, SIZES)}\n"
                f"  help: there are {' '.join(SIZES)}"
            )
    usual = {"T": 1, "states": True} if kind == "decode" else {}
    if "H" in sizes:
        usual["HV"] = sizes["H"]
    if "DK" in sizes:
        usual["DV"] = sizes["DK"]
    return Case(kind, io=io, **{**usual, **sizes})


# -- arguments and what is right -------------------------------------------------------------------


def inputs(c: Case, seed: int = 0, device: str | None = None) -> Given:
    """Arguments by name, as a model has them: rows of q and k of length 1 unless normalised inside."""
    import torch

    device = device or DEVICE
    source = torch.Generator(device).manual_seed(seed)
    like: dict[str, Any] = {"generator": source, "device": device}
    kind = getattr(torch, c.io)

    def rows(heads: int, width: int) -> torch.Tensor:
        return torch.randn(c.B, c.T, heads, width, **like)

    q, k = rows(c.H, c.DK), rows(c.H, c.DK)
    if not c.norm:
        q, k = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
    beta = torch.rand(c.B, c.T, c.HV, **like)
    g = -MILD * torch.rand(c.B, c.T, c.HV, **like)
    if c.numbers in ("no_decay", "same_keys"):
        g = torch.zeros_like(g)
    if c.numbers == "strong_decay":
        g = torch.full_like(g, -STRONG)
    if c.numbers == "same_keys":
        k, beta = k[:, :1].expand_as(k).contiguous(), torch.ones_like(beta)
    given: Given = {
        "q": q.to(kind),
        "k": k.to(kind),
        "v": rows(c.HV, c.DV).to(kind),
        "g": g,
        "beta": beta,
    }
    if c.states:
        given["initial_state"] = torch.randn(c.sequences, c.HV, c.DK, c.DV, **like)
    given["output_final_state"] = c.states
    if c.norm:
        given["use_qk_l2norm_in_kernel"] = True
    if c.N:
        cuts = torch.randint(0, c.T + 1, (c.N - 1,), **like).sort().values
        ends = [cuts.new_zeros(1), cuts, cuts.new_full((1,), c.T)]
        given["cu_seqlens"] = torch.cat(ends)
    return given


def right(c: Case, given: Given) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and states in float64, by the recurrence, where the arguments are."""
    import torch

    tensors = [given[name] for name in ("q", "k", "v", "g", "beta")]
    first = given.get("initial_state")
    run = partial(recurrence.gated_delta_rule, l2norm=c.norm, device=tensors[0].device.type)
    if "cu_seqlens" not in given:
        return run(*tensors, initial_state=first)
    ends = given["cu_seqlens"].tolist()
    parts = []
    for n, (start, stop) in enumerate(zip(ends, ends[1:])):
        state = None if first is None else first[n : n + 1]
        parts.append(run(*(x[:, start:stop] for x in tensors), initial_state=state))
    return torch.cat([o for o, _ in parts], 1), torch.cat([s for _, s in parts])


def off(out: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    """||out - want|| / ||want||, and the largest error of an element over the largest value; both inf
    where an element is not finite."""
    found = out.detach().to(want.device).double()
    if found.shape != want.shape or not bool(found.isfinite().all()):
        return float("inf"), float("inf")
    found = found - want
    norm, most = float(want.norm()) or 1.0, float(want.abs().max()) or 1.0
    return float(found.norm()) / norm, float(found.abs().max()) / most


# -- contenders ------------------------------------------------------------------------------------


@cache
def ours(kind: str) -> Callable[..., Any]:
    """The generated function."""
    path = catalog.GENERATED / f"{PIPELINE}.py"
    found = importlib.util.spec_from_file_location(f"gdngen_generated_{PIPELINE}", path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return getattr(module, FUNCTIONS[kind])


def fla(c: Case) -> Callable[..., Any]:
    """FLA's Triton kernels: the switch, read when fla is imported, keeps other backends out."""
    os.environ[peers.FLA_SWITCH] = "1"
    backends = importlib.import_module("fla.backends")
    if not getattr(backends, "_DISPATCH_DISABLED", False):
        raise ImportError(f"fla was imported before {peers.FLA_SWITCH} was set")
    file = "chunk" if c.kind == "forward" else "fused_recurrent"
    module = importlib.import_module(f"fla.ops.gated_delta_rule.{file}")
    return getattr(module, FUNCTIONS[c.kind])


def _flashqla(c: Case) -> Callable[..., Any]:
    return importlib.import_module("flash_qla").chunk_gated_delta_rule


def _fla_refuses(c: Case) -> str:
    return "it takes 16-bit tensors" if c.kind == "forward" and c.io == "float32" else ""


def _flashqla_refuses(c: Case) -> str:
    if c.kind != "forward":
        return "it has no function for single tokens"
    if c.io == "float32" or (c.DK, c.DV) != (128, 128):
        return "it takes 16-bit tensors with dims 128 and 128"
    return "it is timed on whole batches without states" if c.N or c.states or c.norm else ""


@dataclass(frozen=True)
class Other:
    """A package whose functions are called as ours are."""

    name: str
    package: str
    what: str
    refuses: Callable[[Case], str]
    rule: Callable[[Case], Callable[..., Any]]


OTHERS = (
    Other("fla", "fla", "Triton", _fla_refuses, fla),
    Other("flashqla", "flash_qla", "its own kernels", _flashqla_refuses, _flashqla),
)


def contenders(
    c: Case, wanted: str
) -> tuple[list[tuple[str, str, Callable[..., Any]]], list[Skipped]]:
    """(who, what, function) of all that take part, ours first; and who doesn't, with the reason.

    wanted  names of peers, 'all' or 'none', as `bench --peers` takes them
    """
    taken, skipped = [(timings.OURS, FUNCTIONS[c.kind], ours(c.kind))], []
    for other in OTHERS:
        if wanted != "all" and other.name not in wanted.split(","):
            continue
        why = other.refuses(c)
        if not why and not peers.installed(other.package):
            why = f"the package {other.package} is not installed"
        try:
            if not why:
                taken.append((other.name, f"{FUNCTIONS[c.kind]}, {other.what}", other.rule(c)))
        except Exception as e:  # whatever a foreign package raises while it is imported
            why = f"can't be used here: {type(e).__name__}: {e}"
        if why:
            skipped.append(Skipped(c.variant, c.shape, other.name, why))
    return taken, skipped


# -- judged and timed ------------------------------------------------------------------------------


def group(
    c: Case, wanted: str, machine: dict[str, str | int], rate: float, timed: bool = True
) -> tuple[list[Row], list[Skipped]]:
    """Ours and its peers on one case, judged, and then, unless not wanted, timed in turn."""
    import torch

    taken, skipped = contenders(c, wanted)
    sets = gpu.sets(c.least, int(machine["l2"])) if timed else 1
    drawn = [inputs(c, seed) for seed in range(sets)]
    want = right(c, drawn[0])
    rows, ready = [], []
    for who, what, rule in taken:
        row = Row(c.variant, c.shape, who, what, (), c.least, timings.floor(c.least, rate))
        try:
            with torch.no_grad():
                row = judged(row, c, rule(**drawn[0]), want)
            ready.append((len(rows), [_quiet(rule, given) for given in drawn]))
        except Exception as e:  # a peer may fail in any way, and a kernel may crash
            row = replace(row, wrong=bench.message(e))
        rows.append(row)
    return bench.timed(rows, ready) if timed else rows, skipped


def _quiet(rule: Callable[..., Any], given: Given) -> Callable[[], Any]:
    """A call that keeps nothing for a backward."""
    import torch

    return partial(torch.no_grad()(rule), **given)


def judged(row: Row, c: Case, found: tuple, want: tuple[torch.Tensor, torch.Tensor]) -> Row:
    """The row with the errors of a call's results."""
    named = [("o", found[0], want[0])]
    named += [("final_state", found[1], want[1])] if c.states else []
    errors = {name: off(out, right) for name, out, right in named}
    most = verify.TOLERANCE["cuda"][c.io]
    return replace(
        row,
        error=max(e for e, _ in errors.values()),
        worst=max(w for _, w in errors.values()),
        checked="everything",
        wrong="; ".join(
            f"{name} is off by {e:.1e}, at worst {w:.1e} (at most {most:.1e})"
            for name, (e, w) in errors.items()
            if not (e <= most and w <= most)
        ),
    )


def run(
    cases: Iterable[Case],
    wanted: str,
    progress: Callable[[str], None] = lambda _: None,
    timed: bool = True,
) -> Run:
    """Every case beside the peers wanted."""
    machine, rate = gpu.machine(), gpu.copy_rate()
    rows: list[Row] = []
    missed: list[Skipped] = []
    for c in cases:
        progress(f"{c.variant} at {c.shape}")
        more, skipped = group(c, wanted, machine, rate, timed)
        rows, missed = rows + more, missed + skipped
    return Run(machine, rate, tuple(rows), tuple(missed))


def slower(rows: Iterable[Row], than: str = "fla") -> list[str]:
    """Where a peer takes less time than ours; a line each."""
    out = []
    for (variant, shape), same in timings.groups(rows).items():
        times = {r.who: r.ms for r in same if r.rounds}
        if than in times and timings.OURS in times and times[than] < times[timings.OURS]:
            ratio = times[timings.OURS] / times[than]
            out.append(f"{variant} at {shape}: {ratio:.2f} times as long as {than}")
    return out


def coarser(rows: Iterable[Row], than: str = "fla") -> list[str]:
    """Where ours is further off than a peer; a line each."""
    out = []
    for (variant, shape), same in timings.groups(rows).items():
        errors = {r.who: r.error for r in same if r.error is not None}
        if than in errors and errors.get(timings.OURS, 0.0) > errors[than]:
            out.append(
                f"{variant} at {shape}: off by {errors[timings.OURS]:.2e}, {than} by {errors[than]:.2e}"
            )
    return out


# -- kernel by kernel ------------------------------------------------------------------------------


def launches(c: Case, given: Given) -> list[runtime.Launch]:
    """The kernels that ours runs for a case."""
    import torch

    from gdngen import runtime

    with torch.no_grad():
        return runtime.launches(ours(c.kind), **given)


def steps(
    c: Case,
    rate: float,
    built: dict[str, Built],
    others: dict[str, list[dict[str, Any]]] = {},
) -> list[Row]:
    """Each kernel of ours by itself: its time, against the bytes of its tensors.

    built    names of modules -> what their compiler said
    others   specs -> values to try in place of those that the function chose, on the same tensors
    """
    from gdngen import runtime

    given = inputs(c)
    rows = []
    for launch in launches(c, given):
        least = sum(t.numel() * t.element_size() for t in launch.tensors.values())
        base = Row(c.variant, c.shape, timings.OURS, "", (), least, timings.floor(least, rate))
        rows.append(_step(base, launch, launch.found, built, None))
        before = {name: launch.tensors[name].clone() for name in launch.found.outputs}
        for values in others.get(launch.spec, []):
            found = runtime.alternative(launch, values)
            row = replace(base, what=" ".join(f"{k}={v}" for k, v in values.items()))
            if isinstance(found, runtime.Refused):
                rows.append(replace(row, who=launch.spec, wrong=found.why))
            elif found.path != launch.found.path:
                rows.append(_step(row, launch, found, built, before))
    return rows


def _step(
    row: Row, launch: runtime.Launch, found: runtime.Found, built: dict[str, Built], before
) -> Row:
    """One kernel timed on a launch's tensors; and how far it is off what the chosen one left there."""
    from gdngen import runtime

    row = replace(row, who=found.path.stem, what=row.what or launch.spec)
    try:
        one = built.get(found.path.stem)
        row = replace(row, code=bench.code(one, None))
        call = partial(runtime.compiled(found, DEVICE), launch.tensors)
        for name in before or ():
            launch.tensors[name].fill_(float("nan"))
        call()
        if before is not None:
            errors = [
                off(launch.tensors[name], t.double())[0] for name, t in before.items() if t.numel()
            ]
            row = replace(row, error=max(errors, default=0.0))
        return replace(row, rounds=tuple(gpu.median([call]) for _ in range(bench.ROUNDS)))
    except Exception as e:
        return replace(row, wrong=bench.message(e))
