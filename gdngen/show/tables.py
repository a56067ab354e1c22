"""What the command line shows of plans: rows and sentences, no printing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gdngen.devices import Device, devices
from gdngen.driver import Checked, Loaded, load, wished
from gdngen.errors import GdngenError
from gdngen.model.model import BYTES, Leaf
from gdngen.plan import plan as planning
from gdngen.plan.emission import homes
from gdngen.plan.lean import Proof
from gdngen.plan.plan import Plan, Planned, Wish
from gdngen.plan.registers import registers
from gdngen.plan.savings import savings
from gdngen.plan.storage import Slot
from gdngen.show.compare import Row


def overview(v: Checked, wish: Wish, target: str) -> dict[str, Planned]:
    """Every policy's plan of a variant, side by side."""
    return {
        p: planning.plan(v.kernel, v.found, replace(wish, policy=p), target)
        for p in planning.POLICIES
    }


def sharing(p: Planned) -> list[str]:
    """'k_beta, v_beta on P (P is dead after neumann)' for every slot with several tenants."""
    out = []
    for slot in p.plan.slots:
        if len(slot.tenants) > 1:
            first, *rest = slot.tenants
            dead = ", ".join(f"{t} is dead after {p.found.stages(t)[1]}" for t in slot.tenants[:-1])
            apart = sum(p.kernel.buffer(t).bytes for t in slot.tenants) - slot.bytes
            told = ", ".join(_seen(slot, t) for t in rest)
            out.append(f"{told} on {first} ({dead}; {apart:,} bytes less)")
    return out


def _seen(slot: Slot, tenant: str) -> str:
    """A tenant, and as what it sees the slot where that is not of its dtype."""
    dtype = slot.dtype_of(tenant)
    return f"{tenant} (as {dtype}{list(slot.seen(tenant))})" if dtype != slot.dtype else tenant


def named(v: Checked) -> str:
    """A variant's module, with its policy where it names one."""
    return v.kernel.module + (f" ({v.kernel.policy})" if v.kernel.policy else "")


def plan_row(v: Checked, plans: dict[str, Planned], wish: Wish, on: Device) -> dict:
    """One row of `gdngen plan`, as data; bytes everywhere."""
    chosen = plans[wish.policy]
    plan, proof = chosen.plan, chosen.plan.proof
    regs = registers(v.kernel, plan.target)
    return {
        "variant": named(v),
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
        "spills": regs.spills if regs.recorded else None,
        "blocks_per_sm": on.blocks_per_sm(plan.asked, v.kernel.threads, regs.count),
        "slots": [_slot(chosen, s) for s in plan.slots],
        "shared": sharing(chosen),
        "changes": _changes(v, chosen, wish),
        "proof": _proof(proof, on, v, regs.count, plan.asked) if proof else None,
    }


def _changes(v: Checked, p: Planned, wish: Wish) -> list[dict]:
    worth = savings(v.kernel, p, wish)
    return [
        {"kind": c.kind, "what": c.text, "saves": saves, "costs": c.costs}
        for c, saves in zip(p.plan.changes, worth)
    ]


def _slot(p: Planned, s: Slot) -> dict:
    tenants = [
        {"name": t, "column": s.column(t), "live": list(p.found.stages(t))} for t in s.tenants
    ]
    return {
        "name": s.name,
        "bytes": s.bytes,
        "shape": list(s.shape),
        "dtype": s.dtype,
        "tenants": tenants,
    }


