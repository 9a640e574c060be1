"""The networks of Stable Diffusion 2 that see more than a prompt: images as labels, depth, an image to enlarge.

`B` batch, `h w` latent cells.
"""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import (
    BatchedInput,
    CrossAttentionInput,
    NoiseShapedInput,
    RegularInput,
    spread_to_batch_size,
)
from darkroom.engine.diffusion.denoiser import Denoiser, ModelConfig, fit
from darkroom.engine.diffusion.model_sampling import DiscreteSchedule
from darkroom.engine.families.sd2.unclip import SEED_OFFSET, unclip_labels

MERGED_AUGMENTATION = 0.05  # of several images, unless the conditioning says otherwise
# Of the image that is enlarged: the levels of its noise are those of the network's own schedule.
UPSCALE_SCHEDULE = {"linear_start": 0.0001, "linear_end": 0.02}
HIGHEST_NOISE_LEVEL = 350
IMAGE_CHANNELS = 3


class UnclipDenoiser(Denoiser):
    """A network whose labels are an image's embedding (Ramesh et al. 2022, arXiv 2204.06125), zeros without one."""

    comfy_name = "SD21UNCLIP"

    def encode_adm(self, **kwargs: Any) -> torch.Tensor:
        """Return the labels [1, label_dim]."""
        images = kwargs.get("unclip_conditioning")
        device = kwargs["device"]
        if images is None:
            config: Any = self.diffusion_model.config
            return torch.zeros((1, config.label_dim), device=device)
        return unclip_labels(
            images,
            seed=(kwargs.get("seed") or 0) + SEED_OFFSET,
            merged_augmentation=kwargs.get("unclip_noise_augment_merge", MERGED_AUGMENTATION),
        ).to(device)


class DepthDenoiser(Denoiser):
    """A network that is also shown how far away everything is, as a further channel [B, 1, h, w] of -1..1.

    It comes as the option `noise_concat` of the conditioning; without it the depth is the same everywhere.
    """

    def concat_cond(self, **kwargs: Any) -> torch.Tensor:
        return torch.zeros_like(kwargs["noise"][:, :1])


class LotusDenoiser(Denoiser):
    """Lotus (He et al. 2024, arXiv 2409.18124): an image's depth or normals in one step; the label names the task."""

    comfy_name = "Lotus"

    TASK = (1.0, 0.0)

    def encode_adm(self, **kwargs: Any) -> torch.Tensor:
        """Return the label [1, 4]: sines and cosines of the task."""
        task = torch.tensor(self.TASK, device=kwargs["device"])
        return torch.cat([task.sin(), task.cos()])[None]


class UpscaleDenoiser(Denoiser):
    """The fourfold upscaler: it sees the small image with some noise, and how much that is."""

    comfy_name = "SD_X4Upscaler"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        noise, device = kwargs["noise"], kwargs["device"]
        augmentation: float = kwargs.get("noise_augmentation", 0.0)
        image = kwargs.get("concat_image")  # [B, 3, h, w], -1..1
        image = torch.zeros_like(noise)[:, :IMAGE_CHANNELS] if image is None else fit(image.to(device), noise)
        level = round(HIGHEST_NOISE_LEVEL * augmentation)
        if augmentation > 0:
            image = _noised(image, level, seed=(kwargs.get("seed") or 0) + SEED_OFFSET)
        inputs: dict[str, BatchedInput] = {
            "c_concat": NoiseShapedInput(spread_to_batch_size(image, noise.shape[0])),
            "y": RegularInput(torch.tensor([level], device=device)),
        }
        if kwargs.get("cross_attn") is not None:
            inputs["c_crossattn"] = CrossAttentionInput(kwargs["cross_attn"].to(device))
        return inputs


def _noised(image: torch.Tensor, level: int, *, seed: int) -> torch.Tensor:
    """Return an image at a level of the schedule (0..999), with noise drawn on the CPU."""
    schedule = DiscreteSchedule(ModelConfig(sampling_settings=UPSCALE_SCHEDULE))
    sigma = schedule.sigmas[level].double()
    signal = 1 / (1 + sigma**2)  # its share of the variance
    noise = torch.randn(image.shape, dtype=image.dtype, generator=torch.manual_seed(seed)).to(image)
    return signal.sqrt().float() * image + (1 - signal).sqrt().float() * noise
