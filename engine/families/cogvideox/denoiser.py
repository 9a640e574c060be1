"""The inputs of CogVideoX beside the latent: text, latents of images or of a video to change, and `ofs`.

`B` batch, `C` channels, `f` latent frames, `h w` latent cells.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from darkroom.engine.diffusion.conditions import BatchedInput, RegularInput, spread_to_batch_size
from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.images.pixels import resize

VIDEO_AXES = 5
DEFAULT_OFFSET = 2.0  # ComfyUI's


class CogVideoXDenoiser(Denoiser):
    """CogVideoX from text, from images, and VOID."""

    comfy_name = "CogVideoX"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        config: Any = self.diffusion_model.config
        if config.offset_dim:
            given: torch.Tensor | None = kwargs.get("ofs")
            inputs["ofs"] = RegularInput(torch.full((1,), DEFAULT_OFFSET) if given is None else given)
        return inputs

    def concat_cond(self, **kwargs: Any) -> torch.Tensor | None:
        """Return the further channels [B, C, f, h, w] of the network, zeros without any; None for one of text alone.

        They are those of `concat_latent_image`, cut, or repeated until there are enough. Raises ValueError for a latent
        that is not of videos.
        """
        noise: torch.Tensor = kwargs["noise"]
        config: Any = self.diffusion_model.config
        num_extra: int = config.in_channels - noise.shape[1]
        if num_extra <= 0:
            return None
        given: torch.Tensor | None = kwargs.get("concat_latent_image")
        if given is None:
            return noise.new_zeros(noise.shape[0], num_extra, *noise.shape[2:])
        if given.ndim != VIDEO_AXES:
            raise ValueError(
                f"concat_latent_image: it is no latent of videos; got shape {list(given.shape)}, expected "
                "[batch, channels, frames, rows, columns]"
            )
        given = given.to(kwargs["device"])
        if given.shape[-2:] != noise.shape[-2:]:
            given = resize(given, noise.shape[-1], noise.shape[-2], "bilinear", "center")
        frames = functional.pad(given, (0, 0, 0, 0, 0, max(0, noise.shape[2] - given.shape[2])))[:, :, : noise.shape[2]]
        repeated = frames.repeat(1, -(-num_extra // frames.shape[1]), 1, 1, 1)[:, :num_extra]
        return spread_to_batch_size(self.process_latent_in(repeated), noise.shape[0])
