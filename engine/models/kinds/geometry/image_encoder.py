"""DINOv2 as the encoder of one image of any size, with the features of several layers.

`B` images, `T` patches, `D` hidden size.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from darkroom.engine.cancel import check_cancelled
from darkroom.engine.layers.dinov2 import NORM_EPS, Dinov2Config, Dinov2Layers
from darkroom.engine.models.kinds.geometry.multi_view_encoder import SizedEmbeddings


class ImageEncoder(nn.Module):
    """The encoder: of each layer that is asked for the patches [B, T, D] and the image's token [B, D], normalised."""

    def __init__(self, config: Dinov2Config) -> None:
        super().__init__()
        self.embeddings = SizedEmbeddings(config, has_cameras=False)
        self.encoder = Dinov2Layers(config)
        self.layernorm = nn.LayerNorm(config.width, eps=NORM_EPS)

    def forward(self, pixels: torch.Tensor, layers: Collection[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Encode normalised pixels [B, 3, H, W], sides multiples of a patch's, by layers from the first on."""
        x, found = self.embeddings(pixels), []
        for index, layer in enumerate(self.encoder.layer):
            check_cancelled()
            x = layer(x)
            if index in layers:
                normed = self.layernorm(x)
                found.append((normed[:, 1:], normed[:, 0]))
        return found
