"""Hard numbers: how far off prepare kernels and whole forwards are, beside others, on the same inputs.

What is right comes from a triangular solve in float64 (`references.wy_prepare`) and from the token
recurrence (`verify.recurrence`), of the very inputs in their own dtypes. On a machine without a GPU the
kernels run through TileLang's `c` target, and what needs a GPU says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdngen import catalog, driver
from gdngen.bench import peers, timings, whole
from gdngen.model.model import Kernel
from gdngen.resources import SPECS
from gdngen.verify import hard, recurrence

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]
    Run = Callable[[Tensors], Tensors]  # inputs -> outputs, in the kernel's layout

CHUNK = 64
NEUMANN, BLOCKED, FLA = "neumann", "blocked", "fla"
SPECS_OF = {"prepare_blocked": BLOCKED, "prepare": NEUMANN}
NO_GPU = "not run: no GPU"


@dataclass(frozen=True)
class Row:
    """A case, and how far off somebody was: `errors` by output, or `why` there are none."""

    what: str  # prepare or forward
    dtype: str
    dim: int
    case: str
    who: str
    errors: tuple[tuple[str, float], ...] = ()
    why: str = ""


def measured(dtypes: Iterable[str], dims: Iterable[int], gpu: bool) -> Iterator[Row]:
    """Every case, prepared and as a whole forward, by everybody; of widths whose kernels are checked in."""
    for dtype in dtypes:
        for dim in dims:
            if any(_variant(spec, dtype, dim, gpu) is None for spec in SPECS_OF):
                continue
            yield from _prepared(dtype, dim, gpu)
            yield from _forwards(dtype, dim, gpu)


def dumps(rows: Iterable[Row], machine: dict[str, Any]) -> str:
    """The rows as strict JSON, and where they were measured."""
    data = {"machine": machine, "numerics": [asdict(r) for r in rows]}
    return json.dumps(timings.strict(data), indent=1, allow_nan=False) + "\n"


# -- prepare ---------------------------------------------------------------------------------------


def _prepared(dtype: str, dim: int, gpu: bool) -> Iterator[Row]:
    runs: list[tuple[str, Kernel, Run | None, str]] = []
    for spec, who in SPECS_OF.items():
        kernel, path = _variant(spec, dtype, dim, gpu)
        runs.append((who, kernel, _ours(kernel, path, gpu), ""))
    blocked = runs[0][1]
    found = _fla(blocked) if gpu else NO_GPU
    runs.append(
        (FLA, blocked, None, found) if isinstance(found, str) else (FLA, blocked, found, "")
    )
    for name, case in hard.CASES.items():
        for who, kernel, run, why in runs:
            row = Row("prepare", dtype, dim, name, who)
            if run is None:
                yield _told(row, why)
                continue
            tensors = hard.inputs(case, kernel)
            try:
                out = run(tensors)
            except Exception as e:  # a peer may refuse what it does not serve
                yield _told(row, f"{type(e).__name__}: {e}".splitlines()[0])
                continue
            want = {n: x for n, x in hard.right(kernel, tensors).items() if n in out}
            yield _off(row, hard.off(want, out, tensors["v"]))


def _variant(spec: str, dtype: str, dim: int, gpu: bool) -> tuple[Kernel, Path] | None:
    """The checked-in variant for [B, H, T, D] and the device."""
    wish = {"BC": CHUNK, "DK": dim, "DV": dim, "io": dtype}
    wish |= {"layout": "bhtd", "EACH": 1, "G": 1, "sum": "given", "outputs": "Awu"} if spec == "prepare_blocked" else {}  # fmt: skip
    text = {name: str(value) for name, value in wish.items()}
    one, *_ = driver.load(SPECS / f"{spec}.yaml", text).variants
    folder = catalog.GENERATED / spec
    paths = [folder / f"{one.kernel.module}{end}.py" for end in (("_sm_90", "") if gpu else ("",))]
    found = next((path for path in paths if path.exists()), None)
    return found and (one.kernel, found)


def _ours(kernel: Kernel, path: Path, gpu: bool) -> Run:
    outputs = [t.name for t in kernel.tensors if t.role == "out"]
    if gpu:
        loaded = catalog.load(path, kernel.name)()

        def run(tensors: Tensors) -> Tensors:
            there = {name: t.cuda() for name, t in tensors.items()}
            loaded(*there.values())
            return {name: there[name].cpu() for name in outputs}

        return run
    from gdngen.verify import cpu

    compiled = cpu.compile(path)

    def here(tensors: Tensors) -> Tensors:
        compiled.run(tensors)
        return {name: tensors[name] for name in outputs}

    return here


def _fla(kernel: Kernel) -> Run | str:
    """FLA's kernels on the inputs of ours; or why not."""
    from gdngen.bench import gpu

    (peer,) = peers.chosen(FLA)
    found = peers.contender(peer, kernel, gpu.target())
    if isinstance(found, str):
        return found

    def run(tensors: Tensors) -> Tensors:
        bound = found.bind({name: t.cuda() for name, t in tensors.items()})
        return {name: t.cpu() for name, t in bound.outputs(bound.call()).items()}

    return run


