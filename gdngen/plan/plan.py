"""Which buffers share storage: `Kernel` and `Analysis` -> `Planned`.

Buffers go into slots. A slot is one `alloc_shared`; its tenants' live ranges are disjoint and they
have one dtype, and one shape or (policy `widen`) one height, the narrower using a slice. Policies:

    separate  every buffer its own slot
    match     the author's `reuse`, where shape and dtype match
    share     sharing found here, in the author's order; ties go to the slot freed last
    widen     as share, and a slot may be as wide as its widest tenant
    lean      the program is chosen along with its storage: see `lean.py`
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from gdngen.devices import Device, device
from gdngen.errors import Report
from gdngen.language.syntax import POLICIES  # noqa: F401  (part of this interface)
from gdngen.model.analysis import Analysis
from gdngen.model.model import Buffer, Kernel, Raw
from gdngen.plan import bulk, lean, storage
from gdngen.plan.registers import registers
from gdngen.plan.rewrite import Change
from gdngen.plan.slots import apart, laid_out
from gdngen.plan.storage import Slot

DEFAULT = "lean"
SEARCH_LIMIT = 50_000  # assignments tried before the best so far is taken


@dataclass(frozen=True)
class Plan:
    """Storage of one kernel for one target; all sizes in bytes.

    asked       what the lowered kernel asks for: dynamic plus static
    merged      whether the compiler's own merging stays on, since it asks for less than the slots do
    bound       least bytes live at the worst statement in this order: no sharing goes below it
    changes     what was done to the author's program; `proof` what no program can go below
    """

    policy: str
    target: str
    slots: tuple[Slot, ...]
    dynamic: int
    static: int
    merged: bool
    bound: int
    changes: tuple[Change, ...] = ()
    proof: lean.Proof | None = None
    resident: int = 1  # blocks that registers must leave room for on an SM; 1 asks for nothing
    bulk: bool = False  # whole tiles are copied by TMA, and waited for where they are needed
    blocking: bool = False  # loads wait: the compiler refuses the kernel else
    switch: bool = True  # whether the compiler's merging can be turned off

    @property
    def asked(self) -> int:
        return self.dynamic + self.static

    def slot_of(self, buffer: str) -> Slot:
        return next(s for s in self.slots if buffer in s.tenants)


@dataclass(frozen=True)
class Wish:
    """What a plan is for: a policy and, for `lean`, what it should put first."""

    policy: str = DEFAULT
    objective: str = "blocks"
    allow_reload: bool = False
    device: str | None = None
    allow_views: bool = False


@dataclass(frozen=True)
class Planned:
    """A program with the analysis of its order, and its plans: one per target, with the same slots."""

    kernel: Kernel
    found: Analysis
    plans: tuple[Plan, ...]

    @property
    def plan(self) -> Plan:
        return self.plans[0]


def plan(kernel: Kernel, found: Analysis, wish: Wish, target: str) -> Planned:
    """The storage plan of a kernel whose analysis is `found`, for a target such as 'sm_80'."""
    if kernel.roles:  # they run side by side, and so live their tiles
        wish = replace(wish, policy="separate")
    if wish.policy == "lean":
        return _lean(kernel, found, wish, target)
    slots = _POLICY[wish.policy](kernel, found)
    switch = device(wish.device or target).switch
    return Planned(kernel, found, (realise(kernel, found, slots, wish.policy, target, switch),))


def _lean(kernel: Kernel, found: Analysis, wish: Wish, target: str) -> Planned:
    on: Device = device(wish.device or target)
    count = registers(kernel, target).count
    if kernel.resident > 1 and on.sm_registers:
        count = min(count, on.sm_registers // (kernel.resident * kernel.threads) // 8 * 8)
    want = lean.Wish(target, on, wish.objective, wish.allow_reload, count, wish.allow_views)
    made = lean.plan(kernel, want)
    plan = realise(made.kernel, made.found, made.slots, wish.policy, target, on.switch)
    best = Planned(
        made.kernel, made.found, (replace(plan, changes=made.changes, proof=made.proof),)
    )
    # What merges best can be the author's order as it is: the compiler's packing has a luck of its own.
    for slots in (_share(kernel, found), _widen(kernel, found)):
        other = realise(kernel, found, slots, wish.policy, target, on.switch)
        if _is_lower(other, best.plan, want, kernel.threads):
            taken = min(other.asked, sum(s.bytes for s in slots))
            proof = replace(made.proof, bytes=taken)
            best = Planned(kernel, found, (replace(other, proof=proof),))
    return best


def _is_lower(one: Plan, other: Plan, want: lean.Wish, threads: int) -> bool:
    """Whether a plan asks for less where that counts: it fits, has more blocks, or bytes come first."""
    if want.objective == "bytes" or other.asked > want.device.limit:
        return one.asked < other.asked
    return want.blocks(one.asked, threads) > want.blocks(other.asked, threads)


def realise(
    kernel: Kernel,
    found: Analysis,
    slots: tuple[Slot, ...],
    policy: str,
    target: str,
    switch: bool = True,
) -> Plan:
    """What these slots cost on a target, by the rules of TileLang's compiler. Without the `switch` of its
    merging they are the most that it asks for."""
    layouts = storage.compiled(kernel, slots, target)
    own, merging = layouts.own, layouts.merged
    bound, _ = found.peak({b.name: b.bytes for b in kernel.shared()})
    merged = switch and merging.dynamic < own.dynamic
    best = merging if merged else own
    plan = Plan(
        policy,
        target,
        slots,
        best.dynamic,
        best.static,
        merged,
        bound,
        bulk=bulk.wanted(kernel, target),
        blocking=best.blocking,
        switch=switch,
    )
    return replace(plan, resident=_resident(kernel, plan))


def _resident(kernel: Kernel, plan: Plan) -> int:
    """As many blocks as the author asks for, but no more than shared memory has room for: registers
    given up beyond that would buy nothing. NVIDIA only, where a launch bound says so."""
    if kernel.resident == 1 or not plan.target.startswith("sm_"):
        return 1
    return max(
        1, min(kernel.resident, device(plan.target).blocks_per_sm(plan.asked, kernel.threads))
    )


def _own_slot(b: Buffer) -> Slot:
    return Slot(b.shape, b.dtype, (b.name,))


def _separate(kernel: Kernel, found: Analysis) -> tuple[Slot, ...]:
    return apart(kernel)


def host(kernel: Kernel, buffer: Buffer) -> Buffer | None:
    """The buffer on whose storage the author's `reuse` puts this one, where shape and dtype match."""
    seen = {buffer.name}
    at = buffer
    while at.reuse and at.reuse not in seen:
        seen.add(at.reuse)
        to = kernel.buffer(at.reuse)
        if to is None or (to.shape, to.dtype, to.scope) != (
            buffer.shape,
            buffer.dtype,
            buffer.scope,
        ):
            break
        at = to
    return None if at is buffer else at


