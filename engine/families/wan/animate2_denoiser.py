"""The inputs of Wan-Animate 2: the latent of the video whose poses are taken, its text and what an image encoder saw.

`B` batch, `C` channels, `f` latent frames, `h w` latent cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput, RegularInput
from darkroom.engine.diffusion.latent_window import LatentWindow, cut_input
from darkroom.engine.families.wan.denoiser import ImageVideoDenoiser

STRENGTHS = ("pose_strength", "reference_strength")


class FollowingVideoDenoiser(ImageVideoDenoiser):
    """Animate 2, a figure that moves as the one of another video."""

    comfy_name = "WAN_Animate2"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the inputs. Raises ValueError for poses that are not one latent frame shorter than the video."""
        inputs = super().extra_conds(**kwargs)
        poses: torch.Tensor | None = kwargs.get("pose_video_latent")
        if poses is not None:
            frames, *cells = kwargs["noise"].shape[2:]
            _check_poses(tuple(poses.shape[2:]), (frames - 1, *cells))
            inputs["pose_latents"] = RegularInput(self.process_latent_in(poses))
        seen = kwargs.get("clip_vision_output_pose")
        if seen is not None:
            inputs["clip_fea_pose"] = RegularInput(self.seen_tokens(seen.penultimate_hidden_states))
        if kwargs.get("cross_attn_pose") is not None:
            self.check_text({"cross_attn": kwargs["cross_attn_pose"]})
            inputs["context_pose"] = RegularInput(kwargs["cross_attn_pose"])
        for name in STRENGTHS:
            if kwargs.get(name, 1.0) != 1.0:
                inputs[name] = ConstantInput(kwargs[name])
        return inputs

    def cut_for_window(
        self, name: str, given: BatchedInput, window: LatentWindow, retained: Sequence[int]
    ) -> BatchedInput | None:
        """Return the part of an input for a context window, None for one that is cut as the latent is.

        Poses begin at the second latent frame.
        """
        return cut_input(given, window, 2, num_before=1) if name == "pose_latents" else None


def _check_poses(found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raise ValueError for a latent of poses of another size [f, h, w] than the video's behind its first frame."""
    if found != expected:
        raise ValueError(
            f"pose_video: its latent does not fit the video's; got {found[0]} latent frames of {found[2]}x{found[1]} "
            f"cells, expected {expected[0]} of {expected[2]}x{expected[1]}, one less than the video has"
        )
