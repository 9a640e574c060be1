"""Rotary places (Su et al. 2021, arXiv 2104.09864) of pairs of channels, on several axes.

`B` batch, `H` heads, `T` tokens, `W` channels of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

AXES = (16, 56, 56)  # channels of a head that rotate by image, row and column
THETA = 10000


def rotations(places: torch.Tensor, axes: Sequence[int] = AXES, theta: float = THETA) -> torch.Tensor:
    """Return the rotation of each pair of channels at places [B, T, axes]: matrices [B, 1, T, pairs, 2, 2], float32."""
    parts = []
    for axis, channels in enumerate(axes):
        steps = torch.linspace(
            0, (channels - 2) / channels, steps=channels // 2, dtype=torch.float64, device=places.device
        )
        angles = places[..., axis].float()[..., None] * (1.0 / theta**steps)  # [B, T, pairs], float64
        cos, sin = torch.cos(angles), torch.sin(angles)
        parts.append(torch.stack([cos, -sin, sin, cos], dim=-1).view(*cos.shape, 2, 2))
    return torch.cat(parts, dim=-3).float().unsqueeze(1)


def rotated(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs of neighbouring channels of `x` [B, H, T, W]."""
    pairs = x.to(rotation.dtype).reshape(*x.shape[:-1], -1, 1, 2)
    turned: torch.Tensor = rotation[..., 0] * pairs[..., 0] + rotation[..., 1] * pairs[..., 1]
    return turned.reshape(x.shape).to(x.dtype)


Turns = tuple[torch.Tensor, torch.Tensor]  # cosines and sines


def rotated_pairs(x: torch.Tensor, turns: Turns, *, is_float32: bool = False) -> torch.Tensor:
    """Rotate the pairs of neighbouring channels of `x` [..., W] by cosines and sines [..., W / 2]."""
    (cos, sin), (even, odd) = turns, _neighbours(x.float() if is_float32 else x)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).to(x.dtype).flatten(-2)


def rotated_by_channel(x: torch.Tensor, turns: Turns, *, is_float32: bool = False) -> torch.Tensor:
    """Rotate the pairs of neighbouring channels of `x` [..., W], each channel by its own cosine and sine [..., W]."""
    cos, sin = turns
    own = x.float() if is_float32 else x
    even, odd = _neighbours(own)
    turned: torch.Tensor = own * cos + torch.stack((-odd, even), dim=-1).flatten(-2) * sin
    return turned.to(x.dtype)


def rotated_halves(x: torch.Tensor, turns: Turns, *, is_float32: bool = False) -> torch.Tensor:
    """Rotate channel n of `x` [..., W] with channel n + P by cosines and sines [..., P]; from 2 P on they stay."""
    cos, sin = turns
    num_pairs = cos.shape[-1]
    own = x.float() if is_float32 else x
    first, second, rest = torch.split(own, [num_pairs, num_pairs, own.shape[-1] - 2 * num_pairs], dim=-1)
    return torch.cat([cos * first - sin * second, sin * first + cos * second, rest], dim=-1).to(x.dtype)


def _neighbours(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the even and the odd channels of `x` [..., W], as views."""
    return x[..., 0::2], x[..., 1::2]
