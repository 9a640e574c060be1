"""Functions and classes of ComfyUI that a pack may replace, and ours that they stand for.

Each is looked up where ComfyUI looks it up, so a replacement is called with ComfyUI's parameters at the same point.
Replacing any other name is refused, since the engine would not call the replacement.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, ParamSpec, TypeVar

import torch

from darkroom.engine.comfy.host import HOST, Host
from darkroom.engine.diffusion import attention_guidance, choices, conditions, guidance, ksampler, noise, sample
from darkroom.engine.diffusion.replacements import own
from darkroom.engine.diffusion.samplers.base import SamplerFunction
from darkroom.engine.nodes.library.sampling import sampling
from darkroom.engine.nodes.library.sampling.sampling import PreviewFunction

P = ParamSpec("P")
R = TypeVar("R")

OF_SAMPLING: dict[str, Hashable] = {
    "comfy.sample.fix_empty_latent_channels": ksampler.fix_empty_latent_channels,
    "comfy.sample.prepare_noise": noise.prepare_noise,
    "comfy.sample.sample": ksampler.sample,
    "comfy.sample.sample_custom": ksampler.sample_custom,
    "comfy.sampler_helpers.convert_cond": conditions.convert_conditioning,
    "comfy.sampler_helpers.prepare_mask": sample.prepare_mask,
    "comfy.samplers.CFGGuider": sample.Guider,
    "comfy.samplers.KSAMPLER": sample.Sampler,
    "comfy.samplers.KSampler": ksampler.KSampler,
    "comfy.samplers.KSamplerX0Inpaint": sample.InpaintDenoiser,
    "comfy.samplers.calc_cond_batch": guidance.calc_cond_batch,
    "comfy.samplers.calculate_sigmas": choices.calculate_sigmas,
    "comfy.samplers.cfg_function": guidance.cfg_function,
    "comfy.samplers.ksampler": ksampler.ksampler,
    "comfy.samplers.get_area_and_mult": guidance.part_of,
    "comfy.samplers.pre_run_control": conditions.prepare_controls,
    "comfy.samplers.process_conds": conditions.prepare_conditions,
    "comfy.samplers.sample": ksampler.sample_guided,
    "comfy.samplers.sampler_object": ksampler.sampler_object,
    "comfy.samplers.sampling_function": guidance.sampling_function,
    "comfy_extras.nodes_sag.create_blur_map": attention_guidance.blurred_where_attended,
    "latent_preview.prepare_callback": sampling.prepare_callback,
    "nodes.common_ksampler": sampling.common_ksampler,
}
PREVIEWER = "latent_preview.get_previewer"
OF_NAMES = frozenset({"comfy.utils.load_torch_file"})  # called by other names alone
REPLACEABLE = frozenset({*OF_SAMPLING, *OF_NAMES, PREVIEWER})

SAMPLERS = "comfy.k_diffusion.sampling.sample_"  # any name that begins so; one that is new is a new sampler
TAKES_BOUNDS = frozenset({"dpm_fast", "dpm_adaptive"})  # there, not here


def is_replaceable(name: str) -> bool:
    return name in REPLACEABLE or name.startswith(SAMPLERS)


def replace(host: Host, name: str, value: Any) -> None:
    """Have the engine use a pack's value for one of the replaceable names."""
    tables = host.engine.sampling
    if name in OF_SAMPLING:
        tables.replacements[OF_SAMPLING[name]] = value
    elif name == PREVIEWER:
        tables.replacements[sampling.preview_function] = _preview_function(value)
    elif name.startswith(SAMPLERS):
        sampler_name = name.removeprefix(SAMPLERS)
        takes_bounds = sampler_name in TAKES_BOUNDS
        tables.choices.functions[sampler_name] = _with_bounds(sampler_name, value) if takes_bounds else value
    else:
        host.replaced[name] = value


def bound(function: Callable[P, R]) -> Callable[P, R]:
    """Return our function itself, without its replacement, for packs to call on any thread.

    It runs with the tables of the engine that owns the import names.
    """
    plain = own(function)

    @functools.wraps(plain)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with HOST.get().engine.sampling.active():
            return plain(*args, **kwargs)

    return call


def _with_bounds(sampler_name: str, function: Callable[..., torch.Tensor]) -> SamplerFunction:
    """Adapt a function of bounds (and, for dpm_fast, a number of steps) to levels."""

    def call(model: object, x: torch.Tensor, sigmas: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        if len(sigmas) <= 1:
            return x
        bounds = (sigmas[-2] if sigmas[-1] == 0 else sigmas[-1], sigmas[0])
        num_steps = (len(sigmas) - 1,) if sampler_name == "dpm_fast" else ()
        return function(model, x, *bounds, *num_steps, *args, **kwargs)

    return call


def _preview_function(get_previewer: Callable[..., Any]) -> Callable[..., PreviewFunction | None]:
    """Adapt a function that returns ComfyUI's previewer, or None."""

    def make(device: torch.device, latent_format: Any) -> PreviewFunction | None:
        previewer = get_previewer(device, latent_format)
        if previewer is None:
            return None
        return lambda denoised: (previewer.decode_latent_to_preview_image("JPEG", denoised),)

    return make
