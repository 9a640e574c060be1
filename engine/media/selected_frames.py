"""A part of a video, decoded when a node asks for it.

`B` frames, `H W` pixels, `C` channels, `S` samples: images are float32 `[B, H, W, 3]`, audio float32 `[B, C, S]`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from darkroom.engine.media.opened import opened_for_reading
from darkroom.engine.media.video import (
    Audio,
    VideoCodec,
    VideoComponents,
    VideoContainer,
    VideoFromComponents,
    VideoFromFile,
    VideoInput,
)
from darkroom.engine.media.video_files import video_stream_of


class SelectedFrames(VideoInput):
    """The frames of a video at some indices, at its frame rate; those of a range have the audio of that time."""

    def __init__(self, video: VideoInput, indices: range | Sequence[int]) -> None:
        self._video = video
        self._indices = indices

    def get_components(self) -> VideoComponents:
        parts = self._video.get_components()
        num_frames = parts.images.shape[0]
        kept = [index for index in self._indices if index < num_frames]  # a file may declare more than it has
        audio = _audio_of(parts, self._indices) if isinstance(self._indices, range) else None
        return replace(parts, images=parts.images[kept], audio=audio)

    def get_dimensions(self) -> tuple[int, int]:
        return self._video.get_dimensions()

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
        whole = VideoFromComponents(self.get_components())
        whole.save_to(path, format, codec, metadata, bit_depth, crf, color_space)


def _audio_of(parts: VideoComponents, frames: range) -> Audio | None:
    """Return the audio that plays during a range of frames; None without any."""
    if parts.audio is None:
        return None
    per_frame = parts.audio["sample_rate"] / Fraction(parts.frame_rate)
    start, end = round(frames.start * per_frame), round(frames.stop * per_frame)
    return {**parts.audio, "waveform": parts.audio["waveform"][..., start:end]}


def num_frames_of(video: VideoInput) -> int:
    """Return the number of a video's frames: what its file declares, else by decoding it.

    Raises BadMedia for a file without video.
    """
    if isinstance(video, VideoFromFile):
        with opened_for_reading(video.get_stream_source()) as container:
            stream = video_stream_of(container)
            if stream.frames > 0:
                return int(stream.frames)
    return int(video.get_components().images.shape[0])
