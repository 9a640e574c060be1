"""NAF: a network that enlarges features of an image, guided by the image (Chambon et al. 2025, arXiv 2511.18452).

Each pixel attends to the features of the 9 x 9 cells around the one that it lies in; cells outside the image are zeros.
Features are computed for those pixels alone that are asked for. `C` channels of features, `D` of the network, `h w`
cells, `H W` pixels, `P` points. Module names are those of the checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Conv2d, GroupNorm
from darkroom.engine.layers.rotary import rotated_halves
from darkroom.engine.layers.shapes import Shapes, count_children

UPSAMPLER = "naf."  # prefix of its tensors in files of an image encoder
NUM_HEADS = 4  # of attention and of positions
NUM_GROUPS = 8
WINDOW = 9  # cells a side
CHUNK_BYTES = 1 << 28  # of keys and values that are gathered at once
LARGEST_FACTOR = 4  # of an image to what is asked for, beyond which it is reduced first


@dataclass(frozen=True, slots=True)
class FeatureUpsamplerConfig:
    """Configuration of the network: its channels, and the blocks of each of its two image encoders."""

    hidden_size: int = 256
    num_blocks: int = 2


def feature_upsampler_config(shapes: Shapes) -> FeatureUpsamplerConfig:
    """Return the configuration of the network with these tensors. Raises LookupError, ValueError for odd sizes."""
    half = shapes["image_encoder.encoder.0.weight"][0]
    if not half or half % NUM_GROUPS:
        raise ValueError(f"size of the upsampler: got {half}, expected a multiple of {NUM_GROUPS}")
    return FeatureUpsamplerConfig(2 * half, count_children(shapes, "image_encoder.encoder") - 1)


class EncoderBlock(nn.Module):
    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (GroupNorm(NUM_GROUPS, channels) for _ in range(2))
        self.conv1, self.conv2 = (reflecting(channels, channels, kernel) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv1(functional.silu(self.norm1(x)))
        out: torch.Tensor = self.conv2(functional.silu(self.norm2(x)))
        return out


def reflecting(in_channels: int, out_channels: int, kernel: int) -> Conv2d:
    """Return a convolution that keeps the size of images, which are reflected at their sides."""
    return Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, padding_mode="reflect")


def image_convolutions(channels: int, kernel: int, num_blocks: int) -> nn.Sequential:
    """Return an encoder of images [B, 3, H, W] by convolutions of a kernel's size."""
    return nn.Sequential(reflecting(3, channels, kernel), *(EncoderBlock(channels, kernel) for _ in range(num_blocks)))


class PixelPositions(nn.Module):
    """Rotation of channels [B, D, H, W] by the position of the pixel."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.periods = nn.Parameter(torch.empty(hidden_size // NUM_HEADS // 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[2:]
        sides = [(torch.arange(0.5, size, device=x.device) / size) * 2.0 - 1.0 for size in (height, width)]
        positions = torch.cartesian_prod(*sides)  # [H W, 2]
        angles = (2.0 * math.pi * positions[..., None] / self.periods.to(positions)).flatten(1)
        heads = x.view(x.shape[0], NUM_HEADS, -1, height * width).transpose(2, 3)  # [B, N, H W, D / N]
        return rotated_halves(heads, (angles.cos(), angles.sin())).transpose(2, 3).reshape(x.shape)


class ImageEncoder(nn.Module):
    """Image [B, 3, H, W] -> channels [B, D, H', W'] of the size that is asked for."""

    def __init__(self, config: FeatureUpsamplerConfig) -> None:
        super().__init__()
        half = config.hidden_size // 2
        self.encoder = image_convolutions(half, 1, config.num_blocks)
        self.sem_encoder = image_convolutions(half, 3, config.num_blocks)
        self.rope = PixelPositions(config.hidden_size)

    def forward(self, image: torch.Tensor, side: int) -> torch.Tensor:
        if max(image.shape[2:]) > LARGEST_FACTOR * side:
            size = [min(own, LARGEST_FACTOR * side) for own in image.shape[2:]]
            image = functional.interpolate(image, size=size, mode="bilinear", align_corners=False)
        channels = torch.cat([self.encoder(image), self.sem_encoder(image)], dim=1)
        out: torch.Tensor = self.rope(functional.adaptive_avg_pool2d(channels, (side, side)))
        return out


class FeatureUpsampler(nn.Module):
    """The network: an image and features of its cells -> features at points of a finer grid."""

    def __init__(self, config: FeatureUpsamplerConfig) -> None:
        super().__init__()
        self.config = config
        self.image_encoder = ImageEncoder(config)

    def forward(self, image: torch.Tensor, features: torch.Tensor, side: int, points: torch.Tensor) -> torch.Tensor:
        """Return features [P, C] at points [P, 2] of a grid of `side` pixels a side, interpolated bilinearly.

        `image` [1, 3, H, W] is in 0..1, `features` [1, C, h, w] are those of its cells, of which `side` is a multiple.
        Points are columns and rows in pixels, of which 0 is the middle of the first; those outside are moved to the
        nearest pixel.
        """
        queries = self.image_encoder(image, side)
        keys = functional.adaptive_avg_pool2d(queries, (features.shape[2], features.shape[3]))
        around = _Around(queries[0], keys[0], features[0].to(queries))
        points = points.to(queries).clamp(0, side - 1)
        start = points.floor()
        share = points - start
        first = start.long()
        last = (first + 1).clamp(max=side - 1)
        (left, top), (right, bottom), (x, y) = first.unbind(1), last.unbind(1), share[..., None].unbind(1)
        above = around.at(left, top) * (1 - x) + around.at(right, top) * x
        below = around.at(left, bottom) * (1 - x) + around.at(right, bottom) * x
        return above * (1 - y) + below * y


class _Around:
    """Attention of pixels to the cells around them.

    `queries` [D, H, W] are of pixels, `keys` [D, h, w] and `values` [C, h, w] of cells.
    """

    def __init__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        self._queries = queries
        height, width = keys.shape[1:]
        self._factors = queries.shape[1] // height, queries.shape[2] // width
        margin = WINDOW // 2
        padded = [functional.pad(item, (margin,) * 4).flatten(1).T.contiguous() for item in (keys, values)]
        self._keys, self._values = padded  # [cells, D], [cells, C]
        self._row = width + 2 * margin
        side = torch.arange(WINDOW, device=keys.device)
        self._window = (side[:, None] * self._row + side).flatten()

    def at(self, columns: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return features [P, C] of pixels, in chunks of bounded memory."""
        channels = self._keys.shape[1] + self._values.shape[1]
        size = max(1, CHUNK_BYTES // (WINDOW**2 * channels * self._keys.element_size()))
        parts = [self._of(*part) for part in zip(torch.split(columns, size), torch.split(rows, size), strict=True)]
        return torch.cat(parts) if parts else self._values.new_empty(0, self._values.shape[1])

    def _of(self, columns: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        cells = rows // self._factors[0] * self._row + columns // self._factors[1]
        seen = cells[:, None] + self._window  # [P, 81]
        query = self._queries[:, rows, columns].T[:, None]  # [P, 1, D]
        q, k, v = (_in_heads(item) for item in (query, self._keys[seen], self._values[seen]))
        return functional.scaled_dot_product_attention(q, k, v).flatten(1)


def _in_heads(x: torch.Tensor) -> torch.Tensor:
    """Return channels [P, T, C] as heads [P, N, T, C / N]."""
    return x.view(*x.shape[:-1], NUM_HEADS, x.shape[-1] // NUM_HEADS).transpose(1, 2)
