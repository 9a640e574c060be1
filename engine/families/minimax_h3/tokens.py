"""Tokens of a video and of its audio, and back.

`B` batch, `C` channels, `t h w` latent frames, rows and columns, `T` latent frames of audio, `n` tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from darkroom.engine.families.minimax_h3.layout import AUDIO_CHANNELS, CELLS


def video_tokens(video: torch.Tensor) -> torch.Tensor:
    """Return the tokens [B, t * h/2 * w/2, C * 4] of a video [B, C, t, h, w], channels outermost."""
    batch, channels, frames, height, width = video.shape
    cells = video.reshape(batch, channels, frames, height // CELLS, CELLS, width // CELLS, CELLS)
    return cells.permute(0, 2, 3, 5, 1, 4, 6).reshape(batch, -1, channels * CELLS**2)


def video_of(tokens: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return tokens [B, n, C * 4], channels outermost, as a video of a shape [B, C, t, h, w]."""
    _, channels, frames, height, width = shape
    cells = tokens.reshape(-1, frames, height // CELLS, width // CELLS, channels, CELLS, CELLS)
    return cells.permute(0, 4, 1, 2, 5, 3, 6).reshape(-1, channels, frames, height, width)


def audio_tokens(audio: torch.Tensor) -> torch.Tensor:
    """Return the tokens [B, 2 T, C] of stereo audio [B, C, 2, T]: the left channel's, then the right's."""
    return audio.flatten(2).transpose(1, 2)


def audio_of(tokens: torch.Tensor) -> torch.Tensor:
    """Return tokens [B, 2 T, C] as stereo audio [B, C, 2, T]."""
    channels_first = tokens.transpose(1, 2)
    return channels_first.reshape(*channels_first.shape[:2], AUDIO_CHANNELS, -1)
