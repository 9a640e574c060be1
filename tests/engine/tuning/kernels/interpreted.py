"""Compares every kernel with the plain form of its layer on a CPU, in Triton's interpreter, and prints the errors.

    TRITON_INTERPRET=1 python -m tests.engine.tuning.kernels.interpreted float16

Written as one JSON object: relative errors by name of the case, one for each result. A process of its own, since
Triton reads the variable when kernels are defined. Triton's interpreter cuts bfloat16 numbers where a card rounds them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.norms import CentredRmsNorm, RmsNorm, ScaleRmsNorm
from darkroom.engine.layers.rotary import rotations
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
)
from darkroom.engine.tuning.fused_forwards import FUSED
from darkroom.engine.tuning.kernels.geglu import geglu
from darkroom.engine.tuning.kernels.group_norm import group_norm_silu

Tensors = tuple[torch.Tensor, ...]
Case = tuple[str, Callable[[], Any], Callable[[], Any]]

BATCH, TOKENS, WIDTH = 2, 3, 100
HEADS, HEAD_WIDTH = 3, 24
AXES = (8, 16)


class Numbers:
    """Random numbers of one type."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator).to(self.dtype)

    def norm(self, norm: nn.Module) -> nn.Module:
        """Give a norm weights of this type around one, or around zero where it adds one."""
        for name, weight in norm.named_parameters():
            middle = 0.0 if name == "bias" or isinstance(norm, CentredRmsNorm) else 1.0
            weight.requires_grad_(False).copy_(middle + 0.3 * torch.randn(weight.shape, generator=self._generator))
        return norm.to(self.dtype)


def layer_case(name: str, layer: nn.Module, *arguments: Any, **named: Any) -> Case:
    """Return a case that compares the fused forward function of a layer with its plain one."""
    return name, lambda: FUSED[type(layer)](layer)(*arguments, **named), lambda: layer(*arguments, **named)


def norm_cases(draw: Numbers) -> Iterator[Case]:
    x, change = draw(BATCH, TOKENS, WIDTH), draw(BATCH, TOKENS + 2, WIDTH)[:, 1:-1]
    shift, scale, gate, *others = draw(BATCH, 1, 6 * WIDTH).chunk(6, dim=-1)
    for joined in (False, True):
        yield layer_case(f"layer norm, joined {joined}", AdaptiveNorm(is_joined=joined), x, scale, shift)
        yield layer_case(f"gate, joined {joined}", GatedResidual(is_joined=joined), x, change, gate)
    yield layer_case("norm without weights and scale", AdaptiveNorm("rms"), x, scale)
    of_tokens = draw(BATCH, TOKENS, 6, WIDTH).unbind(2)
    yield layer_case("modulation of each token", AdaptiveNorm("rms"), x, *of_tokens[:2])
    shared = draw(1, 1, WIDTH), draw(1, TOKENS, WIDTH)
    yield layer_case("modulation shared by items", AdaptiveNorm(), x, *shared)
    frames = draw(BATCH, 3, 2, 2, WIDTH), *draw(BATCH, 3, 1, 1, 2 * WIDTH).chunk(2, dim=-1)
    yield layer_case("modulation of frames", AdaptiveNorm(), *frames)
    stretched = [Stretches((1, 2), parts) for parts in ((shift, scale), (gate, others[0]), (others[1], others[2]))]
    yield layer_case("stretches", AdaptiveNorm(is_joined=True), x, *stretched[:2])
    both = ResidualNorm(GatedResidual(), AdaptiveNorm(is_joined=True))
    yield layer_case("residual and norm of stretches", both, x, change, *stretched)
    for norm in (RmsNorm(WIDTH, 1e-5), ScaleRmsNorm(WIDTH), CentredRmsNorm(WIDTH), nn.LayerNorm(WIDTH, eps=1e-6)):
        yield layer_case(f"{type(norm).__name__} and scale", AdaptiveNorm(), x, scale, norm=draw.norm(norm))
    yield layer_case("shift without scale", AdaptiveNorm(), x, None, shift, draw.norm(nn.LayerNorm(WIDTH)))
    yield layer_case("modulation without a norm", AdaptiveNorm("none"), x, scale, shift)
    sandwich = GatedResidual(has_tanh=True, clamps_change=True)
    yield layer_case("norm of a change", sandwich, x, change, gate, draw.norm(RmsNorm(WIDTH)))
    yield layer_case("norm of a change without weights", GatedResidual("rms", has_tanh=True), x, change, gate)
    yield layer_case("change without a gate", GatedResidual(), x, change)
    whole = ResidualNorm(sandwich, AdaptiveNorm(is_joined=True))
    norms = {"change_norm": draw.norm(RmsNorm(WIDTH)), "norm": draw.norm(RmsNorm(WIDTH, 1e-5))}
    yield layer_case("residual and norm with weights", whole, x, change, gate, scale, shift, **norms)
    large = 300 * draw(BATCH, TOKENS, WIDTH)
    yield layer_case("overflows", GatedResidual(clamps_sum=True), x, large, large)


