"""DINOv3's image encoder (Siméoni et al. 2025, arXiv 2508.10104), of any size, for images of any whole patches.

`B` images, `T` tokens: one of the whole image and registers before those of the patches; `D` hidden size, `h w`
patches. Module names are those of the transformers library's `DINOv3ViTModel`. Files of Pixal3D hold a network beside
the encoder that enlarges its features (`feature_upsampler.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import attention
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.clip_vision import VisionOutput
from darkroom.engine.layers.dinov2 import LayerScale
from darkroom.engine.layers.feature_upsampler import (
    UPSAMPLER,
    FeatureUpsampler,
    FeatureUpsamplerConfig,
    feature_upsampler_config,
)
from darkroom.engine.layers.rotary import Turns, rotated_halves
from darkroom.engine.layers.shapes import Shapes, count_children

HEAD_DIM = 64
NORM_EPS = 1e-5
THETA = 100.0
IMAGE_PX, IMAGE_PX_OF_GATED = 224, 1024
MARK = "layer.0.attention.o_proj.bias"
GATED = "layer.0.mlp.gate_proj.weight"  # of the larger ones alone


@dataclass(frozen=True, slots=True)
class Dinov3Config:
    """Configuration of the encoder; defaults are ViT-L/16's. `is_gated`: the feed-forward layers have gates.

    `upsampler` is the configuration of the network that enlarges its features, None without one.
    """

    num_layers: int = 24
    hidden_size: int = 1024
    intermediate_size: int = 4096
    patch_px: int = 16
    image_px: int = IMAGE_PX
    num_registers: int = 4
    is_gated: bool = False
    upsampler: FeatureUpsamplerConfig | None = None
    has_class_token: bool = True
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)  # of the colours
    deviation: tuple[float, float, float] = (0.229, 0.224, 0.225)

    @property
    def width(self) -> int:
        """The hidden size, as other encoders call it."""
        return self.hidden_size

    @property
    def inner_width(self) -> int:
        """The intermediate size, as other encoders call it."""
        return self.intermediate_size

    @property
    def num_tokens(self) -> int:
        return (self.image_px // self.patch_px) ** 2 + 1 + self.num_registers


def dinov3_config(shapes: Shapes) -> Dinov3Config:
    """Return the configuration of the encoder with these tensors.

    Raises LookupError for a missing one, and ValueError for a size that no such encoder has.
    """
    hidden_size, _, _, patch_px = shapes["embeddings.patch_embeddings.weight"]
    if not hidden_size or hidden_size % HEAD_DIM:
        raise ValueError(f"size of the encoder: got {hidden_size}, expected a multiple of {HEAD_DIM}")
    is_gated = GATED in shapes
    upsampler = {name.removeprefix(UPSAMPLER): shape for name, shape in shapes.items() if name.startswith(UPSAMPLER)}
    return Dinov3Config(
        num_layers=count_children(shapes, "layer"),
        hidden_size=hidden_size,
        intermediate_size=shapes["layer.0.mlp.up_proj.weight"][0],
        patch_px=patch_px,
        image_px=IMAGE_PX_OF_GATED if is_gated else IMAGE_PX,
        num_registers=shapes["embeddings.register_tokens"][1],
        is_gated=is_gated,
        upsampler=feature_upsampler_config(upsampler) if upsampler else None,
    )


def patch_turns(height: int, width: int, device: torch.device) -> Turns:
    """Return cosines and sines [h * w, HEAD_DIM / 2] of the rotary positions of patches, rows first, float32.

    Positions run from -1 to 1 over the image, whatever its size.
    """
    steps = torch.arange(0, 1, 4 / HEAD_DIM, dtype=torch.float32, device=device)
    sides = [(torch.arange(0.5, size, device=device) / size) * 2.0 - 1.0 for size in (height, width)]
    positions = torch.cartesian_prod(*sides)
    angles = (2.0 * math.pi * positions[..., None] * (1.0 / THETA**steps)).flatten(1)
    return angles.cos(), angles.sin()


class Attention(nn.Module):
    """Attention among all tokens, of which those of patches are rotated by position."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.num_heads = hidden_size // HEAD_DIM
        self.k_proj = Linear(hidden_size, hidden_size, bias=False)
        self.v_proj, self.q_proj, self.o_proj = (Linear(hidden_size, hidden_size) for _ in range(3))

    def forward(self, x: torch.Tensor, turns: Turns) -> torch.Tensor:
        q, k = self._rotated(self.q_proj(x), turns), self._rotated(self.k_proj(x), turns)
        out: torch.Tensor = self.o_proj(attention(q, k, self.v_proj(x), self.num_heads))
        return out

    def _rotated(self, x: torch.Tensor, turns: Turns) -> torch.Tensor:
        """Rotate the tokens [B, T, D] of patches, which are the last ones."""
        heads = x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)
        others = x.shape[1] - turns[0].shape[0]
        rotated = rotated_halves(heads[:, :, others:], turns)
        return torch.cat([heads[:, :, :others], rotated], dim=2).transpose(1, 2).flatten(2)


