"""The inputs of HunyuanVideo 1.5 beside the latent: the texts, tokens of an image, and latents of known frames.

`B` batch, `C` channels of a latent, `f` latent frames, `h w` latent cells, `T` tokens, `D` their width.
"""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, RegularInput, spread_to_batch_size
from darkroom.engine.families.hunyuan_image.glyph_denoiser import GlyphDenoiser
from darkroom.engine.families.hunyuan_video.denoiser import fitted_frames

LARGEST_SHARE = 0.75  # of the video to redraw in what the network reads
SEED_OFFSET = -10  # ComfyUI's, of the noise on that video


class HunyuanVideo15Denoiser(GlyphDenoiser):
    """HunyuanVideo 1.5, from text, or from text and images."""

    comfy_name = "HunyuanVideo15"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        seen = kwargs.get("clip_vision_output")
        if seen is not None:
            inputs["clip_fea"] = RegularInput(self._checked_tokens(seen.last_hidden_state))
        return inputs

    def concat_cond(self, **kwargs: Any) -> torch.Tensor:
        """Return the latent of known frames, and where they are (1): [B, C + 1, f, h, w].

        Raises ValueError for a latent of other channels.
        """
        noise, device = kwargs["noise"], kwargs["device"]
        given: torch.Tensor | None = kwargs.get("concat_latent_image")
        image = torch.zeros_like(noise)
        if given is not None:
            _check_channels(given, noise.shape[1])
            image = self.process_latent_in(spread_to_batch_size(fitted_frames(given.to(device), noise), noise.shape[0]))
        mask: torch.Tensor | None = kwargs.get("concat_mask", kwargs.get("denoise_mask"))
        if mask is None:
            return torch.cat([image, torch.zeros_like(noise)[:, :1]], dim=1)
        redrawn = mask.to(device)[:, :1]  # the mask of sampling is there for each channel
        known = fitted_frames(1.0 - redrawn.reshape(-1, 1, *redrawn.shape[-3:]), noise)
        return torch.cat([image, spread_to_batch_size(known, noise.shape[0])], dim=1)

    def scale_latent_inpaint(
        self, sigma: torch.Tensor, noise: torch.Tensor, latent_image: torch.Tensor, **kwargs: Any
    ) -> torch.Tensor:
        """Return the image itself: what is kept has no noise."""
        return latent_image

    def _checked_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the tokens of an image encoder. Raises ValueError for those of another one."""
        config: Any = self.diffusion_model.config
        expected: int = config.image_dim
        if tokens.ndim != 3 or tokens.shape[-1] != expected:
            raise ValueError(
                f"clip_vision_output: tokens of another image encoder; got shape {list(tokens.shape)}, expected "
                f"[batch, tokens, {expected}], as SigLIP gives them (sigclip_vision_patch14_384)"
            )
        return tokens


class SuperResolutionDenoiser(HunyuanVideo15Denoiser):
    """The network of HunyuanVideo 1.5 that redraws an enlarged video."""

    comfy_name = "HunyuanVideo15_SR_Distilled"

    def concat_cond(self, **kwargs: Any) -> torch.Tensor:
        """Return the latents of known frames and of the video to redraw, each with a mask: [B, 2 * C + 2, f, h, w].

        They are not scaled as latents of the network are. Zeros without a video. Raises ValueError for a latent of
        other channels.
        """
        noise, device = kwargs["noise"], kwargs["device"]
        channels = noise.shape[1]
        given: torch.Tensor | None = kwargs.get("concat_latent_image")
        if given is None:
            nothing: torch.Tensor = noise.new_zeros(noise.shape[0], 2 * channels + 2, *noise.shape[2:])
            return nothing
        _check_channels(given, 2 * channels + 2)
        image = spread_to_batch_size(fitted_frames(given.to(device), noise), noise.shape[0])
        video = slice(channels + 1, 2 * channels + 1)
        augmentation = float(kwargs.get("noise_augmentation", 0.0))
        redrawn = min(1.0 - augmentation, LARGEST_SHARE) * image[:, video]
        if augmentation > 0:
            generator = torch.Generator(device="cpu").manual_seed((kwargs.get("seed") or 0) + SEED_OFFSET)
            drawn = torch.randn(redrawn.shape, generator=generator, dtype=image.dtype).to(device)
            redrawn = augmentation * drawn + redrawn
        return torch.cat([image[:, : channels + 1], redrawn, image[:, 2 * channels + 1 :]], dim=1)


def _check_channels(given: torch.Tensor, expected: int) -> None:
    if given.ndim != 5 or given.shape[1] != expected:
        raise ValueError(
            f"concat_latent_image: it is not what this network reads; got shape {list(given.shape)}, expected "
            f"[batch, {expected}, frames, rows, columns]: HunyuanVideo15ImageToVideo is for the network of videos, "
            "HunyuanVideo15SuperResolution for that of super-resolution"
        )
