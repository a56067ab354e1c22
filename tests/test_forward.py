"""The public functions against the recurrence, a token at a time in float64; on the CPU, small sizes."""

from __future__ import annotations

import re

import naive
import pytest
import torch
from functions import (
    chunk_gated_delta_rule,
    error,
    fused_recurrent_gated_delta_rule,
    inputs,
)

from gdngen import runtime
from gdngen.verify import recurrence

# Relative error that passes, of outputs and of states. Measured on the CPU over everything below:
#   float32   2.9e-7 and 3.2e-7
#   bfloat16  3.0e-3 and 2.2e-3, and 3.8e-3 where rows are normalised
#   float16   5.1e-4 and 4.7e-4
# (one rounding of a result is off by up to 6e-8, 3.9e-3 and 4.9e-4). A gate in the wrong place is off
# by 5e-2. The functions of a token keep states in float32, whatever the tensors are.
CHUNKED = {"float32": 2e-6, "bfloat16": 8e-3, "float16": 1.5e-3}
BY_TOKEN = {"float32": (2e-6, 2e-6), "bfloat16": (5e-3, 2e-6), "float16": (1e-3, 2e-6)}
DTYPES = sorted(CHUNKED)


def sequences(cu: torch.Tensor) -> list[tuple[int, int, int]]:
    """(number, first row, row behind the last) of every sequence."""
    ends = cu.tolist()
    return [(n, a, b) for n, (a, b) in enumerate(zip(ends, ends[1:]))]


# -- chunk after chunk ---------------------------------------------------------------------------


@pytest.mark.parametrize("io", DTYPES)
@pytest.mark.parametrize("T", [1, 64, 150])
def test_chunks_are_the_recurrence(io, T):
    given = inputs(io, B=2, T=T, H=2, HV=2)
    first = torch.randn(2, 2, 64, 64)
    o, last = chunk_gated_delta_rule(*given, initial_state=first, output_final_state=True)
    right, state = recurrence.gated_delta_rule(*given, initial_state=first)
    assert o.dtype == getattr(torch, io) and last.dtype == torch.float32
    assert error(o, right) < CHUNKED[io] and error(last, state) < CHUNKED[io]


def test_no_state_in_and_none_out():
    given = inputs("float32", T=70)
    o, last = chunk_gated_delta_rule(*given)
    assert last is None
    assert error(o, recurrence.gated_delta_rule(*given)[0]) < CHUNKED["float32"]


def test_heads_of_keys_are_shared():
    given = inputs("float32", B=2, T=90, H=2, HV=4)
    o, last = chunk_gated_delta_rule(*given, output_final_state=True, scale=0.5)
    right, state = recurrence.gated_delta_rule(*given, scale=0.5)
    assert error(o, right) < CHUNKED["float32"] and error(last, state) < CHUNKED["float32"]


def test_rows_are_normalised():
    given = inputs("float32", T=70, unit=False)
    o, _ = chunk_gated_delta_rule(*given, use_qk_l2norm_in_kernel=True)
    right, _ = recurrence.gated_delta_rule(*given, l2norm=True)
    assert error(o, right) < CHUNKED["float32"]


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_sequences_of_any_length_in_one_batch(kind):
    """Empty ones, one row, a whole chunk, one row more."""
    lengths = [70, 0, 1, 64, 65, 0, 3]
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=kind)
    given = inputs("float32", T=sum(lengths), H=1, HV=1)
    first = torch.randn(len(lengths), 1, 64, 64)
    o, last = chunk_gated_delta_rule(
        *given, initial_state=first, output_final_state=True, cu_seqlens=cu
    )
    for n, a, b in sequences(cu):
        part = [x[:, a:b] for x in given]
        right, state = recurrence.gated_delta_rule(*part, initial_state=first[n : n + 1])
        assert error(o[:, a:b], right) < CHUNKED["float32"] or a == b
        assert error(last[n : n + 1], state) < CHUNKED["float32"]


def test_many_sequences():
    """Two rows each: more sequences than chunks."""
    cu = torch.arange(0, 301, 2)
    given = inputs("float32", T=300)
    o, last = chunk_gated_delta_rule(*given, output_final_state=True, cu_seqlens=cu)
    pairs = [x.view(150, 2, *x.shape[2:]) for x in given]
    right, state = recurrence.gated_delta_rule(*pairs)
    assert error(o.view(right.shape), right) < CHUNKED["float32"]
    assert error(last, state) < CHUNKED["float32"]


