"""The image encoder of SAM 3: a vision transformer with windows, and a pyramid of its cells.

After Bolya et al., "Perception Encoder" (arXiv 2504.13181), and Li et al., "Exploring Plain Vision Transformer
Backbones for Object Detection" (arXiv 2203.16527). `B` images, `H W` pixels, `h w` cells of 14 px, `D` hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import attention
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.rotary import rotated, rotations
from darkroom.engine.layers.shapes import Shapes, count_children

PATCH_PX = 14
WINDOW = 24  # cells of a side of a window, and of the image that positions were learned for
BLOCKS_PER_STAGE = 8  # the last one of each attends to all cells
HEAD_SIZE = 64
SCALES = (4.0, 2.0, 1.0, 0.5)
"""Cells of a level of the pyramid along one of the encoder's."""


@dataclass(frozen=True, slots=True)
class ImageEncoderConfig:
    """Configuration of the transformer. `image_px` is a side of the square that it sees, a multiple of 336."""

    hidden_size: int = 1024
    intermediate_size: int = 4736
    num_layers: int = 32
    image_px: int = 1008

    @property
    def side(self) -> int:
        """Cells of a side of the image."""
        return self.image_px // PATCH_PX


def image_encoder_config(shapes: Shapes, prefix: str) -> ImageEncoderConfig:
    """Return the configuration of the transformer below `prefix`. Raises LookupError for a missing tensor."""
    return ImageEncoderConfig(
        hidden_size=shapes[f"{prefix}patch_embed.proj.weight"][0],
        intermediate_size=shapes[f"{prefix}blocks.0.mlp.fc1.weight"][0],
        num_layers=count_children(shapes, f"{prefix}blocks"),
    )


def cell_rotations(side: int, head_size: int, device: torch.device, scale: float = 1.0) -> torch.Tensor:
    """Return the rotations of the cells of a square by column and row, as `rotations` does."""
    cells = torch.arange(side * side, dtype=torch.float32, device=device)
    places = torch.stack((cells % side, torch.div(cells, side, rounding_mode="floor")), dim=-1) * scale
    return rotations(places[None], (head_size // 2, head_size // 2))


class RotaryAttention(nn.Module):
    """Attention of rotated tokens [B, T, D] to one another."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.num_heads = hidden_size // HEAD_SIZE
        self.qkv = Linear(hidden_size, 3 * hidden_size)
        self.proj = Linear(hidden_size, hidden_size)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(x).view(*x.shape[:2], 3, self.num_heads, HEAD_SIZE).permute(2, 0, 3, 1, 4)
        q, k = (rotated(item, turns).transpose(1, 2).flatten(2) for item in heads[:2])
        out: torch.Tensor = self.proj(attention(q, k, heads[2].transpose(1, 2).flatten(2), self.num_heads))
        return out


class FeedForward(nn.Module):
    def __init__(self, config: ImageEncoderConfig) -> None:
        super().__init__()
        self.fc1 = Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(functional.gelu(self.fc1(x)))
        return out


class Block(nn.Module):
    """Attention within windows, or of all cells, and a feed-forward: [B, h, w, D] -> [B, h, w, D]."""

    def __init__(self, config: ImageEncoderConfig, *, has_windows: bool) -> None:
        super().__init__()
        self.has_windows = has_windows
        self.norm1 = nn.LayerNorm(config.hidden_size)
        self.attn = RotaryAttention(config.hidden_size)
        self.norm2 = nn.LayerNorm(config.hidden_size)
        self.mlp = FeedForward(config)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        side = WINDOW if self.has_windows else x.shape[1]
        x = x + from_windows(self.attn(windows(self.norm1(x), side), turns), x.shape)
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


def windows(x: torch.Tensor, side: int) -> torch.Tensor:
    """Return the squares of cells [B, h, w, D] as items of a batch [B windows, side^2, D]."""
    batch, height, width, size = x.shape
    x = x.view(batch, height // side, side, width // side, side, size)
    return x.transpose(2, 3).reshape(-1, side * side, size)


def from_windows(x: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return windows [B windows, side^2, D] as the cells of `shape` [B, h, w, D] that they were cut from."""
    batch, height, width, size = shape
    side = round(x.shape[1] ** 0.5)
    x = x.view(batch, height // side, width // side, side, side, size)
    return x.transpose(2, 3).reshape(shape)


class PatchEmbedding(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.proj = Conv2d(3, hidden_size, PATCH_PX, stride=PATCH_PX, bias=False)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.proj(pixels)
        return out


class ImageEncoder(nn.Module):
    """The transformer: pixels [B, 3, H, W] -> cells [B, D, h, w]."""

    def __init__(self, config: ImageEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = PatchEmbedding(config.hidden_size)
        self.pos_embed = nn.Parameter(torch.empty(1, WINDOW**2 + 1, config.hidden_size))
        self.ln_pre = nn.LayerNorm(config.hidden_size)
        numbers = range(1, config.num_layers + 1)
        self.blocks = nn.ModuleList(Block(config, has_windows=bool(number % BLOCKS_PER_STAGE)) for number in numbers)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = self.patch_embed(pixels).permute(0, 2, 3, 1)
        x = self.ln_pre(x + self._positions(x.shape[1]).to(x))
        inner = cell_rotations(WINDOW, HEAD_SIZE, x.device).to(x.dtype)
        whole = cell_rotations(x.shape[1], HEAD_SIZE, x.device, WINDOW / x.shape[1]).to(x.dtype)
        for block in self.blocks:
            x = block(x, inner if block.has_windows else whole)
        out: torch.Tensor = x.permute(0, 3, 1, 2)
        return out

    def _positions(self, side: int) -> torch.Tensor:
        """Return the learned positions [1, side, side, D], repeated beyond the image they were learned for."""
        learned: torch.Tensor = self.pos_embed[:, 1:].view(1, WINDOW, WINDOW, -1)
        times = -(-side // WINDOW)
        return learned.repeat(1, times, times, 1)[:, :side, :side]


class Level(nn.Module):
    """A level of a pyramid: the encoder's cells at a scale, with `out_channels`."""

    def __init__(self, channels: int, out_channels: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        inner = channels
        if scale == SCALES[0]:
            self.dconv_2x2_0 = nn.ConvTranspose2d(channels, channels // 2, 2, stride=2)
            self.dconv_2x2_1 = nn.ConvTranspose2d(channels // 2, channels // 4, 2, stride=2)
            inner = channels // 4
        elif scale == SCALES[1]:
            self.dconv_2x2 = nn.ConvTranspose2d(channels, channels // 2, 2, stride=2)
            inner = channels // 2
        self.conv_1x1 = Conv2d(inner, out_channels, 1)
        self.conv_3x3 = Conv2d(out_channels, out_channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.scale == SCALES[0]:
            x = self.dconv_2x2_1(functional.gelu(self.dconv_2x2_0(x)))
        elif self.scale == SCALES[1]:
            x = self.dconv_2x2(x)
        elif self.scale == SCALES[3]:
            x = functional.max_pool2d(x, 2)
        out: torch.Tensor = self.conv_3x3(self.conv_1x1(x))
        return out


class Pyramid(nn.ModuleList):
    """Levels of the encoder's cells [B, D, h, w], the finest first."""

    def __init__(self, channels: int, out_channels: int, num_levels: int) -> None:
        super().__init__(Level(channels, out_channels, scale) for scale in SCALES[:num_levels])

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [level(x) for level in self]