def check_reuse(kernel: Kernel, found: Analysis, report: Report) -> None:
    """Tenants that the author puts onto one buffer must not live at the same time."""
    groups: dict[str, list[Buffer]] = {}
    for b in kernel.buffers:
        if b.reuse is None:
            continue
        if b.scope != "shared":
            report.error(
                b.reuse_where, f"'{b.name}' is a {b.scope}; only shared buffers reuse storage"
            )
        elif b.reuse == b.name:
            report.error(b.reuse_where, f"'{b.name}' reuses itself")
        elif to := host(kernel, b):
            others = groups.setdefault(to.name, [to])
            for other in others:
                if at := found.meeting(other.name, b.name):
                    report.error(
                        b.reuse_where,
                        f"'{b.name}' (line {b.where.line}) and '{other.name}' (line {other.where.line}) "
                        f"can't share storage: both live in stage '{at.stage}', line {at.where.line}",
                        f"take 'reuse: {b.reuse}' out, or move the statement of line {at.where.line}",
                        kind=f"reuse {b.name} {other.name}",
                    )
            others.append(b)


def _match(kernel: Kernel, found: Analysis) -> tuple[Slot, ...]:
    tenants: dict[str, list[str]] = {}
    for b in kernel.shared():
        tenants.setdefault((host(kernel, b) or b).name, []).append(b.name)
    return tuple(
        Slot(b.shape, b.dtype, tuple(sorted(tenants[b.name], key=lambda n: found.span(n))))
        for b in kernel.shared()
        if b.name in tenants
    )


def _share(kernel: Kernel, found: Analysis) -> tuple[Slot, ...]:
    return _assigned(kernel, found, lambda slot, b: slot.shape == b.shape)


def _widen(kernel: Kernel, found: Analysis) -> tuple[Slot, ...]:
    def height(slot: Slot, b: Buffer) -> bool:
        return len(slot.shape) == len(b.shape) > 1 and slot.shape[:-1] == b.shape[:-1]

    exact = {
        a.name
        for leaf in kernel.leaves()
        if isinstance(leaf, Raw)
        for a in leaf.reads() + leaf.writes()
    }
    return _assigned(
        kernel,
        found,
        lambda slot, b: slot.shape == b.shape
        or (height(slot, b) and not exact & {b.name, *slot.tenants}),
    )


def _assigned(
    kernel: Kernel, found: Analysis, alike: Callable[[Slot, Buffer], bool]
) -> tuple[Slot, ...]:
    """Least bytes over all assignments of buffers to slots of like buffers (greedy past the limit)."""
    buffers = sorted(kernel.shared(), key=lambda b: found.span(b.name))
    rows, operands = laid_out(kernel)
    best: list[tuple[int, tuple[Slot, ...]]] = [(1 << 62, ())]
    budget = [SEARCH_LIMIT]

    def place(at: int, slots: tuple[Slot, ...]) -> None:
        cost = sum(s.bytes for s in slots)
        budget[0] -= 1
        if cost >= best[0][0] or (budget[0] < 0 and best[0][1]):
            return
        if at == len(buffers):
            best[0] = (cost, slots)
            return
        b = buffers[at]
        for i in sorted(range(len(slots)), key=lambda i: _preference(slots[i], b, found)):
            slot = slots[i]
            if (
                slot.dtype == b.dtype
                and not (b.name in rows and operands & {*slot.tenants})
                and not (b.name in operands and rows & {*slot.tenants})
                and alike(slot, b)
                and not any(found.interfere(t, b.name) for t in slot.tenants)
            ):
                shape = tuple(max(x, y) for x, y in zip(slot.shape, b.shape))
                wider = Slot(shape, b.dtype, slot.tenants + (b.name,))
                place(at + 1, slots[:i] + (wider,) + slots[i + 1 :])
        place(at + 1, slots + (_own_slot(b),))

    place(0, ())
    order = {b.name: i for i, b in enumerate(kernel.shared())}
    return tuple(sorted(best[0][1], key=lambda s: order[s.name]))


def _preference(slot: Slot, b: Buffer, found: Analysis) -> tuple:
    """Slots that need not grow first, then the one freed last: its neighbours are the likeliest warm."""
    grows = max(0, _width(b) - slot.shape[-1])
    return grows, -max(found.span(t)[1] for t in slot.tenants)


def _width(b: Buffer) -> int:
    return b.shape[-1]


_POLICY = {"separate": _separate, "match": _match, "share": _share, "widen": _widen}
