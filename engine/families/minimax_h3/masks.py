"""Masks of a video and its audio at the size of the network's tokens, each of which is seen at one noise level.

1 is where the sampler may paint. `t h w` latent frames, rows and columns, `T` latent frames of audio.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional

from darkroom.engine.diffusion.nested_latent import StreamShapes, unpacked
from darkroom.engine.families.minimax_h3.layout import CELLS

STEPS = 256.0  # values of masks are rounded up to multiples of 1 / STEPS, which every type has
NEARLY_ONE = 1.0 - 1e-3


class TokenLevels(NamedTuple):
    """The values [1, K] that a mask has, in ascending order, and the index [1, n] of each token's value."""

    values: torch.Tensor
    by_token: torch.Tensor


def token_masks(mask: torch.Tensor, shapes: StreamShapes) -> list[torch.Tensor]:
    """Return the masks of both streams with one value for each token, the largest of its cells, of a packed mask."""
    video, audio = unpacked(mask, shapes)[:2]
    height, width = video.shape[-2:]
    largest = pooled(video).repeat_interleave(CELLS, dim=-2).repeat_interleave(CELLS, dim=-1)[..., :height, :width]
    masks = (largest, audio.amax(dim=1, keepdim=True).expand_as(audio))
    return [torch.ceil(item * STEPS) / STEPS for item in masks]


def pooled(mask: torch.Tensor) -> torch.Tensor:
    """Return the largest value of each token's cells [..., h / 2, w / 2]; sides are made whole by their last cells."""
    *lead, height, width = mask.shape
    planes = functional.pad(mask.reshape(-1, 1, height, width), (0, width % CELLS, 0, height % CELLS), mode="replicate")
    return functional.max_pool2d(planes, CELLS).reshape(*lead, -(-height // CELLS), -(-width // CELLS))


def token_levels(mask: torch.Tensor, shapes: StreamShapes) -> tuple[TokenLevels | None, TokenLevels | None]:
    """Return the levels of the video's tokens and of the audio's, None for a stream that is painted as a whole."""
    video, audio = token_masks(mask, shapes)
    return _levels(pooled(video[:1, :1])), _levels(audio[:1, :1])


def _levels(tokens: torch.Tensor) -> TokenLevels | None:
    """Return the levels of tokens in the order of the network's; None where all are painted."""
    if bool((tokens >= NEARLY_ONE).all()):
        return None
    values, by_token = torch.unique(tokens.flatten(), return_inverse=True)
    return TokenLevels(values[None], by_token[None])