class FeedForward(nn.Module):
    def __init__(self, config: Dinov3Config) -> None:
        super().__init__()
        hidden_size, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = Linear(hidden_size, inner) if config.is_gated else None
        self.up_proj, self.down_proj = Linear(hidden_size, inner), Linear(inner, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.up_proj(x)
        inner = functional.gelu(inner) if self.gate_proj is None else functional.silu(self.gate_proj(x)) * inner
        out: torch.Tensor = self.down_proj(inner)
        return out


class Dinov3Layer(nn.Module):
    def __init__(self, config: Dinov3Config) -> None:
        super().__init__()
        hidden_size = config.hidden_size
        self.attention, self.mlp = Attention(hidden_size), FeedForward(config)
        self.layer_scale1, self.layer_scale2 = LayerScale(hidden_size), LayerScale(hidden_size)
        self.norm1, self.norm2 = (nn.LayerNorm(hidden_size, eps=NORM_EPS) for _ in range(2))

    def forward(self, x: torch.Tensor, turns: Turns) -> torch.Tensor:
        x = x + self.layer_scale1(self.attention(self.norm1(x), turns))
        out: torch.Tensor = x + self.layer_scale2(self.mlp(self.norm2(x)))
        return out


class Embeddings(nn.Module):
    def __init__(self, config: Dinov3Config) -> None:
        super().__init__()
        hidden_size, patch_px = config.hidden_size, config.patch_px
        self.cls_token, self.mask_token = (nn.Parameter(torch.empty(1, 1, hidden_size)) for _ in range(2))
        self.register_tokens = nn.Parameter(torch.empty(1, config.num_registers, hidden_size))
        self.patch_embeddings = Conv2d(3, hidden_size, patch_px, stride=patch_px)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Embed normalised pixels [B, 3, H, W] as [B, T, D]."""
        patches = self.patch_embeddings(pixels).flatten(2).transpose(1, 2)
        first = torch.cat([self.cls_token, self.register_tokens], dim=1).to(patches)
        return torch.cat([first.expand(patches.shape[0], -1, -1), patches], dim=1)


class Dinov3(nn.Module):
    """Image encoder that returns tokens. It computes in float32, whatever type its weights have."""

    def __init__(self, config: Dinov3Config) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layer = nn.ModuleList(Dinov3Layer(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=NORM_EPS)
        self.naf = None if config.upsampler is None else FeatureUpsampler(config.upsampler)

    def forward(
        self,
        pixel_values: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        intermediate_output: int | Literal["all"] | None = None,
        *,
        skip_norm_elementwise: bool = False,
    ) -> VisionOutput:
        """Encode pixels [B, 3, H, W], whole patches a side: all tokens, normalised, and the first.

        With `skip_norm_elementwise` the last norm has no weights. There is no `attention_mask`, and no layer's output.
        """
        height, width = (size // self.config.patch_px for size in pixel_values.shape[2:])
        turns = patch_turns(height, width, pixel_values.device)
        x = self.embeddings(pixel_values)
        for layer in self.layer:
            x = layer(x, turns)
        x = functional.layer_norm(x, x.shape[-1:], eps=NORM_EPS) if skip_norm_elementwise else self.norm(x)
        return x, None, x[:, 0], None
