"""VIDEO: a video in a file or as images, with the members that ComfyUI's custom nodes use.

`B` frames, `H W` pixels, `C` channels, `S` samples: images are float32 `[B, H, W, 3]`, 0..1, audio float32 `[B, C,
S]` with their sample rate. Nothing is decoded before a node asks for it.
"""

from __future__ import annotations

import io
import json
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any, TypedDict

import torch

from darkroom.engine.cancel import check_cancelled
from darkroom.engine.media import video_files
from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.media.opened import Source
from darkroom.engine.media.time_window import TimeWindow
from darkroom.engine.media.video_encoding import AUTO, FFMPEG_CONTAINERS, SRGB, encoding_of


class Audio(TypedDict):
    """AUDIO: a batch of waveforms [B, C, S], float32 -1..1, and their sample rate in Hz."""

    waveform: torch.Tensor
    sample_rate: int


class _NodeChoice(str, Enum):  # noqa: UP042 - its values are formatted as ComfyUI's are
    @classmethod
    def as_input(cls) -> list[str]:
        """Return the values that a node offers."""
        return [member.value for member in cls]


class VideoCodec(_NodeChoice):
    AUTO = "auto"
    H264 = "h264"
    AV1 = "av1"


class VideoContainer(_NodeChoice):
    AUTO = "auto"
    MP4 = "mp4"
    MKV = "mkv"
    WEBM = "webm"

    @classmethod
    def get_extension(cls, value: str) -> str:
        """Return the suffix of a file in that container, without its dot. Raises ValueError for an unknown one."""
        return cls.MP4.value if cls(value) is cls.AUTO else str(cls(value).value)


@dataclass
class VideoComponents:
    """The parts of a video: images [B, H, W, 3], frames a second, audio, and the tags of its file."""

    images: torch.Tensor
    frame_rate: Fraction
    audio: Audio | None = None
    metadata: dict[str, Any] | None = None


class VideoInput(ABC):
    """The interface of a video. Node packs derive classes of their own from it."""

    @abstractmethod
    def get_components(self) -> VideoComponents:
        """Return images, audio and frame rate."""

    @abstractmethod
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
        """Write the video to a file or buffer. Values of `metadata` are stored as JSON, texts perhaps as they are.

        `crf` is the encoder's quality, `color_space` one of `sRGB`, `HDR`, `HDR PQ`; None keeps what the video has.
        """

    def get_stream_source(self) -> str | io.BytesIO:
        """Return a path or a buffer that PyAV opens."""
        buffer = io.BytesIO()
        self.save_to(buffer)
        buffer.seek(0)
        return buffer

    def get_dimensions(self) -> tuple[int, int]:
        """Return width and height in pixels."""
        height, width = self.get_components().images.shape[1:3]
        return width, height

    def get_duration(self) -> float:
        """Return the duration in seconds."""
        components = self.get_components()
        return float(components.images.shape[0] / components.frame_rate)

    def get_frame_count(self) -> int:
        """Return the number of frames."""
        return int(self.get_components().images.shape[0])

    def get_frame_rate(self) -> Fraction:
        """Return the frames a second."""
        return Fraction(self.get_components().frame_rate)

    def components_at(self, indices: Sequence[int]) -> VideoComponents:
        """Return the images at ascending indices, those that there are; for a range with the whole audio."""
        parts = self.get_components()
        num_frames = parts.images.shape[0]
        images = parts.images[[index for index in indices if index < num_frames]]
        return replace(parts, images=images, audio=parts.audio if isinstance(indices, range) else None)

    def get_container_format(self) -> str:
        """Return FFmpeg's name of the container, or several separated by commas."""
        return video_files.container_format(self.get_stream_source())

    def as_trimmed(
        self, start_time: float = 0.0, duration: float = 0.0, strict_duration: bool = True
    ) -> VideoInput | None:
        """Return the part from `start_time` seconds on; a negative one counts from the end.

        A `duration` of 0 reaches to the end. None where nothing is left, or less than `duration` in images in memory.
        """
        whole = self.get_duration()
        start = max(whole + start_time, 0.0) if start_time < 0 else start_time
        if start >= whole or whole < start_time + duration:
            return None
        return VideoFromComponents(_part_of(self.get_components(), TimeWindow(start, duration)), self.get_bit_depth())

    def get_bit_depth(self) -> int:
        """Return the bits of each channel that the video has, or is encoded with."""
        return 8

    def get_color_space(self) -> str:
        """Return `sRGB`, `HDR` or `HDR PQ`."""
        return SRGB