# -- whole forwards --------------------------------------------------------------------------------


def _forwards(dtype: str, dim: int, gpu: bool) -> Iterator[Row]:
    import torch

    kernel, _ = _variant("prepare_blocked", dtype, dim, gpu)
    case = whole.case("forward", {"DK": dim}, dtype)
    for name, made in hard.CASES.items():
        tensors = hard.inputs(made, kernel)
        k, v, beta = (tensors[n].transpose(1, 2).contiguous() for n in ("k", "v", "beta"))
        g = hard.unsummed(tensors["g"], CHUNK).transpose(1, 2).contiguous()
        source = torch.Generator().manual_seed(1)
        q = hard.unit(torch.randn(k.shape, generator=source)).to(k.dtype)
        want, _ = recurrence.gated_delta_rule(q, k, v, g, beta)
        for who in (timings.OURS, FLA):
            row = Row("forward", dtype, dim, name, who)
            if who == FLA and not gpu:
                yield _told(row, NO_GPU)
                continue
            try:
                call = whole.ours("forward") if who == timings.OURS else whole.fla(case)
                there = [x.cuda() if gpu else x for x in (q, k, v, g, beta)]
                with torch.no_grad():
                    o = call(*there)[0].cpu()
            except Exception as e:
                yield _told(row, f"{type(e).__name__}: {e}".splitlines()[0])
                continue
            yield _off(row, hard.off({"o": want}, {"o": o}, v))


def _off(row: Row, errors: dict[str, float]) -> Row:
    return Row(row.what, row.dtype, row.dim, row.case, row.who, tuple(sorted(errors.items())))


def _told(row: Row, why: str) -> Row:
    return Row(row.what, row.dtype, row.dim, row.case, row.who, (), why)


# -- the page --------------------------------------------------------------------------------------


def markdown(found: dict[str, Any], what: str, dtype: str) -> str:
    """A table of the worst error of any output: a line a case, a column for each of `who`."""
    rows = [r for r in found["numerics"] if (r["what"], r["dtype"]) == (what, dtype)]
    columns = list(dict.fromkeys((r["who"], r["dim"]) for r in rows))
    cases = list(dict.fromkeys(r["case"] for r in rows))
    cells = {(r["case"], r["who"], r["dim"]): _cell(r) for r in rows}
    head = ["case", *(f"{who}, D={dim}" for who, dim in columns)]
    lines = [head, ["---", *["---:"] * len(columns)]]
    lines += [[case, *(cells.get((case, *c), "-") for c in columns)] for case in cases]
    machine = ", ".join(f"{k} {v}" for k, v in found["machine"].items())
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n{machine}.\n"


def _cell(r: dict[str, Any]) -> str:
    if r["why"]:
        return r["why"]
    worst = max(float(e) for _, e in r["errors"])
    return "not finite" if math.isinf(worst) or math.isnan(worst) else f"{worst:.1e}"