def rotary_cases(draw: Numbers) -> Iterator[Case]:
    joined = draw(BATCH, TOKENS, 3 * HEADS * HEAD_WIDTH)
    q, k, _ = joined.view(BATCH, TOKENS, 3, HEADS, HEAD_WIDTH).permute(2, 0, 3, 1, 4)  # [B, H, T, W], no copy
    text = draw(BATCH, HEADS, 2, HEAD_WIDTH)
    matrices = rotations(torch.arange(TOKENS * 2).view(1, TOKENS, 2), AXES)
    longer = rotations(torch.arange(10).view(1, 5, 2) * 3, AXES)
    norms = [draw.norm(norm) for norm in (RmsNorm(HEAD_WIDTH), ScaleRmsNorm(HEAD_WIDTH))]
    yield layer_case("heads", RotaryHeads(), [(q, norms[0])], [(k, norms[1])], matrices)
    yield layer_case("heads without norms", RotaryHeads(), [(q, None)], [(k[:, :1], None)], matrices)
    yield layer_case("heads that do not turn", RotaryHeads(), [(q, norms[0])], [(k, norms[1])], None)
    streams = [(text, norms[1]), (q, norms[0])]
    yield layer_case("streams", RotaryHeads(), streams, [(text, norms[0]), (k, norms[1])], longer)
    others = [draw.norm(norm) for norm in (CentredRmsNorm(HEAD_WIDTH), nn.LayerNorm(HEAD_WIDTH))]
    yield layer_case("other norms", RotaryHeads(), [(q, others[0])], [(k, others[1])], matrices)
    tokens_first, rounded = RotaryHeads(token_dim=1), matrices.transpose(1, 2).to(draw.dtype)
    yield layer_case(
        "tokens first", tokens_first, [(q.transpose(1, 2), norms[0])], [(k.transpose(1, 2), None)], rounded
    )
    all_heads = [
        (part, draw.norm(norm(HEADS * HEAD_WIDTH)))
        for part, norm in zip(joined.chunk(3, dim=-1), (RmsNorm, nn.LayerNorm), strict=False)
    ]
    for token_dim, table in ((1, matrices.transpose(1, 2)), (2, matrices)):
        layer = RotaryHeads(token_dim=token_dim, num_heads=HEADS)
        yield layer_case(f"norm of all heads, {token_dim}", layer, all_heads[:1], all_heads[1:], table)
    angles = torch.arange(TOKENS * 12).view(TOKENS, 12) * 0.37
    cos, sin = angles.cos(), angles.sin()
    few = cos[:, :10], sin[:, :10]
    yield layer_case(
        "halves", RotaryHeads(RotaryLayout.HALVES, is_float32=True), [(q, norms[0])], [(k, None)], (cos, sin)
    )
    yield layer_case(
        "some channels", RotaryHeads(RotaryLayout.HALVES, is_float32=True), [(q, others[1])], [(k, None)], few
    )
    of_heads = tuple(draw(TOKENS, HEADS, HEAD_WIDTH // 2) for _ in range(2))
    pairs = RotaryHeads(RotaryLayout.PAIRS, token_dim=1)
    yield layer_case(
        "tables of heads", pairs, [(q.transpose(1, 2), norms[0])], [(k.transpose(1, 2), norms[1])], of_heads
    )
    channels = tuple(draw(TOKENS, HEAD_WIDTH) for _ in range(2))
    by_channel = RotaryHeads(RotaryLayout.CHANNELS, is_float32=True)
    yield layer_case("angles of channels", by_channel, [(q, None)], [(k, None)], channels)
    flat = tuple(draw(BATCH, TOKENS, WIDTH) for _ in range(4))
    of_all = RotaryHeads(RotaryLayout.CHANNELS, token_dim=1)
    norm = draw.norm(RmsNorm(WIDTH, 1e-5))
    yield layer_case("channels of all heads", of_all, [(flat[0], norm)], [(flat[1], norm)], flat[2:])


def activation_cases(draw: Numbers) -> Iterator[Case]:
    joined = 3 * draw(BATCH, 2, 2 * 1100)
    for kind in ("silu", "gelu", "gelu_tanh", "sigmoid"):
        yield layer_case(f"gated {kind}", GatedActivation(kind), joined)
    yield layer_case("gate behind", GatedActivation(is_gate_first=False), joined)
    apart = draw(3, WIDTH), draw(3, WIDTH)
    yield layer_case("gate apart", GatedActivation(clamps_product=True), *apart)
    large = torch.full((2, 3, WIDTH), 300.0, dtype=draw.dtype)
    yield layer_case("overflows of a product", GatedActivation(clamps_product=True), large, large)
    attended = draw(BATCH, 2, WIDTH)
    for activation in (Gelu("tanh"), Gelu("none"), GatedActivation()):
        name = f"{type(activation).__name__} behind, {getattr(activation, 'approximate', 'gated')}"
        yield layer_case(name, JoinedActivation(activation), attended, joined[..., 150:])


def other_cases(draw: Numbers) -> Iterator[Case]:
    projected = 3 * draw(3, 5, 2 * 300)
    value, gate = projected.chunk(2, dim=-1)
    yield "geglu", lambda: geglu(projected), lambda: value * functional.gelu(gate)
    x = draw(2, 64, 9, 7).contiguous(memory_format=torch.channels_last)
    weight, bias = torch.linspace(0.5, 2, 64).to(draw.dtype), torch.linspace(-1, 1, 64).to(draw.dtype)
    for name, given in (("group norm", x), ("group norm far from zero", x + 100)):
        exact = functional.group_norm(given.double(), 32, weight.double(), bias.double(), 1e-5)
        yield (
            name,
            lambda given=given: group_norm_silu(given, 32, weight, bias, 1e-5),  # type: ignore[misc]
            lambda exact=exact: functional.silu(exact).to(draw.dtype),  # type: ignore[misc]
        )


def relative_errors(found: Any, plain: Any) -> list[float]:
    """Return the relative error of each result. Raises AssertionError for other shapes or types."""
    pairs = [(found, plain)] if isinstance(found, torch.Tensor) else list(zip(found, plain, strict=True))
    for one, other in pairs:
        assert one.shape == other.shape and one.dtype == other.dtype
    return [float((one.double() - other.double()).norm() / other.double().norm()) for one, other in pairs]


def main(dtype: str) -> None:
    """Compare all cases of one type."""
    draw = Numbers(getattr(torch, dtype))
    with torch.inference_mode():
        errors = {
            name: relative_errors(fused(), plain())
            for cases in (norm_cases, rotary_cases, activation_cases, other_cases)
            for name, fused, plain in cases(draw)
        }
    sys.stdout.write(json.dumps(errors))


if __name__ == "__main__":
    main(sys.argv[1])
