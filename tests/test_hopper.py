"""The whole forward for sm_90: what prepares chunks, the kernels of roles, and what chooses them."""

from pathlib import Path

import pytest
import torch
from forward_cases import prepared
from test_forward import device, error, inputs  # noqa: F401  (a fixture)

from gdngen import catalog, driver, runtime
from gdngen.verify import coroutines, cpu, recurrence

ROOT = Path(__file__).resolve().parent.parent
FUNCTIONS = catalog.load(ROOT / "generated" / "gated_delta_rule.py", "chunk_gated_delta_rule")
ROLES = ("forward_hopper", "forward_hopper_narrow", "forward_carry")
PADS = (0, 0, 0, 0, 0, 1), (0, 0, 0, 1)  # a chunk behind the last row
HOPPER = 90, 232_448  # architecture, bytes of shared memory that a block may have


def variant(spec: str, **values):
    """A shipped variant's kernel and file."""
    wish = {
        name: str(value).replace("True", "true").replace("False", "false")
        for name, value in values.items()
    }
    (found,) = driver.load(ROOT / "specs" / f"{spec}.yaml", wish).variants
    return found.kernel, ROOT / "generated" / spec / f"{found.kernel.module}.py"


@pytest.mark.parametrize(
    "io, DK, layout, alike",
    [
        ("bfloat16", 128, "bthd", False),
        ("float16", 64, "bhtd", False),
        ("float16", 128, "bthd", True),
    ],
)
def test_chunks_are_prepared_as_by_a_float64_inverse(io, DK, layout, alike):
    """Two chunks and a ragged third, two heads of values for each of keys; `alike`: one key throughout,
    at rates near 1, where repeated squaring of the whole system ends in NaN."""
    B, H, HV, T, P, SEG = 2, 2, 4, 150, 2, 2
    torch.manual_seed(0)
    k = torch.nn.functional.normalize(torch.randn(B, H, T, DK, dtype=torch.float64), dim=-1)
    g, beta = -torch.rand(B, HV, T) * 0.1, torch.rand(B, HV, T)
    if alike:
        k, g, beta = k[:, :, :1].expand_as(k), torch.zeros_like(g), 1 - 1e-3 * beta
    k = k.to(getattr(torch, io))
    right = prepared(k.double(), g.double(), beta.double(), 64, P, SEG)
    want = [torch.nn.functional.pad(x, pad) for x, pad in zip(right[:2], PADS)]
    want[1][..., -1, :] = torch.tensor([0.0, -1.0, 1.0]).repeat_interleave(64)
    want.append(right[2].flatten(2))
    a, gx, gl = (
        torch.full(x.shape, torch.nan, dtype=d)
        for x, d in zip(want, (k.dtype, torch.float32, torch.float32))
    )
    given = [x.transpose(1, 2).contiguous() if layout == "bthd" else x for x in (k, g, beta)]
    _, path = variant("forward_prepare", io=io, DK=DK, layout=layout, varlen=False)
    kernel = cpu.compile(path)
    kernel.run(dict(zip("k g beta a gx gl".split(), (*given, a, gx, gl))))
    near = {"bfloat16": 3e-3, "float16": 1e-3}[io]
    assert error(a, want[0]) < near and error(gx, want[1]) < 1e-6
    assert error(gl, want[2]) < 1e-6


@pytest.fixture
def with_roles(device, monkeypatch):  # noqa: F811
    """Functions take the CPU for a Hopper GPU; roles run as coroutines."""
    seen = device(*HOPPER)
    compiled = runtime.compiled.__wrapped__

    def run(found, kind, index=0):
        if found.path.parent.name not in ROLES:
            return compiled(found, kind, index)
        values = {n: str(v) for n, v in found.values}
        kernel, path = variant(found.path.parent.name, **values)
        return lambda tensors: coroutines.run(kernel, path, {n: tensors[n] for n in found.tensors})

    monkeypatch.setattr(runtime, "compiled", run)
    monkeypatch.setattr(runtime.Call, "multiprocessors", lambda self: 64)
    return seen


