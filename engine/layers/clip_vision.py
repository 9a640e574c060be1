"""CLIP's image encoder (Radford et al. 2021, arXiv 2103.00020) and SigLIP's, of any width and depth.

SigLIP (Zhai et al. 2023, arXiv 2303.15343) has no token for the whole image: its tokens are the patches. SigLIP 2 in
its NaFlex form keeps an image's proportions (`engine/layers/naflex.py`). `B` images, `P` patches, `T` tokens (P + 1,
P), `D` width, `E` width of the embedding that images and texts share. Module names are those of the transformers
library's `CLIPVisionModelWithProjection`, its spelling of `pre_layrnorm` too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.clip_layers import ClipLayer, gelu, gelu_tanh, quick_gelu
from darkroom.engine.layers.naflex import NaflexEmbeddings

ACTIVATIONS = {"quick_gelu": quick_gelu, "gelu": gelu, "gelu_tanh": gelu_tanh}

# Outputs of the network: last hidden states [B, T, D], those asked for, embedding [B, E] (of SigLIP the last hidden
# states), and the patches as tokens of a language model [B, P, L], None without a projector.
VisionOutput = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class ClipVisionConfig:
    """Configuration of the encoder; defaults are ViT-L's. `has_class_token` is False for SigLIP.

    `language_width` is the width of the language model that reads the patches (LLaVA's), 0 where none does.
    `most_patches` is the largest number of patches of an image in SigLIP 2's NaFlex form, 0 for squares of `image_px`.
    """

    num_layers: int = 24
    width: int = 1024
    heads: int = 16
    inner_width: int = 4096
    activation: Literal["quick_gelu", "gelu", "gelu_tanh"] = "quick_gelu"
    patch_px: int = 14
    image_px: int = 224
    projection_width: int = 768
    has_class_token: bool = True
    language_width: int = 0
    most_patches: int = 0
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)  # of the colours
    deviation: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)

    @property
    def num_tokens(self) -> int:
        return self.most_patches or (self.image_px // self.patch_px) ** 2 + int(self.has_class_token)


class ClipVisionEmbeddings(nn.Module):
    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__()
        self.has_class_token = config.has_class_token
        if config.has_class_token:
            self.class_embedding = nn.Parameter(torch.empty(config.width))
        self.patch_embedding = Conv2d(
            3, config.width, config.patch_px, stride=config.patch_px, bias=not config.has_class_token
        )
        self.position_embedding = nn.Embedding(config.num_tokens, config.width)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Embed normalised pixels [B, 3, H, W] as [B, T, D]."""
        tokens = self.patch_embedding(pixels).flatten(2).transpose(1, 2)
        if self.has_class_token:
            tokens = torch.cat([self.class_embedding.to(tokens).expand(tokens.shape[0], 1, -1), tokens], dim=1)
        places = torch.arange(self.position_embedding.num_embeddings, device=tokens.device)
        embedded: torch.Tensor = tokens + self.position_embedding(places)
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
        self.embeddings = (
            NaflexEmbeddings(config.width, config.patch_px, config.most_patches)
            if config.most_patches
            else ClipVisionEmbeddings(config)
        )
        self.has_class_token = config.has_class_token
        if config.has_class_token:
            self.pre_layrnorm = nn.LayerNorm(config.width)
        self.encoder = ClipVisionEncoder(config)
        self.post_layernorm = nn.LayerNorm(config.width)

    def forward(
        self, pixels: torch.Tensor, layer: int | Literal["all"] | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Return (output of the last layer, output of `layer` or of all [B, layers, T, D], pooled [B, D]).

        Only the pooled one is normalised; SigLIP's is the output of the last layer, normalised, and both are the same.
        """
        x = self.embeddings(pixels)
        if self.has_class_token:
            x = self.pre_layrnorm(x)
        asked: list[torch.Tensor] = []
        for index, block in enumerate(self.encoder.layers):
            x = block(x)
            if layer == "all" or (isinstance(layer, int) and index == layer % len(self.encoder.layers)):
                asked.append(x)
        chosen = torch.stack(asked, dim=1) if layer == "all" else asked[0] if asked else None
        if self.has_class_token:
            return x, chosen, self.post_layernorm(x[:, 0])
        x = self.post_layernorm(x)
        return x, chosen, x


class LanguageProjector(nn.Module):
    """The layers of LLaVA (Liu et al. 2023, arXiv 2304.08485) that make patches tokens of a language model."""

    def __init__(self, width: int, language_width: int) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = Linear(width, language_width), Linear(language_width, language_width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the patches [B, P, L] of tokens [B, T, D], without that of the whole image."""
        projected: torch.Tensor = self.linear_2(functional.gelu(self.linear_1(tokens[:, 1:])))
        return projected


class ClipVisionModel(nn.Module):
    """Image encoder that returns tokens and embeddings. It computes in float32, whatever type its weights have."""

    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__()
        self.config = config
        self.vision_model = ClipVisionTower(config)
        if config.projection_width:
            self.visual_projection = Linear(config.width, config.projection_width, bias=False)
        self.multi_modal_projector: LanguageProjector | None = (
            LanguageProjector(config.width, config.language_width) if config.language_width else None
        )

    def forward(
        self,
        pixel_values: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        intermediate_output: int | Literal["all"] | None = None,
    ) -> VisionOutput:
        """Encode `pixel_values` [B, 3, image_px, image_px] from `engine/images/vision_pixels.py`, or of whole patches.

        `intermediate_output` asks for one more layer's output (-2: the last but one) or for all of them.
        `attention_mask` changes nothing, as in ComfyUI.
        """
        last, chosen, pooled = self.vision_model(pixel_values, intermediate_output)
        embedded = self.visual_projection(pooled) if self.config.projection_width else pooled
        projector = self.multi_modal_projector
        return last, chosen, embedded, None if projector is None or chosen is None else projector(chosen)
