"""Limits on decoded videos and audio, by what they take in memory: from the container's header, before any decoding.

| What | Bytes | Counted |
| --- | --- | --- |
| frame of a video | `BYTES_PER_PIXEL` of each pixel | width, height and frames declared, then frame by frame |
| audio, also of a video | `BYTES_PER_SAMPLE` of each sample | seconds, rate and channels declared, then by pieces |

A header may declare less than there is, or nothing: whoever decodes counts as well. Images have the same kind of limit
in `engine/images/decode.py`.
"""

from __future__ import annotations

import math
from typing import Any

from darkroom.engine.media.opened import BadMedia

BYTES_PER_PIXEL = 28  # while a video is read: as floats, once more in one tensor, and one frame more
BYTES_PER_SAMPLE = 12  # while audio is read: the samples in their own type, as float32, and joined
MICROSECONDS = 1_000_000  # the unit of a container's duration


def check_declared_audio(container: Any, stream: Any, max_bytes: int) -> None:
    """Raise BadMedia for audio whose header declares more samples than `max_bytes` hold."""
    seconds, rate_hz, channels = _declared_seconds(container, stream), int(stream.rate or 0), int(stream.channels or 0)
    num_samples = math.ceil(seconds * rate_hz) * channels
    if num_samples * BYTES_PER_SAMPLE > max_bytes:
        found = f"{num_samples} samples ({seconds:g} s of {channels} channels at {rate_hz} Hz)"
        raise audio_too_long(found, max_bytes)


def check_declared_frames(stream: Any, max_bytes: int, num_frames: int) -> None:
    """Raise BadMedia for a video of which `num_frames` have more pixels, by its header, than `max_bytes` hold."""
    width, height = int(stream.width or 0), int(stream.height or 0)
    num_pixels = max(num_frames, 1) * width * height
    if num_pixels * BYTES_PER_PIXEL > max_bytes:
        raise video_too_large(f"{num_pixels} pixels in {num_frames} frames of {width}x{height} px", max_bytes)


def audio_too_long(found: str, max_bytes: int) -> BadMedia:
    allowed = max_bytes // BYTES_PER_SAMPLE
    return BadMedia(f"audio: too long for the free memory; got {found}, expected at most {allowed} samples")


def video_too_large(found: str, max_bytes: int) -> BadMedia:
    allowed = max_bytes // BYTES_PER_PIXEL
    return BadMedia(f"video: too large for the free memory; got {found}, expected at most {allowed} pixels")


def _declared_seconds(container: Any, stream: Any) -> float:
    """Return the longest duration that the stream or its container declares; 0 for none."""
    of_stream = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else 0.0
    return max(of_stream, (container.duration or 0) / MICROSECONDS)
