"""Plans beside what TileLang's compiler makes by its own merging.

Default merging is predicted by the same rules that plans are costed with; aggressive merging is not
modelled, so there kernels are lowered (and remembered). It is shown for its bytes alone: in TileLang
0.1.15 it overwrites tiles that loops still read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from gdngen.devices import device
from gdngen.driver import Checked
from gdngen.model.model import Kernel
from gdngen.plan import plan as planning
from gdngen.plan.plan import Plan, Planned, Wish
from gdngen.plan.registers import registers
from gdngen.pools import processes
from gdngen.render import format, render


@dataclass(frozen=True)
class Row:
    """Bytes asked for by one variant on one target; aggressive figures are None until lowered.

    author, author_aggressive   the author's order, every buffer its own, merged by the compiler
    order, order_aggressive     the planned order, likewise
    planned                     the plan
    """

    variant: str
    target: str
    author: int
    order: int
    planned: int
    author_aggressive: int | None = None
    order_aggressive: int | None = None

    @property
    def below(self) -> list[str]:
        """Where the compiler asks for less than the plan: faults of the planner."""
        return [
            name
            for name in ("author", "order", "author_aggressive", "order_aggressive")
            if (found := getattr(self, name)) is not None and found < self.planned
        ]


@dataclass(frozen=True)
class _Texts:
    row: Row
    author: str
    order: str


def rows(
    variants: Iterable[Checked], wish: Wish, targets: Iterable[str], lower: bool, folder: Path
) -> list[Row]:
    """One row a variant and target; `lower` asks the compiler for its aggressive merging too."""
    made = [_texts(v, wish, t) for v in variants for t in (list(targets) or v.kernel.targets)]
    if not lower:
        return [m.row for m in made]
    jobs = []
    for i, m in enumerate(made):
        for which in ("author", "order"):
            path = folder / f"{m.row.variant}_{m.row.target}_{which}.py"
            path.write_text(getattr(m, which))
            jobs.append((i, which, path, m.row.target))
    out = [m.row for m in made]
    with processes(2) as pool:
        for (i, which, _, _), asked in zip(jobs, pool.map(_aggressive, [j[2:] for j in jobs])):
            out[i] = replace(out[i], **{f"{which}_aggressive": asked})
    return out


def _aggressive(job: tuple[Path, str]) -> int | None:
    from gdngen.verify import lowering

    try:
        return lowering.cached_lower(*job, "aggressive").bytes
    except lowering.LoweringError:
        return None


def _texts(v: Checked, wish: Wish, target: str) -> _Texts:
    planned = planning.plan(v.kernel, v.found, wish, target)
    apart = Wish("separate")
    author = planning.plan(v.kernel, v.found, apart, target)
    order = planning.plan(planned.kernel, planned.found, apart, target)
    row = Row(v.kernel.module, target, author.plan.asked, order.plan.asked, planned.plan.asked)
    return _Texts(row, _text(author), _text(order))


def _text(p: Planned) -> str:
    return format.formatted(render.render(p), p.kernel.module)


def differences(v: Checked, one: Planned, other: Planned, wish: Wish) -> list[str]:
    """What the second plan does that the first doesn't, in bytes and blocks per SM."""
    from gdngen.show.tables import sharing

    first, second = one.plan, other.plan
    held = [blocks(p, wish, v.kernel) for p in (first, second)]
    lines = [f"{v.kernel.module} ({second.target}): {first.policy} {first.asked:,} bytes, "
             f"{second.policy} {second.asked:,} bytes ({second.asked - first.asked:+,}); "
             f"{held[0]} blocks per SM, {held[1]} ({held[1] - held[0]:+})"]  # fmt: skip
    told = set(sharing(one)) | {c.text for c in first.changes}
    lines += [f"  shared: {s}" for s in sharing(other) if s not in told]
    lines += [f"  {c.kind}: {c.text}" for c in second.changes if c.text not in told]
    return lines


def blocks(plan: Plan, wish: Wish, kernel: Kernel) -> int:
    """Blocks per SM that a plan of a kernel leaves room for."""
    on = device(wish.device or plan.target)
    count = registers(kernel, plan.target).count
    return on.blocks_per_sm(plan.asked, kernel.threads, count)
