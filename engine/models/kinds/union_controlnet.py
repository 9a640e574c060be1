"""Union ControlNet (Huang et al. 2024, ControlNet++, github.com/xinsir6/ControlNetPlus): for several kinds.

The kind of image is a control type. It is embedded beside the time, and as a token that is mixed with the mean of the
features of the image. Module names are those of the published files, their misspelling included. `B` batch, `H W`
pixels of the hint, `h w` latent cells, `E` width of the time embedding, `D` of the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.clip_layers import quick_gelu
from darkroom.engine.layers.filled import filled
from darkroom.engine.layers.unet import UnetConfig
from darkroom.engine.layers.unet_layers import timestep_embedding
from darkroom.engine.models.kinds.controlnet import ControlNetModel

TOKEN_HEADS = 8
TYPE_WIDTH = 256  # of the sinusoidal embedding of each type's bit


class UnionControlNetModel(ControlNetModel):
    """ControlNet for `num_types` kinds of images; `forward` takes their numbers as `control_type`, none for auto."""

    def __init__(self, config: UnetConfig, hint_channels: int = 3, *, num_types: int) -> None:
        super().__init__(config, hint_channels)
        width = config.model_channels
        self.num_control_type = num_types
        self.task_embedding = nn.Parameter(torch.empty(num_types, width))
        self.transformer_layes = nn.Sequential(TokenBlock(width))
        self.spatial_ch_projs = Linear(width, width)
        self.control_add_embedding = TypeEmbedding(num_types, width * 4)

    def read_hint(
        self,
        hint: torch.Tensor,
        emb: torch.Tensor,
        context: torch.Tensor,
        control_type: Sequence[int] = (),
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the image as additions to the first block, and the time embedding with that of the types [B, E].

        Only the first type is mixed with the image, as in ComfyUI. Raises ValueError for an unknown type.
        """
        unknown = [number for number in control_type if number >= self.num_control_type]
        if unknown:
            raise ValueError(
                f"control type: this union ControlNet has no such type; got {unknown[0]}, expected less than "
                f"{self.num_control_type} (the ProMax file has 8 types)"
            )
        emb = emb + self.control_add_embedding(control_type, emb)
        features = self.input_hint_block(hint, emb, context)  # [B, D, h, w]
        if control_type:
            token = features.mean(dim=(2, 3)) + self.task_embedding[control_type[0]].to(features.dtype)
            mixed = self.transformer_layes(token.unsqueeze(1))  # [B, 1, D]
            features = features + self.spatial_ch_projs(mixed[:, 0])[:, :, None, None]
        return features, emb


class TypeEmbedding(nn.Module):
    """Embedding of a set of control types: a sinusoid of each type's bit, then two linear layers."""

    def __init__(self, num_types: int, width: int) -> None:
        super().__init__()
        self.num_types = num_types
        self.linear_1 = Linear(TYPE_WIDTH * num_types, width)
        self.linear_2 = Linear(width, width)

    def forward(self, types: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        """Return [1, E] in the type and on the device of `like`."""
        bits = filled([float(number in types) for number in range(self.num_types)], device=like.device)
        embedded = timestep_embedding(bits, TYPE_WIDTH).to(like.dtype).reshape(1, -1)
        out: torch.Tensor = self.linear_2(functional.silu(self.linear_1(embedded)))
        return out


class TokenBlock(nn.Module):
    """Residual block of attention and a feed-forward network over tokens [B, T, D], as in CLIP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn = TokenAttention(width)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", Linear(width, width * 4))
        self.mlp.add_module("gelu", QuickGelu())
        self.mlp.add_module("c_proj", Linear(width * 4, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        out: torch.Tensor = x + self.mlp(self.ln_2(x))
        return out


class TokenAttention(nn.Module):
    """Self-attention with the three projections in one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_proj = Linear(width, width * 3)
        self.out_proj = Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        out: torch.Tensor = self.out_proj(optimized_attention(q, k, v, TOKEN_HEADS))
        return out


class QuickGelu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return quick_gelu(x)
