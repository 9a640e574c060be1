"""Activations of a convolutional network with channels innermost.

The weights are kept in that layout already where it is faster (`engine/formats/fill.py`); with the input in it too no
layer before the first convolution decides otherwise.
"""

from __future__ import annotations

import torch

from engine.layers.unet import UnetModel
from engine.tuning.quality import Quality
from engine.tuning.strategy import SamplingUse, Strategy, Undo, has_own_forward, replace_forwards


class ChannelsLast(Strategy):
    """Activations with channels innermost."""

    name = "channels_last"
    quality = Quality.SAME
    about = "the latent enters the network with channels innermost"

    def unfit(self, use: SamplingUse) -> str | None:
        if not isinstance(use.network, UnetModel):
            return "the network has no convolutions"
        return "nodes have replaced parts of the network" if has_own_forward(use.network) else None

    def apply(self, use: SamplingUse) -> Undo:
        network, plain = use.network, type(use.network).forward

        def forward(x: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
            laid_out = x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
            out: torch.Tensor = plain(network, laid_out, *args, **kwargs)
            return out.contiguous()

        return replace_forwards([(network, forward)])
