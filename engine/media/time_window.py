"""A part of a video by time: which decoded frames and samples of its file belong to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Any


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """The part from `start_seconds` on, `duration_seconds` long; a duration of 0 reaches to the end."""

    start_seconds: float = 0.0
    duration_seconds: float = 0.0

    @property
    def end_seconds(self) -> float:
        return self.start_seconds + self.duration_seconds if self.duration_seconds else math.inf

    def seek(self, container: Any, stream: Any) -> None:
        """Move a container to the last key frame before the part."""
        if self.start_seconds > 0:
            container.seek(int(self.start_seconds / stream.time_base), stream=stream)

    def num_frames(self, rate: float, of: int) -> int:
        """Return the number of frames in the part of a video that has `of` frames, at most."""
        if not rate:
            return of
        left = max(of - math.floor(self.start_seconds * rate), 0)
        return min(left, math.ceil(self.duration_seconds * rate) + 1) if self.duration_seconds else left

    def video_frames(self, frames: Iterator[Any], stream: Any) -> Iterator[Any]:
        """Yield the decoded frames whose time is in the part."""
        start, end = int(self.start_seconds / stream.time_base), math.inf
        if self.duration_seconds:
            end = int(self.end_seconds / stream.time_base)
        for frame in frames:
            time = frame.pts or 0
            if time >= end:
                return
            if time >= start:
                yield frame

    def audio_frames(self, frames: Iterator[Any], rate_hz: int) -> tuple[int, Iterator[Any]]:
        """Return the frames from the first that reaches into the part, and how many of its samples lie before it."""
        within = takewhile(lambda frame: (frame.time or 0.0) <= self.end_seconds, frames)
        for frame in within:
            before = max(0, int((self.start_seconds - (frame.time or 0.0)) * rate_hz))
            if before < frame.samples:
                return before, chain([frame], within)
        return 0, iter(())

    def num_samples(self, rate_hz: int) -> int | None:
        """Return the number of samples in the part; None where it reaches to the end."""
        return int(self.duration_seconds * rate_hz) if self.duration_seconds else None


WHOLE = TimeWindow()
