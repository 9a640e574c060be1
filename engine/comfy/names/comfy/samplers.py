"""`comfy.samplers`: samplers and schedules by name, guidance, and the objects between them.

Nodes choose from these lists and this table of schedules, so entries that a pack adds to them are offered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
get_area_and_mult = bound(guidance.part_of)
ksampler = bound(ksamplers.ksampler)
pre_run_control = bound(conditions.prepare_controls)
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


def can_concat_cond(c1: guidance.Part, c2: guidance.Part) -> bool:
    """Return True where two results of `get_area_and_mult` can go through the network in one batch."""
    return c1.can_join(c2)


def cond_cat(c_list: Sequence[Mapping[str, conditions.BatchedInput]], device: Any = None) -> dict[str, Any]:
    """Return inputs of the network for a batch of conditions."""
    found: dict[str, list[conditions.BatchedInput]] = {}
    for given in c_list:
        for name, value in given.items():
            found.setdefault(name, []).append(value)
    joined = {name: values[0].concat(values[1:]) for name, values in found.items()}
    if device is None:
        return joined
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in joined.items()}


def normal_scheduler(model_sampling: Any, steps: int, sgm: bool = False, floor: bool = False) -> torch.Tensor:
    return sigmas.sgm_uniform(model_sampling, steps) if sgm else sigmas.normal(model_sampling, steps)
