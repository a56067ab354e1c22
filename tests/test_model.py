"""A model of two Gated DeltaNet layers: which function it imports makes no difference to its logits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from functions import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from torch import Tensor, nn
from torch.nn import functional

from gdngen.verify import recurrence

WORDS, WIDTH, HEADS, DIM, LAYERS = 61, 128, 2, 64, 2
ROUNDING = 2.0**-8  # half of what two neighbours in bfloat16 differ by, of the smaller

Rule = Callable[..., tuple[Tensor, Tensor | None]]


class Layer(nn.Module):
    """A token mixer as the paper has it (arXiv 2412.06464, figure 1), without its short convolutions."""

    def __init__(self, rule: Rule):
        super().__init__()
        self.rule = rule
        self.norm, self.heads_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(DIM)
        self.qkvz = nn.Linear(WIDTH, 4 * HEADS * DIM, bias=False)
        self.gates = nn.Linear(WIDTH, 2 * HEADS, bias=False)
        self.decay = nn.Parameter(torch.linspace(-2, 1, HEADS))
        self.out = nn.Linear(HEADS * DIM, WIDTH, bias=False)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y = self.norm(x)
        q, k, v, z = self.qkvz(y).unflatten(-1, (4, HEADS, DIM)).unbind(2)
        a, b = self.gates(y).unflatten(-1, (2, HEADS)).unbind(2)
        q, k, v = (functional.silu(t).contiguous() for t in (q, k, v))
        g = -self.decay.float().exp() * functional.softplus(a.float())
        o, state = self.rule(
            q, k, v, g, b.float().sigmoid(), initial_state=state, output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )  # fmt: skip
        return x + self.out((self.heads_norm(o) * functional.silu(z)).flatten(-2)), state


class Model(nn.Module):
    def __init__(self, rule: Rule):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer(rule) for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, ids: Tensor, states=(None,) * LAYERS) -> tuple[Tensor, list[Tensor]]:
        x, after = self.words(ids), []
        for layer, state in zip(self.layers, states):
            x, state = layer(x, state)
            after.append(state)
        return self.norm(x) @ self.words.weight.T, after


def model(rule: Rule, device: str = "cpu") -> Model:
    """The same weights whatever the rule, in bfloat16."""
    torch.manual_seed(5)
    return Model(rule).to(device, torch.bfloat16).eval()


def ids(length: int, device: str = "cpu") -> Tensor:
    source = torch.Generator().manual_seed(6)
    return torch.randint(WORDS, (2, length), generator=source).to(device)


def by_definition(q, k, v, g, beta, initial_state=None, use_qk_l2norm_in_kernel=False, **_):
    """The token recurrence, with FLA's names; o in the dtype of v."""
    o, state = recurrence.gated_delta_rule(
        q, k, v, g, beta, initial_state=initial_state, l2norm=use_qk_l2norm_in_kernel
    )
    return o.to(v.device, v.dtype), state.to(v.device)


def apart(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())


@torch.no_grad()
def test_logits_are_those_of_the_definition():
    words = ids(70)
    logits, states = model(chunk_gated_delta_rule)(words)
    right, ends = model(by_definition)(words)
    assert apart(logits, right) < 2 * ROUNDING
    assert all(apart(s, e) < 2 * ROUNDING for s, e in zip(states, ends))
    wrong, _ = model(
        lambda q, k, v, g, *more, **named: by_definition(q, k, v, 2 * g, *more, **named)
    )(words)
    assert apart(wrong, right) > 10 * ROUNDING  # a gate that is off would be seen


@torch.no_grad()
def test_a_prompt_then_a_token_at_a_time():
    words = ids(70)
    right, _ = model(by_definition)(words)
    _, states = model(chunk_gated_delta_rule)(words[:, :66])
    decoder = model(fused_recurrent_gated_delta_rule)
    for t in range(66, 70):
        logits, states = decoder(words[:, t : t + 1], states)
        assert apart(logits[:, 0], right[:, t]) < 2 * ROUNDING


@pytest.mark.gpu
@pytest.mark.skipif("not __import__('gdngen.verify.verify', fromlist=['on_gpu']).on_gpu()")
@torch.no_grad()
@pytest.mark.parametrize("length", [70, 1000])
def test_logits_are_those_with_the_import_of_fla(length):
    """To bfloat16's rounding, and no further from the definition than with FLA's functions."""
    fla = pytest.importorskip("fla.ops.gated_delta_rule")
    words = ids(length, "cuda")
    logits, _ = model(chunk_gated_delta_rule, "cuda")(words)
    theirs, _ = model(fla.chunk_gated_delta_rule, "cuda")(words)
    right, _ = model(by_definition, "cuda")(words)
    assert apart(logits, theirs) < 2 * ROUNDING
    assert apart(logits, right) < 1.1 * apart(theirs, right)
