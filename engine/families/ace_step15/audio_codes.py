"""Codes of ACE-Step 1.5: five of a second, from latents and back, by finite scalar quantisation.

The method is Mentzer et al. 2023 (arXiv 2309.15505): each of six numbers takes one of a few levels, and a code is their
combination. `B` batch, `L` latent frames, `N` codes, `D` hidden size.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.ace_step15.attention import EncoderStack, Width
from darkroom.engine.layers.basic import Linear

LEVELS = (8, 8, 8, 5, 5, 5)
NUM_CODES = math.prod(LEVELS)
FRAMES_PER_CODE = 5
SILENT_CODE = 35847  # behind the last one of shorter songs
POOL_HEADS, POOL_KEY_HEADS, POOL_RATIO = 16, 8, 3  # of the layers beside the quantiser


def pool_width(hidden_size: int) -> Width:
    """Return the sizes of the layers beside the quantiser."""
    return Width(hidden_size, POOL_RATIO * hidden_size, POOL_HEADS, POOL_KEY_HEADS)


def code_levels(codes: torch.Tensor) -> torch.Tensor:
    """Return the six numbers [..., 6], float32 in -1..1, of codes [...]."""
    numbers, step = [], 1
    for levels in LEVELS:
        numbers.append((codes // step % levels).float() * (2.0 / (levels - 1)) - 1.0)
        step *= levels
    return torch.stack(numbers, dim=-1)


def quantised(x: torch.Tensor) -> torch.Tensor:
    """Return numbers [..., 6] with each at the nearest of its levels in -1..1."""
    numbers = []
    for number, levels in zip(x.unbind(-1), LEVELS, strict=True):
        bound = 1.0 + 1.0 / (levels - 1)
        soft = torch.tanh(number / bound) * bound
        place = (levels - 1) * (torch.tanh(soft) + 1.0) / 2.0 + 0.5
        numbers.append(2.0 / (levels - 1) * place.floor() - 1.0)
    return torch.stack(numbers, dim=-1)


class Quantizer(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.project_in, self.project_out = Linear(hidden_size, len(LEVELS)), Linear(len(LEVELS), hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return tokens [..., D] as their codes give them."""
        out: torch.Tensor = self.project_out(quantised(self.project_in(x)))
        return out

    def tokens_of(self, codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the tokens [B, N, D] of codes [B, N]."""
        out: torch.Tensor = self.project_out(code_levels(codes).to(dtype))
        return out


class AttentionPooler(EncoderStack):
    def __init__(self, hidden_size: int, num_layers: int) -> None:
        super().__init__(hidden_size, pool_width(hidden_size), num_layers)
        self.special_token = nn.Parameter(torch.empty(1, 1, hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one token [B, N, D] for each window of [B, N, frames, D]."""
        windows = self.embed_tokens(x).flatten(0, 1)  # [B N, frames, D]
        special = self.special_token.to(windows.dtype).expand(windows.shape[0], -1, -1)
        return self.encoded(torch.cat([special, windows], dim=1))[:, 0].reshape(*x.shape[:2], -1)


class AudioTokenizer(nn.Module):
    """`forward([B, L, C])` -> tokens of codes `[B, N, D]`."""

    def __init__(self, audio_size: int, hidden_size: int, num_layers: int) -> None:
        super().__init__()
        self.audio_acoustic_proj = Linear(audio_size, hidden_size)
        self.attention_pooler = AttentionPooler(hidden_size, num_layers)
        self.quantizer = Quantizer(hidden_size)

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        padded = functional.pad(audio, (0, 0, 0, -audio.shape[1] % FRAMES_PER_CODE))
        frames = padded.reshape(padded.shape[0], -1, FRAMES_PER_CODE, padded.shape[2])
        windows = self.audio_acoustic_proj(frames)
        out: torch.Tensor = self.quantizer(self.attention_pooler(windows))
        return out


class AudioDetokenizer(EncoderStack):
    """`forward([B, N, D])` -> latents `[B, 5 N, C]`."""

    def __init__(self, audio_size: int, hidden_size: int, num_layers: int) -> None:
        super().__init__(hidden_size, pool_width(hidden_size), num_layers, eps=None)
        self.special_tokens = nn.Parameter(torch.empty(1, FRAMES_PER_CODE, hidden_size))
        self.proj_out = Linear(hidden_size, audio_size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded = self.embed_tokens(tokens)[:, :, None] + self.special_tokens.to(tokens.dtype)  # [B, N, 5, D]
        frames: torch.Tensor = self.proj_out(self.encoded(embedded.flatten(0, 1)))
        return frames.reshape(tokens.shape[0], -1, frames.shape[-1])
