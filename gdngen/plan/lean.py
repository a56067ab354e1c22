"""Policy `lean`: the program is chosen along with its storage.

Over every legal order of statements, in-place updates, slots with slices and tenants side by side,
strips of map + gemm + store chains and, if allowed, second loads: first what fits the device, then the
most blocks per SM, then the fewest departures from the author's program, then the fewest bytes
(objective `bytes` puts those right after fitting). Last, stores of fragments go through idle tiles.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gdngen.devices import Device
from gdngen.model.analysis import Analysis, analyse
from gdngen.model.model import (
    BYTES,
    Buffer,
    Copy,
    Gemm,
    Kernel,
    Leaf,
    Loop,
    Statement,
    touched,
)
from gdngen.plan import blocks, emission, programs, rewrite, storage
from gdngen.plan import order as orders
from gdngen.plan import slots as packing
from gdngen.plan.order import Best, Block
from gdngen.plan.rewrite import Change
from gdngen.plan.storage import Slot

OBJECTIVES = ("blocks", "bytes")
LATER = 10_000  # steps of a search beside that of the author's program


@dataclass(frozen=True)
class Proof:
    """What no legal order can go below, and how far the plan is from it; bytes.

    live    least live bytes over all legal orders of the program that needs the least
    bound   least bytes by classes of storage that don't mix, over all orders of all programs that were
            tried: no assignment of slots is below it
    bytes   what the slots take, or what the compiler merges them to if that is less
    states  ideals of statements that the searches went through; `exhausted` if they saw all
    """

    live: int
    bound: int
    bytes: int
    states: int
    exhausted: bool

    @property
    def optimal(self) -> bool:
        return self.bytes <= self.bound


@dataclass(frozen=True)
class Lean:
    """A chosen program with its analysis, its slots, its proof and what was changed.

    `asked` is what the lowered kernel asks for, alignment included; `refused` is why TileLang would not
    lower it, say a part of a tile that TMA can't move.
    """

    kernel: Kernel
    found: Analysis
    slots: tuple[Slot, ...]
    asked: int
    refused: tuple[str, ...]
    proof: Proof
    changes: tuple[Change, ...]

    @property
    def departures(self) -> int:
        return sum(c.kind != "in place" for c in self.changes)

    @property
    def cost(self) -> tuple[int, int, int]:
        """What to keep low: what is lowered at all, then bytes, then departures."""
        return len(self.refused), self.asked, self.departures


@dataclass(frozen=True)
class Wish:
    """What a plan is for. `registers` a thread, where they are known."""

    target: str
    device: Device
    objective: str = "blocks"
    allow_reload: bool = False
    registers: int | None = None
    allow_views: bool = False

    def blocks(self, asked: int, threads: int) -> int:
        return self.device.blocks_per_sm(asked, threads, self.registers)


@dataclass(frozen=True)
class Candidate:
    """A program whose statements may be ordered: its block, and its least storage over all orders,
    with or without views."""

    kernel: Kernel
    changes: tuple[Change, ...]
    views: frozenset[str]
    block: Block
    least: Best


def plan(kernel: Kernel, wish: Wish) -> Lean:
    """The best program for the wish; its kernel is the author's with `changes` applied."""
    candidates: list[Candidate] = []
    for program, changes in programs.programs(kernel, wish.allow_reload):
        for views in dict.fromkeys([frozenset(), _views(program, wish)]):
            block = blocks.block_of(program, views=views)
            if least := orders.least(block, LATER if candidates else orders.LIMIT):
                candidates.append(Candidate(program, changes, views, block, least))
    candidates.sort(key=lambda c: (c.least.bytes, len(c.changes), bool(c.views)))
    kinds = [[c for c in candidates if bool(c.views) == views] for views in (False, True)]
    chosen = min((_tightest(those, wish) for those in kinds if those), key=lambda made: made.cost)
    if wish.objective == "blocks" and chosen.asked <= wish.device.limit:
        chosen = _easiest(candidates, chosen, wish)
    return _stage_out(_proven(chosen, candidates), wish)


def _views(program: Kernel, wish: Wish) -> frozenset[str]:
    return packing.viewable(program, wish.target) if wish.allow_views else frozenset()


def _tightest(candidates: list[Candidate], wish: Wish) -> Lean:
    """Fewest bytes asked for, then fewest departures; a candidate whose bound is no better need not be
    tried."""
    best: Lean | None = None
    for c in candidates:
        if best and (0, c.least.bytes, len(c.changes)) >= best.cost:
            continue
        made = _made(c, orders.fewest_moves(c.block, c.least.bytes) or c.least, wish)
        if best is None or made.cost < best.cost:
            best = made
    return best


