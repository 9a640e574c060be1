"""The encoder of RT-DETR v4 (Zhao et al., "DETRs Beat YOLOs on Real-time Object Detection", arXiv 2304.08069).

The coarsest level attends to itself; then all levels are joined from the coarsest to the finest, and back. `B` images,
`h w` cells of a level, `D` hidden size. Names of modules are those of the published files, in which batch norms are
merged into the convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.attention import attention
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.shapes import Shapes, count_children

NUM_HEADS = 8
TEMPERATURE = 10000.0


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Configuration: channels of the levels at the input, hidden size, and sizes of the layers that join levels."""

    in_channels: tuple[int, ...]
    hidden_size: int = 256
    intermediate_size: int = 2048
    num_layers: int = 1
    block_channels: int = 128
    num_bottlenecks: int = 3


def encoder_config(shapes: Shapes, prefix: str) -> EncoderConfig:
    """Return the configuration of the encoder below `prefix`. Raises LookupError for a missing tensor."""
    block = f"{prefix}fpn_blocks.0.cv2.0"
    num_levels = count_children(shapes, f"{prefix}input_proj")
    return EncoderConfig(
        in_channels=tuple(shapes[f"{prefix}input_proj.{index}.conv.weight"][1] for index in range(num_levels)),
        hidden_size=shapes[f"{prefix}pan_blocks.1.cv4.conv.weight"][0],
        intermediate_size=shapes[f"{prefix}encoder.0.layers.0.linear1.weight"][0],
        num_layers=count_children(shapes, f"{prefix}encoder.0.layers"),
        block_channels=shapes[f"{block}.conv1.conv.weight"][0],
        num_bottlenecks=count_children(shapes, f"{block}.bottlenecks"),
    )


class SelfAttention(nn.Module):
    """Attention of tokens [B, T, D] to one another; queries and keys have positions, values none."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (Linear(hidden_size, hidden_size) for _ in range(4))

    def forward(self, placed: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q_proj(placed), self.k_proj(placed), self.v_proj(values)
        out: torch.Tensor = self.out_proj(attention(q, k, v, NUM_HEADS))
        return out


class EncoderLayer(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.self_attn = SelfAttention(hidden_size)
        self.linear1 = Linear(hidden_size, intermediate_size)
        self.linear2 = Linear(intermediate_size, hidden_size)
        self.norm1, self.norm2 = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.self_attn(x + positions, x))
        out: torch.Tensor = self.norm2(x + self.linear2(functional.gelu(self.linear1(x))))
        return out


class EncoderLayers(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            EncoderLayer(config.hidden_size, config.intermediate_size) for _ in range(config.num_layers)
        )

    def forward(self, cells: torch.Tensor) -> torch.Tensor:
        """Return cells [B, D, h, w] that have attended to one another."""
        _, channels, height, width = cells.shape
        x = cells.flatten(2).transpose(1, 2)
        positions = cell_positions(height, width, channels, cells.device).to(x.dtype)
        for layer in self.layers:
            x = layer(x, positions)
        return x.transpose(1, 2).reshape(cells.shape)


def cell_positions(height: int, width: int, size: int, device: torch.device) -> torch.Tensor:
    """Return sines and cosines [1, h w, size] of columns, then of rows, for square levels; float32.

    The published networks count columns along the first of both axes.
    """
    waves = TEMPERATURE ** -(torch.arange(size // 4, dtype=torch.float32, device=device) / (size // 4))
    first, second = torch.meshgrid(
        torch.arange(width, dtype=torch.float32, device=device),
        torch.arange(height, dtype=torch.float32, device=device),
        indexing="ij",
    )
    turns = [axis.flatten()[:, None] * waves for axis in (first, second)]
    return torch.cat([turned for turn in turns for turned in (turn.sin(), turn.cos())], dim=1)[None]


class BiasedConv(nn.Module):
    """A convolution, and SiLU where wanted."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        size: int,
        *,
        stride: int = 1,
        groups: int = 1,
        has_silu: bool = False,
    ) -> None:
        super().__init__()
        self.conv = Conv2d(in_channels, out_channels, size, stride, (size - 1) // 2, groups=groups)
        self.has_silu = has_silu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv(x)
        return functional.silu(out) if self.has_silu else out


class PartialBlock(nn.Module):
    """Two paths of the channels, one through convolutions, added (Wang et al. 2019, arXiv 1911.11929)."""

    def __init__(self, in_channels: int, channels: int, num_bottlenecks: int) -> None:
        super().__init__()
        self.conv1 = BiasedConv(in_channels, channels, 1, has_silu=True)
        self.conv2 = BiasedConv(in_channels, channels, 1, has_silu=True)
        self.bottlenecks = nn.Sequential(
            *(BiasedConv(channels, channels, 3, has_silu=True) for _ in range(num_bottlenecks))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.bottlenecks(self.conv1(x)) + self.conv2(x)
        return out


class JoiningBlock(nn.Module):
    """Two levels side by side [B, 2 D, h, w] -> [B, D, h, w] (Wang et al., "YOLOv9", arXiv 2402.13616)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        size, channels, count = config.hidden_size, config.block_channels, config.num_bottlenecks
        self.cv1 = BiasedConv(2 * size, 2 * size, 1, has_silu=True)
        self.cv2, self.cv3 = (
            nn.Sequential(PartialBlock(in_channels, channels, count), BiasedConv(channels, channels, 3, has_silu=True))
            for in_channels in (size, channels)
        )
        self.cv4 = BiasedConv(2 * size + 2 * channels, size, 1, has_silu=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.cv1(x)
        second = self.cv2(x.chunk(2, dim=1)[1])
        out: torch.Tensor = self.cv4(torch.cat((x, second, self.cv3(second)), dim=1))
        return out


class Halving(nn.Module):
    """[B, D, h, w] -> [B, D, h / 2, w / 2]."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.cv1 = BiasedConv(hidden_size, hidden_size, 1)
        self.cv2 = BiasedConv(hidden_size, hidden_size, 3, stride=2, groups=hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.cv2(self.cv1(x))
        return out


class HybridEncoder(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        size, num_steps = config.hidden_size, len(config.in_channels) - 1
        self.input_proj = nn.ModuleList(BiasedConv(channels, size, 1) for channels in config.in_channels)
        self.encoder = nn.ModuleList((EncoderLayers(config),))
        self.lateral_convs = nn.ModuleList(BiasedConv(size, size, 1) for _ in range(num_steps))
        self.fpn_blocks = nn.ModuleList(JoiningBlock(config) for _ in range(num_steps))
        self.downsample_convs = nn.ModuleList(nn.Sequential(Halving(size)) for _ in range(num_steps))
        self.pan_blocks = nn.ModuleList(JoiningBlock(config) for _ in range(num_steps))

    def forward(self, levels: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the levels [B, D, h, w], the finest one first, joined with one another."""
        *finer, x = (project(level) for project, level in zip(self.input_proj, levels, strict=True))
        x = self.encoder[0](x)
        sideways = []
        for level, lateral, block in zip(reversed(finer), self.lateral_convs, self.fpn_blocks, strict=True):
            sideways.append(lateral(x))
            doubled = functional.interpolate(sideways[-1], scale_factor=2.0, mode="nearest")
            x = block(torch.cat((doubled, level), dim=1))
        joined = [x]
        for level, halving, block in zip(reversed(sideways), self.downsample_convs, self.pan_blocks, strict=True):
            joined.append(block(torch.cat((halving(joined[-1]), level), dim=1)))
        return joined
