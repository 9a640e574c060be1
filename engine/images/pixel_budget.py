"""Pixels that may be read of one image file, counted before a frame becomes a tensor. Pure."""

from __future__ import annotations

MAX_FRAMES = 10_000
BLANK_MASK_PX = 64  # side of the mask of a frame without transparency


class PictureTooLarge(ValueError):
    """More pixels in all frames of an image than may be read."""


class PixelBudget:
    """Pixels that are left for the frames of a file, each of which takes at least those of a blank mask."""

    def __init__(self, max_pixels: int, max_frames: int = MAX_FRAMES) -> None:
        self._max_pixels = max_pixels
        self._max_frames = max_frames
        self._num_pixels = 0
        self._num_frames = 0

    def take(self, width: int, height: int) -> None:
        """Count a frame of that size. Raises PictureTooLarge for the first one that is too much."""
        self._num_pixels += max(width * height, BLANK_MASK_PX**2)
        self._num_frames += 1
        if self._num_pixels > self._max_pixels or self._num_frames > self._max_frames:
            found = f"at least {self._num_pixels} pixels in {self._num_frames} frames of up to {width}x{height} px"
            raise PictureTooLarge(f"{found}; expected at most {self._max_pixels} pixels and {self._max_frames} frames")
