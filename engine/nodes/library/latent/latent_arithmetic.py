"""Nodes for arithmetic on latents.

The second latent takes the first one's size and batch; everything else comes from the first.

LATENT `samples` is `[B, C, h, w]`.
"""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.images.compositing import repeated
from darkroom.engine.images.pixels import resize
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.latent.latent_geometry import LATENT_MODULE, with_samples
from darkroom.engine.nodes.sockets import LATENT
from darkroom.engine.nodes.widgets import Float

Share = Annotated[float, Float(min=0.0, max=1.0, step=0.01)]


def fitted_to(samples: torch.Tensor, other: torch.Tensor, method: str = "bilinear") -> torch.Tensor:
    """Resize to the size of `other`, cropping the sides to keep the aspect ratio."""
    if samples.shape[1:] == other.shape[1:]:
        return samples
    return resize(samples, other.shape[-1], other.shape[-2], method, "center")


def _matched(samples: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return repeated(fitted_to(samples, other), other.shape[0])


@node("LatentAdd", display_name=None, category="model/latent/advanced", python_module=LATENT_MODULE)
def latent_add(context: NodeContext, *, samples1: LATENT, samples2: LATENT) -> LATENT:
    first = samples1["samples"]
    return with_samples(samples1, first + _matched(samples2["samples"], first))


@node("LatentSubtract", display_name=None, category="model/latent/advanced", python_module=LATENT_MODULE)
def latent_subtract(context: NodeContext, *, samples1: LATENT, samples2: LATENT) -> LATENT:
    first = samples1["samples"]
    return with_samples(samples1, first - _matched(samples2["samples"], first))


@node("LatentMultiply", display_name=None, category="model/latent/advanced", python_module=LATENT_MODULE)
def latent_multiply(
    context: NodeContext,
    *,
    samples: LATENT,
    multiplier: Annotated[float, Float(min=-10.0, max=10.0, step=0.01)] = 1.0,
) -> LATENT:
    return with_samples(samples, samples["samples"] * multiplier)


@node("LatentInterpolate", display_name=None, category="model/latent/advanced", python_module=LATENT_MODULE)
def latent_interpolate(context: NodeContext, *, samples1: LATENT, samples2: LATENT, ratio: Share = 1.0) -> LATENT:
    """Interpolate directions over channels, normalised, and lengths separately; a ratio of 1 gives the first latent.

    Lengths are `[B, h, w]` and are lined up with `[B, C, h, w]` from the right, as in ComfyUI: each channel is divided
    by the lengths of the batch item of its number, which fits batches of 1 (and of 4, where it mixes them).
    """
    first = samples1["samples"]
    second = _matched(samples2["samples"], first)
    first_length, second_length = (torch.linalg.vector_norm(item, dim=1) for item in (first, second))
    direction = torch.nan_to_num(first / first_length) * ratio + torch.nan_to_num(second / second_length) * (1 - ratio)
    direction = torch.nan_to_num(direction / torch.linalg.vector_norm(direction, dim=1))
    return with_samples(samples1, direction * (first_length * ratio + second_length * (1.0 - ratio)))


@node("LatentBlend", display_name="Latent Blend", category="experimental")
def latent_blend(
    context: NodeContext,
    *,
    samples1: LATENT,
    samples2: LATENT,
    blend_factor: Annotated[float, Float(min=0, max=1, step=0.01)] = 0.5,
) -> LATENT:
    """Blend two latents: 1 gives the first latent, 0 the second."""
    first, second = samples1["samples"], samples2["samples"]
    if first.shape != second.shape:
        second = resize(second, first.shape[3], first.shape[2], "bicubic", "center")
    return with_samples(samples1, first * blend_factor + second * (1 - blend_factor))


NODES = (latent_add, latent_subtract, latent_multiply, latent_interpolate, latent_blend)
