"""The sampler of networks that draw a few frames of a video after the other (Causal Forcing, Self Forcing).

`B` batch, `C` channels, `f` latent frames, `h w` latent cells.
"""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.options import ExtraArgs
from darkroom.engine.diffusion.samplers.base import ModelFunction, StepCallback, report
from darkroom.engine.families.wan.causal import STATE, CausalState, WanCausalTransformer

CONFIG, FIRST_FRAMES = "ar_config", "initial_latent"
"""The transformer option in which a video's first frames are, and their name there."""

SEEDS_PER_PART = 1000


@torch.no_grad()
def sample_ar_video(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: ExtraArgs | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
    num_frame_per_block: int = 1,
) -> torch.Tensor:
    """Return a video [B, C, f, h, w] drawn so many latent frames after the other, each part from noise on.

    Between the noise levels of a flow new noise is drawn. A part that is done is read again without noise, for what
    later ones see of it. Raises ValueError for a latent of an image, and for a network that sees later frames.
    """
    given = dict(extra_args or {})
    options: dict[str, Any] = given.get("model_options", {}).get("transformer_options", {})
    denoiser: Any = getattr(getattr(model, "inner_model", None), "inner_model", None)
    if x.ndim != 5:
        raise ValueError(f"latent_image: SamplerARVideo draws videos; got {x.ndim} dimensions, expected 5")
    if not isinstance(getattr(denoiser, "diffusion_model", None), WanCausalTransformer):
        raise ValueError("model: SamplerARVideo needs a network that draws frame after frame; got another one")
    state = CausalState(x.shape[2])
    out, num_frames = torch.zeros_like(x), x.shape[2]
    level = x.new_ones(x.shape[0])
    options[STATE] = state
    try:
        first: torch.Tensor | None = options.get(CONFIG, {}).get(FIRST_FRAMES)
        if first is not None:
            known = denoiser.process_latent_in(first)[:, :, :num_frames].to(x.device, denoiser.get_dtype())
            out[:, :, : known.shape[2]] = known
            model(known.expand(x.shape[0], -1, -1, -1, -1), 0.0 * level, **given)
            state.first_frame = known.shape[2]
        begins = range(state.first_frame, num_frames, num_frame_per_block)
        num_steps = len(sigmas) - 1
        for part, begin in enumerate(begins):
            state.first_frame = begin
            frames = x[:, :, begin : begin + num_frame_per_block]
            for step in range(num_steps):
                denoised = model(frames, sigmas[step] * level, **given)
                done = (part * num_steps + step) // len(begins)
                report(callback, done, frames, sigmas[step], sigmas[step], denoised)
                seed = given.get("seed", 0) + part * SEEDS_PER_PART + step
                frames = denoised if sigmas[step + 1] == 0 else _noised(denoised, sigmas[step + 1], seed)
            out[:, :, begin : begin + num_frame_per_block] = frames
            model(frames, 0.0 * level, **given)
    finally:
        options.pop(STATE, None)
    return out


def _noised(denoised: torch.Tensor, sigma: torch.Tensor, seed: int) -> torch.Tensor:
    """Return frames at a noise level of a flow."""
    generator = torch.Generator(denoised.device).manual_seed(seed)
    noise = torch.randn(denoised.shape, generator=generator, dtype=denoised.dtype, device=denoised.device)
    return (1.0 - sigma) * denoised + sigma * noise
