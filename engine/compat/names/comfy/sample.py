"""`comfy.sample`: sampling a latent with a MODEL."""

from __future__ import annotations

from typing import Any

import torch

from engine.diffusion import sample as sampling
from engine.diffusion.noise import prepare_noise
from engine.diffusion.sample import Guider, fix_empty_latent_channels
from engine.nodes.running_call import running_context

__all__ = ["fix_empty_latent_channels", "prepare_noise", "sample", "sample_custom"]


def sample(
    model: Any,
    noise: torch.Tensor,
    steps: int,
    cfg: float,
    sampler_name: str,
    scheduler: str,
    positive: Any,
    negative: Any,
    latent_image: torch.Tensor,
    denoise: float = 1.0,
    disable_noise: bool = False,
    start_step: int | None = None,
    last_step: int | None = None,
    force_full_denoise: bool = False,
    noise_mask: torch.Tensor | None = None,
    sigmas: torch.Tensor | None = None,
    callback: Any = None,
    disable_pbar: bool = False,
    seed: int | None = None,
) -> torch.Tensor:
    """What KSampler does: the unscaled latent, on the CPU. With `sigmas` those levels instead of a scheduler's."""
    if sigmas is not None:
        sampler = sampling.sampler_object(sampler_name)
        return sample_custom(
            model, noise, cfg, sampler, sigmas, positive, negative, latent_image, noise_mask, callback, seed=seed
        )
    context = running_context()
    return sampling.sample(
        model, noise, steps, cfg, sampler_name, scheduler, positive, negative, latent_image, denoise=denoise,
        start_step=start_step, last_step=last_step, force_full_denoise=force_full_denoise, noise_mask=noise_mask,
        callback=callback, check_cancelled=None if context is None else context.cancel.check, seed=seed,
    )  # fmt: skip


def sample_custom(
    model: Any,
    noise: torch.Tensor,
    cfg: float,
    sampler: Any,
    sigmas: torch.Tensor,
    positive: Any,
    negative: Any,
    latent_image: torch.Tensor,
    noise_mask: torch.Tensor | None = None,
    callback: Any = None,
    disable_pbar: bool = False,
    seed: int | None = None,
) -> torch.Tensor:
    """With a sampler and noise levels of one's own: the unscaled latent, on the CPU."""
    guider = Guider(model)
    context = running_context()
    guider.check_cancelled = None if context is None else context.cancel.check
    guider.set_conds(positive, negative)
    guider.set_cfg(cfg)
    samples = guider.sample(noise, latent_image, sampler, sigmas, denoise_mask=noise_mask, callback=callback, seed=seed)
    return samples.to("cpu")
