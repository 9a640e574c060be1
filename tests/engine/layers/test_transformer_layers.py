"""Layers between a transformer's matrix products, against the formulas of the networks that they were taken from."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.rotary import rotated, rotations
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedActivation,
    GatedResidual,
    Gelu,
    JoinedActivation,
    ResidualNorm,
    RotaryHeads,
    RotaryLayout,
    Stretches,
    finite,
)

TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


def draw(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@TYPES
def test_streams_are_normalised_joined_and_rotated(dtype: torch.dtype) -> None:
    text, image = draw(2, 3, 2, 16, dtype=dtype), draw(2, 3, 5, 16, dtype=dtype)
    norm = RmsNorm(16).requires_grad_(False).to(dtype)
    pe = rotations(torch.arange(14).view(1, 7, 2), (8, 8))
    q, k = RotaryHeads()([(text, norm), (image, None)], [(image, norm), (text, norm)], pe)
    assert torch.equal(q, rotated(torch.cat([norm(text), image], dim=2), pe))
    assert torch.equal(k, rotated(torch.cat([norm(image), norm(text)], dim=2), pe))


def test_heads_are_split_behind_a_norm_of_all() -> None:
    x = draw(2, 5, 48, dtype=torch.float32)
    norm = RmsNorm(48).requires_grad_(False)
    for token_dim in (1, 2):
        q, _ = RotaryHeads(token_dim=token_dim, num_heads=3)([(x, norm)], [(x, norm)], None)
        heads = norm(x).view(2, 5, 3, 16)
        assert torch.equal(q, heads if token_dim == 1 else heads.transpose(1, 2))


def test_all_layouts_rotate_by_the_same_angles() -> None:
    x, angles = draw(2, 3, 5, 16, dtype=torch.float32), torch.rand(5, 8)
    cos, sin = angles.cos(), angles.sin()
    matrices = torch.stack([cos, -sin, sin, cos], dim=-1).view(1, 1, 5, 8, 2, 2)
    plain = RotaryHeads(RotaryLayout.MATRICES).rotate(x, matrices)
    tables = {
        RotaryLayout.PAIRS: (cos, sin),
        RotaryLayout.CHANNELS: (cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)),
    }
    for layout, table in tables.items():
        assert torch.equal(RotaryHeads(layout).rotate(x, table), plain)
    order = torch.arange(16).view(8, 2).T.flatten()  # even channels, then odd ones
    halves = RotaryHeads(RotaryLayout.HALVES).rotate(x[..., order], (cos, sin))
    assert torch.equal(halves, plain[..., order])


def test_channels_behind_the_tables_do_not_turn() -> None:
    x = draw(2, 3, 5, 16, dtype=torch.float32)
    found = RotaryHeads(RotaryLayout.HALVES).rotate(x, (torch.zeros(5, 4), torch.ones(5, 4)))
    assert torch.equal(found[..., 8:], x[..., 8:]) and torch.equal(found[..., :4], -x[..., 4:8])


@TYPES
def test_norms_are_scaled_and_shifted(dtype: torch.dtype) -> None:
    x, scale, shift = draw(2, 5, 24, dtype=dtype), draw(2, 1, 24, dtype=dtype), draw(1, 5, 24, dtype=dtype)
    normed, squares = functional.layer_norm(x, (24,), eps=1e-6), functional.rms_norm(x, (24,), eps=1e-5)
    assert torch.equal(AdaptiveNorm(is_joined=True)(x, scale, shift), torch.addcmul(shift, normed, 1 + scale))
    assert torch.equal(AdaptiveNorm()(x, scale, shift), normed * (1 + scale) + shift)
    assert torch.equal(AdaptiveNorm("rms", 1e-5)(x, scale), squares * (1 + scale))
    norm = RmsNorm(24, 1e-5).requires_grad_(False).to(dtype)
    assert torch.equal(AdaptiveNorm()(x, None, shift, norm), norm(x) + shift)
    assert torch.equal(AdaptiveNorm("none")(x, scale, shift), x * (1 + scale) + shift)


@TYPES
def test_changes_are_gated_and_added(dtype: torch.dtype) -> None:
    x, change, gate = draw(2, 5, 24, dtype=dtype), draw(2, 5, 24, dtype=dtype) * 9, draw(2, 1, 24, dtype=dtype)
    assert torch.equal(GatedResidual()(x, change, gate), x + change * gate)
    assert torch.equal(GatedResidual(is_joined=True)(x, change, gate), torch.addcmul(x, change, gate))
    assert torch.equal(GatedResidual(clamps_sum=True)(x, change * 1e4, gate), finite(x + change * 1e4 * gate))
    sandwich = GatedResidual("rms", has_tanh=True, clamps_change=True)
    normed = functional.rms_norm(finite(change), (24,), eps=1e-6)
    assert torch.equal(sandwich(x, change, gate), x + gate.tanh() * normed)
    both = ResidualNorm(GatedResidual(), AdaptiveNorm())
    total, normed = both(x, change, gate, gate)
    assert torch.equal(total, x + change * gate) and torch.equal(normed, AdaptiveNorm()(total, gate))


def test_stretches_of_tokens_have_modulators_of_their_own() -> None:
    x, parts = draw(2, 5, 24, dtype=torch.float32), draw(2, 1, 96, dtype=torch.float32).chunk(4, dim=-1)
    scale, shift = Stretches((2, 3), parts[:2]), Stretches((2, 3), parts[2:])
    norm, residual = AdaptiveNorm(is_joined=True), GatedResidual(has_tanh=True)
    stretches = (slice(0, 2), slice(2, 5))
    expected = [norm(x[:, part], parts[number], parts[2 + number]) for number, part in enumerate(stretches)]
    assert torch.equal(norm(x, scale, shift), torch.cat(expected, dim=1))
    gated = [residual(x[:, part], x[:, part], parts[number]) for number, part in enumerate(stretches)]
    assert torch.equal(residual(x, x, scale), torch.cat(gated, dim=1))
    with pytest.raises(ValueError, match="stretches of tokens differ"):
        norm(x, scale, parts[0])


@TYPES
def test_gates_are_activated_in_the_first_or_second_half_or_apart(dtype: torch.dtype) -> None:
    x = draw(2, 5, 24, dtype=dtype) * 3
    first, second = x.chunk(2, dim=-1)
    assert torch.equal(GatedActivation()(x), functional.silu(first) * second)
    assert torch.equal(GatedActivation(is_gate_first=False)(x), first * functional.silu(second))
    assert torch.equal(GatedActivation("sigmoid")(first, second), torch.sigmoid(first) * second)
    assert torch.equal(GatedActivation("gelu_tanh")(x), functional.gelu(first, approximate="tanh") * second)
    assert torch.equal(
        GatedActivation(clamps_product=True)(x * 9e3), finite(functional.silu(first * 9e3) * (second * 9e3))
    )
    assert torch.equal(JoinedActivation(Gelu("none"))(first, x), torch.cat([first, functional.gelu(x)], dim=-1))
