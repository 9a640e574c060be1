"""The inputs of HunyuanVideo beside the latent: prompt, guidance, and images that the video begins with.

`B` batch, `C` channels, `f` latent frames, `h w` latent cells.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from darkroom.engine.diffusion.conditions import BatchedInput, RegularInput, spread_to_batch_size
from darkroom.engine.diffusion.denoiser import fit
from darkroom.engine.families.joint_text_denoiser import JointTextDenoiser

DEFAULT_GUIDANCE = 6.0
IMAGE, KEPT = "concat_image", "mask_inverted"  # ComfyUI's names of further channels


class HunyuanVideoDenoiser(JointTextDenoiser):
    """HunyuanVideo, from text, or from text and an image."""

    comfy_name = "HunyuanVideo"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        if kwargs.get("attention_mask") is not None:
            inputs["attention_mask"] = RegularInput(kwargs["attention_mask"])
        for name, number in (
            ("guidance", kwargs.get("guidance", DEFAULT_GUIDANCE)),
            ("guiding_frame_index", kwargs.get("guiding_frame_index")),
        ):
            if number is not None:
                inputs[name] = RegularInput(torch.tensor([float(number)]))
        if kwargs.get("ref_latent") is not None:
            inputs["ref_latent"] = RegularInput(self.process_latent_in(kwargs["ref_latent"]))
        return inputs

    def concat_cond(self, **kwargs: Any) -> torch.Tensor | None:
        """Return the latent of images [B, C, f, h, w], and where they are (1) for a network that reads it.

        None for a network of the noisy latent alone.
        """
        if not self.concat_keys:
            return None
        noise, device = kwargs["noise"], kwargs["device"]
        given: torch.Tensor | None = kwargs.get("concat_latent_image")
        image = kwargs["latent_image"] if given is None else self.process_latent_in(given)
        parts = [spread_to_batch_size(fitted_frames(image.to(device), noise), noise.shape[0])]
        if KEPT in self.concat_keys:
            mask: torch.Tensor | None = kwargs.get("concat_mask", kwargs.get("denoise_mask"))
            if mask is None:
                parts.append(torch.zeros_like(noise)[:, :1])
            else:
                drawn = fitted_frames(mask.to(device).reshape(-1, 1, *mask.shape[-3:]), noise)
                parts.append(1.0 - spread_to_batch_size(drawn.round(), noise.shape[0]))
        return torch.cat(parts, dim=1)

    def scale_latent_inpaint(
        self, sigma: torch.Tensor, noise: torch.Tensor, latent_image: torch.Tensor, **kwargs: Any
    ) -> torch.Tensor:
        """Return the image itself: what is kept is seen without noise."""
        return latent_image


class ImageVideoDenoiser(HunyuanVideoDenoiser):
    """HunyuanVideo from an image, which knows where the image is."""

    comfy_name = "HunyuanVideoI2V"


class SkyreelsVideoDenoiser(HunyuanVideoDenoiser):
    """SkyReels V1 from an image."""

    comfy_name = "HunyuanVideoSkyreelsI2V"


def fitted_frames(frames: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Return frames [B, C, f, h, w] of the size of the noise, cut or filled up with zeros in time."""
    if frames.shape[-2:] != noise.shape[-2:]:
        flat = fit(frames.transpose(1, 2).flatten(0, 1), noise)
        frames = flat.view(frames.shape[0], -1, *flat.shape[1:]).transpose(1, 2)
    missing = noise.shape[2] - frames.shape[2]
    return functional.pad(frames, (0, 0, 0, 0, 0, missing)) if missing > 0 else frames[:, :, : noise.shape[2]]
