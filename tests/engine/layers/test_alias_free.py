"""Activations without aliasing: filters, constants, tones that the detour over twice the rate leaves as they are."""

from __future__ import annotations

import math

import torch
from torch import nn

from darkroom.engine.layers.alias_free import FILTER_NAMES, AliasFree, SnakeBeta, kaiser_sinc


def passing(activation: nn.Module) -> AliasFree:
    layer = AliasFree(activation).requires_grad_(False)
    for name in FILTER_NAMES:
        layer.get_parameter(name).copy_(kaiser_sinc())
    return layer


def test_the_filter_is_even_and_keeps_constants() -> None:
    response = kaiser_sinc()
    assert response.shape == (1, 1, 12)
    torch.testing.assert_close(response, response.flip(-1))
    torch.testing.assert_close(response.sum(), torch.tensor(1.0))


def test_longer_and_steeper_filters_take_other_windows() -> None:
    odd = kaiser_sinc(0.25, 0.3, 13)
    assert odd.argmax() == 6
    steep, flat = kaiser_sinc(0.25, 0.01, 12), kaiser_sinc(0.25, 0.3, 12)
    assert steep[0, 0, 0].abs() > flat[0, 0, 0].abs()  # without a window its ends are not faded


def test_a_tone_far_below_the_limit_survives_the_detour() -> None:
    tone = torch.sin(2 * math.pi * 0.05 * torch.arange(200.0)).expand(2, 3, -1)
    out = passing(nn.Identity())(tone)
    assert out.shape == tone.shape
    torch.testing.assert_close(out[..., 10:-10], tone[..., 10:-10], atol=0.02, rtol=0)
    constant = torch.full((1, 2, 9), 0.7)
    torch.testing.assert_close(passing(nn.Identity())(constant), constant, atol=1e-3, rtol=0)


def test_the_activation_is_periodic_by_channel() -> None:
    layer = SnakeBeta(2).requires_grad_(False)
    layer.alpha.copy_(torch.tensor([0.0, math.log(2.0)]))
    layer.beta.copy_(torch.tensor([0.0, math.log(4.0)]))
    x = torch.full((1, 2, 1), 0.5)
    expected = [0.5 + math.sin(0.5) ** 2, 0.5 + math.sin(1.0) ** 2 / 4.0]
    torch.testing.assert_close(layer(x).flatten(), torch.tensor(expected))
