"""Swin Transformer (Liu et al. 2021, arXiv 2103.14030): attention within windows, shifted in every other block.

`B` images, `H W` cells of 4 pixels a side in the first stage, half as many a side in each further one, `C` channels,
`N` cells of a window. Module names are those of the published code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.shapes import Shapes, count_children

PATCH_PX = 4
APART = -100.0  # added to the logits of cells that are not neighbours in the image


@dataclass(frozen=True, slots=True)
class SwinConfig:
    """Configuration; of each stage the number of blocks and of heads. Stages double the hidden size."""

    hidden_size: int
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    window: int

    def channels(self, stage: int) -> int:
        return self.hidden_size << stage


def swin_config(shapes: Shapes, prefix: str) -> SwinConfig:
    """Return the configuration of the network with these tensors.

    Raises LookupError for a missing one, and ValueError for heads that a stage's channels cannot have.
    """
    num_stages = count_children(shapes, f"{prefix}layers")
    tables = [
        shapes[f"{prefix}layers.{stage}.blocks.0.attn.relative_position_bias_table"] for stage in range(num_stages)
    ]
    config = SwinConfig(
        hidden_size=shapes[f"{prefix}patch_embed.proj.weight"][0],
        depths=tuple(count_children(shapes, f"{prefix}layers.{stage}.blocks") for stage in range(num_stages)),
        heads=tuple(heads for _, heads in tables),
        window=(round(tables[0][0] ** 0.5) + 1) // 2,
    )
    for stage, heads in enumerate(config.heads):
        if config.channels(stage) % heads:
            raise ValueError(f"channels of stage {stage}: got {config.channels(stage)}, expected a multiple of {heads}")
    return config


class WindowAttention(nn.Module):
    """Attention within windows [B, windows, N, C], with a bias for each distance of two cells."""

    def __init__(self, channels: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.relative_position_bias_table = nn.Parameter(torch.empty((2 * window - 1) ** 2, heads))
        self.qkv = Linear(channels, 3 * channels)
        self.proj = Linear(channels, channels)

    def forward(self, x: torch.Tensor, apart: torch.Tensor | None) -> torch.Tensor:
        """`apart` [windows, N, N] is added to the logits."""
        batch, windows, cells, channels = x.shape
        parts = self.qkv(x).view(batch, windows, cells, 3, self.heads, channels // self.heads)
        query, key, value = parts.permute(3, 0, 1, 4, 2, 5)  # each [B, windows, heads, N, C / heads]
        bias = self.relative_position_bias_table[relative_positions(self.window, x.device)].movedim(-1, 0)
        mask = bias.to(x) if apart is None else bias.to(x) + apart[:, None]
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        out: torch.Tensor = self.proj(attended.transpose(2, 3).reshape(batch, windows, cells, channels))
        return out


class FeedForward(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = Linear(channels, 4 * channels), Linear(4 * channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(functional.gelu(self.fc1(x)))
        return out


class SwinBlock(nn.Module):
    """One block of cells [B, H, W, C]; `shift` cells are what windows are moved by."""

    def __init__(self, channels: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.window, self.shift = window, shift
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.attn = WindowAttention(channels, heads, window)
        self.mlp = FeedForward(channels)

    def forward(self, x: torch.Tensor, apart: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[1:3]
        cells = functional.pad(self.norm1(x), (0, 0, 0, -width % self.window, 0, -height % self.window))
        if self.shift:
            cells = cells.roll((-self.shift, -self.shift), (1, 2))
        windows = self.attn(to_windows(cells, self.window), apart if self.shift else None)
        cells = from_windows(windows, self.window, cells.shape[1:3])
        if self.shift:
            cells = cells.roll((self.shift, self.shift), (1, 2))
        x = x + cells[:, :height, :width]
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class PatchMerging(nn.Module):
    """Cells [B, H, W, C] joined by fours to [B, H / 2, W / 2, 2 C]; odd sides get a row or column of zeros."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduction = Linear(4 * channels, 2 * channels, bias=False)
        self.norm = nn.LayerNorm(4 * channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        corners = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        out: torch.Tensor = self.reduction(self.norm(torch.cat(corners, dim=-1)))
        return out


class SwinStage(nn.Module):
    def __init__(self, config: SwinConfig, stage: int) -> None:
        super().__init__()
        channels, self.window = config.channels(stage), config.window
        self.blocks = nn.ModuleList(
            SwinBlock(channels, config.heads[stage], config.window, config.window // 2 if index % 2 else 0)
            for index in range(config.depths[stage])
        )
        self.downsample = PatchMerging(channels) if stage + 1 < len(config.depths) else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        apart = cells_apart(x.shape[1], x.shape[2], self.window, x.device).to(x)
        for block in self.blocks:
            x = block(x, apart)
        return x


class PatchEmbedding(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.proj = Conv2d(3, hidden_size, PATCH_PX, stride=PATCH_PX)
        self.norm = nn.LayerNorm(hidden_size)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return cells [B, H, W, C] of images [B, 3, 4 H, 4 W]."""
        height, width = images.shape[2:]
        padded = functional.pad(images, (0, -width % PATCH_PX, 0, -height % PATCH_PX))
        out: torch.Tensor = self.norm(self.proj(padded).movedim(1, -1))
        return out


class Swin(nn.Module):
    """The whole network: the normalised cells of every stage of images [B, 3, pixels], each [B, C, H, W]."""

    def __init__(self, config: SwinConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = PatchEmbedding(config.hidden_size)
        self.layers = nn.ModuleList(SwinStage(config, stage) for stage in range(len(config.depths)))
        for stage in range(len(config.depths)):
            self.add_module(f"norm{stage}", nn.LayerNorm(config.channels(stage)))

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        x, found = self.patch_embed(images), []
        for stage, layer in enumerate(self.layers.children()):
            assert isinstance(layer, SwinStage)
            x = layer(x)
            found.append(self.get_submodule(f"norm{stage}")(x).movedim(-1, 1))
            x = x if layer.downsample is None else layer.downsample(x)
        return found


def to_windows(cells: torch.Tensor, window: int) -> torch.Tensor:
    """Return cells [B, H, W, C] by windows, [B, windows, N, C]. H and W are multiples of the window."""
    batch, height, width, channels = cells.shape
    parts = cells.view(batch, height // window, window, width // window, window, channels)
    return parts.transpose(2, 3).reshape(batch, -1, window * window, channels)


def from_windows(windows: torch.Tensor, window: int, sides: torch.Size) -> torch.Tensor:
    """Return windows [B, windows, N, C] as the cells [B, H, W, C] of these sides."""
    height, width = sides
    parts = windows.view(len(windows), height // window, width // window, window, window, windows.shape[-1])
    return parts.transpose(2, 3).reshape(len(windows), height, width, windows.shape[-1])


def relative_positions(window: int, device: torch.device) -> torch.Tensor:
    """Return the row of the bias table for each pair of cells of a window, int64 [N, N]."""
    rows, columns = torch.meshgrid(*[torch.arange(window, device=device)] * 2, indexing="ij")
    cells = torch.stack((rows, columns)).flatten(1)
    down, right = cells[:, :, None] - cells[:, None, :] + (window - 1)
    rows_of_table: torch.Tensor = down * (2 * window - 1) + right
    return rows_of_table


def cells_apart(height: int, width: int, window: int, device: torch.device) -> torch.Tensor:
    """Return the bias of the logits in shifted windows, [windows, N, N].

    Windows at the right and the bottom then hold cells from opposite sides of the image, which do not attend to one
    another.
    """
    shift = window // 2
    part = [_parts_of(side + -side % window, window, shift, device) for side in (height, width)]
    regions = (part[0][:, None] * 3 + part[1])[None, :, :, None]
    cells = to_windows(regions, window)[0, :, :, 0]  # [windows, N]
    apart: torch.Tensor = torch.ne(cells[:, None, :], cells[:, :, None]) * APART
    return apart


def _parts_of(side: int, window: int, shift: int, device: torch.device) -> torch.Tensor:
    """Return 0 for cells before the last window, 1 for those of it that stay together, 2 for those from the start."""
    place = torch.arange(side, device=device)
    return torch.ge(place, side - window).long() + torch.ge(place, side - shift).long()
