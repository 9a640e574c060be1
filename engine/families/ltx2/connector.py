"""The connectors of LTX-2, which turn what a language model reads of a prompt to the text of one stream.

A connector is a transformer over the tokens of the prompt with learned registers behind them, up to 1024 tokens or a
multiple of the registers. `B` batch, `T` tokens, `D` hidden size.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.ltx2.attention import Attention
from darkroom.engine.families.ltx2.config import ConnectorConfig
from darkroom.engine.families.ltx2.positions import rotations
from darkroom.engine.families.ltx_video.transformer import FEED_FORWARD_FACTOR
from darkroom.engine.layers.feed_forward import FeedForward
from darkroom.engine.layers.transformer_layers import AdaptiveNorm, GatedResidual, Tables

MIN_TOKENS = 1024
LARGEST_POSITION = 4096
NORM_EPS = 1e-6


class ConnectorBlock(nn.Module):
    """Attention of tokens among each other, and a feed-forward layer, each behind a norm without weights."""

    def __init__(self, config: ConnectorConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.attn1 = Attention(
            size, size, config.heads, config.head_dim, is_gated=config.is_gated, splits_rotation=config.splits_rotation
        )
        self.ff = FeedForward(size, FEED_FORWARD_FACTOR * size, has_bias=config.has_ff_bias)
        self.norm, self.residual = AdaptiveNorm("rms", NORM_EPS), GatedResidual()

    def forward(self, x: torch.Tensor, tables: Tables) -> torch.Tensor:
        normed = self.norm(x)
        x = self.residual(x, self.attn1(normed, normed, tables))
        out: torch.Tensor = self.residual(x, self.ff(self.norm(x)))
        return out


class EmbeddingsConnector(nn.Module):
    """`forward(x [B, T, D])` -> `[B, at least 1024, D]`."""

    def __init__(self, config: ConnectorConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer_1d_blocks = nn.ModuleList(ConnectorBlock(config) for _ in range(config.num_blocks))
        self.learnable_registers = nn.Parameter(torch.empty(config.num_registers, config.hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([x, self._registers(x)], dim=1)
        config = self.config
        numbers = torch.arange(x.shape[1], dtype=torch.float32, device=x.device)
        positions = numbers.view(1, 1, -1, 1).expand(-1, -1, -1, 2)
        tables = rotations(positions, (LARGEST_POSITION,), config.hidden_size, config.heads, dtype=x.dtype)
        for block in self.transformer_1d_blocks:
            x = block(x, tables)
        return functional.rms_norm(x, x.shape[-1:], eps=NORM_EPS)

    def _registers(self, x: torch.Tensor) -> torch.Tensor:
        """Return the registers [B, n, D] behind the tokens, in turns, as if the tokens were the first of them."""
        copies = math.ceil(max(MIN_TOKENS, x.shape[1]) / self.config.num_registers)
        registers = self.learnable_registers.to(x).repeat(copies, 1)[x.shape[1] :]
        return registers.expand(x.shape[0], -1, -1)


Pair = tuple[EmbeddingsConnector | None, EmbeddingsConnector | None]


def connectors_of(configs: tuple[ConnectorConfig, ConnectorConfig] | None) -> Pair:
    """Return the connectors of a video's text and of its audio's, None each for a network without them."""
    return (None, None) if configs is None else (EmbeddingsConnector(configs[0]), EmbeddingsConnector(configs[1]))
