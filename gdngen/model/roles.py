"""Roles: parts of a block's threads that run programs of their own, side by side.

A role has warpgroups to itself and a share of the registers; stages of the spec are its program. What
is asked of roles as such is here; what they hand one another, and when, is in `channels.py`.
"""

import ast

from gdngen.devices import device
from gdngen.errors import Report, did_you_mean
from gdngen.language.syntax import Role, Spec
from gdngen.model import model
from gdngen.model.context import Context, Scope, Stop
from gdngen.model.model import Kernel

WARP = 32
GROUP = 128  # threads of a warpgroup, which asks for registers as one
LEAST, MOST, STEP = 24, 240, 8  # registers that a warpgroup may ask for
MAX_GROUPS = 8
FAMILY = ("sm_90",)  # where warpgroups, their barriers and the copy engine are


def resolved(spec: Spec, cx: Context) -> tuple[model.Role, ...]:
    """The roles of one variant, with their threads; mistakes are reported."""
    out: list[model.Role] = []
    first = 0
    for role in spec.roles:
        try:
            made = _role(role, spec, cx, first)
        except Stop:
            continue
        out.append(made)
        first += made.copies * groups(made) * GROUP
    if spec.roles:
        _check_stages(spec, cx.report)
        _check_where(spec, cx.report)
    return tuple(out)


