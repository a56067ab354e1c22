"""What the command line shows of plans: rows and sentences, no printing."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gdngen import plan as planning
from gdngen.devices import Device
from gdngen.driver import Checked
from gdngen.lean import Proof
from gdngen.plan import Plan, Planned, Wish
from gdngen.registers import registers
from gdngen.storage import Slot


def overview(v: Checked, wish: Wish, target: str) -> dict[str, Planned]:
    """Every policy's plan of a variant, side by side."""
    return {p: planning.plan(v.kernel, v.found, replace(wish, policy=p), target) for p in planning.POLICIES}


def sharing(p: Planned) -> list[str]:
    """'k_beta, v_beta on P (P is dead after neumann)' for every slot with several tenants."""
    out = []
    for slot in p.plan.slots:
        if len(slot.tenants) > 1:
            first, *rest = slot.tenants
            dead = ", ".join(f"{t} is dead after {p.found.stages(t)[1]}" for t in slot.tenants[:-1])
            out.append(f"{', '.join(rest)} on {first} ({dead})")
    return out


def plan_row(v: Checked, plans: dict[str, Planned], wish: Wish, on: Device) -> dict:
    """One row of `gdngen plan`, as data; bytes everywhere."""
    chosen = plans[wish.policy]
    plan, proof = chosen.plan, chosen.plan.proof
    regs = registers(v.kernel, plan.target)
    return {
        "variant": v.kernel.module,
        "target": plan.target,
        "device": on.name,
        "policy": wish.policy,
        "objective": wish.objective,
        "storage": {name: sum(s.bytes for s in p.plan.slots) for name, p in plans.items()},
        "asked": plan.asked,
        "dynamic": plan.dynamic,
        "static": plan.static,
        "compiler_merging": "on" if plan.merged else "off",
        "lower_bound": proof.live if proof else plan.bound,
        "limit": on.limit,
        "fits": plan.asked <= on.limit,
        "registers": regs.count,
        "registers_recorded": regs.recorded,
        "blocks_per_sm": on.blocks_per_sm(plan.asked, v.kernel.threads, regs.count),
        "slots": [_slot(chosen, s) for s in plan.slots],
        "shared": sharing(chosen),
        "changes": [{"kind": c.kind, "what": c.text, "saves": c.saves} for c in plan.changes],
        "proof": _proof(proof) if proof else None,
    }


def _slot(p: Planned, s: Slot) -> dict:
    tenants = [{"name": t, "column": s.column(t), "live": list(p.found.stages(t))} for t in s.tenants]
    return {"name": s.name, "bytes": s.bytes, "shape": list(s.shape), "dtype": s.dtype, "tenants": tenants}


def _proof(proof: Proof) -> dict:
    return {
        "least_live_bytes": proof.live,
        "least_slot_bytes": proof.bound,
        "slot_bytes": proof.bytes,
        "states": proof.states,
        "exhausted": proof.exhausted,
        "optimal": proof.optimal,
        "gap": proof.bytes - proof.bound,
    }


def sentences(rows: list[dict]) -> list[str]:
    """What each plan does, under the table; plans that are alike on all targets are told once."""
    out, seen = [], set()
    for r in rows:
        told = (r["variant"], *r["shared"], *(c["what"] for c in r["changes"]))
        if told in seen:
            continue
        seen.add(told)
        lines = [f"  shared: {text}" for text in r["shared"]]
        for c in r["changes"]:
            saves = f" ({c['saves']:,} bytes less)" if c["saves"] else ""
            lines.append(f"  {c['kind']}: {c['what']}{saves}")
        if r["proof"]:
            lines.append(f"  proof: {_proved(r['proof'])}")
        if lines:
            out += [f"{r['variant']} ({r['target']})", *lines]
    return out


def _proved(p: dict) -> str:
    searched = f"{p['states']:,} states" + (" exhausted" if p["exhausted"] else ", not all of them")
    least = f"no order needs less than {p['least_live_bytes']:,} live bytes, or {p['least_slot_bytes']:,} in slots"
    gap = "the plan meets it" if p["optimal"] else f"the plan takes {p['gap']:,} more"
    return f"{least} ({searched}); {gap}"


def peak_lines(name: str, p: Planned, on: Device, others: Iterable[Checked], wish: Wish) -> list[str]:
    """Why a plan does not fit: the peak, who lives there, and what would help, in bytes."""
    kernel, plan = p.kernel, p.plan
    sizes = {b.name: b.bytes for b in kernel.shared()}
    bound, leaf = p.found.peak(sizes)
    living = sorted((n for n in p.found.live[leaf.id] if n in sizes), key=lambda n: (-sizes[n], n))
    reserved = f" ({on.block:,} less {on.reserved:,} reserved)" if on.reserved else ""
    lines = [
        f"{name} does not fit {on.name}: it asks for {plan.asked:,} bytes, "
        f"{on.name} gives a block {on.limit:,}{reserved}",
        f"  the peak is in stage '{leaf.stage}', {kernel.spec}:{leaf.where.line}: {bound:,} bytes live at once",
    ]
    width = max(len(n) for n in living)
    for n in living:
        first, last = p.found.stages(n)
        lines.append(f"    {n.ljust(width)}  {sizes[n]:>8,}  {first} .. {last}")
    return lines + [f"  help: {h}" for h in _helps(name, plan, on, others, wish)]


def _helps(name: str, plan: Plan, on: Device, others: Iterable[Checked], wish: Wish) -> list[str]:
    """Other plans of the variant, and other variants, that fit; each with the bytes it asks for."""
    out = []
    for v in others:
        if v.kernel.module == name:
            for policy in planning.POLICIES:
                for reload in (False, True) if policy == "lean" else (False,):
                    other = replace(wish, policy=policy, allow_reload=reload, objective="bytes")
                    asked = planning.plan(v.kernel, v.found, other, plan.target).plan.asked
                    if asked <= on.limit:
                        flags = f"--policy {policy}" + " --allow-reload" * reload
                        out.append(f"{flags} asks for {asked:,} bytes")
    fitting = [
        (planning.plan(o.kernel, o.found, wish, plan.target).plan.asked, o.kernel.module) for o in others
    ]
    fitting = sorted((f for f in fitting if f[0] <= on.limit), reverse=True)
    out += [f"{name} asks for {asked:,} bytes" for asked, name in fitting[:2]]
    return out or [f"no variant here fits {on.name}: smaller dims or narrower tiles would"]


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Text columns, the first `left` of them aligned left, the others right; never cut short."""
    from rich.console import Console
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, heading in enumerate(headings):
        made.add_column(heading, justify="left" if i < left else "right", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    console = Console(width=1000, color_system=None, markup=False, highlight=False)
    with console.capture() as got:
        console.print(made)
    return "\n".join(line.rstrip() for line in got.get().splitlines())
