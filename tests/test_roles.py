"""Roles: their protocol is derived, proven, and what it computes is right in any interleaving."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from small_spec import read

from gdngen import driver
from gdngen.model.model import Branch, Kernel, Loop
from gdngen.roles import events, handover, happenings, proof, protocol, unroll
from gdngen.roles.sync import BarrierWait, Sync

SPECS = Path(__file__).parent.parent / "specs"
SPEC, NARROW = SPECS / "forward_hopper.yaml", SPECS / "forward_hopper_narrow.yaml"
TEXT = SPEC.read_text()


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return driver.load(SPEC).variants[0].kernel


@pytest.fixture(
    scope="module",
    params=[(path, varlen) for path in (SPEC, NARROW) for varlen in ("false", "true")],
    ids=lambda p: p[0].stem + ("-varlen" if p[1] == "true" else ""),
)
def each(request) -> Kernel:
    """Every kernel that roles make, and of sequences one behind the other."""
    path, varlen = request.param
    return driver.load(path, {"varlen": varlen}).variants[0].kernel


def lines(text: str, part: str) -> int:
    """The line, from 1, of a text that stands in a spec once."""
    (at,) = [i for i, line in enumerate(text.splitlines(), 1) if part in line]
    return at


@pytest.mark.parametrize("path", [SPEC, NARROW])
def test_specs_are_short_and_have_no_raw_lines(path):
    assert len(path.read_text().splitlines()) <= 150
    assert "raw:" not in path.read_text()


# -- planted faults --------------------------------------------------------------------------------

SKIP = """\
    - loop: {i: nw}
      do:
        - skip: k_s[i]