class VideoFromFile(VideoInput):
    """A video in a file or buffer, or the part from `start_time` seconds on (negative: from the end).

    A `duration` of 0 reaches to the end. `free_bytes` returns the memory that may be taken to decode it.
    """

    def __init__(
        self,
        file: str | Path | io.BytesIO,
        free_bytes: Callable[[], int] = lambda: sys.maxsize,
        *,
        start_time: float = 0.0,
        duration: float = 0.0,
    ) -> None:
        self._file: Source = file
        self._free_bytes = free_bytes
        self._start_time = start_time
        self._duration = duration

    def get_stream_source(self) -> str | io.BytesIO:
        if isinstance(self._file, io.BytesIO):
            self._file.seek(0)
            return self._file
        return str(self._file)

    def get_dimensions(self) -> tuple[int, int]:
        return video_files.dimensions_px(self._file)

    def get_duration(self) -> float:
        whole, start = video_files.duration_seconds(self._file), self._start_time
        left = min(whole, -start) if start < 0 else whole - start
        return min(self._duration, left) if self._duration else left

    @property
    def _is_whole(self) -> bool:
        return not self._start_time and not self._duration

    def get_frame_count(self) -> int:
        """Return the number of frames: what the file declares, of a part by its time, else by decoding them."""
        declared = video_files.num_frames(self._file)
        if declared and not self._is_whole:
            declared = min(declared, round(self.get_duration() * self.get_frame_rate()))
        return declared or super().get_frame_count()

    def get_frame_rate(self) -> Fraction:
        return video_files.frame_rate(self._file)

    def part_at(self, frames: range) -> VideoInput | None:
        """Return the part of a range of frames, to be decoded alone; None where their times are not known."""
        rate = video_files.regular_frame_rate(self._file)
        if rate is None or not frames:
            return None
        return self.as_trimmed(float(frames.start / rate), float(len(frames) / rate), strict_duration=False)

    def components_at(self, indices: Sequence[int]) -> VideoComponents:
        """Return the images at ascending indices, those that there are; for a range with the whole audio.

        No other image is held.
        """
        window = TimeWindow(*self.get_active_trim_window())
        return _components_of(video_files.read_video(self._file, self._free_bytes(), check_cancelled, window, indices))

    def get_container_format(self) -> str:
        return video_files.container_format(self._file)

    def get_active_trim_window(self) -> tuple[float, float]:
        """Return the start of this part in the file and its duration, in seconds; 0 reaches to the end."""
        start = self._start_time
        return max(video_files.duration_seconds(self._file) + start, 0.0) if start < 0 else start, self._duration

    def as_trimmed(
        self, start_time: float = 0.0, duration: float = 0.0, strict_duration: bool = True
    ) -> VideoInput | None:
        """Return the part from `start_time` seconds on. None where nothing is left, or less than a strict duration."""
        part = VideoFromFile(self._file, self._free_bytes, start_time=start_time + self._start_time, duration=duration)
        found = part.get_duration()
        return None if found <= 0 or (strict_duration and found < duration) else part

    def get_bit_depth(self) -> int:
        return video_files.bit_depth(self._file)

    def get_color_space(self) -> str:
        return video_files.color_space(self._file) or SRGB

    def get_components(self) -> VideoComponents:
        window = TimeWindow(*self.get_active_trim_window())
        return _components_of(video_files.read_video(self._file, self._free_bytes(), check_cancelled, window))

    def get_components_internal(self, container: Any) -> VideoComponents:
        """Return images, audio and frame rate of a container that a pack has opened with PyAV."""
        return _components_of(video_files.read_opened(container, self._free_bytes(), check_cancelled))

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
        """Copy the streams of a whole file where all that is asked for is so already, else encode the video again.

        Raises ValueError for colours that the file does not have: none are converted.
        """
        found, own = video_files.container_format(self._file), video_files.color_space(self._file)
        if own is not None and color_space is not None and own != color_space:
            raise ValueError(f"color_space: the video has other colours; got {color_space}, expected auto or {own}")
        wanted = format.value if isinstance(format, Enum) else format
        is_container = wanted == AUTO or FFMPEG_CONTAINERS.get(wanted, wanted) in found.split(",")
        is_same = (
            self._is_whole
            and crf is None
            and color_space is None
            and (bit_depth is None or bit_depth == self.get_bit_depth())
        )
        if is_same and is_container and codec in (VideoCodec.AUTO, video_files.codec_name(self._file) or codec):
            name = FFMPEG_CONTAINERS.get(wanted, found)
            video_files.copy_streams(self._file, path, _texts(metadata), name if _is_buffer(path) else None)
            return
        depth = self.get_bit_depth() if bit_depth is None else bit_depth
        whole = VideoFromComponents(self.get_components())
        whole.save_to(path, format, codec, metadata, depth, crf, color_space or own)