def _easiest(candidates: list[Candidate], tightest: Lean, wish: Wish) -> Lean:
    """As many blocks per SM as the tightest plan has, with the fewest departures, then bytes."""
    threads = tightest.kernel.threads
    goal = wish.blocks(tightest.asked, threads)
    ceiling = _ceiling(tightest.asked, goal, wish, threads)
    best = tightest
    for c in sorted(candidates, key=lambda c: len(c.changes)):
        if c.least.bytes > ceiling or len(c.changes) > best.departures:
            continue
        for most in (ceiling, ceiling - 1024):  # alignment may add to the slots' own bytes
            eased = orders.fewest_moves(c.block, most)
            made = eased and _made(c, eased, wish)
            if made and wish.blocks(made.asked, threads) >= goal:
                if _ease(made) < _ease(best):
                    best = made
                break
    return best


def _ease(made: Lean) -> tuple[int, int, int]:
    return len(made.refused), made.departures, made.asked


def _ceiling(least: int, goal: int, wish: Wish, threads: int) -> int:
    """The most bytes that still give `goal` blocks per SM."""
    low, high = least, wish.device.limit
    while low < high:
        middle = (low + high + 1) // 2
        if wish.blocks(middle, threads) >= goal:
            low = middle
        else:
            high = middle - 1
    return low


def _made(c: Candidate, best: Best, wish: Wish) -> Lean:
    """The candidate in an order, with its slots: packed, or every tile its own if the compiler's merging
    then asks for less."""
    moved = set(orders.moves(best.order))
    program = rewrite.reordered(c.kernel, best.order, moved) if moved else c.kernel
    found = analyse(program)
    said = c.changes + tuple(_moved(c.kernel, program, u) for u in best.order if u in moved)

    def with_slots(slots: tuple[Slot, ...]) -> Lean:
        changes = said + tuple(_in_place(program, slots, found))
        proof = Proof(0, c.least.bytes, sum(s.bytes for s in slots), c.least.states, c.least.proven)
        made = _costed(Lean(program, found, slots, 0, (), proof, changes), wish)
        return replace(made, proof=replace(proof, bytes=min(proof.bytes, made.asked)))

    packed = with_slots(packing.pack(program, found, views=c.views))
    apart = with_slots(packing.apart(program))
    return apart if apart.cost[:2] < packed.cost[:2] else packed


def _costed(made: Lean, wish: Wish) -> Lean:
    """The plan with what the compiler makes of it. Merging that can't be turned off can't be relied on."""
    found = storage.compiled(made.kernel, made.slots, wish.target)
    merged = found.merged.dynamic if wish.device.switch else found.own.dynamic
    asked = min(found.own.dynamic, merged) + found.own.static
    return replace(made, asked=asked, refused=found.refused)


def _proven(made: Lean, candidates: list[Candidate]) -> Lean:
    """The plan with its proof over all candidates: the least storage of any, and the states seen."""
    best = candidates[0]
    live = (
        best.least
        if best.block.classes == 1
        else orders.least(blocks.block_of(best.kernel, mixed=True), LATER)
    )
    private = analyse(best.kernel).private
    outside = sum(b.bytes for b in best.kernel.shared() if b.name in private)
    proof = replace(
        made.proof,
        live=live.bound + outside,
        bound=min(c.least.bound for c in candidates) + outside,
        states=sum(c.least.states for c in candidates) + live.states,
        exhausted=live.proven and all(c.least.proven for c in candidates),
    )
    return replace(made, proof=proof)


def _in_place(kernel: Kernel, slots: tuple[Slot, ...], found: Analysis) -> Iterator[Change]:
    """What is computed in place of what, where the plan makes use of it."""
    home = emission.homes(slots)
    for leaf in found.order:
        for source, target in packing.inplace_pairs(leaf, kernel):
            if home[source] == home[target] and {source, target} <= found.live[leaf.id]:
                yield Change(
                    "in place", f"{target} is computed in place of {source}", (source, target)
                )


# -- orders of one program -------------------------------------------------------------------------


def _moved(before: Kernel, after: Kernel, unit: int) -> Change:
    s = before.statements()[unit]
    now = next(x for x in after.statements() if x.id == s.id)
    names = tuple(n for n in touched(s))
    what = _what(s)
    body = after.statements()
    place = body.index(now)
    ahead = f"before line {body[place + 1].where.line}" if place + 1 < len(body) else "to the end"
    return Change(
        "moved",
        f"{what} (line {s.where.line}) moved from '{s.stage}' to '{now.stage}', {ahead}",
        names,
        s.id,
    )


