"""The sampler of VOID: DDIM (Song et al. 2021, arXiv 2010.02502) on an input of the variance-preserving form.

The network was trained on x = sqrt(a) x0 + sqrt(1 - a) n, with a = 1 / (1 + sigma²), and takes that as it is.
"""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.host_levels import divisor, on_host
from darkroom.engine.diffusion.options import ExtraArgs
from darkroom.engine.diffusion.sample import Sampler
from darkroom.engine.diffusion.samplers.base import ModelFunction, StepCallback, report
from darkroom.engine.diffusion.steps_reported import ProgressCallback


@torch.no_grad()
def sample_void(
    model: ModelFunction,
    x: torch.Tensor,
    sigmas: torch.Tensor,
    extra_args: ExtraArgs | None = None,
    callback: StepCallback | None = None,
    disable: bool | None = None,
) -> torch.Tensor:
    """Return the latent [B, C, f, h, w] at the last level, from unit noise `x`."""
    given, ones = dict(extra_args or {}), x.new_ones(x.shape[0])
    shares = 1.0 / (1.0 + sigmas**2)  # of the clean latent in the variance
    for i in range(len(sigmas) - 1):
        denoised = model(x, sigmas[i] * ones, **given)
        report(callback, i, x, sigmas[i], sigmas[i], denoised)
        if sigmas[i + 1] == 0:
            x = denoised
            continue
        noise = (x - shares[i] ** 0.5 * denoised) / divisor((1.0 - shares[i]) ** 0.5, x)
        x = shares[i + 1] ** 0.5 * denoised + (1.0 - shares[i + 1]) ** 0.5 * noise
    return x


class VoidSampler(Sampler):
    """SAMPLER that starts from the noise itself, without a latent image, and paints everywhere."""

    def __init__(self) -> None:
        super().__init__(sample_void)

    def sample(
        self,
        model_wrap: Any,
        sigmas: torch.Tensor,
        extra_args: dict[str, Any],
        callback: ProgressCallback | None,
        noise: torch.Tensor,
        latent_image: torch.Tensor,
        denoise_mask: torch.Tensor | None = None,
        disable_pbar: bool = False,
    ) -> torch.Tensor:
        """Return the scaled latent at the last level, from unit noise; latent image and mask have no effect."""
        num_steps = len(sigmas) - 1

        def on_step(state: dict[str, Any]) -> None:
            if callback is not None:
                callback(state["i"], state["denoised"], state["x"], num_steps)

        return sample_void(model_wrap, noise.float(), on_host(sigmas), extra_args, on_step, disable_pbar)