def test_a_sequence_is_none_of_its_neighbours_business():
    """What is not a number in one sequence stays there."""
    cu = torch.tensor([0, 70, 140])
    given = inputs("float32", T=140)
    for x in given:
        x[:, 70:] = torch.nan
    o, last = chunk_gated_delta_rule(*given, output_final_state=True, cu_seqlens=cu)
    right, state = recurrence.gated_delta_rule(*(x[:, :70] for x in given))
    assert error(o[:, :70], right) < CHUNKED["float32"]
    assert error(last[:1], state) < CHUNKED["float32"]


def test_a_sequence_cut_in_two():
    """The state carried over, the rest is as if there had been no cut."""
    given = inputs("float32", T=150)
    whole, end = chunk_gated_delta_rule(*given, output_final_state=True)
    one, between = chunk_gated_delta_rule(
        *(x[:, :70].contiguous() for x in given), output_final_state=True
    )
    rest = [x[:, 70:].contiguous() for x in given]
    two, last = chunk_gated_delta_rule(*rest, initial_state=between, output_final_state=True)
    assert error(torch.cat([one, two], 1), whole.double()) < CHUNKED["float32"]
    assert error(last, end.double()) < CHUNKED["float32"]


# -- a token at a time ---------------------------------------------------------------------------


@pytest.mark.parametrize("io", DTYPES)
def test_tokens_are_the_recurrence(io):
    given = inputs(io, B=2, T=3, H=2, HV=4)
    first = torch.randn(2, 4, 64, 64)
    o, last = fused_recurrent_gated_delta_rule(*given, initial_state=first, output_final_state=True)
    right, state = recurrence.gated_delta_rule(*given, initial_state=first)
    outputs, states = BY_TOKEN[io]
    assert error(o, right) < outputs and error(last, state) < states


def test_tokens_of_sequences_in_one_batch():
    cu = torch.tensor([0, 2, 2, 3])
    given = inputs("float32", T=3, H=1, HV=2, unit=False)
    o, last = fused_recurrent_gated_delta_rule(
        *given, output_final_state=True, use_qk_l2norm_in_kernel=True, cu_seqlens=cu
    )
    for n, a, b in sequences(cu):
        right, state = recurrence.gated_delta_rule(*(x[:, a:b] for x in given), l2norm=True)
        assert error(o[:, a:b], right) < 2e-6 or a == b
        assert error(last[n : n + 1], state) < 2e-6


def test_steps_of_decoding_are_the_chunks():
    given = inputs("float32", T=66)
    whole, end = chunk_gated_delta_rule(*given, output_final_state=True)
    state, rows = None, []
    for t in range(66):
        token = [x[:, t : t + 1].contiguous() for x in given]
        row, state = fused_recurrent_gated_delta_rule(
            *token, initial_state=state, output_final_state=True
        )
        rows.append(row)
    assert error(torch.cat(rows, 1), whole.double()) < CHUNKED["float32"]
    assert error(state, end.double()) < CHUNKED["float32"]


# -- naive implementations -----------------------------------------------------------------------


@pytest.mark.parametrize("formula", [naive.recurrent, naive.chunked])
def test_the_recurrence_is_what_naive_formulas_say(formula):
    """In float64, so that kernels held against one are held against all."""
    given = [x.double() for x in inputs("float32", B=2, T=150, H=2, HV=2)]
    first = torch.randn(2, 2, 64, 64, dtype=torch.float64)
    o, last = formula(*given, initial_state=first)
    right, state = recurrence.gated_delta_rule(*given, initial_state=first)
    assert error(o, right) < 1e-12 and error(last, state) < 1e-12


@pytest.mark.parametrize("formula", [naive.recurrent, naive.chunked])
def test_chunks_are_the_naive_formulas(formula):
    given = inputs("float32", B=2, T=150, H=2, HV=2)
    o, last = chunk_gated_delta_rule(*given, output_final_state=True)
    right, state = formula(*given)
    assert error(o, right.double()) < CHUNKED["float32"]
    assert error(last, state.double()) < CHUNKED["float32"]


