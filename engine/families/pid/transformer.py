"""The transformer of PiD, a pixel diffusion decoder (NVIDIA 2026), of any width and depth: the image of a latent.

PixelDiT's network, whose patches take in features of the latent before every second block; the image is four times as
large as the latent's. Version 1.5 conditions the
blocks of pixels on it too. `B` batch, `C` channels, `H W` pixels, `c` channels of the latent, `h w` its cells.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from darkroom.engine.families.pid.config import PiDConfig
from darkroom.engine.families.pid.latent_projection import WITHOUT_LATENT, LatentProjection, NoiseGate, check_latent
from darkroom.engine.families.pixeldit.config import PATCH_PX
from darkroom.engine.families.pixeldit.transformer import PatchGuide, PixelDiTTrunk
from darkroom.engine.layers.block_calls import Control
from darkroom.engine.layers.unet_layers import Options


class LatentGuide(PatchGuide):
    """Features of a latent for an image's patches, [B, T, D] each, and the level of its noise `sigma` [B]."""

    def __init__(self, network: PiDTransformer, features: Sequence[torch.Tensor], sigma: torch.Tensor) -> None:
        self.network, self.features, self.sigma = network, features, sigma

    def before_block(self, img: torch.Tensor, index: int) -> torch.Tensor:
        """Return the patches [B, T, D] with a feature where the block is one of those that get one."""
        number, rest = divmod(index, self.network.config.block_interval)
        gates = self.network.lq_proj.gate_modules
        if rest or number >= len(gates):
            return img
        taken: torch.Tensor = gates[number](img, self.features[number], self.sigma)
        return taken

    def before_pixels(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the patches [B, T, D] with the last feature, in version 1.5."""
        if not self.network.config.is_later:
            return tokens
        taken: torch.Tensor = self.network.pit_lq_gate(tokens, self.features[-1], self.sigma)
        return taken


class PiDTransformer(PixelDiTTrunk):
    """`forward(x [B, C, H, W], timesteps [B], context [B, L, D'])` -> the velocity `[B, C, H, W]`.

    `lq_latent` [B, c, h, w] is the latent in its network's scale, of any size, and `degrade_sigma` [B] the level of
    its noise, 0 for none.
    """

    config: PiDConfig

    def __init__(self, config: PiDConfig) -> None:
        super().__init__(config)
        self.trained_side = config.trained_side
        self.lq_proj = LatentProjection(config)
        if config.is_later:
            self.pit_lq_gate = NoiseGate(config)

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: Control | None = None,
        transformer_options: Options | None = None,
        *,
        lq_latent: torch.Tensor | None = None,
        degrade_sigma: torch.Tensor | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        """Predict. Raises ValueError without a latent, or for one of another network."""
        if lq_latent is None or degrade_sigma is None:
            raise ValueError(WITHOUT_LATENT)
        check_latent(tuple(lq_latent.shape), self.config)
        rows, columns = (-(-side // PATCH_PX) for side in x.shape[-2:])
        features = self.lq_proj(lq_latent.to(x), rows, columns)
        guide = LatentGuide(self, features, degrade_sigma.float().reshape(-1))
        options = {} if transformer_options is None else transformer_options
        return self.predict(x, timesteps, context, options, guide)
