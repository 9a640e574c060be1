"""Sizes of MiniMax H3's videos, images and latents, as numbers alone."""

from __future__ import annotations

import math

from darkroom.engine.families.minimax_h3.layout import FRAMES_PER_LATENT

FPS, AUDIO_FPS = 24, 40  # frames of the video, and of the audio's latent, a second
PERIOD, LEAST_FRAMES = sum(FRAMES_PER_LATENT), sum(FRAMES_PER_LATENT[:2])
CELL_PX, UNIT_PX = 16, 32
SHORT_PX, MOST_PX = 768, 768 * 1344  # of the canvas of a reference video
REFERENCE_PX = 2048  # most of the short side of a reference image


def frames_above(length: int) -> int:
    """Return the least number of frames a video may have that is not below `length`: 5, 22, 39, ..."""
    return LEAST_FRAMES + -(-max(0, length - LEAST_FRAMES) // PERIOD) * PERIOD


def frames_below(length: int) -> int:
    """Return the largest number of frames a video may have that is not above `length`, of at least 5."""
    return LEAST_FRAMES + (length - LEAST_FRAMES) // PERIOD * PERIOD


def latent_frames(frames: int) -> int:
    """Return the latent frames of a video of a number of frames that it may have."""
    return (frames - LEAST_FRAMES) // PERIOD * len(FRAMES_PER_LATENT) + 2


def frames_of(latent_frames: int) -> int:
    """Return the frames of a video of so many latent frames."""
    return sum(FRAMES_PER_LATENT[i % len(FRAMES_PER_LATENT)] for i in range(latent_frames))


def audio_frames(frames: int) -> int:
    """Return the latent frames of the audio of a video."""
    return round(frames / FPS * AUDIO_FPS)


def in_units(side_px: float) -> int:
    """Return a side in pixels as the nearest multiple of `UNIT_PX` above 0."""
    return max(UNIT_PX, round(side_px / UNIT_PX) * UNIT_PX)


def reference_size(width: int, height: int, largest_area: int | None) -> tuple[int, int]:
    """Return the width and height in pixels at which a reference image is seen: never larger than it is.

    `largest_area` is that of the video in pixels; None for a short side of at most `REFERENCE_PX`.
    """
    if largest_area is None:
        scale = min(1.0, REFERENCE_PX / min(width, height))
    else:
        scale = min(1.0, math.sqrt(largest_area / (width * height)))
    return in_units(width * scale), in_units(height * scale)


def canvas_size(width: int, height: int) -> tuple[int, int]:
    """Return the width and height in pixels at which a reference video is seen.

    Its short side is 768 pixels and its area at most that of 768 x 1344; a smaller video keeps its size.
    """
    ratio = width / height
    wanted = (SHORT_PX * ratio, float(SHORT_PX)) if ratio >= 1.0 else (float(SHORT_PX), SHORT_PX / ratio)
    if math.prod(wanted) > MOST_PX:
        scale = math.sqrt(MOST_PX / math.prod(wanted))
        wanted = (wanted[0] * scale, wanted[1] * scale)
    canvas = in_units(wanted[0]), in_units(wanted[1])
    return canvas if width * height >= math.prod(canvas) else (in_units(width), in_units(height))