def test_chunks_are_what_fla_publishes():
    published = pytest.importorskip("fla.ops.gated_delta_rule.naive")
    q, k, v, g, beta = inputs("float32", B=2, T=150, H=2, HV=2)
    o, _ = chunk_gated_delta_rule(q, k, v, g, beta)
    right = published.naive_recurrent_gated_delta_rule(q, k, v, beta=beta, g=g)[0]
    assert error(o, right.double()) < CHUNKED["float32"]


# -- hard numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [0.0, 3.0, 30.0, 300.0])
@pytest.mark.parametrize("io", ["float32", "bfloat16"])
def test_any_decay(io, decay):
    q, k, v, _, beta = inputs(io, T=150)
    g = torch.full(beta.shape, -decay)
    o, last = chunk_gated_delta_rule(q, k, v, g, beta, output_final_state=True)
    right, state = recurrence.gated_delta_rule(q, k, v, g, beta)
    assert error(o, right) < CHUNKED[io] and error(last, state) < CHUNKED[io]


# Measured: float32 5.3e-7 and 2.0e-5, bfloat16 1.4e-2 and 1.0e-1, float16 2.1e-3 and 2.1e-2. At beta 1
# v - S^T k cancels; at 2 each of 130 equal rows turns the last one's error over and adds its own, since
# rounded keys are not quite of length 1.
ALIKE = {
    "float32": {1.0: 2e-6, 2.0: 1e-4},
    "bfloat16": {1.0: 4e-2, 2.0: 4e-1},
    "float16": {1.0: 6e-3, 2.0: 8e-2},
}


@pytest.mark.parametrize("beta", [1.0, 2.0])
@pytest.mark.parametrize("io", DTYPES)
def test_keys_that_are_all_the_same(io, beta):
    """Repeated tokens without decay, where repeated squaring leaves nothing right."""
    q, k, v, g, rate = inputs(io, T=130)
    k[:] = k[:, :1]
    o, _ = chunk_gated_delta_rule(q, k, v, g * 0, torch.full_like(rate, beta))
    right, _ = recurrence.gated_delta_rule(q, k, v, g * 0, torch.full_like(rate, beta))
    assert error(o, right) < ALIKE[io][beta]


# -- wrong arguments -----------------------------------------------------------------------------