@pytest.mark.parametrize("DK, T, io", [(128, 150, "bfloat16"), (64, 1100, "float16")])
def test_the_function_runs_roles_on_hopper(with_roles, DK, T, io):
    """Sequences in segments where they are long, from a state to a state, ragged, heads grouped."""
    q, k, v, g, beta = inputs(io, T=T, DK=DK, DV=DK)
    B, HV = v.shape[0], v.shape[2]
    torch.manual_seed(1)
    first = torch.randn(B, HV, DK, DK)
    named = dict(initial_state=first, output_final_state=True)
    o, final = FUNCTIONS(q, k, v, g, beta, **named)
    want_o, want_final = recurrence.gated_delta_rule(q, k, v, g, beta, initial_state=first)
    near = {"bfloat16": 8e-3, "float16": 2e-3}[io]
    assert error(o, want_o) < near and error(final, want_final) < near
    used = [f.path.parent.name for f in with_roles if isinstance(f, runtime.Found)]
    assert used[-2:] == ["forward_prepare", ROLES[DK == 64]]


LENGTHS = [1, 0, 64, 63, 0, 65, 2, 130, 0, 1, 17, 0, 0, 33, 20, 3, 0]  # 17 sequences


@pytest.mark.parametrize(
    "DK, io", [(128, "bfloat16"), pytest.param(64, "float16", marks=pytest.mark.long)]
)
def test_sequences_one_behind_the_other(with_roles, DK, io):
    """Empty ones, single rows, whole chunks and ragged ones, each from its own state to its own."""
    cu = torch.tensor([0, *LENGTHS]).cumsum(0)
    q, k, v, g, beta = inputs(io, T=int(cu[-1]), H=1, HV=2, DK=DK, DV=DK, decay=0.5)
    torch.manual_seed(1)
    first = torch.randn(len(LENGTHS), 2, DK, DK)
    named = dict(initial_state=first, output_final_state=True, cu_seqlens=cu)
    o, final = FUNCTIONS(q, k, v, g, beta, **named)
    near = {"bfloat16": 8e-3, "float16": 2e-3}[io]
    for n, (start, end) in enumerate(zip(cu, cu[1:])):
        rows = slice(int(start), int(end))
        parts = [x[:, rows] for x in (q, k, v, g, beta)]
        want_o, want = recurrence.gated_delta_rule(*parts, initial_state=first[n : n + 1])
        assert error(final[n : n + 1], want) < near
        assert start == end or error(o[:, rows], want_o) < near
    used = [f.path.stem for f in with_roles if isinstance(f, runtime.Found)]
    assert used[-2].startswith("forward_prepare_") and used[-1].startswith(ROLES[DK == 64])
    assert all("varlen_true" in name for name in used[-2:])


@pytest.mark.parametrize("names", ["q g beta", "k v"])
@pytest.mark.parametrize("DK", [128, 64])
def test_how_far_what_is_not_a_number_reaches(with_roles, monkeypatch, DK, names):
    """Of the second of three sequences: the third is right, and of the first all, or all but its last
    chunk and its state where k or v have it, whose rows behind the end are read as rows that write 0.
    """
    monkeypatch.setattr(runtime.Call, "multiprocessors", lambda self: 8)
    cu = torch.tensor([0, 130, 200, 264])
    q, k, v, g, beta = inputs("bfloat16", B=1, T=264, H=1, HV=2, DK=DK, DV=DK, decay=0.5)
    given = dict(q=q, k=k, v=v, g=g, beta=beta)
    for name in names.split():
        given[name][:, 130:200] = torch.nan
    o, final = FUNCTIONS(*given.values(), output_final_state=True, cu_seqlens=cu)
    whole = 128 if names == "k v" else 130
    for n, rows, sure in ((0, slice(0, 130), whole), (2, slice(200, 264), 64)):
        want_o, want = recurrence.gated_delta_rule(*(x[:, rows] for x in given.values()))
        assert error(o[:, rows][:, :sure], want_o[:, :sure]) < 8e-3
        if sure == rows.stop - rows.start:
            assert error(final[n : n + 1], want) < 8e-3
    used = [f.path.parent.name for f in with_roles if isinstance(f, runtime.Found)]
    assert used[-1] == ROLES[DK == 64]


