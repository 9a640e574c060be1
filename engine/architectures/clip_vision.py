"""CLIP's picture encoder (Radford et al. 2021, arXiv 2103.00020), of any width and depth.

`B` pictures, `P` patches, `T` tokens (P + 1), `D` width, `E` width of the embedding that pictures and texts share.
Module names are those of the transformers library's `CLIPVisionModelWithProjection`, its spelling of `pre_layrnorm`
too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from engine.architectures.clip_layers import ClipLayer, gelu, quick_gelu
from engine.architectures.layers import Conv2d, Linear

ACTIVATIONS = {"quick_gelu": quick_gelu, "gelu": gelu}

# Outputs of the network: last hidden states [B, T, D], those asked for, embedding [B, E], and None, where networks of
# other families give a projection of all tokens.
VisionOutput = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, None]


@dataclass(frozen=True, slots=True)
class ClipVisionConfig:
    """Configuration of the encoder; defaults are ViT-L's."""

    num_layers: int = 24
    width: int = 1024
    heads: int = 16
    inner_width: int = 4096
    activation: Literal["quick_gelu", "gelu"] = "quick_gelu"
    patch_px: int = 14
    image_px: int = 224
    projection_width: int = 768

    @property
    def num_tokens(self) -> int:
        return (self.image_px // self.patch_px) ** 2 + 1


class ClipVisionEmbeddings(nn.Module):
    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__()
        self.class_embedding = nn.Parameter(torch.empty(config.width))
        self.patch_embedding = Conv2d(3, config.width, config.patch_px, stride=config.patch_px, bias=False)
        self.position_embedding = nn.Embedding(config.num_tokens, config.width)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Embed normalised pixels [B, 3, H, W] as [B, T, D]."""
        patches = self.patch_embedding(pixels).flatten(2).transpose(1, 2)
        first = self.class_embedding.to(patches).expand(patches.shape[0], 1, -1)
        places = torch.arange(self.position_embedding.num_embeddings, device=patches.device)
        embedded: torch.Tensor = torch.cat([first, patches], dim=1) + self.position_embedding(places)
        return embedded


class ClipVisionEncoder(nn.Module):
    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__()
        activation = ACTIVATIONS[config.activation]
        self.layers = nn.ModuleList(
            ClipLayer(config.width, config.heads, config.inner_width, activation=activation)
            for _ in range(config.num_layers)
        )


class ClipVisionTower(nn.Module):
    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__()
        self.embeddings = ClipVisionEmbeddings(config)
        self.pre_layrnorm = nn.LayerNorm(config.width)
        self.encoder = ClipVisionEncoder(config)
        self.post_layernorm = nn.LayerNorm(config.width)

    def forward(
        self, pixels: torch.Tensor, layer: int | Literal["all"] | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Return (output of the last layer, output of `layer` or of all [B, layers, T, D], pooled [B, D]).

        Only the pooled one is normalised.
        """
        x = self.pre_layrnorm(self.embeddings(pixels))
        asked: list[torch.Tensor] = []
        for index, block in enumerate(self.encoder.layers):
            x = block(x)
            if layer == "all" or (isinstance(layer, int) and index == layer % len(self.encoder.layers)):
                asked.append(x)
        chosen = torch.stack(asked, dim=1) if layer == "all" else asked[0] if asked else None
        return x, chosen, self.post_layernorm(x[:, 0])


class ClipVisionModel(nn.Module):
    """Picture encoder that returns tokens and embeddings. It computes in float32, whatever type its weights have."""

    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__()
        self.config = config
        self.vision_model = ClipVisionTower(config)
        self.visual_projection = Linear(config.width, config.projection_width, bias=False)

    def forward(
        self,
        pixel_values: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        intermediate_output: int | Literal["all"] | None = None,
    ) -> VisionOutput:
        """Encode `pixel_values` [B, 3, image_px, image_px] from `engine/images/vision_pixels.py`.

        `intermediate_output` asks for one more layer's output (-2: the last but one) or for all of them.
        `attention_mask` changes nothing, as in ComfyUI.
        """
        last, chosen, pooled = self.vision_model(pixel_values, intermediate_output)
        return last, chosen, self.visual_projection(pooled), None