def groups(role: model.Role) -> int:
    """Warpgroups that each copy of a role keeps to itself."""
    return -(-role.threads // GROUP)


def threads(roles: tuple[model.Role, ...]) -> int:
    return sum(r.copies * groups(r) * GROUP for r in roles)


def entered(roles: tuple[model.Role, ...], stage: str, cx: Context) -> Scope:
    """What names mean in a stage: its role's threads are those there are, and `each` says which copy."""
    role = next((r for r in roles if stage in r.stages), None)
    if role is None:
        return cx.scope
    cx.threads, cx.in_role = role.threads, True
    if role.each is None:
        return cx.scope
    return cx.scope.inside(**{role.each: (0.0, role.copies - 1.0)})


def _role(role: Role, spec: Spec, cx: Context, first: int) -> model.Role:
    unit = WARP if role.unit == "warps" else GROUP
    count = cx.size(role.count, f"the {role.unit} of '{role.name}'", 1, MAX_GROUPS * GROUP // unit)
    if role.each:
        cx.fresh(role.each, cx.scope)
    registers = 0
    if role.registers:
        what = f"the registers of '{role.name}'"
        registers = cx.size(role.registers, what, LEAST, MOST)
        if registers % STEP:
            near = registers // STEP * STEP
            raise cx.fail(
                role.registers.where(),
                f"{registers} registers; a warpgroup asks for a multiple of {STEP}",
                f"registers: {near}",
            )
    copies, each = (count, role.each.text) if role.each else (1, None)
    own = unit if role.each else unit * count
    stages = tuple(s.text for s in role.runs)
    return model.Role(role.name, role.where, own, copies, each, registers, stages, first, role.doc)


def _check_stages(spec: Spec, report: Report) -> None:
    """Each stage belongs to one role."""
    stages = [s.name for s in spec.stages]
    owner: dict[str, str] = {}
    for role in spec.roles:
        for word in role.runs:
            if word.text not in stages:
                what = f"'{role.name}' runs an unknown stage '{word.text[:40]}'"
                hint = f"stages: {' '.join(stages)}; runs: [...] names those of a role"
                report.error(word.where, what + did_you_mean(word.text, stages), hint)
            elif word.text in owner:
                what = f"stage '{word.text}' is run by '{owner[word.text]}' and by '{role.name}'"
                report.error(word.where, what, "a stage belongs to one role")
            owner.setdefault(word.text, role.name)
    for stage in spec.stages:
        if stage.name not in owner:
            what = f"no role runs stage '{stage.name}'"
            report.error(stage.where, what, f"roles: {' '.join(r.name for r in spec.roles)}")


def _check_where(spec: Spec, report: Report) -> None:
    """Roles are for the devices that have what they are made of."""
    lacking = [t for t in spec.targets if t.text not in FAMILY]
    hint = f"targets: [{', '.join(FAMILY)}]"
    if not spec.targets:
        report.error(spec.roles[0].where, "roles need a device with warpgroups", hint)
    for target in lacking:
        what = f"'{target.text}' has no warpgroups, nor barriers that roles could wait at"
        report.error(target.where, what, hint)
    if spec.threads is not None:
        what = "threads beside roles: a block has as many as its roles have"
        report.error(spec.threads.where(), what, "take 'threads' out")


# -- of a resolved kernel --------------------------------------------------------------------------


def check(kernel: Kernel, report: Report) -> None:
    """Registers and storage of roles: quotas fit, and what is not handed on is one role's own."""
    if not kernel.roles:
        return
    _check_registers(kernel, report)
    _check_owners(kernel, report)


def launched(kernel: Kernel, target: str) -> int:
    """Registers a thread has when a block starts, before roles ask for theirs."""
    have = device(target).sm_registers or 0
    return min(have // kernel.threads // STEP * STEP, 255 // STEP * STEP)


def _check_registers(kernel: Kernel, report: Report) -> None:
    if kernel.threads > 1024:
        what = f"roles of {kernel.threads:,} threads; a block has at most 1,024"
        report.error(kernel.roles[-1].where, what, "each role has whole warpgroups to itself")
        return
    for target in kernel.targets:
        have = device(target).sm_registers
        asked = [(r.registers or launched(kernel, target)) for r in kernel.roles]
        total = sum(n * r.copies * groups(r) * GROUP for n, r in zip(asked, kernel.roles))
        if have and total > have:
            terms = " + ".join(
                f"{r.copies * groups(r)} x {n} of '{r.name}'" for n, r in zip(asked, kernel.roles)
            )
            worst = max(zip(asked, kernel.roles), key=lambda p: p[0] * p[1].copies)[1]
            report.error(
                worst.where,
                f"registers of all roles: {terms}, {total // GROUP} for every {GROUP} threads; "
                f"{target} has {have // GROUP}",
                f"{-(-(total - have) // GROUP)} fewer, over the warpgroups",
                kind="registers of roles",
            )


def of(kernel: Kernel, stage: str) -> model.Role:
    """The role that runs a stage."""
    return next(r for r in kernel.roles if stage in r.stages)


def statements(kernel: Kernel, role: model.Role) -> tuple[model.Statement, ...]:
    """A role's program."""
    return tuple(s for stage in kernel.stages if stage.name in role.stages for s in stage.body)


def _own(access: model.Access, role: model.Role) -> bool:
    """Whether an access is to the part of a tile that bears the copy's number."""
    index = access.region.index if access.region is not None else access.index
    first = index[0] if index else None
    at = first.at if isinstance(first, model.Point) else first
    return isinstance(at, ast.Name) and at.id == role.each


def _check_owners(kernel: Kernel, report: Report) -> None:
    """A tile that is not staged belongs to one role: nothing would order another's use of it."""
    owner: dict[str, model.Role] = {}
    for role in kernel.roles:
        for s in statements(kernel, role):
            for leaf in model.leaves(s):
                for access in leaf.reads() + leaf.writes():
                    buffer = kernel.buffer(access.name)
                    if buffer is None or buffer.stages:
                        continue
                    first = owner.setdefault(buffer.name, role)
                    if first is not role:
                        hint = "give it stages: [stages: 1], and a round to every use"
                        if buffer.scope != "shared":
                            hint = "registers are a role's own: hand a staged shared tile on"
                        report.error(
                            access.where,
                            f"'{buffer.name}' is used by '{first.name}' and by '{role.name}', and "
                            "nothing orders the one's use and the other's",
                            hint,
                            kind=f"owner {buffer.name}",
                        )
                    elif role.copies > 1 and buffer.scope == "shared" and not _own(access, role):
                        report.error(
                            access.where,
                            f"'{buffer.name}' is used by {role.copies} copies of '{role.name}', and "
                            "nothing orders their uses",
                            f"give it stages, or an axis for the copies: {buffer.name}[{role.each}]",
                            kind=f"owner {buffer.name}",
                        )
