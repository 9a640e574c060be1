"""Guidance away from a weakened self-attention: SAG and PAG.

Both evaluate the network once more per step and go away from what it gives then. Shapes as in `guidance.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch.nn import functional

from darkroom.engine.diffusion.guidance import calc_cond_batch
from darkroom.engine.diffusion.options import Options
from darkroom.engine.diffusion.replacements import replaceable
from darkroom.engine.diffusion.wrappers import merge_options

BLUR_CELLS = 9
MIN_SIDE_CELLS = 5  # below, the blur has no border to mirror


class SelfAttentionGuidance:
    """Hong et al. 2022 (SAG, arXiv 2210.00939): away from the image with what is most attended to blurred.

    `attend` takes the place of the middle block's self-attention and keeps the scores of the unconditional part;
    `guide` goes behind classifier-free guidance. One instance a model.
    """

    THRESHOLD = 1.0

    def __init__(self, scale: float, blur_sigma: float) -> None:
        self.scale, self.blur_sigma = scale, blur_sigma
        self._scores: torch.Tensor | None = None  # [B * heads, T, T]

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options) -> torch.Tensor:
        """Compute attention [B, T, D] by explicit scores. Each call with an unconditional part sees its own."""
        out, scores = attention_with_scores(q, k, v, options["n_heads"])
        sides = options["cond_or_uncond"]
        if 1 in sides:
            self._scores = scores.chunk(len(sides))[sides.index(1)]
        return out

    def guide(self, args: Options) -> torch.Tensor:
        guided: torch.Tensor = args["denoised"]
        uncond, x = args["uncond_denoised"], args["input"]
        if min(guided.shape[2:]) < MIN_SIDE_CELLS or self._scores is None:
            return guided
        degraded = blurred_where_attended(uncond, self._scores, self.blur_sigma, self.THRESHOLD)
        self._scores = None
        (away,) = calc_cond_batch(
            args["model"], [args["uncond"]], degraded + x - uncond, args["sigma"], args["model_options"]
        )
        return guided + (degraded - away) * self.scale


@replaceable
def blurred_where_attended(
    latent: torch.Tensor, scores: torch.Tensor, sigma: float = 3.0, threshold: float = 1.0
) -> torch.Tensor:
    """Blur the cells that gather more than `threshold` tokens' share of attention: eq. 5 of the paper."""
    batch, _, height, width = latent.shape
    num_tokens = scores.shape[-1]
    attended = scores.reshape(batch, -1, num_tokens, num_tokens).mean(1).sum(1) > threshold  # [B, T]
    rows = _rows_of(num_tokens, height / width)
    mask = attended.reshape(batch, 1, rows, num_tokens // rows).to(scores.dtype)
    mask = functional.interpolate(mask, (height, width))
    return gaussian_blurred(latent, sigma) * mask + latent * (1 - mask)


def attention_with_scores(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention [B, T, D] and its scores after the softmax [B * heads, T, T]."""
    batch, _, width = q.shape
    q, k, v = (
        item.view(batch, -1, heads, width // heads).transpose(1, 2).flatten(0, 1) for item in (q, k, v)
    )  # [B * heads, T, D / heads]
    scores = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(dim=-1)
    out = (scores.to(v.dtype) @ v).view(batch, heads, -1, width // heads)
    return out.transpose(1, 2).reshape(batch, -1, width), scores


def _rows_of(num_tokens: int, aspect: float) -> int:
    """Return the divisor of the number of tokens nearest to the rows that the aspect (height / width) asks for."""
    wanted = round(math.sqrt(aspect * num_tokens))
    for away in range(math.floor(math.sqrt(num_tokens) / 2)):
        for rows in (wanted + away, max(1, wanted - away)):
            if num_tokens % rows == 0:
                return rows
    raise ValueError(f"{num_tokens} tokens do not make a grid of aspect {aspect:.3g}")


def gaussian_blurred(latent: torch.Tensor, sigma: float, cells: int = BLUR_CELLS) -> torch.Tensor:
    """Blur [B, C, h, w] over `cells` x `cells` cells, mirrored at the borders."""
    half = (cells - 1) / 2
    bell = torch.exp(-0.5 * (torch.linspace(-half, half, cells, device=latent.device) / sigma) ** 2)
    bell = (bell / bell.sum()).to(latent)
    channels = latent.shape[1]
    kernel = (bell[:, None] * bell[None, :]).expand(channels, 1, cells, cells)
    padded = functional.pad(latent, [cells // 2] * 4, mode="reflect")
    return functional.conv2d(padded, kernel, groups=channels)


def perturbed_attention_guidance(args: Options, scale: float) -> torch.Tensor:
    """Ahn et al. 2024 (PAG, arXiv 2403.17377), eq. 15: away from the middle block attending to each token itself."""
    guided: torch.Tensor = args["denoised"]
    if scale == 0:
        return guided
    identity = {"patches_replace": {"attn1": {("middle", 0): _attend_to_itself}}}
    options = merge_options(args["model_options"], {"transformer_options": identity})
    (perturbed,) = calc_cond_batch(args["model"], [args["cond"]], args["input"], args["sigma"], options)
    away: torch.Tensor = args["cond_denoised"] - perturbed
    return guided + away * scale


def _attend_to_itself(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Mapping[str, object]) -> torch.Tensor:
    return v
