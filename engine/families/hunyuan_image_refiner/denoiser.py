"""The inputs of HunyuanImage 2.1's refiner beside latent and text: the image that it redraws.

`B` batch, `C` channels, `f` latent frames, `h w` latent cells.
"""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput, spread_to_batch_size
from darkroom.engine.diffusion.denoiser import fit
from darkroom.engine.families.hunyuan_image.glyph_denoiser import GlyphDenoiser
from darkroom.engine.families.hunyuan_image_refiner.vae_files import VAE_CHANNELS

LARGEST_SHARE = 0.75  # of the image in what the network sees
SEED_OFFSET = -10  # ComfyUI's, of the noise on the image


class RefinerDenoiser(GlyphDenoiser):
    """HunyuanImage 2.1's refiner."""

    comfy_name = "HunyuanImage21Refiner"

    def concat_cond(self, **kwargs: Any) -> torch.Tensor:
        """Return the latent of the image [B, 64, 1, h, w], some of it noise; zeros without an image.

        Raises ValueError for a latent of another VAE.
        """
        noise, device = kwargs["noise"], kwargs["device"]
        given: torch.Tensor | None = kwargs.get("concat_latent_image")
        if given is None:
            return torch.zeros_like(noise)
        if given.ndim != noise.ndim or given.shape[1] != VAE_CHANNELS or not given.shape[2] == noise.shape[2] == 1:
            raise ValueError(
                f"concat_latent_image: it is not a latent of one image by the refiner's VAE; got shape "
                f"{list(given.shape)} for {noise.shape[2]} frames, expected [batch, {VAE_CHANNELS}, 1, rows, columns] "
                "for one"
            )
        fitted = fit(given.to(device)[:, :, 0], noise)[:, :, None]
        image = spread_to_batch_size(self.process_latent_in(fitted), noise.shape[0])
        augmentation = float(kwargs.get("noise_augmentation", 0.0))
        if augmentation <= 0:
            return LARGEST_SHARE * image
        generator = torch.Generator(device="cpu").manual_seed((kwargs.get("seed") or 0) + SEED_OFFSET)
        drawn = torch.randn(image.shape, generator=generator, dtype=image.dtype).to(image.device)
        return augmentation * drawn + min(1.0 - augmentation, LARGEST_SHARE) * image

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        return {**super().extra_conds(**kwargs), "disable_time_r": ConstantInput(True)}