"""
EDITS = {
    # what -> (old, new), the line that is at fault (of the edited text), words of the message
    "a skipped phase": (
        ("warm_up, scores", "scores"), ("  warm_up:\n" + SKIP, ""),
        "q_s[nw] @ k_s[nw].T", "'output' never takes round 0 of 'q_s'",
    ),
    "a dropped arrival": (
        ("          when: i >= nw\n        - map: {r: DV // 2, d: DK}", "          when: i > nw\n        - map: {r: DV // 2, d: DK}"),
        "h_b -> h_t[i - nw", "'state' writes round 1 of 'h_t' and never round 0",
    ),
    "a tile overwritten while others read it": (
        ("copy: o_f -> q_s[i]", "copy: o_f -> k_s[i]"), ("copy: q_s[i] -> o[", "copy: k_s[i] -> o["),
        "o_f -> k_s[i]", "'output' writes 'k_s' while others read it",
    ),
    "a wait in a branch": (
        ("p_f               # of the next chunk", "p_f\n          when: j + 1 < count"),
        "q_s[e] @ k_s[e].T", "a product inside a branch",
    ),
    "too few places to go ahead": (
        ("AHEAD: [3]", "AHEAD: [1]"), "q_s[e] @ k_s[e].T", "waits for ever",
    ),
    "a round given back in some rounds only": (
        ("          when: j > 0\n", "          when: j > 1\n"),
        "q_s[i] -> o[", "'output' is done with some rounds of 'q_s' here",
    ),
    "registers that there are not": (
        ("registers: 168", "registers: 176"), "warpgroups: 2, each: w", "registers of all roles",
    ),
    "a tile of two roles that is not staged": (
        ("dtype: io, stages: 1}\n  v_t", "dtype: io}\n  v_t"), ("h_t[i - nw, ", "h_t["), ("h_t[j].T", "h_t.T"),
        "q_s[i] @ h_t.T", "'h_t' is used by 'state' and by 'output'",
    ),
    "a stage of no role": (
        ("runs: [warm_up, scores, output]", "runs: [scores, output]"), "  warm_up:", "no role runs stage",
    ),
    "a staged tile without a round": (
        ("q_s[i] @ h_t[j].T", "q_s @ h_t[j].T"), "q_s @ h_t[j].T", "'q_s' is staged: which round of it?",
    ),
    "an empty sequence without a round": (
        ("NC - c0)), 1)", "NC - c0)), 0)"), "q_s[nw] @ k_s[nw].T", "waits for ever",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", EDITS)
def test_a_planted_fault_is_refused_with_its_line(fault):
    *edits, place, words = EDITS[fault]
    text = TEXT
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    errors = read(text).errors
    assert any(words in e.what for e in errors), [str(e) for e in errors]
    found = [e for e in errors if words in e.what and e.where.line == lines(text, place)]
    assert found and found[0].hint, [str(e) for e in errors]


def without(body, n):
    """The program without its n-th wait, arrival or fence; how many it had, and the one left out."""
    out, gone = [], None
    for s in body:
        if isinstance(s, Loop):
            inner, n, left = without(s.body, n)
            s, gone = replace(s, body=inner), gone or left
        elif isinstance(s, Branch):
            then, n, left = without(s.then, n)
            other, n, right = without(s.other, n)
            s, gone = replace(s, then=then, other=other), gone or left or right
        elif isinstance(s, Sync):
            n -= 1
            if n == -1:
                gone = s
                continue
        out.append(s)
    return tuple(out), n, gone


def test_no_wait_arrival_or_fence_can_be_left_out(each):
    """But waits for rounds that one of two copies lets go by: another tile tells it that they came."""
    parted = handover.of(each)
    text = Path(each.spec).read_text().splitlines()
    tried = 0
    for i, (role, body) in enumerate(parted.programs):
        count = 10**6 - without(body, 10**6)[1]
        for n in range(count):
            shorter, _, gone = without(body, n)
            programs = (
                *parted.programs[:i],
                (role, shorter),
                *parted.programs[i + 1 :],
            )
            found = proof.faults(replace(parted, programs=programs))
            let_go = isinstance(gone, BarrierWait) and "skip:" in text[gone.where.line - 1]
            spared = let_go and each.name == "forward_hopper_narrow"
            assert found or spared, f"nobody misses {gone}"
            tried += 1
    assert tried >= 30


def test_the_protocol_holds_for_every_number_of_rounds(each):
    parted = handover.of(each)
    assert proof.faults(parted) == []
    places = max(b.stages for b in each.buffers)
    tried = {(env["nw"], env["count"]) for env in unroll.valuations(each)}
    assert {(0, 1), (0, 2 * places + 2), (2 * places + 2, 2 * places + 2)} <= tried


def test_an_early_arrival_is_found(kernel):
    """A tile freed before the products that read it are over."""
    parted = handover.of(kernel)
    text = [(r.name, b) for r, b in parted.programs]
    ((_, body),) = [p for p in text if p[0] == "state"]
    (loop,) = [x for x in body if isinstance(x, Loop)]
    *rest, settle, arrive = loop.body
    early = replace(loop, body=(*rest, arrive, settle))
    programs = tuple((r, tuple(early if x is loop else x for x in b)) for r, b in parted.programs)
    found = proof.faults(replace(parted, programs=programs))
    assert found and "may write" in found[0][0].what


def test_the_proof_agrees_with_every_interleaving_tried():
    """Two roles and one tile, with each wait and arrival left out in turn: whoever is wrong in some
    interleaving is refused, and whoever is refused is wrong in one."""
    from itertools import product

    for drop in range(-1, 8):
        barriers, traces = _pair(drop)
        found = protocol.faults(barriers, traces)
        wrong = any(_wrong(barriers, traces, order) for order in product((0, 1), repeat=12))
        assert bool(found) == (wrong or drop in ALMOST), (drop, found)


ALMOST = ()


def _pair(drop: int):
    """A writer and a reader of two rounds of a tile with one place, without event `drop` of all."""
    from gdngen.errors import Location
    from gdngen.roles.happenings import Access, Arrive, Touch, Trace, Wait
    from gdngen.roles.sync import Barrier

    def line(n):
        return Location("s.yaml", n, 1)

    def touch(at, writes):
        return (Touch("x", ((0, 1),), at, writes, rows=False),)

    writer, reader = [], []
    for at in range(2):
        writer += [
            Wait(line(1), "free", 0, at - 1, f"round {at}"),
            Access(line(2), touch(at, True)),
            Arrive(line(3), "full", 0, at, f"round {at}"),
        ]
        reader += [
            Wait(line(4), "full", 0, at, f"round {at}"),
            Access(line(5), touch(at, False)),
            Arrive(line(6), "free", 0, at, f"round {at}"),
        ]
    both = [("w", e) for e in writer] + [("r", e) for e in reader]
    waits = [i for i, (_, e) in enumerate(both) if not isinstance(e, Access)]
    gone = waits[drop] if drop >= 0 else -1
    parts = {
        name: tuple(e for i, (n, e) in enumerate(both) if n == name and i != gone) for name in "wr"
    }
    barriers = (Barrier("full", 1, 32), Barrier("free", 1, 32))
    return barriers, tuple(Trace(name, 32, parts[name]) for name in "wr")


def _wrong(barriers, traces, order) -> bool:
    """Whether an interleaving, with parities as GPUs have them, reads a wrong round or hangs."""
    from gdngen.roles.happenings import Access, Wait

    phase = {b.name: 0 for b in barriers}
    at, holds = [0, 0], None
    picks = iter(order)
    while any(at[i] < len(t.events) for i, t in enumerate(traces)):

        def ready(i):
            if at[i] >= len(traces[i].events):
                return False
            e = traces[i].events[at[i]]
            return not isinstance(e, Wait) or phase[e.barrier] % 2 != e.phase % 2

        able = [i for i in (0, 1) if ready(i)]
        if not able:
            return True
        i = next(picks, 0)
        i = i if i in able else able[0]
        e = traces[i].events[at[i]]
        if isinstance(e, Access):
            if e.touches[0].writes:
                if holds is not None and holds[1] != "read":
                    return True  # the round before is lost
                holds = (e.touches[0].round, "written")
            else:
                if holds is None or holds[0] != e.touches[0].round:
                    return True
                holds = (holds[0], "read")
        elif not isinstance(e, Wait):
            phase[e.barrier] += 1
        at[i] += 1
    return False


# -- what is rendered ------------------------------------------------------------------------------


def test_the_text_has_what_was_proven(kernel):
    """As many waits, arrivals and fences as the programs have, once for each role."""
    loaded = driver.load(SPEC)
    module, *_ = driver.modules(loaded, driver.Wish())
    parted = handover.of(module.planned.kernel)
    program = sum(10**6 - without(body, 10**6)[1] for _, body in parted.programs)
    calls = re.findall(
        r"T\.(barrier_wait|barrier_arrive|wait_wgmma|fence_proxy_async|sync_threads|tma_store_wait)\(",
        module.text,
    )
    assert len(calls) == program


def test_events_are_those_of_the_programs(kernel):
    parted = handover.of(kernel)
    env = next(e for e in unroll.valuations(kernel) if (e["nw"], e["count"]) == (2, 3))
    traces = events.Traces(parted).of(env)
    assert [t.role for t in traces] == ["state", "state", "output", "load"]
    loads = [e for e in traces[-1].events if isinstance(e, happenings.Load)]
    assert len(loads) == 5 * 5 + 3  # five tiles a round, and q where outputs are made


# -- what it computes ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [SPEC, NARROW])
@pytest.mark.parametrize(
    "T, segments, gate, cutoff, states, layout",
    [
        (64, 1, 0.1, -40.0, False, "bhtd"),
        (200, 2, 0.02, -1e9, False, "bhtd"),
        (330, 3, 1.0, -40.0, False, "bthd"),
        (30, 1, 0.1, -40.0, True, "bthd"),
        (330, 3, 0.02, -1e9, True, "bhtd"),
        (330, 3, 0.02, -1e9, True, "bthd"),
    ],
)
def test_it_is_the_token_recurrence_in_any_interleaving(
    path, T, segments, gate, cutoff, states, layout
):
    import torch
    from forward_cases import forward_case

    from gdngen.verify.interpret import interpret

    (found,) = driver.load(path, {"io": "float16", "layout": layout, "varlen": "false"}).variants
    width = dict(found.kernel.values)["DK"]
    tensors, sizes, want = forward_case(
        1, 1, 2, T, width, 64, segments, gate, cutoff, states=states, layout=layout
    )
    for seed in range(3):
        got = interpret(found.kernel, tensors, sizes, seed=seed)
        for name, right in want.items():
            assert torch.linalg.norm(got[name] - right) <= 1e-12 * torch.linalg.norm(right)


@pytest.mark.parametrize("path", [SPEC, NARROW])
def test_sequences_one_behind_the_other_in_any_interleaving(path):
    """Whole, ragged, of one row and empty, at either end too. What belongs to nobody is NaN."""
    import torch
    from forward_cases import ragged_case

    from gdngen.verify.interpret import interpret

    (found,) = driver.load(path, {"io": "float16", "varlen": "true"}).variants
    width = dict(found.kernel.values)["DK"]
    tensors, sizes, want = ragged_case([0, 1, 64, 130, 0, 0, 63, 65, 0], 1, 2, width, 64, 0.1)
    for seed in range(3):
        got = interpret(found.kernel, tensors, sizes, seed=seed)
        for name, right in want.items():
            assert torch.linalg.norm(got[name] - right) <= 1e-12 * torch.linalg.norm(right)


def test_a_state_that_is_not_there_is_a_fault_of_the_result():
    """What a sequence starts from reaches outputs of later segments too."""
    import torch
    from forward_cases import forward_case

    from gdngen.verify.interpret import interpret

    (found,) = driver.load(SPEC, {"io": "float16", "layout": "bhtd"}).variants
    tensors, sizes, want = forward_case(1, 1, 1, 256, 128, 64, 2, 0.001, -1e9, states=True)
    got = interpret(found.kernel, {**tensors, "first": 0 * tensors["first"]}, sizes)["o"]
    off = (got - want["o"]).norm(dim=-1)
    assert float(off.min()) > 0 and torch.isfinite(off).all()


def test_a_missing_wait_shows_in_some_interleaving(kernel):
    import torch
    from forward_cases import forward_case

    from gdngen.judge import interleave
    from gdngen.verify.interpret import one_thread

    parted = handover.of(kernel)
    tensors, sizes, right = forward_case(1, 1, 1, 330, 128, 64, 1, 0.1, -40.0)
    want, final = right["o"], right["final"]
    role, body = parted.programs[0]
    shorter, _, gone = without(body, 9)  # the wait at the end of a round
    assert "Settle" in type(gone).__name__
    wrong = replace(parted, programs=((role, shorter), *parted.programs[1:]))
    seen = False
    for seed in range(4):
        out = torch.full_like(want, torch.nan)
        values = {**dict(kernel.values), **sizes, "h": 0, "seq": 0, "s": 0}
        run = interleave.Interleaving(wrong, {**tensors, "o": out, "final": final}, values, seed)
        with one_thread():
            run.go()
        seen = seen or not torch.allclose(out, want, rtol=1e-9, atol=1e-9)
    assert seen
