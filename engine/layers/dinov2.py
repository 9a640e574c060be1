"""DINOv2's image encoder (Oquab et al. 2023, arXiv 2304.07193), of any width and depth.

`B` images, `T` tokens: one of the whole image before those of the patches, `D` width. Module names are those of the
transformers library's `Dinov2Model`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import attention
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.clip_vision import VisionOutput
from darkroom.engine.layers.shapes import Shapes, count_children

HEAD_WIDTH = 64
NORM_EPS = 1e-6
MARK = "encoder.layer.0.layer_scale1.lambda1"
GATED = "encoder.layer.0.mlp.weights_in.weight"  # of the largest alone


@dataclass(frozen=True, slots=True)
class Dinov2Config:
    """Configuration of the encoder; defaults are the giant one's. `is_gated`: the feed-forward layers have gates."""

    num_layers: int = 40
    width: int = 1536
    inner_width: int = 4096
    patch_px: int = 14
    image_px: int = 518
    is_gated: bool = True
    has_class_token: bool = True
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)  # of the colours
    deviation: tuple[float, float, float] = (0.229, 0.224, 0.225)

    @property
    def num_tokens(self) -> int:
        return (self.image_px // self.patch_px) ** 2 + 1


def dinov2_config(shapes: Shapes) -> Dinov2Config:
    """Return the configuration of the encoder with these tensors.

    Raises LookupError for a missing one, and ValueError for a size that no such encoder has.
    """
    width, _, _, patch_px = shapes["embeddings.patch_embeddings.projection.weight"]
    num_patches = shapes["embeddings.position_embeddings"][1] - 1
    if not width or width % HEAD_WIDTH:
        raise ValueError(f"size of the encoder: got {width}, expected a multiple of {HEAD_WIDTH}")
    is_gated = GATED in shapes
    inner = shapes[GATED][0] // 2 if is_gated else shapes["encoder.layer.0.mlp.fc1.weight"][0]
    return Dinov2Config(
        num_layers=count_children(shapes, "encoder.layer"),
        width=width,
        inner_width=inner,
        patch_px=patch_px,
        image_px=round(num_patches**0.5) * patch_px,
        is_gated=is_gated,
    )


class QueryKeyValue(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (Linear(width, width) for _ in range(3))


class Projection(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = Linear(width, width)


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD_WIDTH
        self.attention, self.output = QueryKeyValue(width), Projection(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layers = self.attention
        out: torch.Tensor = self.output.dense(attention(layers.query(x), layers.key(x), layers.value(x), self.heads))
        return out


class PlainLayers(nn.Module):
    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = Linear(width, inner_width), Linear(inner_width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(functional.gelu(self.fc1(x)))
        return out


class GatedLayers(nn.Module):
    """Feed-forward layers with a gate (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.weights_in, self.weights_out = Linear(width, 2 * inner_width), Linear(inner_width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, inner = self.weights_in(x).chunk(2, dim=-1)
        out: torch.Tensor = self.weights_out(functional.silu(gate) * inner)
        return out


class LayerScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.lambda1 = nn.Parameter(torch.empty(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.lambda1.to(x)


class Dinov2Layer(nn.Module):
    def __init__(self, config: Dinov2Config) -> None:
        super().__init__()
        width = config.width
        layers = GatedLayers if config.is_gated else PlainLayers
        self.attention, self.mlp = Attention(width), layers(width, config.inner_width)
        self.layer_scale1, self.layer_scale2 = LayerScale(width), LayerScale(width)
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=NORM_EPS) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.layer_scale1(self.attention(self.norm1(x)))
        out: torch.Tensor = x + self.layer_scale2(self.mlp(self.norm2(x)))
        return out


class Embeddings(nn.Module):
    def __init__(self, config: Dinov2Config) -> None:
        super().__init__()
        width, patch_px = config.width, config.patch_px
        self.patch_embeddings = nn.ModuleDict({"projection": Conv2d(3, width, patch_px, stride=patch_px)})
        self.position_embeddings = nn.Parameter(torch.empty(1, config.num_tokens, width))
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Embed normalised pixels [B, 3, H, W] as [B, T, D]."""
        patches = self.patch_embeddings["projection"](pixels).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.to(patches).expand(patches.shape[0], -1, -1), patches], dim=1)
        return tokens + self.position_embeddings.to(patches)


class Dinov2Layers(nn.Module):
    def __init__(self, config: Dinov2Config) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Dinov2Layer(config) for _ in range(config.num_layers))


class Dinov2(nn.Module):
    """Image encoder that returns tokens. It computes in float32, whatever type its weights have."""

    def __init__(self, config: Dinov2Config) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.encoder = Dinov2Layers(config)
        self.layernorm = nn.LayerNorm(config.width, eps=NORM_EPS)

    def forward(
        self,
        pixel_values: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        intermediate_output: int | Literal["all"] | None = None,
    ) -> VisionOutput:
        """Encode `pixel_values` [B, 3, image_px, image_px]: all tokens, normalised, those of a layer, and the first.

        `intermediate_output` asks for one more layer's output (-2: the last but one) or for all of them.
        """
        x = self.embeddings(pixel_values)
        asked: list[torch.Tensor] = []
        for index, layer in enumerate(self.encoder.layer):
            x = layer(x)
            chosen = isinstance(intermediate_output, int) and index == intermediate_output % len(self.encoder.layer)
            if chosen or intermediate_output == "all":
                asked.append(x)
        inner = torch.stack(asked, dim=1) if intermediate_output == "all" else asked[0] if asked else None
        x = self.layernorm(x)
        return x, inner, x[:, 0], None
