"""Controls that add to the image's tokens behind each block of a transformer (DiffSynth-Studio 2025, "blockwise").

`B` batch, `C` channels, `h w` latent cells, `T` tokens, `D` width. Module names are those of the original checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.patches import PATCH, pad_to_patches, patches_of
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import AdaptiveNorm, Gelu

MARK = "controlnet_blocks.0.y_rms.weight"
FIRST = "img_in.weight"


@dataclass(frozen=True, slots=True)
class DiffSynthControlConfig:
    """Configuration of a control. `hint_channels` are those of the latent that it sees, and of a mask's."""

    width: int
    num_blocks: int
    hint_channels: int


def diffsynth_control_config(shapes: Shapes) -> DiffSynthControlConfig:
    """Return the configuration of the control with these tensors."""
    width, columns = shapes[FIRST]
    return DiffSynthControlConfig(width, count_children(shapes, "controlnet_blocks"), columns // PATCH**2)


class ControlBlock(nn.Module):
    """`forward(tokens [B, T, D], seen [1, T, D])` -> what is added to the tokens `[B, T, D]`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.x_rms, self.y_rms = RmsNorm(width), RmsNorm(width)
        self.input_proj, self.output_proj = Linear(width, width), Linear(width, width)
        self.adaptive_norm, self.activation = AdaptiveNorm("none"), Gelu("none")

    def forward(self, tokens: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        given = self.adaptive_norm(tokens, None, self.y_rms(seen), self.x_rms)
        out: torch.Tensor = self.output_proj(self.activation(self.input_proj(given)))
        return out


class DiffSynthControl(nn.Module):
    """A control: `img_in` embeds the image that it sees, `controlnet_blocks` are called behind the network's."""

    def __init__(self, config: DiffSynthControlConfig) -> None:
        super().__init__()
        self.config = config
        self.img_in = Linear(config.hint_channels * PATCH**2, config.width)
        self.controlnet_blocks = nn.ModuleList(ControlBlock(config.width) for _ in range(config.num_blocks))

    def embedded(self, hint: torch.Tensor) -> torch.Tensor:
        """Return the tokens [B, T, D] of a latent [B, C, h, w], scaled as the network sees it."""
        out: torch.Tensor = self.img_in(patches_of(pad_to_patches(hint, PATCH)))
        return out
