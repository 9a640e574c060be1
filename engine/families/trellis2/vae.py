"""The decoders of TRELLIS 2 (Microsoft 2025, https://github.com/microsoft/TRELLIS.2), of any width and depth.

A structure is decoded to a dense grid of what is occupied; the latent of a shape, a list of cells with 32 channels, to
smaller cells with a corner of the surface in each; that of a texture to colours and materials of these cells. `B`
batch, `S` cells a side, `N` cells, `C` channels. Module names are those of the checkpoints. The encoders are not built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.trellis2.dual_grid import dual_grid_mesh
from darkroom.engine.families.trellis2.sparse_layers import (
    CHUNK_BYTES,
    NUM_CHILDREN,
    ConvNextBlock,
    Split,
    SplittingBlock,
    neighbors_of,
)
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.shapes import Shapes, count_children

SHAPE_MARK = "shape_dec.blocks.1.16.to_subdiv.weight"
TEXTURE_MARK = "txt_dec.blocks.3.4.conv2.weight"
SURFACE_CHANNELS = 7  # of a cell: a corner, which of three edges cross the surface, how its quads are split
COLOR_CHANNELS = 6  # base color, metallic, roughness, alpha
GROWTH = 4  # as many cells as before come of a split, of a surface
NUM_COPIES = 8  # of the channels of a level's cells, that are held at once
NEIGHBOR_BYTES = 4 * 27

OnLevel = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class SparseDecoderConfig:
    """Configuration of a decoder of cells: channels and number of convolutions by level."""

    channels: tuple[int, ...] = (1024, 512, 256, 128, 64)
    num_blocks: tuple[int, ...] = (4, 16, 8, 4, 0)
    latent_channels: int = 32
    out_channels: int = SURFACE_CHANNELS


@dataclass(frozen=True, slots=True)
class StructureDecoderConfig:
    """Configuration of the decoder of structures: channels by level, residual blocks of each and in front of all."""

    channels: tuple[int, ...] = (512, 128, 32)
    num_blocks: int = 2
    num_middle: int = 2
    latent_channels: int = 8


@dataclass(frozen=True, slots=True)
class ShapeVaeConfig:
    """Configuration of a file with the decoders of structures and of shapes."""

    shape: SparseDecoderConfig = SparseDecoderConfig()
    structure: StructureDecoderConfig = StructureDecoderConfig()


def sparse_decoder_config(shapes: Shapes, prefix: str) -> SparseDecoderConfig:
    """Return the configuration of the decoder behind a prefix. Raises LookupError, ValueError for odd sizes."""
    out_channels, last = shapes[f"{prefix}output_layer.weight"]
    first, latent_channels = shapes[f"{prefix}from_latent.weight"]
    channels, num_blocks = [first], []
    for level in range(count_children(shapes, f"{prefix}blocks")):
        count = count_children(shapes, f"{prefix}blocks.{level}") - 1
        channels.append(shapes[f"{prefix}blocks.{level}.{count}.conv2.weight"][0])
        num_blocks.append(count)
    if channels[-1] != last or any(
        before % NUM_CHILDREN or after % (before // NUM_CHILDREN)
        for before, after in zip(channels, channels[1:], strict=False)
    ):
        raise ValueError(f"channels of the levels: got {channels}, expected multiples of {NUM_CHILDREN}")
    return SparseDecoderConfig(tuple(channels), (*num_blocks, 0), latent_channels, out_channels)


def structure_decoder_config(shapes: Shapes, prefix: str) -> StructureDecoderConfig:
    """Return the configuration of the decoder behind a prefix. Raises LookupError for a missing tensor."""
    first, latent_channels = shapes[f"{prefix}input_layer.weight"][:2]
    channels, num_blocks = [first], 0
    for index in range(count_children(shapes, f"{prefix}blocks")):
        own = shapes.get(f"{prefix}blocks.{index}.conv.weight")
        if own is not None:
            channels.append(own[0] // NUM_CHILDREN)
        num_blocks += own is None
    num_middle = count_children(shapes, f"{prefix}middle_block")
    return StructureDecoderConfig(tuple(channels), num_blocks // len(channels), num_middle, latent_channels)


def shape_vae_config(shapes: Shapes) -> ShapeVaeConfig:
    """Return the configuration of the decoders of structures and shapes with these tensors. Raises LookupError."""
    shape, structure = sparse_decoder_config(shapes, "shape_dec."), structure_decoder_config(shapes, "struct_dec.")
    return ShapeVaeConfig(shape, structure)


def texture_vae_config(shapes: Shapes) -> SparseDecoderConfig:
    """Return the configuration of the decoder of textures with these tensors. Raises LookupError."""
    return sparse_decoder_config(shapes, "txt_dec.")


class SparseDecoder(nn.Module):
    """Cells with channels of a latent -> smaller cells with channels of a surface or of its colours."""

    def __init__(self, config: SparseDecoderConfig, *, predicts: bool) -> None:
        super().__init__()
        channels = config.channels
        self.from_latent = Linear(config.latent_channels, channels[0])
        self.output_layer = Linear(channels[-1], config.out_channels)
        self.blocks = nn.ModuleList()
        for level, (own, count) in enumerate(zip(channels, config.num_blocks, strict=True)):
            blocks: list[nn.Module] = [ConvNextBlock(own) for _ in range(count)]
            if level < len(channels) - 1:
                blocks.append(SplittingBlock(own, channels[level + 1], predicts=predicts))
            self.blocks.append(nn.ModuleList(blocks))

    @property
    def num_splits(self) -> int:
        return len(self.blocks) - 1

    def forward(
        self,
        latent: torch.Tensor,
        cells: torch.Tensor,
        given: Sequence[torch.Tensor] | None = None,
        on_level: OnLevel = lambda done, total: None,
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """Return channels [M, O], cells [M, 3] and which children of each cell were occupied, by level, bool [N, 8].

        `given` are the last of another decoder's result, for one that does not predict them. `on_level(done, total)` is
        called behind each level. Raises ValueError for too many cells.
        """
        x, cells, neighbors = self.from_latent(latent), cells, neighbors_of(cells)
        occupied = []
        for level in range(self.num_splits):
            x, split = self._split(level, x, cells, neighbors, None if given is None else given[level])
            of_split = neighbors_of(split.cells)
            x = self._splitting(level)(x, neighbors, split, of_split)
            cells, neighbors = split.cells, of_split
            occupied.append(split.occupied)
            on_level(level + 1, self.num_splits)
        out: torch.Tensor = self.output_layer(functional.layer_norm(x, x.shape[-1:]))
        return out, cells, occupied

    def finest_cells(self, latent: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
        """Return the cells [M, 3] that `forward` returns, by a decoder that predicts them."""
        x = self.from_latent(latent)
        for level in range(self.num_splits):
            neighbors = neighbors_of(cells)
            x, split = self._split(level, x, cells, neighbors, None)
            if level + 1 < self.num_splits:
                x = self._splitting(level)(x, neighbors, split, neighbors_of(split.cells))
            cells = split.cells
        return cells

    def _splitting(self, level: int) -> SplittingBlock:
        block: SplittingBlock = self.blocks[level][-1]  # type: ignore[index]
        return block

    def _split(
        self, level: int, x: torch.Tensor, cells: torch.Tensor, neighbors: torch.Tensor, given: torch.Tensor | None
    ) -> tuple[torch.Tensor, Split]:
        """Return the channels of a level behind its convolutions, and the cells that its cells split into."""
        for block in self.blocks[level][:-1]:  # type: ignore[index]
            x = block(x, neighbors)
        return x, self._splitting(level).split(x, cells, given)

    def decode_bytes(self, num_cells: int) -> int:
        """Return the bytes of working memory and byte of the dtype for as many cells of a latent."""
        widest = max(
            GROWTH ** (level + 1) * (NUM_COPIES * self._splitting(level).out_channels + NEIGHBOR_BYTES)
            for level in range(self.num_splits)
        )
        num_bytes: int = num_cells * widest + CHUNK_BYTES
        return num_bytes


class ChannelNorm(nn.LayerNorm):
    """LayerNorm of the channels of cells [B, C, S, S, S]."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.movedim(1, -1).contiguous()).movedim(-1, 1).contiguous()