SLOW, FAST = (
    0.0,
    0.05,
)  # what a log gate falls by a step: 8 chunks don't decay at all, or below e^-25
GATES = {
    "no decay": [[SLOW, SLOW, SLOW], [SLOW, SLOW, SLOW]],
    "mixed": [[SLOW, FAST, SLOW], [FAST, SLOW, FAST]],
    "decay": [[FAST, FAST, FAST], [FAST, FAST, FAST]],
}


@pytest.mark.parametrize("case", GATES)
def test_states_of_segments_from_each_other(with_roles, case):
    """Three segments of eight chunks, the last one ragged; two heads whose segments decay or don't."""
    T = 24 * 64 - 30
    q, k, v, g, beta = inputs("bfloat16", B=1, T=T, H=1, HV=2, DK=128, DV=128)
    steps = torch.tensor(GATES[case]).repeat_interleave(8 * 64, 1)[:, :T]  # [heads, T]
    g = -steps.T[None].contiguous()
    torch.manual_seed(1)
    first = torch.randn(1, 2, 128, 128)
    o, final = FUNCTIONS(q, k, v, g, beta, initial_state=first, output_final_state=True)
    want_o, want_final = recurrence.gated_delta_rule(q, k, v, g, beta, initial_state=first)
    assert error(o, want_o) < 8e-3 and error(final, want_final) < 8e-3
    for end in (512, 1024):  # the rows behind each start, by themselves
        rows = slice(end, end + 64)
        assert error(o[:, rows], want_o[:, rows]) < 8e-3
    used = [f.path.parent.name for f in with_roles if isinstance(f, runtime.Found)]
    assert used[-4:] == ["forward_prepare", "forward_carry", "forward_join", "forward_hopper"]


WHY = {
    "float32": (dict(io="float32"), {}, "tensors are float32"),
    "heads of 96": (dict(DK=96, DV=192), {}, "heads are 96 and 192 wide"),
    "few sequences": (
        dict(B=1, T=6),
        dict(cu_seqlens=torch.tensor([0, 2, 6])),
        "2 sequences of 1 heads, which blocks take whole",
    ),
}


@pytest.mark.parametrize("case", WHY)
def test_simple_kernels_serve_the_rest_and_why_says_why(device, case, monkeypatch):  # noqa: F811
    device(*HOPPER)
    monkeypatch.setattr(runtime.Call, "multiprocessors", lambda self: 64)
    changed, named, words = WHY[case]
    given = inputs(**{"io": "bfloat16", "DK": 64, "DV": 64, **changed})
    said = runtime.why(FUNCTIONS, *given, **named).splitlines()
    assert said[0].startswith("hopper: no, ") and words in said[0]
    assert [line.split()[0] for line in said[1:]] == ["specs/prepare_blocked.yaml", "specs/forward.yaml"]  # fmt: skip


CHOSEN = {  # architecture -> what `why` says first, and which specs run
    80: ("hopper: no, it is for sm_90, and the tensors are on sm_80", "prepare_blocked forward"),
    90: ("hopper: yes", "forward_prepare forward_hopper"),
    100: ("hopper: no, it is for sm_90, and the tensors are on sm_100", "prepare_blocked forward"),
}


@pytest.mark.parametrize("arch", CHOSEN)
def test_why_on_each_device(device, arch):  # noqa: F811
    device(arch, HOPPER[1])
    first, *rest = runtime.why(FUNCTIONS, *inputs("bfloat16", DK=128, DV=128)).splitlines()
    assert first == CHOSEN[arch][0]
    assert [Path(line.split()[0]).stem for line in rest] == CHOSEN[arch][1].split()
