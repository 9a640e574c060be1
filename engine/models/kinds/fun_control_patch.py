"""A control that adds to the image behind blocks of a Next-DiT, as functions among a MODEL's options.

`B` batch, `C` channels, `H W` pixels, `T` tokens, `D` width.
"""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import repeat_to_batch_size
from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.images.pixels import resize
from darkroom.engine.layers.patches import PATCH
from darkroom.engine.models.patching.module_patcher import ModulePatcher
from darkroom.engine.models.vae import Vae

GREY = 0.5


class FunControlPatch:
    """A `noise_refiner` and `double_block` patch with a network of its own (`engine/families/z_image/fun_control.py`).

    `image` [1, H, W, 3] of 0..1 is what steers, `painted` another one to paint into; either may be left out. `hole`
    [1, 1, H, W] is 1 where the model may paint. They are encoded at the size of the latent, when that is first known.
    """

    def __init__(
        self,
        control: ModulePatcher,
        vae: Vae,
        latent_format: LatentFormat,
        strength: float,
        *,
        image: torch.Tensor | None,
        painted: torch.Tensor | None,
        hole: torch.Tensor | None,
    ) -> None:
        self._control = control
        self._vae = vae
        self._latent_format = latent_format
        self._strength = strength
        self._image, self._painted, self._hole = image, painted, hole
        self._hint: torch.Tensor | None = None  # [1, C, h, w]
        self._hint_size: tuple[int, int] | None = None  # in cells
        self._is_untrained = False
        self._seen: torch.Tensor | None = None  # [B, T, D], what the next block of the control reads

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Add the control to the image's tokens, behind a block of the kind `block_type`."""
        network, index = self._control.model, inputs["block_index"]
        is_refining = inputs.get("block_type") == "noise_refiner"
        if is_refining and index == 0:
            self._begin(inputs)
        if self._seen is None:
            return inputs
        step = network.config.step
        if not is_refining and (index % step or index // step >= network.config.num_layers):
            return inputs
        num_tokens = self._seen.shape[1]
        image = inputs["img_input"][:, :num_tokens]
        pe, time = inputs["pe"][:, :, :num_tokens], inputs["vec"]
        if is_refining:
            added, self._seen = network.refined(index, self._seen, image, pe, time, is_untrained=self._is_untrained)
        else:
            added, self._seen = network.control_layers[index // step].steer(self._seen, image, pe, time)
        if added is None:
            return inputs
        img: torch.Tensor = inputs["img"]
        steered = img[:, :num_tokens] + added * self._strength
        return {**inputs, "img": torch.cat([steered, img[:, num_tokens:]], dim=1)}

    def __deepcopy__(self, memo: object) -> FunControlPatch:
        """Return itself: clones of a MODEL share the control's network."""
        return self

    def to(self, target: object) -> FunControlPatch:
        """Move what was encoded to a device."""
        if self._hint is not None and not isinstance(target, torch.dtype):
            self._hint = self._hint.to(torch.device(str(target)))
        self._seen = None
        return self

    def models(self) -> list[ModulePatcher]:
        """Return the models that have to be on the device."""
        return [self._control]

    def _begin(self, inputs: dict[str, Any]) -> None:
        """Embed what steers, for one pass of the network."""
        img, size = inputs["img"], (int(inputs["x"].shape[-2]), int(inputs["x"].shape[-1]))
        if self._hint is None or self._hint_size != size:
            self._hint, self._hint_size = self._encoded(*size), size
            self._is_untrained = self._control.model.has_untrained_refiners()
        self._hint = self._hint.to(img.device)
        hint = repeat_to_batch_size(self._hint.to(img), img.shape[0])
        num_tokens = hint.shape[-2] * hint.shape[-1] // PATCH**2
        self._seen = self._control.model.embedded(hint, inputs["pe"][:, :, :num_tokens], inputs["vec"])

    def _encoded(self, height: int, width: int) -> torch.Tensor:
        """Return the scaled latents of what steers [1, C, h, w], at the size of a latent of so many cells."""
        ratio = self._vae.spacial_compression_encode()
        size = (width * ratio, height * ratio)
        image, painted = (
            None if item is None else resize(item.movedim(-1, 1), *size, "area", "center").movedim(1, -1)
            for item in (self._image, self._painted)
        )
        grey = torch.full((1, size[1], size[0], 3), GREY)
        latent = self._latent(grey if image is None else image)
        if self._control.model.config.hint_channels <= latent.shape[1]:
            return latent
        painted = grey if painted is None else painted
        mask = torch.zeros_like(latent[:, :1])
        if self._hole is not None:
            kept = 1.0 - self._hole
            seen = resize(kept, *size, "bilinear", "center").movedim(1, -1).round()
            painted = (painted - GREY) * seen + GREY
            mask = resize(kept, width, height, "nearest", "center").to(latent)
        return torch.cat([latent, mask, self._latent(painted)], dim=1)

    def _latent(self, image: torch.Tensor) -> torch.Tensor:
        return self._latent_format.process_in(self._vae.encode(image))
