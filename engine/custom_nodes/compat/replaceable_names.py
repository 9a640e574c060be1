"""Functions and classes of ComfyUI that a pack may replace, as data.

Each is looked up where ComfyUI looks it up, so a replacement is called with ComfyUI's parameters at the same point.
Replacing any other name is refused, since the engine would not call the replacement.
"""

from __future__ import annotations

REPLACEABLE = frozenset(
    {
        "comfy.sample.fix_empty_latent_channels",
        "comfy.sample.prepare_noise",
        "comfy.sample.sample",
        "comfy.sample.sample_custom",
        "comfy.sampler_helpers.convert_cond",
        "comfy.sampler_helpers.prepare_mask",
        "comfy.samplers.CFGGuider",
        "comfy.samplers.KSAMPLER",
        "comfy.samplers.KSampler",
        "comfy.samplers.KSamplerX0Inpaint",
        "comfy.samplers.calc_cond_batch",
        "comfy.samplers.calculate_sigmas",
        "comfy.samplers.cfg_function",
        "comfy.samplers.ksampler",
        "comfy.samplers.process_conds",
        "comfy.samplers.sample",
        "comfy.samplers.sampler_object",
        "comfy.samplers.sampling_function",
        "comfy.utils.load_torch_file",
        "latent_preview.get_previewer",
        "latent_preview.prepare_callback",
        "nodes.common_ksampler",
    }
)

SAMPLERS = "comfy.k_diffusion.sampling.sample_"  # any name that begins so; one that is new is a new sampler


def is_replaceable(name: str) -> bool:
    return name in REPLACEABLE or name.startswith(SAMPLERS)
