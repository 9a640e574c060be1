"""The inputs of SeedVR2 beside the noisy latent: the video to restore, its text, and the windows of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput, RegularInput
from darkroom.engine.diffusion.latent_window import LatentWindow
from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser
from darkroom.engine.families.seedvr2.transformer import CELLS

CONDITION = "condition"  # ComfyUI's option of CONDITIONING
NODE = "SeedVR2Conditioning"
WINDOWS = "window_"  # first part of the names of inputs that are of one grid


class SeedVr2Denoiser(TextTokensDenoiser):
    """SeedVR2, which custom nodes find by its name in ComfyUI."""

    comfy_name = "SeedVR2"
    uncast_inputs = ("window_positions",)

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the network's inputs of one condition.

        Raises:
            ValueError: the conditioning has no video, or one of another size than the latent; the latent's sides are
                not whole patches; the text is not of the model's size.
        """
        inputs = super().extra_conds(**kwargs)
        network: Any = self.diffusion_model
        noise: torch.Tensor = kwargs["noise"]
        inputs[CONDITION] = RegularInput(_checked(kwargs.get(CONDITION), noise, network.config.in_channels))
        windows = network.windows(noise.shape[2:])
        inputs |= {
            "window_order": RegularInput(windows.order),
            "window_places": RegularInput(windows.places),
            "window_positions": RegularInput(windows.positions),
            "window_sizes": ConstantInput(windows.sizes),
        }
        return inputs

    def cut_for_window(
        self, name: str, given: BatchedInput, window: LatentWindow, retained: Sequence[int]
    ) -> BatchedInput | None:
        """Return no windows of tokens for a part of the latent, whose own the network computes; None for others."""
        return ConstantInput(None) if name.startswith(WINDOWS) else None


def _checked(condition: torch.Tensor | None, noise: torch.Tensor, in_channels: int) -> torch.Tensor:
    """Return the condition [B, C, t, h, w] for noise [B, 16, t, h, w]. Raises ValueError for one that does not fit."""
    if condition is None:
        raise ValueError(f"positive: SeedVR2 restores a video; got conditioning without one, expected that of {NODE}")
    channels = in_channels - noise.shape[1]
    if condition.ndim != noise.ndim or condition.shape[1] != channels or condition.shape[2:] != noise.shape[2:]:
        raise ValueError(
            f"positive: {NODE} was given another video than latent_image; got {list(condition.shape)}, expected "
            f"{[noise.shape[0], channels, *noise.shape[2:]]}"
        )
    if any(side % CELLS for side in noise.shape[3:]):
        raise ValueError(
            f"latent_image: its sides are not whole patches; got {noise.shape[4]}x{noise.shape[3]} cells, expected "
            "even numbers of them (SeedVR2Preprocess)"
        )
    return condition
