"""The autoencoder of latent diffusion with a decoder for videos (Blattmann et al. 2023, arXiv 2311.15127).

Frames are encoded one by one; those that are decoded together are of one video. `F` frames, `C` channels, `H W` pixels,
`h w` latent cells. Module names are those of the original checkpoints.
"""

from __future__ import annotations

import torch
from torch import nn

from darkroom.engine.layers.basic import Conv2d
from darkroom.engine.layers.temporal_layers import KERNEL, PADDING, TimeResBlock, as_frames, as_videos
from darkroom.engine.layers.vae_kl import Autoencoder, Decoder, ResnetBlock, VaeConfig


class VideoResnetBlock(ResnetBlock):
    """A residual block of each frame [F, C, h, w], mixed with one along the frames."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)
        self.time_stack = TimeResBlock(out_channels)
        self.mix_factor = nn.Parameter(torch.empty(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        share = torch.sigmoid(self.mix_factor.to(x))
        among = as_frames(self.time_stack(as_videos(x, x.shape[0])))
        return share * among + (1.0 - share) * x


class VideoConv(Conv2d):
    """A convolution of each frame, then one along the frames."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 3, padding=1)
        self.time_mix_conv = nn.Conv3d(out_channels, out_channels, KERNEL, padding=PADDING)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        x = super().forward(input)
        return as_frames(self.time_mix_conv(as_videos(x, x.shape[0])))


class VideoDecoder(Decoder):
    def __init__(self, config: VaeConfig) -> None:
        super().__init__(config, VideoResnetBlock)
        self.conv_out = VideoConv(config.level_channels[0], config.image_channels)


class SvdVae(Autoencoder):
    """An autoencoder without the convolutions beside the latents that the one of images has."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__(config)
        self.decoder = VideoDecoder(config)

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        """Return the mean of the posterior."""
        moments: torch.Tensor = self.encoder(images)
        return moments.chunk(2, dim=1)[0]

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the frames [F, 3, H, W] of one video, from its latents [F, C, h, w]."""
        frames: torch.Tensor = self.decoder(latents)
        return frames
