"""`comfy.samplers`: samplers and schedules by name, guidance, and the objects between them."""

from __future__ import annotations

from typing import Any

import torch

from engine.compat.names.comfy.sample import sample_custom
from engine.diffusion import guidance, sigmas
from engine.diffusion.sample import Guider as CFGGuider
from engine.diffusion.sample import Sampler as KSAMPLER
from engine.diffusion.sample import ksampler_sigmas, sampler_object
from engine.diffusion.sampler_registry import SAMPLER_NAMES as _SAMPLER_NAMES
from engine.diffusion.sigmas import SCHEDULE_NAMES

__all__ = ["KSAMPLER", "CFGGuider", "calc_cond_batch", "cfg_function", "sampler_object", "sampling_function"]

SAMPLER_NAMES = list(_SAMPLER_NAMES)
SCHEDULER_NAMES = list(SCHEDULE_NAMES)
KSAMPLER_NAMES = [name for name in SAMPLER_NAMES if name not in ("ddim", "uni_pc", "uni_pc_bh2")]
Sampler = KSAMPLER
calc_cond_batch = guidance.calc_cond_batch
cfg_function = guidance.cfg_function
sampling_function = guidance.sampling_function


def calculate_sigmas(model_sampling: Any, scheduler_name: str, steps: int) -> torch.Tensor:
    """`[steps + 1]`, falling to 0."""
    return sigmas.calculate_sigmas(model_sampling, scheduler_name, steps)


def ksampler(sampler_name: str, extra_options: Any = None, inpaint_options: Any = None) -> KSAMPLER:
    """The sampler of that name, with options for its function."""
    sampler = sampler_object(sampler_name)
    sampler.extra_options.update(extra_options or {})
    sampler.inpaint_options.update(inpaint_options or {})
    return sampler


def sample(
    model: Any,
    noise: torch.Tensor,
    positive: Any,
    negative: Any,
    cfg: float,
    device: Any,
    sampler: Any,
    sigmas: torch.Tensor,
    model_options: dict[str, Any] | None = None,
    latent_image: torch.Tensor | None = None,
    denoise_mask: torch.Tensor | None = None,
    callback: Any = None,
    disable_pbar: bool = False,
    seed: int | None = None,
) -> torch.Tensor:
    """`comfy.sample.sample_custom` with options of its own for the model."""
    if model_options:
        model = model.clone()
        model.model_options = model_options
    start = torch.zeros_like(noise) if latent_image is None else latent_image
    return sample_custom(
        model, noise, cfg, sampler, sigmas, positive, negative, start, denoise_mask, callback, seed=seed
    )


class KSampler:
    """A sampler, a schedule and a number of steps for one MODEL."""

    SCHEDULERS = SCHEDULER_NAMES
    SAMPLERS = SAMPLER_NAMES
    DISCARD_PENULTIMATE_SIGMA_SAMPLERS = {"dpm_2", "dpm_2_ancestral", "uni_pc", "uni_pc_bh2"}

    def __init__(
        self,
        model: Any,
        steps: int,
        device: Any,
        sampler: str | None = None,
        scheduler: str | None = None,
        denoise: float | None = None,
        model_options: dict[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.device = device
        self.steps = steps
        self.sampler = sampler if sampler in self.SAMPLERS else self.SAMPLERS[0]
        self.scheduler = scheduler if scheduler in self.SCHEDULERS else self.SCHEDULERS[0]
        self.denoise = 1.0 if denoise is None else denoise
        self.model_options = model_options or {}
        self.sigmas = ksampler_sigmas(
            model.get_model_object("model_sampling"), self.sampler, self.scheduler, steps, self.denoise
        )

    def sample(
        self,
        noise: torch.Tensor,
        positive: Any,
        negative: Any,
        cfg: float,
        latent_image: torch.Tensor | None = None,
        start_step: int | None = None,
        last_step: int | None = None,
        force_full_denoise: bool = False,
        denoise_mask: torch.Tensor | None = None,
        sigmas: torch.Tensor | None = None,
        callback: Any = None,
        disable_pbar: bool = False,
        seed: int | None = None,
    ) -> torch.Tensor:
        start = torch.zeros_like(noise) if latent_image is None else latent_image
        levels = self.sigmas if sigmas is None else sigmas
        if last_step is not None and last_step < len(levels) - 1:
            levels = levels[: last_step + 1].clone()
            if force_full_denoise:
                levels[-1] = 0
        if start_step is not None:
            if start_step >= len(levels) - 1:
                return start
            levels = levels[start_step:]
        return sample(
            self.model, noise, positive, negative, cfg, self.device, sampler_object(self.sampler), levels,
            self.model_options, start, denoise_mask, callback, seed=seed,
        )  # fmt: skip
