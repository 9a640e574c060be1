"""The inputs of Flux beside latent and text: guidance, reference images, and images as further channels.

`B` batch, `C` channels, `h w` latent cells.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from darkroom.engine.diffusion.conditions import (
    BatchedInput,
    RegularInput,
    spread_to_batch_size,
)
from darkroom.engine.diffusion.denoiser import fit
from darkroom.engine.families.joint_text_denoiser import JointTextDenoiser
from darkroom.engine.families.reference_inputs import reference_inputs
from darkroom.engine.layers.patches import PATCH

DEFAULT_GUIDANCE = 3.5
FIRST_WEIGHT = "diffusion_model.img_in.weight"
CELL_PX = 8  # a side; the mask of a cell has a channel for each of its pixels


class FluxDenoiser(JointTextDenoiser):
    """Flux, with the channels that its first layer has."""

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the network's inputs. Raises ValueError for reference images of another family's VAE."""
        inputs = super().extra_conds(**kwargs)
        guidance = kwargs.get("guidance", DEFAULT_GUIDANCE)
        if guidance is not None:
            inputs["guidance"] = RegularInput(torch.tensor([float(guidance)]))
        mask = kwargs.get("attention_mask")
        if mask is not None and "attention_mask_img_shape" in kwargs:
            rows, columns = (math.ceil(side / PATCH) for side in kwargs["noise"].shape[2:])
            inputs["attention_mask"] = RegularInput(
                fitted_mask(mask, kwargs["attention_mask_img_shape"], rows, columns)
            )
        return {**inputs, **reference_inputs(self, kwargs)}

    def concat_cond(self, **kwargs: Any) -> torch.Tensor | None:
        """Return an image's latent [B, C, h, w], with the mask of its pixels [B, 64, h, w] for a network that paints.

        A LoRA that makes the first layer wider adds channels too. None for a network of the noisy latent alone.
        """
        network: Any = self.diffusion_model
        num_channels = self._num_channels()
        own: int = network.config.out_channels
        if num_channels <= own:
            return None
        noise, device = kwargs["noise"], kwargs["device"]
        given = kwargs.get("concat_latent_image")
        image = torch.zeros_like(noise) if given is None else given.to(device)
        image = self.process_latent_in(spread_to_batch_size(fit(image, noise), noise.shape[0]))
        if num_channels <= own * 2:
            return image
        mask = kwargs.get("concat_mask", kwargs.get("denoise_mask"))
        mask = torch.ones_like(noise)[:, :1] if mask is None else mask.to(device)
        return torch.cat([image, spread_to_batch_size(_mask_channels(mask, noise), noise.shape[0])], dim=1)

    def _num_channels(self) -> int:
        """Return the channels that the first layer reads, with the patches of the MODEL that samples.

        Only where there are patches of it the weight is made, once for each conditioning.
        """
        network: Any = self.diffusion_model
        own: int = network.config.in_channels
        patcher = self.current_patcher
        if patcher is None or (FIRST_WEIGHT not in patcher.patches and not patcher.hook_patches):
            return own
        weight: torch.Tensor = patcher.weights.current_weight(FIRST_WEIGHT)
        return weight.shape[1] // PATCH**2


def fitted_mask(mask: torch.Tensor, image: tuple[int, int], rows: int, columns: int) -> torch.Tensor:
    """Resize the image's share of an attention mask [B, T, T], made for `image` patches, to rows and columns."""
    if tuple(image) == (rows, columns):
        return mask
    mask = mask[None] if mask.ndim == 2 else mask
    num_text = mask.shape[1] - image[0] * image[1]

    def resized(part: torch.Tensor) -> torch.Tensor:
        """Resize the last dimension of [B, N, image]."""
        squares = part.reshape(*part.shape[:2], *image)
        return functional.interpolate(squares, size=(rows, columns), mode="bilinear").flatten(2)

    def resized_both(part: torch.Tensor) -> torch.Tensor:
        return resized(resized(part).transpose(1, 2)).transpose(1, 2)

    from_text = torch.cat([mask[:, :num_text, :num_text], resized(mask[:, :num_text, num_text:])], dim=2)
    to_text = resized(mask[:, num_text:, :num_text].transpose(1, 2)).transpose(1, 2)
    from_image = torch.cat([to_text, resized_both(mask[:, num_text:, num_text:])], dim=2)
    return torch.cat([from_text, from_image], dim=1)


def _mask_channels(mask: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Return a mask [B, 1, H, W] with the pixels of a cell as its channels [B, 64, h, w]."""
    height, width = noise.shape[-2:]
    pixels = torch.empty(1, 1, height * CELL_PX, width * CELL_PX, device="meta")
    scaled = fit(mask.mean(dim=1, keepdim=True), pixels)
    cells = scaled.view(-1, height, CELL_PX, width, CELL_PX)
    return cells.permute(0, 2, 4, 1, 3).reshape(-1, CELL_PX**2, height, width)
