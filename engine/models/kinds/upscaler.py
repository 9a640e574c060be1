"""Networks that enlarge images: ESRGAN's (Wang et al. 2018, arXiv 1809.00219) and Real-ESRGAN's compact one.

`B` batch, `C` channels, `H W` pixels, values 0..1. Module names are Real-ESRGAN's; other layouts are renamed to them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d

RESIDUAL_SCALE = 0.2
SLOPE = 0.2  # of the leaky rectifiers, below zero
SMALLEST_SIDE_PX = 2  # smaller images are padded, as by ComfyUI's loader of such networks
SHUFFLED_MULTIPLE = 4  # to which sides are padded before pixels are folded into channels, however many are


@dataclass(frozen=True, slots=True)
class RrdbConfig:
    """Configuration of ESRGAN. `shuffle`: pixels per side folded into channels first, which divides the scale."""

    in_channels: int
    out_channels: int
    width: int
    growth: int
    num_blocks: int
    num_doublings: int
    shuffle: int = 1
    is_plus: bool = False

    @property
    def scale(self) -> int:
        return (1 << self.num_doublings) // self.shuffle


@dataclass(frozen=True, slots=True)
class CompactConfig:
    in_channels: int
    out_channels: int
    width: int
    num_layers: int
    scale: int


def _padded(x: torch.Tensor, multiple: int) -> torch.Tensor:
    """Pad `[B, C, H, W]` on the right and below to a multiple, by reflection as far as the image reaches."""
    for dim in (3, 2):
        side = x.shape[dim]
        missing = max(side, SMALLEST_SIDE_PX) - side
        missing += -(side + missing) % multiple
        reflected = min(missing, side - 1)
        for amount, mode in ((reflected, "reflect"), (missing - reflected, "replicate")):
            if amount:
                x = functional.pad(x, (0, amount, 0, 0) if dim == 3 else (0, 0, 0, amount), mode=mode)
    return x


class DenseBlock(nn.Module):
    """Five convolutions, each of which takes the results of all before it. ESRGAN+ adds shortcuts between them."""

    def __init__(self, width: int, growth: int, is_plus: bool) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3, self.conv4 = (
            Conv2d(width + index * growth, growth, 3, padding=1) for index in range(4)
        )
        self.conv5 = Conv2d(width + 4 * growth, width, 3, padding=1)
        self.conv1x1 = Conv2d(width, growth, 1, bias=False) if is_plus else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x1 = functional.leaky_relu(self.conv1(x), SLOPE)
        x2 = functional.leaky_relu(self.conv2(torch.cat((x, x1), 1)), SLOPE)
        if self.conv1x1 is not None:
            x2 = x2 + self.conv1x1(x)
        x3 = functional.leaky_relu(self.conv3(torch.cat((x, x1, x2), 1)), SLOPE)
        x4 = functional.leaky_relu(self.conv4(torch.cat((x, x1, x2, x3), 1)), SLOPE)
        if self.conv1x1 is not None:
            x4 = x4 + x2
        x5: torch.Tensor = self.conv5(torch.cat((x, x1, x2, x3, x4), 1))
        return x5 * RESIDUAL_SCALE + x


class ResidualInResidual(nn.Module):
    def __init__(self, width: int, growth: int, is_plus: bool) -> None:
        super().__init__()
        self.rdb1, self.rdb2, self.rdb3 = (DenseBlock(width, growth, is_plus) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.rdb3(self.rdb2(self.rdb1(x)))
        return out * RESIDUAL_SCALE + x


class RrdbNet(nn.Module):
    """ESRGAN's network: `forward([B, C, H, W])` -> `[B, C, H * scale, W * scale]`."""

    def __init__(self, config: RrdbConfig) -> None:
        super().__init__()
        self.config = config
        self.scale, self.out_channels = config.scale, config.out_channels
        width = config.width
        self.conv_first = Conv2d(config.in_channels * config.shuffle**2, width, 3, padding=1)
        self.body = nn.Sequential(
            *(ResidualInResidual(width, config.growth, config.is_plus) for _ in range(config.num_blocks))
        )
        self.conv_body = Conv2d(width, width, 3, padding=1)
        self.conv_ups = nn.ModuleList(Conv2d(width, width, 3, padding=1) for _ in range(config.num_doublings))
        self.conv_hr = Conv2d(width, width, 3, padding=1)
        self.conv_last = Conv2d(width, config.out_channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[2:]
        shuffle = self.config.shuffle
        x = _padded(x, SHUFFLED_MULTIPLE if shuffle > 1 else 1)
        h = self.conv_first(functional.pixel_unshuffle(x, shuffle) if shuffle > 1 else x)
        h = h + self.conv_body(self.body(h))
        for conv in self.conv_ups:
            h = functional.leaky_relu(conv(functional.interpolate(h, scale_factor=2.0, mode="nearest")), SLOPE)
        out: torch.Tensor = self.conv_last(functional.leaky_relu(self.conv_hr(h), SLOPE))
        return out[:, :, : height * self.scale, : width * self.scale]


class CompactNet(nn.Module):
    """Real-ESRGAN's small network (SRVGGNetCompact): plain convolutions beside the enlarged input."""

    def __init__(self, config: CompactConfig) -> None:
        super().__init__()
        self.scale, self.out_channels = config.scale, config.out_channels
        layers: list[nn.Module] = []
        channels = config.in_channels
        for _ in range(config.num_layers):
            layers += [Conv2d(channels, config.width, 3, padding=1), nn.PReLU(config.width)]
            channels = config.width
        layers.append(Conv2d(channels, config.out_channels * config.scale**2, 3, padding=1))
        self.body = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = functional.pixel_shuffle(self.body(x), self.scale)
        return out + functional.interpolate(x, scale_factor=float(self.scale), mode="nearest")
