"""ControlNet (Zhang et al. 2023, arXiv 2302.05543): a copy of the UNet's first half that reads an image as well.

Module names are those of the original checkpoints (without `control_model.`). `B` batch, `H W` pixels of the hint,
`h w` latent cells (`H/8`), `T` tokens, `D` their width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.unet import TimestepEmbedSequential, UnetConfig, build_block, label_embedding
from darkroom.engine.layers.unet_layers import BlockSpec, timestep_embedding

# The hint's convolutions: (channels out, stride); the last one has the network's width.
HINT_LAYERS = ((16, 1), (16, 1), (32, 2), (32, 1), (96, 2), (96, 1), (256, 2))


class ControlNetModel(nn.Module):
    """ControlNet whose `forward` returns additions to the UNet's middle and skip connections, first to last.

    `config` is that of the UNet whose first half this is; its output blocks are not used.
    """

    def __init__(self, config: UnetConfig, hint_channels: int = 3) -> None:
        super().__init__()
        self.config = config
        self.model_channels = config.model_channels
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        width = config.model_channels * 4
        self.time_embed = nn.Sequential(Linear(config.model_channels, width), nn.SiLU(), Linear(width, width))
        if config.label_dim:
            self.label_emb = label_embedding(config.label_dim, width)
        self.input_blocks = nn.ModuleList(build_block(spec, config, width) for spec in config.input_blocks)
        self.zero_convs = nn.ModuleList(_zero_conv(_channels(spec)) for spec in config.input_blocks)
        self.input_hint_block = _hint_block(hint_channels, config.model_channels)
        self.middle_block = build_block(config.middle_block, config, width)
        self.middle_block_out = _zero_conv(_channels(config.middle_block))

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.time_embed.get_parameter("0.weight").dtype

    def forward(
        self,
        x: torch.Tensor,
        hint: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, list[torch.Tensor]]:
        """Return additions for `x` [B, C, h, w], `hint` [B, 3, H, W] of 0..1, `timesteps` [B], `context` [B, T, D].

        `y` [B, label_dim] are the labels that the UNet gets, for networks that have some.
        """
        emb = self.time_embed(timestep_embedding(timesteps, self.model_channels).to(x.dtype))
        guided, emb = self.read_hint(hint, emb, context, **kwargs)
        if self.config.label_dim:
            emb = emb + self.label_emb(y)
        additions = []
        h = x
        for index, (block, zero_conv) in enumerate(zip(self.input_blocks, self.zero_convs, strict=True)):
            h = block(h, emb, context)
            if index == 0:
                h = h + guided
            additions.append(zero_conv(h, emb, context))
        h = self.middle_block(h, emb, context)
        return {"middle": [self.middle_block_out(h, emb, context)], "output": additions}

    def read_hint(
        self, hint: torch.Tensor, emb: torch.Tensor, context: torch.Tensor, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the image as additions to the first block [B, model_channels, h, w], and the time embedding."""
        return self.input_hint_block(hint, emb, context), emb


def _channels(block: BlockSpec) -> int:
    """Return the output channels of a block."""
    last = block[-1]
    return last.out_channels if hasattr(last, "out_channels") else last.channels


def _zero_conv(channels: int) -> TimestepEmbedSequential:
    """Return a 1x1 convolution, which training initialises to zero, hence its name."""
    return TimestepEmbedSequential(Conv2d(channels, channels, 1))


def _hint_block(hint_channels: int, model_channels: int) -> TimestepEmbedSequential:
    layers: list[nn.Module] = []
    channels = hint_channels
    for out_channels, stride in HINT_LAYERS:
        layers += [Conv2d(channels, out_channels, 3, padding=1, stride=stride), nn.SiLU()]
        channels = out_channels
    layers.append(Conv2d(channels, model_channels, 3, padding=1))
    return TimestepEmbedSequential(*layers)