class VideoFromComponents(VideoInput):
    """A video as images and audio in memory. `bit_depth` is what it is encoded with."""

    def __init__(self, components: VideoComponents, bit_depth: int = 8) -> None:
        self._components = components
        self._bit_depth = bit_depth

    def get_bit_depth(self) -> int:
        return self._bit_depth

    def get_components(self) -> VideoComponents:
        parts = self._components
        return VideoComponents(parts.images, parts.frame_rate, parts.audio)

    def _frames(self) -> video_files.Frames:
        return self._components.images

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
        """Encode the video: as MP4 of H.264 and AAC where nothing else is asked for.

        Values of `metadata` are stored as JSON, texts too, as in ComfyUI. Raises ValueError for an unknown container,
        codec or colours, and for WebM of another codec than AV1.
        """
        depth = self._bit_depth if bit_depth is None else bit_depth
        names = (item.value if isinstance(item, Enum) else item for item in (format, codec))
        encoding = encoding_of(*names, crf=crf, bit_depth=depth, color_space=color_space)
        parts = self._components
        video_files.write_video(
            path,
            self._frames(),
            Fraction(parts.frame_rate),
            {key: json.dumps(value) for key, value in (metadata or {}).items()},
            parts.audio["waveform"] if parts.audio else None,
            int(parts.audio["sample_rate"]) if parts.audio else 0,
            encoding,
        )


class VideoFromFrames(VideoFromComponents):
    """A video whose images are decoded while it is written; `get_components` decodes them all."""

    def __init__(
        self, frames: FrameStream, frame_rate: Fraction, audio: Audio | None = None, bit_depth: int = 8
    ) -> None:
        super().__init__(VideoComponents(torch.empty(0, *frames.shape[1:]), frame_rate, audio), bit_depth)
        self.frames = frames

    def get_components(self) -> VideoComponents:
        parts = self._components
        return VideoComponents(self.frames.whole(), parts.frame_rate, parts.audio)

    def get_dimensions(self) -> tuple[int, int]:
        _, height, width, _ = self.frames.shape
        return width, height

    def get_duration(self) -> float:
        return float(len(self.frames) / self._components.frame_rate)

    def _frames(self) -> FrameStream:
        return self.frames


def _part_of(parts: VideoComponents, window: TimeWindow) -> VideoComponents:
    """Return the images whose time is in a window, and the audio of that time."""
    rate = Fraction(parts.frame_rate)
    end = parts.images.shape[0] if not window.duration_seconds else _first_frame(window.end_seconds, rate)
    images = parts.images[_first_frame(window.start_seconds, rate) : end]
    if parts.audio is None:
        return replace(parts, images=images)
    rate_hz = int(parts.audio["sample_rate"])
    waveform = parts.audio["waveform"][..., int(window.start_seconds * rate_hz) :]
    audio: Audio = {"waveform": waveform[..., : window.num_samples(rate_hz)], "sample_rate": rate_hz}
    return replace(parts, images=images, audio=audio)


def _first_frame(seconds: float, rate: Fraction) -> int:
    """Return the index of the first frame at that time or later."""
    return math.ceil(round(seconds * float(rate), 6))  # 0.1 s * 30 may come out above 3


def _components_of(content: video_files.VideoContent) -> VideoComponents:
    audio: Audio | None = None
    if content.waveform is not None:
        audio = {"waveform": content.waveform, "sample_rate": content.sample_rate_hz}
    return VideoComponents(content.images, content.frame_rate, audio, dict(content.tags))


def _is_buffer(path: object) -> bool:
    return isinstance(path, io.BytesIO)


def _texts(metadata: Mapping[str, object] | None) -> dict[str, str]:
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in (metadata or {}).items()}
