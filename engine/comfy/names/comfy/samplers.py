"""`comfy.samplers`: samplers and schedules by name, guidance, and the objects between them.

Nodes choose from these lists and this table of schedules, so entries that a pack adds to them are offered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from darkroom.engine.comfy.finder import served
from darkroom.engine.comfy.host import HOST
from darkroom.engine.comfy.replaceable_names import bound
from darkroom.engine.diffusion import choices, conditions, guidance, sigmas
from darkroom.engine.diffusion import ksampler as ksamplers
from darkroom.engine.diffusion.sample import Guider as CFGGuider
from darkroom.engine.diffusion.sample import InpaintDenoiser as KSamplerX0Inpaint
from darkroom.engine.diffusion.sample import Sampler as KSAMPLER
from darkroom.engine.diffusion.sigmas import Schedule as SchedulerHandler

__all__ = ["KSAMPLER", "CFGGuider", "KSampler", "KSamplerX0Inpaint", "SchedulerHandler"]

_TABLES = HOST.get().engine.sampling
SAMPLER_NAMES = _TABLES.choices.samplers
SCHEDULER_NAMES = _TABLES.choices.schedules
SCHEDULER_HANDLERS = _TABLES.choices.handlers
KSAMPLER_NAMES = [name for name in SAMPLER_NAMES if name not in ("ddim", "uni_pc", "uni_pc_bh2")]
Sampler = KSAMPLER


class KSampler(ksamplers.KSampler):
    """The engine's class with ComfyUI's lists, which packs add to or set. The engine uses it from then on."""

    SAMPLERS = SAMPLER_NAMES
    SCHEDULERS = SCHEDULER_NAMES

    def offered(self) -> tuple[Sequence[str], Sequence[str]]:
        return self.SAMPLERS, self.SCHEDULERS


_TABLES.replacements[ksamplers.KSampler] = KSampler

calc_cond_batch = bound(guidance.calc_cond_batch)
calculate_sigmas = bound(choices.calculate_sigmas)
cfg_function = bound(guidance.cfg_function)
ksampler = bound(ksamplers.ksampler)
process_conds = bound(conditions.prepare_conditions)
sample = bound(ksamplers.sample_guided)
sampler_object = bound(ksamplers.sampler_object)
sampling_function = bound(guidance.sampling_function)

beta_scheduler = sigmas.beta
ddim_scheduler = sigmas.ddim_uniform
kl_optimal_scheduler = sigmas.kl_optimal
linear_quadratic_schedule = sigmas.linear_quadratic
simple_scheduler = sigmas.simple


def __getattr__(name: str) -> object:
    """Return `comfy.k_diffusion.sampling` for the attribute `k_diffusion_sampling`."""
    if name == "k_diffusion_sampling":
        return served("comfy.k_diffusion.sampling")
    raise AttributeError(name)


def normal_scheduler(model_sampling: Any, steps: int, sgm: bool = False, floor: bool = False) -> torch.Tensor:
    return sigmas.sgm_uniform(model_sampling, steps) if sgm else sigmas.normal(model_sampling, steps)
