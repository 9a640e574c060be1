"""The inputs of SCAIL and SCAIL-2: reference images, poses, and the colours of figures.

`B` batch, `C` channels, `R` reference images, `f` latent frames, `h w` latent cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput, RegularInput
from darkroom.engine.diffusion.latent_window import LatentWindow, cut_input
from darkroom.engine.families.wan.video_denoiser import MASK_CHANNELS, VideoDenoiser

CUT_WITH_VIDEO = ("sam_latents", "pose_latents")


class PosedVideoDenoiser(VideoDenoiser):
    """SCAIL, a figure that moves as drawn poses do."""

    comfy_name = "WAN21_SCAIL"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        references: Sequence[torch.Tensor] | None = kwargs.get("reference_latents")
        if references is not None:
            ordered = (*references[1:], *references[:1])  # the most important one beside the video
            inputs["reference_latent"] = RegularInput(torch.cat([self._known(item) for item in ordered], dim=2))
        if kwargs.get("pose_video_latent") is not None:
            inputs["pose_latents"] = RegularInput(self._known(kwargs["pose_video_latent"]))
        return inputs

    def _known(self, latent: torch.Tensor) -> torch.Tensor:
        """Return a latent with the mask of what is given [B, C + 4, f, h, w]."""
        inner = self.process_latent_in(latent)
        return torch.cat([inner, torch.ones_like(inner[:, :MASK_CHANNELS])], dim=1)


class ColouredVideoDenoiser(PosedVideoDenoiser):
    """SCAIL-2, figures that move as those of a video do, told apart by colours."""

    comfy_name = "WAN21_SCAIL2"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        for name, key in (("sam_latents", "driving_mask_28ch"), ("ref_mask_latents", "ref_mask_28ch")):
            if kwargs.get(key) is not None:
                inputs[name] = RegularInput(kwargs[key].movedim(1, 2).contiguous())
        if kwargs.get("ref_mask_flag") is not None:
            inputs["ref_mask_flag"] = ConstantInput(bool(kwargs["ref_mask_flag"]))
        return inputs

    def concat_cond(self, **kwargs: Any) -> torch.Tensor | None:
        """Return the mask [B, 4, f, h, w] of frames that are given."""
        noise: torch.Tensor = kwargs["noise"]
        if int(self.diffusion_model.in_channels) - noise.shape[1] != MASK_CHANNELS:  # type: ignore[arg-type]
            return super().concat_cond(**kwargs)
        return self.given_mask(kwargs.get("concat_mask", kwargs.get("denoise_mask")), noise, kwargs["device"])

    def scale_latent_inpaint(
        self, sigma: torch.Tensor, noise: torch.Tensor, latent_image: torch.Tensor, **kwargs: object
    ) -> torch.Tensor:
        """Return the given frames as they are: they have no noise at any level."""
        return latent_image

    def cut_for_window(
        self, name: str, given: BatchedInput, window: LatentWindow, retained: Sequence[int]
    ) -> BatchedInput | None:
        """Return the part of an input for a context window, None for one that is cut as the latent is.

        The colours of references are followed by frames of nothing, of which each window needs its number.
        """
        if name in CUT_WITH_VIDEO:
            return cut_input(given, window, 2)
        if name != "ref_mask_latents" or not isinstance(given.cond, torch.Tensor):
            return None
        num_references = given.cond.shape[2] - window.total_frames
        if num_references < 1:
            return None
        return RegularInput(given.cond[:, :, : num_references + len(window.places)])