def _what(s: Statement) -> str:
    if isinstance(s, Copy):
        return f"copy {s.src.name} -> {s.dst.name}"
    if isinstance(s, Gemm):
        return f"gemm into {s.c.name}"
    if isinstance(s, Leaf):
        return f"write of {', '.join(dict.fromkeys(a.name for a in s.writes()))}"
    return f"{'loop' if isinstance(s, Loop) else 'branch'} over {', '.join(touched(s))}"


# -- stage-out -------------------------------------------------------------------------------------


def _stage_out(made: Lean, wish: Wish) -> Lean:
    """Stores of fragments through tiles that are idle: a shared tile's stores are wide, a fragment's
    are not. Where it costs no bytes, or only bytes of alignment, and no block, if bytes come last.
    """
    for store in [s for s in made.kernel.leaves() if isinstance(s, Copy)]:
        fragment, tensor = made.kernel.buffer(store.src.name), made.kernel.tensor(store.dst.name)
        if (
            fragment is None
            or tensor is None
            or fragment.scope != "fragment"
            or not store.src.whole
        ):
            continue
        if store.dst.shape != fragment.shape or len(fragment.shape) != 2:
            continue
        sooner = rewrite.hoisted(made.kernel, store)  # before a late load takes the tile over
        for program in (made.kernel, sooner):
            tried = _through_idle(made, program, store, wish)
            if tried and _worthwhile(made, tried := _costed(tried, wish), wish):
                more = tried.asked - made.asked
                said = replace(tried.changes[-1], costs=max(0, more))
                made = replace(tried, changes=(*made.changes, said))
                break
    return made


def _worthwhile(made: Lean, staged: Lean, wish: Wish) -> bool:
    if len(staged.refused) > len(made.refused):
        return False
    threads = made.kernel.threads
    held = [wish.blocks(p.asked, threads) for p in (made, staged)]
    eased = wish.objective == "blocks" and held[1] >= held[0] and staged.asked <= wish.device.limit
    return staged.asked <= made.asked or eased


def _through_idle(made: Lean, kernel: Kernel, store: Copy, wish: Wish) -> Lean | None:
    tile = rewrite.fresh(kernel, f"{store.dst.name}_out")
    program = rewrite.staged(kernel, store, tile)
    found = analyse(program)
    buffer, views = program.buffer(tile), _views(program, wish)
    for slot in sorted(made.slots, key=lambda s: (*_unlike(s, buffer), -_last(found, s))):
        if not _fits_in(buffer, slot, views):
            continue
        if any(found.interfere(t, tile) for t in slot.tenants):
            continue
        host = _joined(slot, buffer, found)
        where = f"{store.dst.name} leaves through {slot.name}, idle by then"
        change = Change("staged", where, (tile,))
        slots = tuple(host if s is slot else s for s in made.slots)
        return replace(
            made, kernel=program, found=found, slots=slots, changes=made.changes + (change,)
        )
    return None


def _unlike(slot: Slot, b: Buffer) -> tuple[bool, bool]:
    return slot.dtype != b.dtype, slot.shape != b.shape


def _fits_in(b: Buffer, slot: Slot, views: frozenset[str]) -> bool:
    """Whether a tile could lie in a slot, were it idle."""
    if slot.dtype != b.dtype and not views.issuperset((b.name, *slot.tenants)):
        return False
    wide = slot.shape[-1] * BYTES[slot.dtype] >= b.shape[-1] * BYTES[b.dtype]
    return slot.shape[:-1] == b.shape[:-1] and wide


def _joined(slot: Slot, b: Buffer, found: Analysis) -> Slot:
    """The slot with one more tenant, at its first column."""
    columns = {t: slot.column(t) for t in slot.tenants} | {b.name: 0}
    kinds = {t: slot.dtype_of(t) for t in slot.tenants} | {b.name: b.dtype}
    tenants = tuple(sorted(columns, key=found.span))
    starts, dtypes = (tuple(of[t] for t in tenants) for of in (columns, kinds))
    width = slot.shape[-1] * BYTES[slot.dtype] // BYTES[dtypes[0]]
    return Slot(
        shape=(*slot.shape[:-1], width),
        dtype=dtypes[0],
        tenants=tenants,
        columns=starts if any(starts) else (),
        dtypes=dtypes if len({*dtypes}) > 1 else (),
    )


def _last(found: Analysis, slot: Slot) -> int:
    return max(found.span(t)[1] for t in slot.tenants)
