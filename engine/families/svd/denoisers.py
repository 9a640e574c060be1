"""Networks that draw a video from an image: its latent beside the noise, its embedding as the only token, and labels.

`F` frames, `C` channels, `h w` latent cells. Each number of the labels is embedded as sinusoids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import (
    BatchedInput,
    ConstantInput,
    CrossAttentionInput,
    NoiseShapedInput,
    RegularInput,
    spread_to_batch_size,
)
from darkroom.engine.diffusion.denoiser import Denoiser, fit
from darkroom.engine.layers.unet_layers import timestep_embedding

WIDTH, ANGLE_WIDTH = 256, 512  # of the sinusoids of a number, and of an angle
FRAMES_PER_SECOND, MOTION = 6, 127  # unless the conditioning says otherwise


class VideoDenoiser(Denoiser):
    """A network whose labels are frames per second, amount of motion, and noise on the image."""

    comfy_name = "SVD_img2vid"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        noise, device = kwargs["noise"], kwargs["device"]  # noise [F, C, h, w]
        image = kwargs.get("concat_latent_image")  # unscaled
        image = torch.zeros_like(noise) if image is None else image.to(device)
        image = image if image.shape[1:] == noise.shape[1:] else fit(image, noise)
        inputs: dict[str, BatchedInput] = {
            "y": RegularInput(self.labels(**kwargs)),
            "c_concat": NoiseShapedInput(spread_to_batch_size(image, noise.shape[0])),
            "num_video_frames": ConstantInput(noise.shape[0]),
        }
        for name, key in (("c_crossattn", "cross_attn"), ("time_context", "time_conditioning")):
            if kwargs.get(key) is not None:
                inputs[name] = CrossAttentionInput(kwargs[key].to(device))
        return inputs

    def labels(self, **kwargs: Any) -> torch.Tensor:
        """Return the labels [1 or F, label_dim] of a conditioning's options."""
        numbers = (
            kwargs.get("fps", FRAMES_PER_SECOND) - 1,
            kwargs.get("motion_bucket_id", MOTION),
            kwargs.get("augmentation_level", 0),
        )
        return timestep_embedding(torch.tensor(numbers, dtype=torch.float32), WIDTH).flatten()[None]


class OrbitDenoiser(VideoDenoiser):
    """SV3D (Voleti et al. 2024, arXiv 2403.12008) on a fixed orbit: its label is the noise on the image."""

    comfy_name = "SV3D_u"

    def labels(self, **kwargs: Any) -> torch.Tensor:
        return timestep_embedding(_flat(kwargs.get("augmentation_level", 0)), WIDTH)


class PoseDenoiser(VideoDenoiser):
    """SV3D on any orbit: its labels are also the camera's elevation and azimuth in each frame, in degrees."""

    comfy_name = "SV3D_p"

    def labels(self, **kwargs: Any) -> torch.Tensor:
        num_frames = kwargs["noise"].shape[0]
        polar = _radians(90 - _flat(kwargs.get("elevation", 0)))
        azimuth = _radians(_flat(kwargs.get("azimuth", 0)))
        parts = (
            timestep_embedding(_flat(kwargs.get("augmentation_level", 0)), WIDTH),
            timestep_embedding(polar, ANGLE_WIDTH),
            timestep_embedding(azimuth, ANGLE_WIDTH),
        )
        return torch.cat([spread_to_batch_size(part, num_frames) for part in parts], dim=1)


def _flat(numbers: float | Sequence[float] | torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(numbers, dtype=torch.float32).flatten()


def _radians(degrees: torch.Tensor) -> torch.Tensor:
    return torch.deg2rad(torch.fmod(degrees, 360.0))
