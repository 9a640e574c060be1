"""Blend modes of layers: GIMP's, by its names.

Each takes the colours below and those of the layer, `[..., 3]`, 0..1, in the space that the mode is defined in: light,
or sRGB as it is stored. Values may leave 0..1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from darkroom.engine.images.transfer_curves import linear_to_srgb, srgb_to_linear

LEAST = 1e-6
LUMINANCE = (0.2224884, 0.71690369, 0.06060791)  # of sRGB primaries for white of D50, as GIMP weighs them

Pixels = torch.Tensor
Blend = Callable[[Pixels, Pixels], Pixels]


class BlendMode(NamedTuple):
    """The function of a mode, and True if it is defined on light instead of sRGB."""

    blend: Blend
    is_linear: bool


def blended(mode: str, below: Pixels, layer: Pixels) -> Pixels:
    """Return the colours of a layer over those below it, all as light."""
    found = BLEND_MODES[mode]
    if found.is_linear:
        return found.blend(below, layer)
    return srgb_to_linear(found.blend(linear_to_srgb(below), linear_to_srgb(layer)))


def _ratio(over: Pixels, under: Pixels) -> Pixels:
    """Return a quotient, 0 where nothing is below the line."""
    is_zero = under.abs() < LEAST
    return torch.where(is_zero, 0.0, over / torch.where(is_zero, 1.0, under))


def _screen(below: Pixels, layer: Pixels) -> Pixels:
    return 1 - (1 - below) * (1 - layer)


def _overlay(below: Pixels, layer: Pixels) -> Pixels:
    return torch.where(below < 0.5, 2 * below * layer, 1 - 2 * (1 - layer) * (1 - below))


def _dodge(below: Pixels, layer: Pixels) -> Pixels:
    bright = torch.where(1 - layer <= LEAST, 1.0, _ratio(below, 1 - layer).clamp(max=1.0))
    return torch.where(below <= 0, 0.0, bright)


def _burn(below: Pixels, layer: Pixels) -> Pixels:
    dark = torch.where(layer <= LEAST, 0.0, 1 - _ratio(1 - below, layer).clamp(max=1.0))
    return torch.where(below >= 1, 1.0, dark)


def _hard_light(below: Pixels, layer: Pixels) -> Pixels:
    bright = 1 - (1 - below) * (2 - 2 * layer)
    return torch.where(layer > 0.5, bright, below * layer * 2).clamp(max=1.0)


def _soft_light(below: Pixels, layer: Pixels) -> Pixels:
    return (1 - below) * below * layer + below * _screen(below, layer)


def _vivid_light(below: Pixels, layer: Pixels) -> Pixels:
    return torch.where(layer <= 0.5, _burn(below, 2 * layer), _dodge(below, 2 * layer - 1))


def _pin_light(below: Pixels, layer: Pixels) -> Pixels:
    return torch.where(layer > 0.5, torch.maximum(below, 2 * layer - 1), torch.minimum(below, 2 * layer))


def _hue(below: Pixels, layer: Pixels) -> Pixels:
    """Return the hue of the layer with the saturation and value (HSV) below; a grey layer changes nothing."""
    low, high = layer.aminmax(dim=-1, keepdim=True)
    below_low, below_high = below.aminmax(dim=-1, keepdim=True)
    scale = _ratio(below_high - below_low, high - low)
    return torch.where(high - low <= LEAST, below, (layer - high) * scale + below_high)


def _saturation(below: Pixels, layer: Pixels) -> Pixels:
    """Return the saturation (HSV) of the layer with hue and value below."""
    low, high = layer.aminmax(dim=-1, keepdim=True)
    below_low, below_high = below.aminmax(dim=-1, keepdim=True)
    wanted = torch.where(high == 0, 0.0, (high - low) / torch.where(high == 0, 1.0, high))
    scale = _ratio(wanted * below_high, below_high - below_low)
    return (below - below_high) * scale + below_high


def _color(below: Pixels, layer: Pixels) -> Pixels:
    """Return hue and saturation (HSL) of the layer with the lightness below."""
    light, below_light = _lightness(layer), _lightness(below)
    room, below_room = torch.minimum(light, 1 - light), torch.minimum(below_light, 1 - below_light)
    is_grey = room.abs() <= LEAST
    scale = below_room / torch.where(is_grey, 1.0, room)
    shift = torch.where(below_light > 0.5, 1 - 2 * below_room, 0.0)
    shift = shift + torch.where(light > 0.5, 2 * below_room - scale, 0.0)
    return torch.where(is_grey, below_light, layer * scale + shift)


def _lightness(colors: Pixels) -> Pixels:
    low, high = colors.aminmax(dim=-1, keepdim=True)
    return (low + high) / 2


def _luminosity(below: Pixels, layer: Pixels) -> Pixels:
    """Return the colours below with the luminance of the layer; where all is dark below, grey."""
    weights = below.new_tensor(LUMINANCE)
    own, wanted = (below * weights).sum(-1, keepdim=True), (layer * weights).sum(-1, keepdim=True)
    is_dark = own <= LEAST
    return torch.where(is_dark, wanted, below * (wanted / torch.where(is_dark, 1.0, own)))


BLEND_MODES: Mapping[str, BlendMode] = {
    "normal": BlendMode(lambda below, layer: layer, True),
    "multiply": BlendMode(lambda below, layer: below * layer, True),
    "screen": BlendMode(_screen, False),
    "overlay": BlendMode(_overlay, False),
    "darken": BlendMode(torch.minimum, True),
    "lighten": BlendMode(torch.maximum, True),
    "color-dodge": BlendMode(_dodge, False),
    "color-burn": BlendMode(_burn, False),
    "hard-light": BlendMode(_hard_light, False),
    "soft-light": BlendMode(_soft_light, False),
    "difference": BlendMode(lambda below, layer: (below - layer).abs(), False),
    "exclusion": BlendMode(lambda below, layer: 0.5 - 2 * (below - 0.5) * (layer - 0.5), False),
    "linear-dodge": BlendMode(lambda below, layer: below + layer, True),
    "linear-burn": BlendMode(lambda below, layer: below + layer - 1, False),
    "vivid-light": BlendMode(_vivid_light, False),
    "pin-light": BlendMode(_pin_light, False),
    "linear-light": BlendMode(lambda below, layer: below + 2 * layer - 1, False),
    "hard-mix": BlendMode(lambda below, layer: (below + layer >= 1).to(below), False),
    "subtract": BlendMode(lambda below, layer: (below - layer).clamp(min=0), True),
    "divide": BlendMode(lambda below, layer: (below / layer.clamp(min=LEAST)).clamp(0, 1), True),
    "grain-extract": BlendMode(lambda below, layer: below - layer + 0.5, False),
    "grain-merge": BlendMode(lambda below, layer: below + layer - 0.5, False),
    "hue": BlendMode(_hue, False),
    "saturation": BlendMode(_saturation, False),
    "color": BlendMode(_color, False),
    "luminosity": BlendMode(_luminosity, True),
}
