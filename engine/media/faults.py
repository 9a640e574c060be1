"""Faults of videos and audio that show before they are read whole: nothing but a first frame is decoded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from darkroom.engine.media.limits import check_declared_audio
from darkroom.engine.media.opened import BadMedia, opened_for_reading
from darkroom.engine.media.video_files import video_stream_of

WITH_PLACES: Final = frozenset({"mov", "mp4"})
"""Containers that list the place of every packet, so that a missing end shows."""


def check_video(path: Path) -> None:
    """Raise BadMedia for a file without images, and for one whose end is missing."""
    with opened_for_reading(path) as container:
        stream = video_stream_of(container)
        _check_end(container, path)
        if not _has_frame(container, stream):
            raise BadMedia("a video stream without frames; expected a file with images")


def check_audio(path: Path, max_bytes: int = sys.maxsize) -> None:
    """Raise BadMedia for a file without samples of audio, for one whose end is missing, and for one that is too long.

    `max_bytes` is the memory that its samples may take.
    """
    with opened_for_reading(path) as container:
        stream = next(iter(container.streams.audio), None)
        if stream is None:
            raise BadMedia("no audio stream; expected a file with audio")
        check_declared_audio(container, stream, max_bytes)
        _check_end(container, path)
        if not _has_frame(container, stream):
            raise BadMedia("an audio stream without samples; expected a file with audio")


def _has_frame(container: Any, stream: Any) -> bool:
    try:
        return next(container.decode(stream), None) is not None
    except EOFError:  # a container without packets
        return False


def _check_end(container: Any, path: Path) -> None:
    if WITH_PLACES.isdisjoint(container.format.name.split(",")):
        return
    places = [places[-1] for stream in container.streams if (places := getattr(stream, "index_entries", None))]
    expected = max((place.pos + place.size for place in places), default=0)
    size_bytes = path.stat().st_size
    if expected > size_bytes:
        raise BadMedia(f"the end of the file is missing; got {size_bytes} bytes, expected at least {expected}")
