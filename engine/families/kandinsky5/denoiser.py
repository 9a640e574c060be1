"""The inputs of Kandinsky 5 beside the latent: the text, its pooled output, and frames that are given.

`B` batch, `C` channels, `f` latent frames, `h w` latent cells.
"""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, RegularInput, spread_to_batch_size
from darkroom.engine.families.hunyuan_video.denoiser import fitted_frames
from darkroom.engine.families.joint_text_denoiser import JointTextDenoiser

GIVEN_FRAMES = "time_dim_replace"  # ComfyUI's name of the latent of frames that a video begins with


class Kandinsky5ImageDenoiser(JointTextDenoiser):
    """Kandinsky 5 Image."""

    comfy_name = "Kandinsky5Image"


class Kandinsky5Denoiser(JointTextDenoiser):
    """Kandinsky 5 Video, which reads a latent that stays empty and a mask of given cells beside the noisy latent."""

    comfy_name = "Kandinsky5"

    def concat_cond(self, **kwargs: Any) -> torch.Tensor:
        """Return the further channels [B, C + 1, f, h, w]: zeros, and 1 where cells are given."""
        noise: torch.Tensor = kwargs["noise"]
        mask: torch.Tensor | None = kwargs.get("concat_mask", kwargs.get("denoise_mask"))
        if mask is None:
            given = torch.zeros_like(noise)[:, :1]
        else:
            cells = 1.0 - mask[:, :1].to(kwargs["device"])
            given = spread_to_batch_size(fitted_frames(cells, noise), noise.shape[0])
        return torch.cat([torch.zeros_like(noise), given.to(noise)], dim=1)

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the inputs. Raises ValueError for given frames of another size than the latent's."""
        inputs = super().extra_conds(**kwargs)
        frames: torch.Tensor | None = kwargs.get(GIVEN_FRAMES)
        if frames is not None:
            _check_frames(frames, kwargs["noise"])
            inputs[GIVEN_FRAMES] = RegularInput(self.process_latent_in(frames))
        return inputs


def _check_frames(frames: torch.Tensor, noise: torch.Tensor) -> None:
    """Raise ValueError for the latent of given frames [B, C, f, h, w] that does not fit in that of the video."""
    fits = frames.ndim == noise.ndim and frames.shape[1] == noise.shape[1] and frames.shape[3:] == noise.shape[3:]
    if not fits or frames.shape[2] > noise.shape[2]:
        raise ValueError(
            f"conditioning: its start_image does not fit the latent; got a latent of {list(frames.shape[1:])}, "
            f"expected {list(noise.shape[1:])} or fewer frames (the same width, height and length)"
        )
