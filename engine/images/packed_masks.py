"""Masks of objects in the frames of a video, eight pixels a byte: SAM3_TRACK_DATA. `N` objects, `H W` pixels."""

from __future__ import annotations

from typing import Final, TypedDict

import torch

PIXELS_PER_BYTE: Final = 8


class TrackData(TypedDict):
    """Objects that were followed through a video.

    `packed_masks` are [F, N, H, W / 8], None where there is no object. `orig_size` are height and width of the frames.
    """

    packed_masks: torch.Tensor | None
    n_frames: int
    scores: list[float]
    orig_size: tuple[int, int]


def packed(masks: torch.Tensor) -> torch.Tensor:
    """Return the pixels above 0 of [..., H, W] as bits, the first one the lowest: uint8 [..., H, W / 8]."""
    bits = (masks > 0).view(*masks.shape[:-1], -1, PIXELS_PER_BYTE).to(torch.uint8)
    places = torch.arange(PIXELS_PER_BYTE, device=masks.device, dtype=torch.uint8)
    out: torch.Tensor = (bits << places).sum(-1, dtype=torch.uint8)
    return out


def unpacked(masks: torch.Tensor) -> torch.Tensor:
    """Return masks [..., H, W / 8] with the pixels by themselves, bool [..., H, W]."""
    places = torch.arange(PIXELS_PER_BYTE, device=masks.device, dtype=torch.uint8)
    return (((masks[..., None] >> places) & 1) > 0).flatten(-2)


def numbers_in(text: str, count: int) -> list[int]:
    """Return the numbers below `count` in a list with commas; what is none is left out."""
    items = (item.strip() for item in text.split(","))
    numbers = (int(item) for item in items if item.isdecimal() and len(item.lstrip("0")) <= len(str(count)))
    return [number for number in numbers if number < count]
