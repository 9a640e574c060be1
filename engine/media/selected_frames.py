"""Frames of a video by their indices, decoded when a node asks for them.

`B` frames, `H W` pixels, `C` channels, `S` samples: images are float32 `[B, H, W, 3]`, audio float32 `[B, C, S]`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from darkroom.engine.media.video import (
    Audio,
    VideoCodec,
    VideoComponents,
    VideoContainer,
    VideoFromComponents,
    VideoFromFile,
    VideoInput,
)


class SelectedFrames(VideoInput):
    """The frames of a video at some indices, at its frame rate; those of a range have the audio of that time."""

    def __init__(self, video: VideoInput, indices: range | Sequence[int]) -> None:
        self._video = video
        self._indices = indices

    def get_components(self) -> VideoComponents:
        parts = self._video.components_at(self._indices)
        return replace(parts, audio=_audio_of(parts, self._indices)) if isinstance(self._indices, range) else parts

    def get_dimensions(self) -> tuple[int, int]:
        return self._video.get_dimensions()

    def get_frame_rate(self) -> Fraction:
        return self._video.get_frame_rate()

    def get_bit_depth(self) -> int:
        return self._video.get_bit_depth() if isinstance(self._indices, range) else super().get_bit_depth()

    def save_to(
        self,
        path: str | io.BytesIO,
        format: str = VideoContainer.AUTO,
        codec: str = VideoCodec.AUTO,
        metadata: Mapping[str, object] | None = None,
        bit_depth: int | None = None,
        crf: float | None = None,
        color_space: str | None = None,
    ) -> None:
        whole = VideoFromComponents(self.get_components(), self.get_bit_depth())
        whole.save_to(path, format, codec, metadata, bit_depth, crf, color_space)


def selected(video: VideoInput, indices: range | Sequence[int]) -> VideoInput:
    """Return a video of the frames at ascending indices: a part of a file by time where they are at known times."""
    if isinstance(video, VideoFromFile) and isinstance(indices, range):
        part = video.part_at(indices)
        if part is not None:
            return part
    return SelectedFrames(video, indices)


def _audio_of(parts: VideoComponents, frames: range) -> Audio | None:
    """Return the audio that plays during a range of frames; None without any."""
    if parts.audio is None:
        return None
    per_frame = parts.audio["sample_rate"] / Fraction(parts.frame_rate)
    start, end = round(frames.start * per_frame), round(frames.stop * per_frame)
    return {**parts.audio, "waveform": parts.audio["waveform"][..., start:end]}
