"""The blocks of PixelDiT that work on pixels, conditioned on the tokens of their patches.

Attention is between patches: the pixels of each are compressed to one token. `B` batch, `H W` pixels, `N` patches of
all images, `T` of one, `P` pixels of a patch, `E` hidden size of a pixel, `D` of a token.
"""

from __future__ import annotations

import torch
from torch import nn

from darkroom.engine.families.pixeldit.config import PATCH_PX, PixelDiTConfig
from darkroom.engine.families.pixeldit.positions import pixel_sinusoids
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.transformer_layers import AdaptiveNorm, GatedResidual, Gelu, RotaryHeads
from darkroom.engine.layers.unet_layers import Options

PIXELS = PATCH_PX**2
FEED_FORWARD_FACTOR = 4
PIECES = 2  # of an image's pixels, whose feed-forward layers are computed one after the other


class PixelEmbedder(nn.Module):
    """Colours and positions of pixels: `forward(image [B, C, H, W])` -> `[B * T, P, E]`, patch by patch."""

    def __init__(self, config: PixelDiTConfig) -> None:
        super().__init__()
        self.proj = Linear(config.in_channels, config.pixel_size)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        batch, _, height, width = image.shape
        pixels: torch.Tensor = self.proj(image.permute(0, 2, 3, 1))  # [B, H, W, E]
        half = pixels.shape[-1] // 2
        across, down = (pixel_sinusoids(side, half, image.device).to(pixels.dtype) for side in (width, height))
        positions = torch.cat(
            [across[None].expand(height, -1, -1), down[:, None].expand(-1, width, -1)], dim=-1
        )  # [H, W, E]
        cells = (pixels + positions).view(batch, height // PATCH_PX, PATCH_PX, width // PATCH_PX, PATCH_PX, -1)
        return cells.transpose(2, 3).reshape(-1, PIXELS, pixels.shape[-1])


class PatchAttention(nn.Module):
    """Self-attention between patches: `forward(x [B, T, A], pe [1, T, 1, pairs, 2, 2], options)` -> `[B, T, A]`."""

    def __init__(self, config: PixelDiTConfig) -> None:
        super().__init__()
        size, head_dim = config.pixel_attention_size, config.pixel_head_dim
        self.heads = size // head_dim
        self.qkv = Linear(size, 3 * size, bias=False)
        self.q_norm, self.k_norm = RmsNorm(head_dim), RmsNorm(head_dim)
        self.proj = Linear(size, size)
        self.rotary_heads = RotaryHeads(token_dim=1)

    def forward(self, x: torch.Tensor, pe: torch.Tensor, options: Options | None) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).unbind(2)  # [B, T, heads, A / heads] each
        q, k = self.rotary_heads([(q, self.q_norm)], [(k, self.k_norm)], pe)
        attended = optimized_attention(
            q.flatten(2), k.flatten(2), v.flatten(2), self.heads, transformer_options=options
        )
        out: torch.Tensor = self.proj(attended)
        return out


class PixelLayers(nn.Module):
    """Feed-forward layers of each pixel: `forward([N, P, E])` -> `[N, P, E]`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.fc1 = Linear(size, FEED_FORWARD_FACTOR * size)
        self.fc2 = Linear(FEED_FORWARD_FACTOR * size, size)
        self.activation = Gelu("none")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(self.activation(self.fc1(x)))
        return out


class PixelBlock(nn.Module):
    """A block of pixels, whose scales, shifts and gates are made for each pixel from its patch's token."""

    def __init__(self, config: PixelDiTConfig) -> None:
        super().__init__()
        size, attention_size = config.pixel_size, config.pixel_attention_size
        self.compress_to_attn = Linear(PIXELS * size, attention_size)
        self.expand_from_attn = Linear(attention_size, PIXELS * size)
        self.norm1, self.norm2 = RmsNorm(size), RmsNorm(size)
        self.attn = PatchAttention(config)
        self.mlp = PixelLayers(size)
        self.adaLN_modulation_msa, self.adaLN_modulation_mlp = (
            Linear(config.hidden_size, 3 * PIXELS * size) for _ in range(2)
        )
        self.adaptive_norm, self.residual = AdaptiveNorm("none"), GatedResidual(is_joined=True)

    def forward(
        self, pixels: torch.Tensor, tokens: torch.Tensor, pe: torch.Tensor, options: Options | None
    ) -> torch.Tensor:
        """Return the pixels [B * T, P, E]. `tokens` are those of their patches [B, T, D]."""
        flat = tokens.flatten(0, 1)
        shift, scale, gate = self._modulation(self.adaLN_modulation_msa, flat, pixels)
        normed = self.adaptive_norm(pixels, scale, shift, self.norm1)
        compressed = self.compress_to_attn(normed.flatten(1)).view(*tokens.shape[:2], -1)
        attended = self.expand_from_attn(self.attn(compressed, pe, options).flatten(0, 1))
        pixels = self.residual(pixels, attended.view_as(pixels), gate)
        del shift, scale, gate, normed, attended  # as large as the pixels each, and not needed below
        return self._fed(pixels, flat)

    def _fed(self, pixels: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return pixels [N, P, E] behind the feed-forward layers, whose inner activations are the largest of all."""
        shift, scale, gate = self._modulation(self.adaLN_modulation_mlp, tokens, pixels)
        normed = self.adaptive_norm(pixels, scale, shift, self.norm2)
        length = -(-pixels.shape[0] // PIECES)
        pieces = zip(*(torch.split(item, length) for item in (pixels, normed, gate)), strict=True)
        return torch.cat([self.residual(own, self.mlp(inner), share) for own, inner, share in pieces])

    def _modulation(self, layer: nn.Module, tokens: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return shift, scale and gate [N, P, E] of the pixels of patches."""
        return tuple(layer(tokens).view(*like.shape[:2], -1).chunk(3, dim=-1))


class PixelHead(nn.Module):
    """The last layer, of each pixel alone: `forward([N, P, E])` -> `[N, P, C]`."""

    def __init__(self, config: PixelDiTConfig) -> None:
        super().__init__()
        self.norm = RmsNorm(config.pixel_size)
        self.linear = Linear(config.pixel_size, config.in_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(self.norm(x))
        return out
