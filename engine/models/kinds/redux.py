"""Flux.1 Redux (Black Forest Labs 2024): every token of an image encoder as one word of a prompt.

`B` images, `T` tokens, `D` width of the image encoder, `C` of the text. Module names are those of the
original file.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Linear


@dataclass(frozen=True, slots=True)
class ReduxConfig:
    width: int = 1152
    context_width: int = 4096
    inner_width: int = 12288


class Redux(nn.Module):
    """Two layers that map tokens [B, T, D] of an image encoder to words [B, T, C]."""

    def __init__(self, config: ReduxConfig) -> None:
        super().__init__()
        self.config = config
        self.redux_up = Linear(config.width, config.inner_width)
        self.redux_down = Linear(config.inner_width, config.context_width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        words: torch.Tensor = self.redux_down(functional.silu(self.redux_up(tokens)))
        return words
