"""The generated forward kernel on a Hopper GPU: right, and how fast.

    python benchmarks/forward_hopper.py

What `forward_prepare` makes is made here in float64; outputs of a few heads are compared with the token
recurrence in float64. Times are medians over runs of the kernel alone, between CUDA events.
"""

import json
import math
import statistics
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gdngen  # noqa: E402

BC, CUTOFF = 64, -12.0
MULTIPROCESSORS = 132
SHAPES = [  # B, T, heads of keys, heads of values, D
    (1, 32768, 16, 16, 128),
    (2, 8192, 32, 32, 128),
    (1, 8192, 16, 64, 128),
    (4, 2048, 16, 32, 128),
]
NARROW = [(2, 8192, 32, 32, 64), (1, 1000, 2, 4, 64), (1, 4100, 1, 2, 64)]
SPECS = {128: "forward_hopper", 64: "forward_hopper_narrow"}
RAGGED = [(1, 1000, 2, 4, 128), (2, 64, 1, 2, 128), (1, 33, 1, 1, 128), (1, 4100, 1, 2, 128)]


def segments(B, HV, NC):
    """How many segments a sequence is cut into: enough blocks for the device, none of them short."""
    parts = 1
    while parts * 2 * B * HV <= MULTIPROCESSORS and NC // (parts * 2) >= 8:
        parts *= 2
    each = -(-NC // parts)
    return -(-NC // each), each


def prepared(k, g, beta, P, SEG):
    B, H, T, D = k.shape
    HV, NC = g.shape[1], -(-T // BC)
    pad = NC * BC - T
    a = torch.empty(B, HV, NC, BC, BC, dtype=k.dtype, device=k.device)
    gx = torch.empty(B, HV, NC, 3 * BC, device=k.device)
    gl = torch.zeros(B, HV, P * SEG, device=k.device)
    for b in range(B):
        for h in range(HV):
            key = torch.nn.functional.pad(k[b, h // (HV // H)].double(), (0, 0, 0, pad))
            key = key.view(NC, BC, D)
            G = torch.nn.functional.pad(g[b, h].double(), (0, pad)).view(NC, BC).cumsum(-1)
            rate = torch.nn.functional.pad(beta[b, h].double(), (0, pad)).view(NC, BC)
            gamma = (G[:, :, None] - G[:, None, :]).tril().exp()
            M = (rate[:, :, None] * gamma * (key @ key.mT)).tril(-1)
            eye = torch.eye(BC, dtype=torch.float64, device=k.device)
            A = torch.linalg.solve_triangular(eye + M, eye.expand_as(M), upper=False)
            a[b, h] = A * rate[:, None, :]
            G2 = G * math.log2(math.e)
            gx[b, h] = torch.cat([G2, -(2**G2), 2 ** (G2[:, -1:] - G2)], -1)
            gl[b, h, :NC] = G[:, -1]
    return a, gx, gl.view(B, HV, P, SEG)


def recurrence(q, k, v, g, beta, scale, state=None):
    """Outputs and last state of one head by the definition, in float64."""
    q, k, v, g, beta = (x.double() for x in (q, k, v, g, beta))
    S = torch.zeros(k.shape[1], v.shape[1], dtype=torch.float64, device=k.device)
    S = S if state is None else state.double()
    out = torch.empty_like(v)
    for t in range(k.shape[0]):
        S = S * g[t].exp()
        S = S + torch.outer(k[t], beta[t] * (v[t] - k[t] @ S))
        out[t] = scale * (q[t] @ S)
    return out, S


def inputs(B, T, H, HV, D, dtype, gate):
    torch.manual_seed(0)
    opts = {"device": "cuda"}
    q, k = (
        torch.nn.functional.normalize(torch.randn(B, H, T, D, **opts), dim=-1).to(dtype)
        for _ in "qk"
    )
    v = torch.randn(B, HV, T, D, **opts).to(dtype)
    return q, k, v, -torch.rand(B, HV, T, **opts) * gate, torch.rand(B, HV, T, **opts)


def median(run, seconds=0.25):
    """Milliseconds; the second-level cache is flushed before each run."""
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    times = []
    for i in range(60):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        if i >= 10:
            times.append(start.elapsed_time(end))
    return statistics.median(times)


def main():
    kernels = {
        (dtype, layout, D): gdngen.kernel(
            spec, BC=BC, DK=D, DV=D, io=str(dtype).removeprefix("torch."), layout=layout
        )()
        for dtype in (torch.bfloat16, torch.float16)
        for layout in ("bhtd", "bthd")
        for D, spec in SPECS.items()
    }
    rows = []
    for shape, gate, dtype, layout, states in [
        *((s, 0.1, torch.bfloat16, "bhtd", False) for s in SHAPES),
        *((s, 0.1, torch.bfloat16, "bthd", True) for s in SHAPES),
        *((s, 0.0, torch.bfloat16, "bhtd", False) for s in SHAPES),
        *((s, 3.0, torch.bfloat16, "bhtd", False) for s in SHAPES[3:]),
        *((s, 0.1, torch.float16, "bhtd", False) for s in SHAPES[3:]),
        *((s, 0.1, torch.bfloat16, "bhtd", True) for s in RAGGED),
        *((s, 0.001, torch.float16, "bthd", True) for s in RAGGED),
        *((s, 0.1, torch.bfloat16, "bthd", True) for s in NARROW),
        *((s, 0.0, torch.bfloat16, "bhtd", False) for s in NARROW),
    ]:
        B, T, H, HV, D = shape
        q, k, v, g, beta = inputs(*shape, dtype, gate)
        P, SEG = segments(B, HV, -(-T // BC))
        a, gx, gl = prepared(k, g, beta, P, SEG)
        scale, cutoff = (torch.tensor([x], device="cuda") for x in (D**-0.5, CUTOFF))
        count = B if states else 0
        start = torch.randn(count, HV, D, D, device="cuda")
        before = start[:, :, None] if D == 128 else start
        final = torch.full_like(start, math.nan)
        rows_of = [x.transpose(1, 2).contiguous() if layout == "bthd" else x for x in (q, k, v)]
        out = torch.full_like(rows_of[2], math.nan)
        o = out.transpose(1, 2) if layout == "bthd" else out

        def run():
            kernels[dtype, layout, D](*rows_of, a, gx, gl, scale, cutoff, before, out, final)

        run()
        torch.cuda.synchronize()
        first = o.clone()
        run()
        error = 0.0
        for b, h in dict.fromkeys([(0, 0), (B - 1, HV - 1)]):
            kh = h // (HV // H)
            state = start[b, h] if states else None
            want, last = recurrence(
                q[b, kh], k[b, kh], v[b, h], g[b, h], beta[b, h], D**-0.5, state
            )
            pairs = [(first[b, h], want)] + ([(final[b, h], last)] if states else [])
            for got, right in pairs:
                error = max(error, float((got.double() - right).norm() / right.norm()))
        row = {
            "shape": shape, "gate": gate, "dtype": str(dtype), "layout": layout, "states": states,
            "segments": P, "error": error,
            "nan": int(first.isnan().sum()), "same": bool(torch.equal(first, o)), "ms": median(run),
        }  # fmt: skip
        rows.append(row)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
