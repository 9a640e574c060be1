"""Guidance after classifier-free guidance: each rule a function of predictions, readable against its paper.

`cond`, `uncond`, `guided` are denoised latents `[B, C, h, w]` (x0), `x` the noisy one, `sigma` `[B]`, `scale` the
guidance scale. The noise a prediction implies is `x - x0`, here called its score though it lacks the factor -1/sigma^2.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from darkroom.engine.diffusion.model_sampling_variants import RectifiedFlow


def rescaled_cfg(
    x: torch.Tensor, sigma: torch.Tensor, cond: torch.Tensor, uncond: torch.Tensor, scale: float, multiplier: float
) -> torch.Tensor:
    """Lin et al. 2023 (arXiv 2305.08891), section 3.4: guided v brought back to the deviation of the positive one."""
    sigma = sigma.view(sigma.shape[:1] + (1,) * (x.ndim - 1))
    variance = sigma**2 + 1.0

    def v_of(denoised: torch.Tensor) -> torch.Tensor:
        return (x / variance - denoised) * variance**0.5 / sigma

    v_cond, v_uncond = v_of(cond), v_of(uncond)
    guided = v_uncond + scale * (v_cond - v_uncond)
    deviations = [torch.std(v, dim=(1, 2, 3), keepdim=True) for v in (v_cond, guided)]
    rescaled = guided * (deviations[0] / deviations[1])
    v = multiplier * rescaled + (1.0 - multiplier) * guided
    return x / variance - v * sigma / variance**0.5


def rescaled_predictions(cond: torch.Tensor, uncond: torch.Tensor, scale: float, multiplier: float) -> torch.Tensor:
    """Bring guided predictions back to the deviation of the positive ones: the same rule for flow models.

    No v is needed, as their predictions are clean latents at every noise level. The deviation of a video
    `[B, C, T, h, w]` is that of all its frames.
    """
    guided = uncond + scale * (cond - uncond)
    dims = tuple(range(1, cond.ndim))
    rescaled = guided * (cond.std(dim=dims, keepdim=True) / guided.std(dim=dims, keepdim=True).clamp(min=1e-8))
    return multiplier * rescaled + (1.0 - multiplier) * guided


def perpendicular_negative(
    cond: torch.Tensor, negative: torch.Tensor, empty: torch.Tensor, negative_scale: float, scale: float
) -> torch.Tensor:
    """Armandpour et al. 2023 (Perp-Neg, arXiv 2304.04968), eq. 8: only what of the negative is perpendicular counts.

    The projection is over the whole batch at once, as in ComfyUI, so items of a batch influence each other.
    """
    towards, against = cond - empty, negative - empty
    share: torch.Tensor = (against * towards).sum() / torch.linalg.vector_norm(towards) ** 2
    return empty + scale * (towards - (against - share * towards) * negative_scale)


def zero_star(
    guided: torch.Tensor, x: torch.Tensor, cond: torch.Tensor, uncond: torch.Tensor, scale: float
) -> torch.Tensor:
    """Fan et al. 2025 (CFG-Zero*, arXiv 2503.18886), eq. 8: the negative prediction scaled to fit the positive best.

    The scale s* is found on scores and put on predictions, as ComfyUI does.
    """
    positive, negative = ((x - item).flatten(1) for item in (cond, uncond))
    fit: torch.Tensor = (positive * negative).sum(dim=1, keepdim=True) / ((negative**2).sum(dim=1, keepdim=True) + 1e-8)
    fit = fit.reshape([x.shape[0]] + [1] * (x.ndim - 1))
    return guided + uncond * (fit - 1.0) + scale * uncond * (1.0 - fit)


def channel_normed(guided: torch.Tensor, cond: torch.Tensor, strength: float) -> torch.Tensor:
    """Limit the length of a cell's guided vector of channels to the positive one's (Qwen-Image's sampler)."""
    norms = [torch.linalg.vector_norm(item, dim=1, keepdim=True) for item in (cond, guided)]
    ratio: torch.Tensor = norms[0] / (norms[1] + 1e-8)
    return guided * ratio.clamp(min=0.0, max=1.0) * strength


def guided_to_norm(cond: torch.Tensor, uncond: torch.Tensor, scale: float, strength: float) -> torch.Tensor:
    """Guide, and scale each cell's vector of channels to the length of the positive one's, by a share of `strength`."""
    guided = uncond + scale * (cond - uncond)
    norms = [torch.linalg.vector_norm(item, dim=1, keepdim=True) for item in (cond, guided)]
    ratio = torch.where(norms[1] > 0, norms[0] / norms[1].clamp_min(1e-12), torch.ones_like(norms[1]))
    scaled = guided * ratio
    return scaled if strength == 1.0 else strength * scaled + (1.0 - strength) * guided


def renormed_cfg(cond: torch.Tensor, uncond: torch.Tensor, scale: float, max_ratio: float) -> torch.Tensor:
    """Lumina-Image 2.0 (arXiv 2503.21758), CFG-Renorm: the guided norm at most `max_ratio` times the positive one's.

    A ratio of 0 is no limit. In a batch ComfyUI can only compare single items; here each has its own limit.
    """
    guided = uncond + scale * (cond - uncond)
    if max_ratio <= 0.0:
        return guided
    dims = tuple(range(1, guided.ndim))
    limit = torch.linalg.vector_norm(cond, dim=dims, keepdim=True) * max_ratio
    norm = torch.linalg.vector_norm(guided, dim=dims, keepdim=True)
    return torch.where(norm >= limit, guided * (limit / norm), guided)


def frequency_scaled(guidance: torch.Tensor, scale_low: float, scale_high: float, cutoff: int) -> torch.Tensor:
    """Huang et al. 2025 (FreSca, arXiv 2504.02154): low and high frequencies of the guidance scaled apart.

    Low are those within `cutoff` of the centre along each side, for the centred spectrum [B, C, (F,) h, w].
    """
    spectrum = torch.fft.fftshift(torch.fft.fftn(guidance.float(), dim=(-2, -1)), dim=(-2, -1))
    weight = torch.full(spectrum.shape, scale_high, device=guidance.device)
    low = weight
    for dim in (-2, -1):
        centre = spectrum.shape[dim] // 2
        reach = min(cutoff, centre)
        low = low.narrow(dim, centre - reach, reach * 2)
    low.fill_(scale_low)
    filtered: torch.Tensor = torch.fft.ifftn(torch.fft.ifftshift(spectrum * weight, dim=(-2, -1)), dim=(-2, -1)).real
    return filtered.to(guidance.dtype)


class ProjectedGuidance:
    """Sadat et al. 2024 (APG, arXiv 2410.02416), algorithm 1: momentum, a norm limit, and the parallel part damped.

    Keeps the running average of one sampling run; a rising sigma begins another.
    """

    def __init__(self, eta: float, norm_threshold: float, momentum: float) -> None:
        self.eta, self.norm_threshold, self.momentum = eta, norm_threshold, momentum
        self._average: torch.Tensor | None = None
        self._sigma: float | None = None

    def positive(self, cond: torch.Tensor, uncond: torch.Tensor, scale: float, sigma: float) -> torch.Tensor:
        """Return the positive prediction with which plain guidance at `scale` approximates the paper's guidance.

        ComfyUI adds (cond - uncond) / scale to the modified guidance, so that guidance at `scale` gives plain cond plus
        `scale` times the modified part.
        """
        if self._sigma is not None and sigma > self._sigma:
            self._average = None
        self._sigma = sigma
        guidance = cond - uncond
        if self.momentum != 0:
            guidance = guidance if self._average is None else self.momentum * self._average + guidance
            self._average = guidance
        dims = (-1, -2, -3)
        if self.norm_threshold > 0:
            norm = torch.linalg.vector_norm(guidance, dim=dims, keepdim=True)
            guidance = guidance * torch.minimum(torch.ones_like(norm), self.norm_threshold / norm)
        direction = cond / torch.linalg.vector_norm(cond, dim=dims, keepdim=True).clamp_min(1e-12)
        parallel: torch.Tensor = (guidance * direction).sum(dim=dims, keepdim=True) * direction
        return uncond + (guidance - parallel) + self.eta * parallel + (cond - uncond) / scale


def tangentially_damped(x: torch.Tensor, cond: torch.Tensor, uncond: torch.Tensor) -> torch.Tensor:
    """Kwon et al. 2025 (TCFG, arXiv 2503.18137): the negative score projected on what both scores have most in common.

    That is the first right singular vector of both [2, C * h * w]; what remains tangential to it is dropped.
    """
    return x - common_part(x - uncond, x - cond)


def common_part(negative: torch.Tensor, positive: torch.Tensor) -> torch.Tensor:
    """Return the negative score [B, C, h, w] projected on the first right singular vector of both scores."""
    first, second = (item.flatten(1).unsqueeze(1).float() for item in (negative, positive))
    _, _, directions = torch.linalg.svd(torch.cat((first, second), dim=1), full_matrices=False)
    common = directions[:, 0:1, :]
    projected: torch.Tensor = (first @ common.transpose(-2, -1)) * common
    return projected.reshape_as(negative).to(negative.dtype)


def mahiro(guided: torch.Tensor, cond: torch.Tensor, uncond: torch.Tensor, scale: float) -> torch.Tensor:
    """Guide by Mahiro (yoinked-h): the more the guided latent points where the negative does, the less it counts.

    Weighs it against the scaled positive one by the mean cosine similarity of signed square roots.
    """
    leap = cond * scale

    def rooted(latent: torch.Tensor) -> torch.Tensor:
        return latent.abs().sqrt() * latent.sign()

    similarity = functional.cosine_similarity(rooted(uncond * scale), rooted((leap + guided) / 2)).mean()
    weight = 2 * (similarity + 1)
    return (weight * guided + (4 - weight) * leap) / 4


def epsilon_scaled(guided: torch.Tensor, x: torch.Tensor, factor: float) -> torch.Tensor:
    """Ning et al. 2023 (arXiv 2308.15321), eq. 7 with a uniform schedule: predicted noise divided by `factor`."""
    return x - (x - guided) / factor


def rescaled_score(
    denoised: torch.Tensor, x: torch.Tensor, sigma: torch.Tensor, sampling: object, k: float, sigma_data: float
) -> torch.Tensor:
    """Return a prediction by temporal score rescaling: Xu et al. 2025 (arXiv 2510.01184), eq. 6.

    `x` and `denoised` are [B, C, h, w], `sigma` [B]; `k` 1 changes nothing.
    """
    if k == 1:
        return denoised
    level = sigma.view(sigma.shape[:1] + (1,) * (x.ndim - 1))
    alpha = 1 - level if isinstance(sampling, RectifiedFlow) else torch.ones_like(level)
    snr = (alpha / level) ** 2  # infinite without noise, 0 without signal
    factor = (snr * sigma_data**2 + 1) / (snr * sigma_data**2 / k + 1)
    moved = torch.lerp(x / alpha, denoised, factor)
    return torch.where((level == 0) | (snr == 0), denoised, moved)
