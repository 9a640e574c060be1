"""SUPIR's control of a UNet, as functions among a MODEL's options, and its guidance towards the image.

`B` batch, `C` channels, `h w` latent cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from darkroom.engine.diffusion.conditions import repeat_to_batch_size
from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.diffusion.options import Options
from darkroom.engine.families.sdxl.supir import Supir
from darkroom.engine.layers.unet_layers import Upsample
from darkroom.engine.models.patching.module_patcher import ModulePatcher

HIGHEST_SIGMA = 14.6146  # of the UNet's levels, rounded as in ComfyUI


class Evaluation(NamedTuple):
    """Features [B, C, h, w] of one evaluation of the UNet, and the strength of the control in it."""

    features: Sequence[torch.Tensor]
    strength: float


class SupirPatch:
    """A `middle_block_after_patch`, which computes the features of an evaluation for the patches of the output blocks.

    `image` [N, 4, h, w] is the scaled latent of the image to restore. The strength is `first` at the highest noise
    level and `last` without noise.
    """

    def __init__(self, control: ModulePatcher, image: torch.Tensor, first: float, last: float) -> None:
        self._control = control
        self._image = image
        self._first, self._last = first, last
        self.evaluation: Evaluation | None = None

    @property
    def network(self) -> Supir:
        """The control's network."""
        network: Supir = self._control.model
        return network

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Change the middle's output by the image. Raises ValueError for a latent of another size than the image's."""
        self.evaluation = None
        strength = self._strength(inputs["transformer_options"])
        if strength <= 0:
            return inputs
        x: torch.Tensor = inputs["x"]
        if x.shape[-2:] != self._image.shape[-2:]:
            raise ValueError(
                f"image: its latent has another size than the one to sample; got {list(self._image.shape[-2:])} cells, "
                f"expected {list(x.shape[-2:])}"
            )
        image = repeat_to_batch_size(self._image.to(x), x.shape[0])
        features = self.network.control_model(image, x, inputs["timesteps"], inputs["context"], inputs["y"])
        self.evaluation = Evaluation(features, strength)
        return {**inputs, "h": self.network.project_modules[-1](features[-1], inputs["h"], None, strength)}

    def _strength(self, options: Options) -> float:
        sigmas: torch.Tensor | None = options.get("sigmas")
        if sigmas is None or self._first == self._last:
            return self._last
        share = min(float(on_host(sigmas)[0]) / HIGHEST_SIGMA, 1.0)
        return share * (self._first - self._last) + self._last

    def __deepcopy__(self, memo: object) -> SupirPatch:
        """Return itself: clones of a MODEL share the control's network."""
        return self

    def to(self, target: object) -> SupirPatch:
        """Move the image to a device."""
        self.evaluation = None
        if not isinstance(target, torch.dtype):
            self._image = self._image.to(torch.device(str(target)))
        return self

    def models(self) -> list[ModulePatcher]:
        """Return the models that have to be on the device."""
        return [self._control]


class SupirJoinPatch:
    """An `output_block_patch` that joins a skip connection with what comes before it, both changed by the image."""

    def __init__(self, patch: SupirPatch) -> None:
        self._patch = patch

    def __call__(
        self, h: torch.Tensor, skip: torch.Tensor, options: Options
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        evaluation, network = self._patch.evaluation, self._patch.network
        if evaluation is None:
            return h, skip
        adapters = network.by_block[options["block"][1]]
        feature = evaluation.features[adapters.feature]
        return network.project_modules[adapters.shift](feature, skip, h, evaluation.strength), None


class SupirEnlargePatch:
    """A `forward_timestep_embed_patch` of the layers that enlarge, which attend to the image before."""

    def __init__(self, patch: SupirPatch) -> None:
        self._patch = patch

    def __call__(
        self, layer: Upsample, x: torch.Tensor, emb: torch.Tensor, context: torch.Tensor | None, options: Options,
        output_shape: Sequence[int] | None, *args: object,
    ) -> torch.Tensor:  # fmt: skip
        evaluation, network = self._patch.evaluation, self._patch.network
        half, index = options["block"]
        if evaluation is not None and half == "output":
            adapters = network.by_block[index]
            if adapters.attention is not None:
                feature = evaluation.features[adapters.feature]
                x = network.project_modules[adapters.attention](feature, x, evaluation.strength)
        out: torch.Tensor = layer(x, output_shape)
        return out


class RestoringGuidance:
    """A `sampler_post_cfg_function` that draws the denoised latent to that of the image, less at lower noise levels.

    `image` [N, 4, h, w] is scaled. `power` is that of the noise level by which it weighs; below `lowest` it does not.
    """

    def __init__(self, image: torch.Tensor, power: float, lowest: float) -> None:
        self._image, self._power, self._lowest = image, power, lowest

    def __call__(self, arguments: Options) -> torch.Tensor:
        """Return the denoised latent [B, 4, h, w]."""
        denoised: torch.Tensor = arguments["denoised"]
        sigma: torch.Tensor = arguments["sigma"]
        if float(on_host(sigma).flatten()[0]) <= self._lowest:
            return denoised
        self._image = self._image.to(denoised.device)
        image = repeat_to_batch_size(self._image.to(denoised.dtype), denoised.shape[0])
        return denoised - (denoised - image) * (sigma.view(-1, 1, 1, 1) / HIGHEST_SIGMA) ** self._power
