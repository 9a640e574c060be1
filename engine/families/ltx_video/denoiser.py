"""The inputs of LTX-Video beside the latent: prompt, frame rate, frames given to it, and which cells they are.

`B` batch, `C` channels, `f` latent frames, `h w` latent cells, `T` tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput, RegularInput
from darkroom.engine.diffusion.latent_window import LatentWindow
from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser

DEFAULT_FRAME_RATE = 25.0
GUIDES_ARE_NOT_CUT = (
    "context windows: the frames of guides (LTXVAddGuide) are not cut; got a latent with guides, expected one without "
    "(LTXVImgToVideo with retain_first_frame, or LTXVCropGuides before it)"
)


class LtxVideoDenoiser(TextTokensDenoiser):
    """LTX-Video, which sees what it may not paint at noise level 0."""

    comfy_name = "LTXV"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        mask: torch.Tensor | None = kwargs.get("concat_mask", kwargs.get("denoise_mask"))
        guides: torch.Tensor | None = kwargs.get("keyframe_idxs")
        weights: torch.Tensor | None = kwargs.get("guide_weights")
        given = {"attention_mask": kwargs.get("attention_mask"), "denoise_mask": mask, "keyframe_idxs": guides}
        if guides is not None:
            given["kept_tokens"], given["guide_weights"] = kept_tokens_of(mask, guides, weights)
        inputs |= {name: RegularInput(value) for name, value in given.items() if value is not None}
        inputs["frame_rate"] = ConstantInput(kwargs.get("frame_rate", DEFAULT_FRAME_RATE))
        return inputs

    def cut_for_window(
        self, name: str, given: BatchedInput, window: LatentWindow, retained: Sequence[int]
    ) -> BatchedInput | None:
        """Return None: inputs are cut for a context window as the latent is. Raises ValueError for frames of guides."""
        if name == "keyframe_idxs":
            raise ValueError(GUIDES_ARE_NOT_CUT)
        return None

    def process_timestep(self, timestep: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Return a noise level for each token [B, T, 1], or for all of them [B] where everything is painted."""
        mask: torch.Tensor | None = kwargs.get("denoise_mask")  # [B, C, f, h, w]
        if mask is None:
            return timestep
        levels = mask[:, :1] * timestep.view(-1, *(1,) * (mask.ndim - 1))
        return levels.flatten(2).transpose(1, 2)

    def scale_latent_inpaint(
        self, sigma: torch.Tensor, noise: torch.Tensor, latent_image: torch.Tensor, **kwargs: Any
    ) -> torch.Tensor:
        """Return the frames themselves: what is kept is seen without noise."""
        return latent_image


def kept_tokens_of(
    mask: torch.Tensor | None, guides: torch.Tensor, weights: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the indices [1, N] of the tokens that a video with guides has, and the weights of those of the guides.

    `mask` [B, C, f, h, w] is negative where a guide has no cell. `guides` [1, 3, K, ...] are the positions of all of
    their tokens, `weights` [1, K] how much they weigh. None for all tokens, and for weights of 1.
    """
    kept: torch.Tensor | None = None
    if mask is not None and bool((mask < 0).any()):
        is_kept = (mask >= 0).all(dim=1).flatten(1)[0].cpu()  # [T], of all rows alike
        kept = is_kept.nonzero().T
        weights = None if weights is None else weights[:, is_kept[-guides.shape[2] :]]
    return kept, None if weights is None or bool((weights == 1).all()) else weights
