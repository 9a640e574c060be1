"""Positions of tokens of videos and audio, and the rotations by them (Su et al. 2021, arXiv 2104.09864).

A token has a beginning and an end on each axis: seconds, and rows and columns in pixels. `B` batch, `T` tokens, `A`
axes, `H` heads, `P` pairs of channels of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from darkroom.engine.families.ltx_video.transformer import cell_places
from darkroom.engine.layers.filled import filled
from darkroom.engine.layers.transformer_layers import Tables

THETA = 10000.0
SAMPLE_RATE_HZ, HOP_SAMPLES, FRAMES_PER_CELL = 16000, 160, 4  # of spectrograms, and of an audio's latent


def video_positions(
    frames: int, rows: int, columns: int, *, starts_with_one_frame: bool, device: torch.device | None = None
) -> torch.Tensor:
    """Return the first and the last frame, row and column in pixels [3, T, 2] of each cell, whole numbers."""
    edges = (
        cell_places(frames, rows, columns, starts_with_one_frame=starts_with_one_frame, at_end=at_end, device=device)
        for at_end in (False, True)
    )
    return torch.stack([*edges], dim=-1)


def audio_positions(first: int, last: int, device: torch.device | None = None) -> torch.Tensor:
    """Return the begin and the end [1, T, 2], in seconds, of an audio's latent cells `first` to `last`, exclusive.

    The first cell is of one frame of the spectrogram alone.
    """
    edges = torch.arange(first, last + 1, dtype=torch.float32, device=device) * FRAMES_PER_CELL
    seconds = (edges + 1 - FRAMES_PER_CELL).clamp(min=0) * HOP_SAMPLES / SAMPLE_RATE_HZ
    return torch.stack([seconds[:-1], seconds[1:]], dim=-1)[None]


def reference_positions(num_cells: int, device: torch.device | None = None) -> torch.Tensor:
    """Return the positions [1, T, 2] of a reference audio, which ends one cell before the audio begins."""
    positions = audio_positions(0, num_cells, device)
    cell_seconds = HOP_SAMPLES * FRAMES_PER_CELL / SAMPLE_RATE_HZ
    return positions - (positions[:, -1:, 1:] + cell_seconds)


def in_seconds(positions: torch.Tensor, frame_rate: float) -> torch.Tensor:
    """Return positions [B, 3, T, 2] with seconds in place of frames, float32."""
    seconds = positions.float()
    return torch.cat([seconds[:, :1] * (1.0 / frame_rate), seconds[:, 1:]], dim=1)


def frequencies(count: int, *, is_double: bool, device: torch.device) -> torch.Tensor:
    """Return the frequencies [count] of rotations, float32, computed in float64 with `is_double`."""
    dtype = torch.float64 if is_double else torch.float32
    powers = torch.linspace(0.0, 1.0, count, dtype=dtype, device=device)
    return (THETA**powers * math.pi / 2).float()


def rotations(
    positions: torch.Tensor,
    largest: Sequence[float],
    hidden_size: int,
    heads: int,
    *,
    dtype: torch.dtype,
    is_double: bool = True,
    is_middle: bool = True,
) -> Tables:
    """Return the cosines and sines [B, T, H, P] that rotate pairs of channels, of positions [B, A, T, 2].

    The first channels, where there are more than frequencies for all axes, are not rotated.
    """
    points = (positions[..., 0] + positions[..., 1]) / 2.0 if is_middle else positions[..., 0]  # [B, A, T]
    num_axes = points.shape[1]
    shares = points.transpose(1, 2) / filled(largest, device=points.device)  # [B, T, A]
    rates = frequencies(hidden_size // (2 * num_axes), is_double=is_double, device=points.device)
    angles = (rates * (shares[..., None] * 2 - 1)).transpose(-1, -2).flatten(2)  # [B, T, D / 2]
    still = (hidden_size // 2 - angles.shape[-1], 0)
    cos = torch.nn.functional.pad(angles.cos().to(dtype), still, value=1.0)
    sin = torch.nn.functional.pad(angles.sin().to(dtype), still)
    shape = (*cos.shape[:2], heads, hidden_size // 2 // heads)
    return cos.reshape(shape), sin.reshape(shape)
