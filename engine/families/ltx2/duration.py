"""The head of LTX-2.4 that predicts from a prompt how many seconds its shot lasts, in a file of its own.

`B` prompts, `T` tokens of a stream's text, `D` hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.base import Network, Shapes
from darkroom.engine.families.layouts import behind_first
from darkroom.engine.layers.attention import attention
from darkroom.engine.layers.basic import Linear

MARK = "attention_pooler.query_tokens"
PREFIXES = ("model.diffusion_model.duration_head.", "duration_head.", "")
HEADS = 4
FRAMES_PER_CELL = 8


@dataclass(frozen=True, slots=True)
class DurationHeadConfig:
    """Configuration of the head: widths of both streams' text, of pooled tokens and of the last layer, and queries."""

    video_dim: int = 4096
    audio_dim: int = 2048
    hidden_size: int = 256
    num_queries: int = 1
    inner_size: int = 256


def duration_head_config(shapes: Shapes) -> DurationHeadConfig:
    """Return the configuration of the head with these tensors."""
    num_queries, hidden_size = shapes[MARK]
    return DurationHeadConfig(
        video_dim=shapes["video_input_proj.weight"][1],
        audio_dim=shapes["audio_input_proj.weight"][1],
        hidden_size=hidden_size,
        num_queries=num_queries,
        inner_size=shapes["mlp_hidden.weight"][0],
    )


class PooledAttention(nn.Module):
    """Attention of queries over tokens, under the names of torch's `MultiheadAttention`."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.empty(3 * hidden_size, hidden_size))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * hidden_size))
        self.out_proj = Linear(hidden_size, hidden_size)

    def forward(self, queries: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        parts = zip((queries, tokens, tokens), self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3), strict=True)
        q, k, v = (functional.linear(x, weight, bias) for x, weight, bias in parts)
        out: torch.Tensor = self.out_proj(attention(q, k, v, HEADS))
        return out


class AttentionPooler(nn.Module):
    """Learned queries [n, D] over tokens: `forward(tokens [B, T, D])` -> `[B, n, D]`."""

    def __init__(self, config: DurationHeadConfig) -> None:
        super().__init__()
        self.query_tokens = nn.Parameter(torch.empty(config.num_queries, config.hidden_size))
        self.cross_attn = PooledAttention(config.hidden_size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.cross_attn(self.query_tokens.expand(tokens.shape[0], -1, -1), tokens)
        return out


class DurationHead(nn.Module):
    """`forward(video [B, T, 4096], audio [B, T, 2048])`, texts as connectors leave them -> seconds [B]."""

    def __init__(self, config: DurationHeadConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.config = config
        self.video_input_proj, self.audio_input_proj = Linear(config.video_dim, size), Linear(config.audio_dim, size)
        self.video_modality_emb, self.audio_modality_emb = (nn.Parameter(torch.empty(size)) for _ in range(2))
        self.attention_pooler = AttentionPooler(config)
        self.mlp_hidden = Linear(size * config.num_queries, config.inner_size)
        self.mlp_out = Linear(config.inner_size, 1)

    def forward(self, video: torch.Tensor, audio: torch.Tensor) -> torch.Tensor:
        tokens = torch.cat(
            [
                self.video_input_proj(video) + self.video_modality_emb,
                self.audio_input_proj(audio) + self.audio_modality_emb,
            ],
            dim=1,
        )
        hidden = functional.gelu(self.mlp_hidden(self.attention_pooler(tokens).flatten(1)), approximate="tanh")
        seconds: torch.Tensor = self.mlp_out(hidden).squeeze(-1).exp()
        return seconds


def frames_of(seconds: float, frame_rate: float, least_seconds: float, most_seconds: float) -> int:
    """Return the frames, 8n + 1, of a video of so many seconds within a range: those before its end.

    Where these are fewer than the least, it is the next number of frames, at the most the largest.
    """
    least, most = max(1, round(least_seconds * frame_rate)), round(most_seconds * frame_rate)
    wanted = max(least, min(round(seconds * frame_rate), most))
    frames = (wanted - 1) // FRAMES_PER_CELL * FRAMES_PER_CELL + 1
    return frames if frames >= least else min(-(-(least - 1) // FRAMES_PER_CELL) * FRAMES_PER_CELL + 1, most)


DURATION_HEAD = Network(
    layouts=(behind_first(PREFIXES, MARK),),
    in_checkpoint=(),
    configure=duration_head_config,
    build=DurationHead,
    float32_ends=("",),
)
