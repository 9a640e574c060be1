"""A control that adds to a transformer's image behind each of its blocks, as a function among a MODEL's options.

`B` batch, `H W` pixels, `T` tokens, `D` width.
"""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.images.pixels import resize
from darkroom.engine.models.patching.module_patcher import ModulePatcher
from darkroom.engine.models.vae import Vae


class DiffSynthPatch:
    """A `double_block` patch with a network of its own (`engine/families/qwen_image/diffsynth_control.py`).

    `image` [1, H, W, 3] of 0..1 is what it sees, `hole` [1, 1, H, W] is 1 where the model may paint. They are encoded
    at the size of the latent, when that is first known.
    """

    def __init__(
        self,
        control: ModulePatcher,
        vae: Vae,
        latent_format: LatentFormat,
        image: torch.Tensor,
        strength: float,
        hole: torch.Tensor | None = None,
    ) -> None:
        self._control = control
        self._vae = vae
        self._latent_format = latent_format
        self._image = image
        self._hole = hole
        self._strength = strength
        self._seen: torch.Tensor | None = None  # [1, T, D]
        self._seen_size: tuple[int, int] | None = None  # in cells

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Add the control to the image's tokens, behind the block `block_index`."""
        img: torch.Tensor = inputs["img"]
        seen = self._seen_at(inputs["x"].shape[-2], inputs["x"].shape[-1]).to(img)
        image = img[:, : seen.shape[1]]
        added = self._control.model.controlnet_blocks[inputs["block_index"]](image, seen) * self._strength
        return {**inputs, "img": torch.cat([image + added, img[:, seen.shape[1] :]], dim=1)}

    def __deepcopy__(self, memo: object) -> DiffSynthPatch:
        """Return itself: clones of a MODEL share the control's network."""
        return self

    def to(self, target: object) -> DiffSynthPatch:
        """Move what was encoded to a device."""
        if self._seen is not None and not isinstance(target, torch.dtype):
            self._seen = self._seen.to(torch.device(str(target)))
        return self

    def models(self) -> list[ModulePatcher]:
        """Return the models that have to be on the device."""
        return [self._control]

    def _seen_at(self, height: int, width: int) -> torch.Tensor:
        """Return the tokens of the image at the size of a latent of so many cells."""
        if self._seen is None or self._seen_size != (height, width):
            self._seen = self._control.model.embedded(self._hint(height, width).to(self._control.load_device))
            self._seen_size = (height, width)
        return self._seen

    def _hint(self, height: int, width: int) -> torch.Tensor:
        """Return the scaled latent of the image [1, C, h, w], and behind it the mask where the control sees one."""
        ratio = self._vae.spacial_compression_encode()
        pixels = resize(self._image.movedim(-1, 1), width * ratio, height * ratio, "area", "center")
        latent = self._latent_format.process_in(self._vae.encode(pixels.movedim(1, -1)))[:, :, 0]
        num_further = self._control.model.config.hint_channels - latent.shape[1]
        if num_further <= 0:
            return latent
        if self._hole is None:
            kept = torch.ones_like(latent[:, :num_further])
        else:
            kept = resize(1.0 - self._hole, width, height, "bilinear")
        return torch.cat([latent, kept.to(latent)], dim=1)
