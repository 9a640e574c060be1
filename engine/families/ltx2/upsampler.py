"""The network of LTX-2 that enlarges latents of videos: twice the rows and columns, or frames, or another share.

`B` batch, `C` channels, `f` latent frames, `h w` latent cells. Module names are those of the published files. Latents
are as the VAE has them, not standardised.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.video_cells import unfolded

NUM_GROUPS = 32
BLUR_TAPS = 5
SHARES = {0.75: (3, 4), 1.5: (3, 2), 2.0: (2, 1), 4.0: (4, 1)}  # scale -> enlargement, and what it is divided by
WORKING_BYTES = 3000  # for a number of the latent (ComfyUI's)


@dataclass(frozen=True, slots=True)
class LatentUpsamplerConfig:
    """Configuration of the network. With `is_flat` frames are images of their own; `share` is a key of `SHARES`."""

    latent_channels: int = 128
    hidden_channels: int = 1024
    num_blocks: int = 4
    is_flat: bool = False
    enlarges_space: bool = True
    enlarges_time: bool = False
    share: float | None = None
    """Scale of a learned enlargement by a fraction; None: doubling."""


class ResidualBlock(nn.Module):
    def __init__(self, channels: int, conv: type[nn.Conv2d | nn.Conv3d]) -> None:
        super().__init__()
        self.conv1, self.conv2 = (conv(channels, channels, 3, padding=1) for _ in range(2))
        self.norm1, self.norm2 = (nn.GroupNorm(NUM_GROUPS, channels) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.silu(self.norm1(self.conv1(x)))
        return functional.silu(self.norm2(self.conv2(h)) + x)


class Blur(nn.Module):
    """A blur of each channel of [N, C, h, w], of which every `stride`-th row and column is kept."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.kernel = nn.Parameter(torch.empty(1, 1, BLUR_TAPS, BLUR_TAPS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.stride == 1:
            return x
        weight = self.kernel.to(x).expand(x.shape[1], -1, -1, -1)
        return functional.conv2d(x, weight, stride=self.stride, padding=BLUR_TAPS // 2, groups=x.shape[1])


class FractionalUpsample(nn.Module):
    """Images [N, C, h, w] enlarged by a whole number, then blurred and reduced by another."""

    def __init__(self, channels: int, share: float) -> None:
        super().__init__()
        self.factor, divisor = SHARES[share]
        self.conv = nn.Conv2d(channels, self.factor**2 * channels, 3, padding=1)
        self.blur_down = Blur(divisor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.blur_down(functional.pixel_shuffle(self.conv(x), self.factor))
        return out


class LatentUpsampler(nn.Module):
    """`forward(latent [B, C, f, h, w])` -> the enlarged latent."""

    def __init__(self, config: LatentUpsamplerConfig) -> None:
        super().__init__()
        self.config = config
        conv: type[nn.Conv2d | nn.Conv3d] = nn.Conv2d if config.is_flat else nn.Conv3d
        hidden = config.hidden_channels
        self.initial_conv = conv(config.latent_channels, hidden, 3, padding=1)
        self.initial_norm = nn.GroupNorm(NUM_GROUPS, hidden)
        self.res_blocks, self.post_upsample_res_blocks = (
            nn.ModuleList(ResidualBlock(hidden, conv) for _ in range(config.num_blocks)) for _ in range(2)
        )
        self.upsampler = self._upsampler()
        self.final_conv = conv(hidden, config.latent_channels, 3, padding=1)

    def _upsampler(self) -> nn.Module:
        config, hidden = self.config, self.config.hidden_channels
        if config.enlarges_time:
            cells = 8 if config.enlarges_space else 2
            return nn.Sequential(nn.Conv3d(hidden, cells * hidden, 3, padding=1))
        if config.share is not None:
            return FractionalUpsample(hidden, config.share)
        return nn.Sequential(nn.Conv2d(hidden, 4 * hidden, 3, padding=1))

    @staticmethod
    def working_bytes(shape: torch.Size) -> int:
        """Return the working memory for enlarging a latent of that shape."""
        return WORKING_BYTES * shape.numel()

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        batch, is_flat = latent.shape[0], self.config.is_flat
        x = _as_images(latent) if is_flat else latent
        x = functional.silu(self.initial_norm(self.initial_conv(x)))
        for block in self.res_blocks:
            x = block(x)
        x = (
            self._enlarged(x)
            if is_flat or self.config.enlarges_time
            else _as_videos(self._enlarged(_as_images(x)), batch)
        )
        for block in self.post_upsample_res_blocks:
            x = block(x)
        x = self.final_conv(x)
        return _as_videos(x, batch) if is_flat else x

    def _enlarged(self, x: torch.Tensor) -> torch.Tensor:
        """Return images [N, C, h, w], or videos [B, C, f, h, w] for more frames, enlarged."""
        x = self.upsampler(x)
        if self.config.enlarges_time:
            space = 2 if self.config.enlarges_space else 1
            return unfolded(x, (2, space, space))[:, :, 1:]  # the first latent frame is one frame
        return x if self.config.share is not None else functional.pixel_shuffle(x, 2)


def _as_images(videos: torch.Tensor) -> torch.Tensor:
    """Return the frames of [B, C, f, h, w] as images [B f, C, h, w]."""
    return videos.transpose(1, 2).flatten(0, 1)


def _as_videos(images: torch.Tensor, batch: int) -> torch.Tensor:
    """Return images [B f, C, h, w] as videos [B, C, f, h, w]."""
    return images.reshape(batch, -1, *images.shape[1:]).transpose(1, 2)