class ResidualBlock3d(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = ChannelNorm(channels), ChannelNorm(channels)
        self.conv1, self.conv2 = (nn.Conv3d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.conv1(functional.silu(self.norm1(x)))
        out: torch.Tensor = x + self.conv2(functional.silu(self.norm2(inner)))
        return out


class Upsample3d(nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, NUM_CHILDREN * out_channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return cells [B, O, 2 S, 2 S, 2 S] of `x` [B, C, S, S, S]."""
        parts = self.conv(x).unflatten(1, (-1, 2, 2, 2)).permute(0, 1, 5, 2, 6, 3, 7, 4)
        out: torch.Tensor = parts.flatten(6, 7).flatten(4, 5).flatten(2, 3)
        return out


class StructureDecoder(nn.Module):
    """A structure [B, 8, S, S, S] -> what is occupied [B, 1, 4 S, 4 S, 4 S]: cells above 0."""

    def __init__(self, config: StructureDecoderConfig) -> None:
        super().__init__()
        channels = config.channels
        self.input_layer = nn.Conv3d(config.latent_channels, channels[0], 3, padding=1)
        self.middle_block = nn.Sequential(*(ResidualBlock3d(channels[0]) for _ in range(config.num_middle)))
        blocks: list[nn.Module] = []
        for level, own in enumerate(channels):
            blocks += [ResidualBlock3d(own) for _ in range(config.num_blocks)]
            if level < len(channels) - 1:
                blocks.append(Upsample3d(own, channels[level + 1]))
        self.blocks = nn.ModuleList(blocks)
        self.out_layer = nn.Sequential(ChannelNorm(channels[-1]), nn.SiLU(), nn.Conv3d(channels[-1], 1, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.middle_block(self.input_layer(x))
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.out_layer(x)
        return out


class Trellis2ShapeVae(nn.Module):
    """The decoders of structures and of shapes."""

    latent_channels = 32
    is_of_voxels = True
    downscale_ratio = 1

    def __init__(self, config: ShapeVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.shape_dec = SparseDecoder(config.shape, predicts=True)
        self.struct_dec = StructureDecoder(config.structure)

    def decode(self, structure: torch.Tensor) -> torch.Tensor:
        """Decode a structure [B, 32, S, S, S], whose first 8 channels are used, to [B, 1, 4 S, 4 S, 4 S]."""
        out: torch.Tensor = self.struct_dec(structure[:, : self.config.structure.latent_channels])
        return out

    def decode_shape(
        self, latent: torch.Tensor, cells: torch.Tensor, resolution: int, on_level: OnLevel
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """Decode a latent [N, 32] of cells [N, 3] to a mesh, and to which children of cells are occupied by level.

        Returns corners [V, 3] of a grid of `resolution` cells a side, which fills -0.5..0.5, and triangles [F, 3].
        """
        surface, finest, occupied = self.shape_dec(latent, cells, on_level=on_level)
        corners, triangles = dual_grid_mesh(finest, surface, resolution)
        return corners, triangles, occupied

    def decode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of working memory and byte of the dtype for latents of a shape [B, C, S, S, S] or [N, C]."""
        if len(shape) == 2:
            return self.shape_dec.decode_bytes(shape[0])
        channels = self.config.structure.channels
        cells = (NUM_CHILDREN**level * (own + 2 * max(channels)) for level, own in enumerate(channels))
        num_bytes: int = NUM_COPIES * shape[0] * math.prod(shape[2:]) * max(cells)
        return num_bytes


class Trellis2TextureVae(nn.Module):
    """The decoder of textures."""

    latent_channels = 32
    is_of_voxels = True
    downscale_ratio = 1

    def __init__(self, config: SparseDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.txt_dec = SparseDecoder(config, predicts=False)

    def decode_texture(
        self, latent: torch.Tensor, cells: torch.Tensor, occupied: Sequence[torch.Tensor], on_level: OnLevel
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Decode a latent [N, 32] of cells [N, 3] to colours [M, 6], 0..1 as a rule, and the cells [M, 3] of these.

        `occupied` are the children of cells by level, of the same shape's decoding.
        """
        colors, finest, _ = self.txt_dec(latent, cells, occupied, on_level)
        return colors * 0.5 + 0.5, finest

    def decode_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of working memory and byte of the dtype for a latent of a shape [N, C]."""
        return self.txt_dec.decode_bytes(shape[0])
