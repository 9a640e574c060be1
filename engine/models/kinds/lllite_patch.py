"""A control by ControlNet-LLLite, as functions among a MODEL's options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.images.pixels import resize
from darkroom.engine.layers.unet_layers import Options
from darkroom.engine.models.patching.module_patcher import ModulePatcher

CELL_PX = 8
LEAST_MASKED = 0.5


class LLLitePatch:
    """A `post_input` patch that embeds the image for the patches of layers (`LLLiteAttentionPatch`, `LLLiteMlpPatch`).

    `image` [N, H, W, 3] of 0..1 is what the control reads, `mask` [N, H, W] is 1 where the model may paint. They are
    embedded at the size of the latent, when that is first known. It works at noise levels from `end` to `start`.
    """

    def __init__(
        self,
        control: ModulePatcher,
        image: torch.Tensor,
        mask: torch.Tensor | None,
        strength: float,
        *,
        start: float,
        end: float,
    ) -> None:
        self.control, self.strength = control, strength
        self._image, self._mask = image, mask
        self._start, self._end = start, end
        self._embedding: torch.Tensor | None = None  # [N, P, E]
        self._embedded_as: tuple[torch.Size, torch.dtype, torch.device] | None = None  # of the latent's h and w

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Keep the image's embedding for a latent [B, C, 1, h, w]. Raises ValueError for a video."""
        x: torch.Tensor = inputs["x"]
        options = inputs["transformer_options"]
        if self.strength == 0.0 or not self._is_in_range(options):
            return inputs
        if x.shape[2] != 1:
            raise ValueError(f"model: the control is of images; got a video of {x.shape[2]} latent frames, expected 1")
        form = (x.shape[-2:], x.dtype, x.device)
        if self._embedding is None or self._embedded_as != form:
            self._embedding = self.control.model.lllite_conditioning1(self._read(x))
            self._embedded_as = form
        options["model_patch_data"][self] = self._embedding
        return inputs

    def _is_in_range(self, options: Options) -> bool:
        sigmas: torch.Tensor | None = options.get("sigmas")
        return sigmas is None or self._end <= float(on_host(sigmas).max()) <= self._start

    def _read(self, x: torch.Tensor) -> torch.Tensor:
        """Return the image as the control reads it, [N, 3 or 4, H, W] of -1..1, at the size of the latent."""
        height, width = (cells * CELL_PX for cells in x.shape[-2:])
        image = resize(self._image.movedim(-1, 1), width, height, "bicubic", "center").clamp(0.0, 1.0)
        image = image.to(x) * 2.0 - 1.0
        if self._mask is None:
            return image
        mask = resize(self._mask[:, None].float(), width, height, "nearest-exact", "center")
        if image.shape[0] % mask.shape[0]:
            raise ValueError(f"mask: as many as images, or a part; got {mask.shape[0]} for {image.shape[0]} images")
        mask = (mask.repeat(image.shape[0] // mask.shape[0], 1, 1, 1) >= LEAST_MASKED).to(x)
        if self.control.model.config.hides_masked:
            image = image * (1.0 - mask)
        return torch.cat([image, mask * 2.0 - 1.0], dim=1)

    def __deepcopy__(self, memo: object) -> LLLitePatch:
        """Return itself: clones of a MODEL share the control's network."""
        return self

    def to(self, target: object) -> LLLitePatch:
        """Forget the embedding on another device."""
        self._embedding = None
        return self

    def models(self) -> list[ModulePatcher]:
        """Return the models that have to be on the device."""
        return [self.control]

    def shifted(self, x: torch.Tensor, options: Options, layer: str) -> torch.Tensor:
        """Return the input of a layer, `block_index` of the options says of which block."""
        embedding = options["model_patch_data"].get(self)
        if embedding is None:
            return x
        out: torch.Tensor = self.control.model.shifted(x, embedding, options["block_index"], layer, self.strength)
        return out


class LLLiteAttentionPatch:
    """A patch of an attention's inputs. `layers` are the layers shifted, by `q`, `k` and `v`."""

    takes_positions = True

    def __init__(self, patch: LLLitePatch, layers: Mapping[str, str]) -> None:
        self._patch, self._layers = patch, layers

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        pe: object = None,
        attn_mask: object = None,
        extra_options: Options | None = None,
    ) -> dict[str, Any]:
        given = {"q": q, "k": k, "v": v}
        changed = {
            name: self._patch.shifted(given[name], extra_options or {}, layer) for name, layer in self._layers.items()
        }
        return {**given, **changed, "pe": pe, "attn_mask": attn_mask}


class LLLiteMlpPatch:
    """A patch of a feed-forward layer's input."""

    def __init__(self, patch: LLLitePatch) -> None:
        self._patch = patch

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {**inputs, "x": self._patch.shifted(inputs["x"], inputs["transformer_options"], "mlp_layer1")}