def _proof(proof: Proof, on: Device, v: Checked, registers: int, asked: int) -> dict:
    at_best, held = (on.blocks_per_sm(n, v.kernel.threads, registers) for n in (proof.bound, asked))
    return {
        "least_live_bytes": proof.live,
        "least_slot_bytes": proof.bound,
        "slot_bytes": proof.bytes,
        "states": proof.states,
        "exhausted": proof.exhausted,
        "optimal": proof.optimal,
        "gap": max(0, proof.bytes - proof.bound),
        "blocks_lost": max(0, at_best - held),
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
            saves = f" ({c['saves']:,} bytes less)" if c["saves"] else ", at no cost in bytes"
            saves = f" ({c['costs']:,} bytes more, of alignment)" if c["costs"] else saves
            lines.append(f"  {c['kind']}: {c['what']}{saves}")
        if r["spills"]:
            lines.append(
                f"  spills: {r['spills']:,} bytes a thread, in the kernel that is checked in"
            )
        if r["proof"]:
            lines.append(f"  proof: {_proved(r['proof'])}")
        if lines:
            out += [f"{r['variant']} ({r['target']})", *lines]
    return out


def _proved(p: dict) -> str:
    searched = f"{p['states']:,} states" + (" exhausted" if p["exhausted"] else ", not all of them")
    least = f"no order needs less than {p['least_live_bytes']:,} live bytes, or {p['least_slot_bytes']:,} in slots"
    lost = p["blocks_lost"]
    cost = f"and may lack {lost} of the blocks" if lost else "which costs no block"
    gap = "the plan meets it" if p["optimal"] else f"the plan takes {p['gap']:,} more, {cost}"
    return f"{least} ({searched}); {gap}"


def peak_lines(p: Planned, on: Device, spec: Loaded, v: Checked, wish: Wish) -> list[str]:
    """Why a plan does not fit: the peak, who lives there, and what would help, in bytes."""
    kernel, plan = p.kernel, p.plan
    sizes = {b.name: b.bytes for b in kernel.shared()}
    leaf = max(p.found.order, key=lambda leaf: sum(sizes[n] for n in _living(p, leaf)))
    living = sorted(_living(p, leaf), key=lambda n: (-sizes[n], n))
    bound = sum(sizes[n] for n in living)
    reserved = f" ({on.block:,} less {on.reserved:,} reserved)" if on.reserved else ""
    lines = [
        f"{v.kernel.module} does not fit {on.name}: it asks for {plan.asked:,} bytes, "
        f"{on.name} gives a block {on.limit:,}{reserved}",
        f"  the peak is in stage '{leaf.stage}', {kernel.spec}:{leaf.where.line}: {bound:,} bytes live at once",
    ]
    width = max(len(n) for n in living)
    for n in living:
        first, last = p.found.stages(n)
        lines.append(f"    {n.ljust(width)}  {sizes[n]:>8,}  {first} .. {last}")
    if plan.proof:
        lines.append(
            f"  no legal order of the program needs less than {plan.proof.live:,} live bytes"
        )
    return lines + [f"  help: {h}" for h in _helps(plan, on, spec, v, wish)]


def _living(p: Planned, leaf: Leaf) -> list[str]:
    """Shared buffers live at a statement; of two that are one tile there, updated in place, the first."""
    home = homes(p.plan.slots)
    found: dict[tuple[str, int], str] = {}
    for name in sorted(n for n in p.found.live[leaf.id] if n in home):
        kept = found.setdefault(home[name], name)
        found[home[name]] = min(kept, name, key=p.found.span)
    return list(found.values())


def _helps(plan: Plan, on: Device, spec: Loaded, v: Checked, wish: Wish) -> list[str]:
    """What would fit, each planned; if nothing does, what comes nearer."""
    found = alternatives(plan, spec, v, wish)
    fits = [f"{said} asks for {asked:,} bytes" for said, asked in found if asked <= on.limit]
    short = [f"{said} asks for {asked:,} bytes, still too many" for said, asked in found]
    return fits or short or [f"no smaller plan is known for {on.name}"]


def alternatives(plan: Plan, spec: Loaded, v: Checked, wish: Wish) -> list[tuple[str, int]]:
    """Options that ask for less, with the bytes that each asks for: other policies, second loads, halved
    dims, narrower tiles."""
    tries: list[tuple[str, Wish, Mapping[str, str]]] = []
    if wish.policy != "lean" or wish.objective != "bytes":
        tries.append(
            ("--policy lean --objective bytes", replace(wish, policy="lean", objective="bytes"), {})
        )
    again = replace(wish, policy="lean", objective="bytes", allow_reload=True)
    tries.append(("--policy lean --objective bytes --allow-reload", again, {}))
    viewed = replace(again, allow_views=True)
    tries.append(("--policy lean --objective bytes --allow-reload --allow-views", viewed, {}))
    own = {k: str(x) for k, x in v.kernel.values} | {k: x for k, x in v.kernel.dtypes}
    for dim in v.kernel.dims:
        half = int(own[dim]) // 2
        tries.append((f"--set {dim}={half}", wish, {dim: str(half)}))
    narrow = {d for d in dict(v.kernel.dtypes).values() if BYTES[d] == 2}
    for name, dtype in v.kernel.dtypes:
        for other in sorted(narrow) if BYTES[dtype] > 2 else ():
            tries.append((f"--set {name}={other}", wish, {name: other}))
    found, best = [], plan.asked
    for said, how, changed in tries:
        if changed:
            asked = _asked(spec, {**own, **changed}, how, plan.target)
        else:  # each of these does more to the program: told where that helps
            asked, most = planning.plan(v.kernel, v.found, how, plan.target).plan.asked, best
            best = min(asked, best)
            if asked >= most:
                continue
        if asked is not None and asked < plan.asked:
            found.append((said, asked))
    return found


def _asked(spec: Loaded, values: Mapping[str, str], wish: Wish, target: str) -> int | None:
    """Bytes of the spec's kernel with these values, or None where it has none."""
    try:
        made = load(spec.path, values).variants
    except GdngenError:
        return None
    return planning.plan(made[0].kernel, made[0].found, wish, target).plan.asked if made else None


def all_devices(variants: Iterable[Checked], wish: Wish) -> str:
    """Blocks per SM of every variant on every device; 'no' where it does not fit."""
    rows = []
    for v in variants:
        cells = []
        for on in devices().values():
            own = replace(wished(v, wish), device=on.name)
            p = planning.plan(v.kernel, v.found, own, on.target).plan
            count = on.blocks_per_sm(
                p.asked, v.kernel.threads, registers(v.kernel, on.target).count
            )
            cells.append(str(count) if p.asked <= on.limit else "no")
        rows.append([named(v), *cells])
    return table(["variant", *devices()], rows)


def comparison(rows: Iterable[Row]) -> str:
    """The compiler's own merging beside the plan."""

    def cell(n: int | None) -> str:
        return "-" if n is None else f"{n:,}"

    body = [
        [
            r.variant, r.target, cell(r.author), cell(r.author_aggressive), cell(r.order),
            cell(r.order_aggressive), cell(r.planned), ", ".join(r.below) or "none",
        ]
        for r in rows
    ]  # fmt: skip
    headings = [
        "variant", "target", "author's order", "aggressive", "planned order", "aggressive", "planned",
        "compiler lower",
    ]  # fmt: skip
    return table(headings, body, left=2)


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
