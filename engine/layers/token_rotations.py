"""Rotary places (Su et al. 2021, arXiv 2104.09864) of the tokens of language models, text and images.

The channels of the first half of a head turn with their fellows in the second. `B` prompts, `H` heads, `T` tokens, `W`
width of a head.
"""

from __future__ import annotations

import torch

Rotation = tuple[torch.Tensor, torch.Tensor]  # cosines and sines, [B or 1, 1, T, W] each


def rotation(
    positions: torch.Tensor,
    width: int,
    theta: float,
    scale: float = 1.0,
    sections: tuple[int, int, int] | None = None,
    *,
    interleaved: bool = False,
) -> Rotation:
    """Return cosines and sines [1, 1, T, W] of the places of tokens.

    `positions` is [1, T], or [3, T] with the `sections` of its axes: time, row and column. The pairs of channels of the
    axes follow each other or, where they are `interleaved`, take turns; what is left behind them turns with the time.
    Raises ValueError for three axes without sections.
    """
    frequencies = 1.0 / (theta ** (torch.arange(0, width, 2, device=positions.device).float() / width)) / scale
    angles = positions.float()[:, :, None] * frequencies  # [1 or 3, T, W / 2]
    if positions.shape[0] > 1:
        if sections is None:
            raise ValueError(f"places of tokens: the model has one axis; got {positions.shape[0]} axes, expected 1")
        angles = _in_turns(angles, sections) if interleaved else _in_sections(angles, sections)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos()[:, None], angles.sin()[:, None]


def _in_sections(angles: torch.Tensor, sections: tuple[int, int, int]) -> torch.Tensor:
    parts = torch.split(angles, list(sections), dim=-1)
    return torch.cat([part[axis] for axis, part in enumerate(parts)], dim=-1)[None]


def _in_turns(angles: torch.Tensor, sections: tuple[int, int, int]) -> torch.Tensor:
    mixed = angles[0].clone()
    for axis in (1, 2):
        pairs = slice(axis, sections[axis] * 3, 3)
        mixed[:, pairs] = angles[axis, :, pairs]
    return mixed[None]


def rotated(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Rotate the channels of `x` [B, H, T, W], each of the first half with its fellow in the second."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)