WRONG = {
    "no tensor": ("q", lambda x: x["q"].tolist(), TypeError, "'q' is list, not a tensor"),
    "dtype": ("k", lambda x: x["k"].double(), TypeError, "'k' is float64; it may be float16 or"),
    "two dtypes": ("v", lambda x: x["v"].half(), TypeError, "'v' is float16, and 'q' is float32"),
    "no float": ("g", lambda x: x["g"].int(), TypeError, "'g' is int32, which does not convert"),
    "rank": ("g", lambda x: x["g"][0], ValueError, r"'g' is \[B, T, HV\]; its shape is \(70, 1\)"),
    "length": ("v", lambda x: x["v"][:, 1:], ValueError, "'v' .* has 69 along axis 1, and 'q' makes T 70"),
    "empty": ("q", lambda x: x["q"][:, :0], ValueError, "'q' is empty"),
    "strides": ("k", lambda x: x["k"].repeat(1, 1, 1, 2)[..., :64], ValueError, "'k' has strides .* k.contiguous"),
    "heads": ("q k", lambda x: x["q"].repeat(1, 1, 2, 1), ValueError, "'v' has 1 heads, which 2 heads"),
    "gradient": ("v", lambda x: x["v"].clone().requires_grad_(), NotImplementedError, "no backward"),
    "device": ("beta", lambda x: x["beta"].to("meta"), ValueError, "'beta' is on meta, 'q' on cpu"),
    "scale": ("scale", lambda x: float("nan"), TypeError, "'scale' is nan, not a number"),
    "states": (
        "initial_state",
        lambda x: torch.zeros(2, 1, 64, 64),
        ValueError,
        "'initial_state' is of 2 sequences, and there are 1",
    ),
    "state dtype": (
        "initial_state",
        lambda x: torch.zeros(1, 1, 64, 64).half(),
        TypeError,
        "'initial_state' is float16; it may be float32",
    ),
    "ends": ("cu_seqlens", lambda x: torch.tensor([0, 60]), ValueError, "from 0 to 60, and should go from 0 to 70"),
    "order": ("cu_seqlens", lambda x: torch.tensor([0, 60, 50, 70]), ValueError, "'cu_seqlens' falls from 60 to 50"),
    "fractions": ("cu_seqlens", lambda x: torch.tensor([0.0, 70.0]), TypeError, "'cu_seqlens' is float32"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("name", ["chunk", "fused_recurrent"])
def test_a_wrong_argument_is_named(name, case):
    names, change, kind, words = WRONG[case]
    given = dict(zip(("q", "k", "v", "g", "beta"), inputs("float32", T=70)))
    given |= dict.fromkeys(names.split(), change(given))
    with pytest.raises(kind, match=f"{name}_gated_delta_rule: .*{words}"):
        globals()[f"{name}_gated_delta_rule"](**given)


def test_the_cutoff_of_segments_is_a_number_that_may_be_infinite():
    given = inputs("float32", T=70)
    with pytest.raises(TypeError, match="'cutoff' is nan, not a number"):
        chunk_gated_delta_rule(*given, cutoff=float("nan"))
    o, _ = chunk_gated_delta_rule(*given, cutoff=float("-inf"))
    assert error(o, recurrence.gated_delta_rule(*given)[0]) < CHUNKED["float32"]


def test_sequences_come_in_one_batch():
    given = inputs("float32", B=2, T=4)
    with pytest.raises(ValueError, match="in one batch; 'q' has 2"):
        chunk_gated_delta_rule(*given, cu_seqlens=torch.tensor([0, 4]))


@pytest.mark.parametrize("rule", [chunk_gated_delta_rule, fused_recurrent_gated_delta_rule])
def test_rows_that_are_not_served(rule):
    with pytest.raises(ValueError, match="'k' has rows of 80: 32, 64, ..., 256 are served"):
        rule(*inputs("float32", DK=80, DV=64, T=3))
    with pytest.raises(ValueError, match="'v' has rows of 512"):
        rule(*inputs("float32", DV=512, T=3))


def test_a_variant_that_is_not_checked_in_is_made():
    given = inputs("float32", DK=32, DV=96, T=3)
    o, _ = fused_recurrent_gated_delta_rule(*given)
    assert error(o, recurrence.gated_delta_rule(*given)[0]) < 2e-6


def test_16_bit_gates_are_converted():
    q, k, v, g, beta = inputs("bfloat16", T=20)
    g, beta = g.bfloat16(), beta.bfloat16()
    o, _ = chunk_gated_delta_rule(q, k, v, g, beta)
    assert error(o, recurrence.gated_delta_rule(q, k, v, g, beta)[0]) < CHUNKED["bfloat16"]


# -- a model -------------------------------------------------------------------------------------


def model(rule, tokens: torch.Tensor) -> torch.Tensor:
    """Logits of two layers of Gated DeltaNet, two heads of 64, over 50 words; weights from a seed."""
    source = torch.Generator().manual_seed(3)

    def weight(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=source) / shape[0] ** 0.5).bfloat16()

    table = weight(50, 128) * 50**0.5
    x = table[tokens]
    for _ in range(2):
        y = torch.nn.functional.rms_norm(x, (128,))
        q, k, v = ((y @ weight(128, 128)).unflatten(-1, (2, 64)) for _ in range(3))
        q, k = (torch.nn.functional.normalize(z.float(), dim=-1).bfloat16() for z in (q, k))
        g = torch.nn.functional.logsigmoid((y @ weight(128, 2)).float() + 2)
        beta = (y @ weight(128, 2)).float().sigmoid()
        o, _ = rule(q, k, v, g, beta)
        x = x + o.to(x.dtype).flatten(-2) @ weight(128, 128)
    return (torch.nn.functional.rms_norm(x, (128,)) @ weight(128, 50)).double()


def test_a_model_that_swaps_one_import():
    tokens = torch.randint(50, (2, 100), generator=torch.Generator().manual_seed(4))
    ours = model(chunk_gated_delta_rule, tokens)
    theirs = model(recurrence.gated_delta_rule, tokens)
    assert error(ours, theirs) < 2e-2  # measured 8e-3: roundings to bfloat16 between the layers
    clear = theirs.topk(2).values.diff().abs()[..., 0] > 0.1
    assert (ours.argmax(-1) == theirs.argmax(-1))[clear].all()


# -- everything ----------------------------------------------------------------------------------

SHAPES = [(64, 64), (128, 128), (96, 192), (256, 256)]  # DK, DV


def every_way(io: str, H: int, HV: int, DK: int, DV: int, varlen: bool, device: str = "cpu"):
    """Errors of outputs and of states of both functions, with all options, sequences after 70 rows,
    none, 1 and the rest: {function: (outputs, states)}."""
    given = inputs(io, T=150, H=H, HV=HV, DK=DK, DV=DV, unit=False)
    cu = torch.tensor([0, 70, 70, 71, 150] if varlen else [0, 150])
    first = torch.randn(len(cu) - 1, HV, DK, DV, generator=torch.Generator().manual_seed(1))
    there = [x.to(device) for x in given]
    found = {}
    for rule in (chunk_gated_delta_rule, fused_recurrent_gated_delta_rule):
        o, last = rule(
            *there,
            initial_state=first.to(device),
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            cu_seqlens=cu.to(device) if varlen else None,
        )
        off = []
        for n, a, b in sequences(cu):
            part = [x[:, a:b] for x in given]
            right, state = recurrence.gated_delta_rule(
                *part, initial_state=first[n : n + 1], l2norm=True
            )
            off.append((error(o[:, a:b], right) if b > a else 0.0, error(last[n : n + 1], state)))
        found[rule.__name__] = tuple(map(max, zip(*off)))
    return found


@pytest.mark.long
@pytest.mark.parametrize("varlen", [False, True])
@pytest.mark.parametrize("io", DTYPES)
@pytest.mark.parametrize("DK, DV", SHAPES)
def test_every_shape(DK, DV, io, varlen):
    found = every_way(io, 1, 3, DK, DV, varlen)
    assert max(found["chunk_gated_delta_rule"]) < CHUNKED[io]
    outputs, states = found["fused_recurrent_gated_delta_rule"]
    assert outputs < BY_TOKEN[io][0] and states < BY_TOKEN[io][1]


@pytest.mark.gpu
@pytest.mark.skipif("not __import__('gdngen.verify.verify', fromlist=['on_gpu']).on_gpu()")
@pytest.mark.parametrize("varlen", [False, True])
@pytest.mark.parametrize("io", DTYPES)
@pytest.mark.parametrize("DK, DV", SHAPES)
def test_every_shape_on_a_gpu(DK, DV, io, varlen):
    found = every_way(io, 2, 4, DK, DV, varlen, "cuda")
    loose = {"float32": 3e-3, "bfloat16": 1e-2, "float16": 3e-3}[io]  # tensor cores round float32
    assert max(found["chunk_gated_delta_rule"]) < loose
    assert max(found["fused_recurrent_gated_delta_rule"]) < CHUNKED[io]


# -- parts with less shared memory ---------------------------------------------------------------


@pytest.fixture
def device(monkeypatch):
    """Makes functions take the CPU for a GPU of an architecture and so many bytes a block."""

    def pretend(arch: int, limit: int) -> list[runtime.Found]:
        seen = []
        found = runtime._found.__wrapped__

        def note(*args):
            seen.append(found(*args))
            return seen[-1]

        monkeypatch.setattr(runtime, "_device", lambda kind, index: (arch, limit))
        monkeypatch.setattr(runtime, "_found", note)
        monkeypatch.setattr(runtime, "_runner", runtime._runner.__wrapped__)
        return seen

    return pretend


def bytes_of(found: runtime.Found) -> int:
    """As its docstring says: bytes on the target that it was planned for."""
    return int(re.search(r"policy \w+: ([\d,]+) bytes", found.path.read_text())[1].replace(",", ""))


@pytest.mark.parametrize("arch, limit, chunk", [(86, 101_376, 64), (80, 65_536, 32)])
def test_smaller_parts_get_variants_that_fit(device, arch, limit, chunk):
    """What the plan says takes less, and no more than a block may have there."""
    seen = device(arch, limit)
    given = inputs("bfloat16", T=100, DK=128, DV=128)
    o, _ = chunk_gated_delta_rule(*given)
    assert error(o, recurrence.gated_delta_rule(*given)[0]) < CHUNKED["bfloat16"]
    used = [f for f in seen if isinstance(f, runtime.Found)]
    assert used and all(bytes_of(f) <= limit for f in used)
    assert any(f"c{chunk}_" in f.path.name for f in used)


def test_a_part_that_no_plan_fits(device):
    device(80, 2_000)
    with pytest.raises(
        NotImplementedError, match=r"no kernel of specs/.* for cpu: it takes .* 2,000"
    ):
        chunk_gated_delta_rule(*inputs("bfloat16", T=3))
