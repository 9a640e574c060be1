"""BiRefNet (Zheng et al., "Bilateral Reference for High-Resolution Dichotomous Image Segmentation", arXiv 2401.03407).

A Swin Transformer encodes the image at its size and at half of it; a decoder joins the levels from the coarsest to the
finest, and reads the image itself again at each. `B` images, `H W` pixels (multiples of 32), `C` channels. Module names
are those of the published files.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d
from darkroom.engine.layers.deformable import DeformableConv2d
from darkroom.engine.layers.frozen_norm import FrozenBatchNorm
from darkroom.engine.layers.shapes import Shapes, expect
from darkroom.engine.layers.swin import Swin, SwinConfig, swin_config

NUM_STAGES = 4  # of the encoder
LEVELS = (5, 4, 3, 2, 1)  # of the decoder: level n has cells of 2^n pixels, but for the last, of one
CELLS_PX = (32, 16, 8, 4, 1)
KERNELS = (1, 3, 7)  # of the convolutions that look around at several distances
GATES = (4, 3, 2)


@dataclass(frozen=True, slots=True)
class BiRefNetConfig:
    """Configuration: the encoder, and channels within the decoder."""

    swin: SwinConfig
    block_channels: int = 64
    around_channels: int = 256
    gate_channels: int = 16


def birefnet_config(shapes: Shapes) -> BiRefNetConfig:
    """Return the configuration of the network with these tensors.

    Raises LookupError for a missing one, and ValueError for an encoder that the decoder does not fit.
    """
    swin = swin_config(shapes, "bb.")
    expect("stages of the encoder", len(swin.depths), NUM_STAGES)
    return BiRefNetConfig(
        swin=swin,
        block_channels=shapes["squeeze_module.0.conv_in.weight"][0],
        around_channels=shapes["squeeze_module.0.dec_att.aspp1.atrous_conv.regular_conv.weight"][0],
        gate_channels=shapes["decoder.gdt_convs_4.0.weight"][0],
    )


class DeformableLayer(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, size: int) -> None:
        super().__init__()
        self.atrous_conv = DeformableConv2d(in_channels, out_channels, size)
        self.bn = FrozenBatchNorm(out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.bn(self.atrous_conv(x)))


class Surroundings(nn.Module):
    """Pixels [B, C, H, W] joined with what lies around at several distances, and with the mean of the image."""

    def __init__(self, channels: int, around_channels: int) -> None:
        super().__init__()
        self.aspp1 = DeformableLayer(channels, around_channels, 1)
        self.aspp_deforms = nn.ModuleList(DeformableLayer(channels, around_channels, size) for size in KERNELS)
        self.global_avg_pool = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), Conv2d(channels, around_channels, 1, bias=False), FrozenBatchNorm(around_channels),
            nn.ReLU(),
        )  # fmt: skip
        self.conv1 = Conv2d(around_channels * (2 + len(KERNELS)), channels, 1, bias=False)
        self.bn1 = FrozenBatchNorm(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self.global_avg_pool(x).expand(-1, -1, *x.shape[2:])
        joined = torch.cat((self.aspp1(x), *(layer(x) for layer in self.aspp_deforms), mean), dim=1)
        return functional.relu(self.bn1(self.conv1(joined)))


class DecoderBlock(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, config: BiRefNetConfig) -> None:
        super().__init__()
        channels = config.block_channels
        self.conv_in = Conv2d(in_channels, channels, 3, padding=1)
        self.bn_in = FrozenBatchNorm(channels)
        self.dec_att = Surroundings(channels, config.around_channels)
        self.conv_out = Conv2d(channels, out_channels, 3, padding=1)
        self.bn_out = FrozenBatchNorm(out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.bn_in(self.conv_in(x)))
        out: torch.Tensor = self.bn_out(self.conv_out(self.dec_att(x)))
        return out


class LateralBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv(x)
        return out


class ImageReader(nn.Module):
    """Two convolutions over the image, folded so that a cell has its pixels as channels."""

    def __init__(self, cell_px: int, out_channels: int, channels: int) -> None:
        super().__init__()
        self.conv1 = Conv2d(3 * cell_px**2, channels, 3, padding=1)
        self.conv_out = Conv2d(channels, out_channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv_out(self.conv1(x))
        return out


class Decoder(nn.Module):
    """From the levels of the encoder, the coarsest first, to logits [B, 1, H, W]."""

    def __init__(self, channels: tuple[int, ...], config: BiRefNetConfig) -> None:
        """`channels` are those of the levels, the coarsest first."""
        super().__init__()
        read = (channels[0] // 8, *(count // 8 for count in channels))
        for level, cell_px, out_channels in zip(LEVELS, CELLS_PX, read, strict=True):
            self.add_module(f"ipt_blk{level}", ImageReader(cell_px, out_channels, config.block_channels))
        made = (*channels[1:], channels[-1] // 2)
        for index, level in enumerate((4, 3, 2, 1)):
            block = DecoderBlock(channels[index] + read[index], made[index], config)
            self.add_module(f"decoder_block{level}", block)
        self.conv_out1 = nn.Sequential(Conv2d(made[-1] + read[-1], 1, 1))
        for index, level in enumerate(GATES):
            self.add_module(f"lateral_block{level}", LateralBlock(channels[index + 1]))
            gate = Conv2d(made[index], config.gate_channels, 3, padding=1), FrozenBatchNorm(config.gate_channels)
            self.add_module(f"gdt_convs_{level}", nn.Sequential(*gate, nn.ReLU()))
            self.add_module(f"gdt_convs_attn_{level}", nn.Sequential(Conv2d(config.gate_channels, 1, 1)))

    def forward(self, image: torch.Tensor, levels: list[torch.Tensor]) -> torch.Tensor:
        x = levels[0]
        for level, finer in zip(GATES, levels[1:], strict=True):
            x = self._layer("decoder_block", level, self._with_image(x, image, level + 1))
            gate = self._layer("gdt_convs_attn_", level, self._layer("gdt_convs_", level, x))
            x = resized(x * torch.sigmoid(gate), finer.shape[2:]) + self._layer("lateral_block", level, finer)
        x = self._layer("decoder_block", 1, self._with_image(x, image, 2))
        x = self._with_image(resized(x, image.shape[2:]), image, 1)
        out: torch.Tensor = self.conv_out1(x)
        return out

    def _layer(self, name: str, level: int, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.get_submodule(f"{name}{level}")(x)
        return out

    def _with_image(self, x: torch.Tensor, image: torch.Tensor, level: int) -> torch.Tensor:
        return torch.cat((x, self._layer("ipt_blk", level, folded(image, x.shape[2:]))), dim=1)


class BiRefNet(nn.Module):
    """The whole network: `forward([B, 3, H, W])` of 0..1 is a logit for each pixel, [B, 1, H, W]."""

    def __init__(self, config: BiRefNetConfig) -> None:
        super().__init__()
        self.config = config
        self.bb = Swin(config.swin)
        channels = tuple(2 * config.swin.channels(stage) for stage in (3, 2, 1, 0))
        self.squeeze_module = nn.Sequential(DecoderBlock(sum(channels), channels[0], config))
        self.decoder = Decoder(channels, config)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        *finer, coarsest = self._levels(image)
        everything = torch.cat((*(resized(level, coarsest.shape[2:]) for level in finer), coarsest), dim=1)
        out: torch.Tensor = self.decoder(image, [self.squeeze_module(everything), *reversed(finer)])
        return out

    def _levels(self, image: torch.Tensor) -> list[torch.Tensor]:
        """Encode the image at its size and at half of it; each level has the channels of both, the finest first."""
        half = resized(image, torch.Size(side // 2 for side in image.shape[2:]))
        pairs = zip(self.bb(image), self.bb(half), strict=True)
        return [torch.cat((whole, resized(small, whole.shape[2:])), dim=1) for whole, small in pairs]


def resized(x: torch.Tensor, sides: torch.Size) -> torch.Tensor:
    return functional.interpolate(x, size=tuple(sides), mode="bilinear", align_corners=True)


def folded(image: torch.Tensor, sides: torch.Size) -> torch.Tensor:
    """Cut an image [B, 3, H, W] into tiles of these sides, as channels: by columns, from the top, then by colour."""
    batch, colours, height, width = image.shape
    tiles = image.view(batch, colours, height // sides[0], sides[0], width // sides[1], sides[1])
    return tiles.permute(0, 4, 2, 1, 3, 5).reshape(batch, -1, *sides)
