"""Video files to images and back, through PyAV.

`B` frames, `H W` pixels, `C` channels, `S` samples: images are float32 `[B, H, W, 3]`, 0..1, audio `[1, C, S]`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from typing import Any, Protocol

import torch

from darkroom.engine.media.audio_files import audio_frame, join_frames, layout_of
from darkroom.engine.media.frame_pixels import FramePixels
from darkroom.engine.media.limits import BYTES_PER_PIXEL, check_declared_audio, check_declared_frames, video_too_large
from darkroom.engine.media.opened import BadMedia, Source, opened_for_reading, opened_for_writing
from darkroom.engine.media.time_window import WHOLE, TimeWindow
from darkroom.engine.media.video_encoding import (
    ENCODERS,
    FFMPEG_CONTAINERS,
    H264,
    MP4,
    OPUS_RATE_HZ,
    WEBM,
    VideoEncoding,
    bit_depth_of,
    color_space_of,
)

KEEPS_TAGS = {"movflags": "use_metadata_tags"}  # MP4 drops tags with names of their own otherwise
WEBM_CODECS = {"vp9": ("libvpx-vp9", "yuv420p", {}), "av1": ("libsvtav1", "yuv420p10le", {"preset": "6"})}
AAC = "aac"
MP4_OF_H264 = VideoEncoding()


class Frames(Protocol):
    """Images [B, H, W, C] one after the other: a tensor, or what computes them as they are taken."""

    @property
    def shape(self) -> Sequence[int]: ...

    def __iter__(self) -> Iterator[torch.Tensor]: ...


@dataclass(frozen=True, slots=True)
class VideoContent:
    """Everything in a video: images [B, H, W, 3], audio [1, C, S] with its rate, or None, frames a second, tags."""

    images: torch.Tensor
    waveform: torch.Tensor | None
    sample_rate_hz: int
    frame_rate: Fraction
    tags: Mapping[str, str]


def read_video(
    source: Source,
    max_bytes: int = sys.maxsize,
    check_cancelled: Callable[[], None] = lambda: None,
    window: TimeWindow = WHOLE,
    indices: Sequence[int] | None = None,
) -> VideoContent:
    """Decode the first video stream and the first audio stream of a file, those parts of them in the window.

    With `indices`, which ascend, only the images at these are held, and audio is decoded for a range alone. Raises
    BadMedia for a damaged file and one without video, and when it would take more than `max_bytes` of memory.
    """
    with opened_for_reading(source) as container:
        content = _without_audio(container, max_bytes, check_cancelled, window, indices)
    if not _has_audio(indices):
        return content
    with opened_for_reading(source) as container:
        return _with_audio(content, container, max_bytes, check_cancelled, window)


def read_opened(
    container: Any, max_bytes: int = sys.maxsize, check_cancelled: Callable[[], None] = lambda: None
) -> VideoContent:
    """Decode the same of a container that PyAV has opened and that can be read twice."""
    content = _without_audio(container, max_bytes, check_cancelled, WHOLE)
    container.seek(0)
    return _with_audio(content, container, max_bytes, check_cancelled, WHOLE)


def _without_audio(
    container: Any,
    max_bytes: int,
    check_cancelled: Callable[[], None],
    window: TimeWindow,
    indices: Sequence[int] | None = None,
) -> VideoContent:
    stream = video_stream_of(container)
    num_frames = window.num_frames(float(stream.average_rate or 0), int(stream.frames or 0))
    check_declared_frames(stream, max_bytes, num_frames if indices is None else min(num_frames, len(indices)))
    for audio in container.streams.audio[:1] if window == WHOLE and _has_audio(indices) else ():
        check_declared_audio(container, audio, max_bytes)
    window.seek(container, stream)
    frames = window.video_frames(container.decode(stream), stream)
    if indices is not None:
        frames = _at(frames, indices, check_cancelled)
    images = _images(frames, stream, max_bytes, check_cancelled)
    return VideoContent(images, None, 0, Fraction(stream.average_rate or 1), dict(container.metadata))


def _has_audio(indices: Sequence[int] | None) -> bool:
    return indices is None or isinstance(indices, range)


def _at(frames: Iterator[Any], indices: Sequence[int], check_cancelled: Callable[[], None]) -> Iterator[Any]:
    """Yield the decoded frames at ascending indices, those that there are; what lies behind the last is not decoded."""
    kept = frozenset(indices)
    for index, frame in enumerate(islice(frames, max(kept, default=-1) + 1)):
        check_cancelled()
        if index in kept:
            yield frame


def _images(frames: Iterable[Any], stream: Any, max_bytes: int, check_cancelled: Callable[[], None]) -> torch.Tensor:
    convert = FramePixels()
    decoded: list[torch.Tensor] = []
    num_pixels = 0
    for frame in frames:
        check_cancelled()
        num_pixels += frame.width * frame.height
        if num_pixels * BYTES_PER_PIXEL > max_bytes:
            raise video_too_large(f"at least {num_pixels} pixels in {len(decoded) + 1} frames", max_bytes)
        decoded.append(convert.convert(frame)[0])  # [H, W, 3], float32, 0..1
    height, width = decoded[0].shape[:2] if decoded else (stream.height, stream.width)
    images = torch.empty(len(decoded), height, width, 3)
    for index, image in enumerate(decoded):
        if image.shape != images.shape[1:]:
            found = f"{image.shape[1]}x{image.shape[0]}"
            raise BadMedia(f"frame {index}: another size; got {found} px, expected {width}x{height} px")
        images[index] = image
    return images


def _with_audio(
    content: VideoContent,
    container: Any,
    max_bytes: int,
    check_cancelled: Callable[[], None],
    window: TimeWindow,
) -> VideoContent:
    stream = next(iter(container.streams.audio), None)
    if stream is None:
        return content
    left_bytes = max(0, max_bytes - content.images.nbytes)
    rate_hz = int(stream.sample_rate or 1)
    window.seek(container, video_stream_of(container))
    num_before, frames = window.audio_frames(container.decode(stream), rate_hz)
    waveform = join_frames(frames, left_bytes, check_cancelled)
    if waveform is None:
        return content
    part = waveform[:, num_before:][:, : window.num_samples(rate_hz)]
    return replace(content, waveform=part[None], sample_rate_hz=rate_hz)


def video_stream_of(container: Any) -> Any:
    """Return the first video stream. Raises BadMedia when there is none."""
    for stream in container.streams.video:
        return stream
    raise BadMedia("no video stream; expected a file with images")


def container_format(source: Source) -> str:
    """Return FFmpeg's names of the container, separated by commas (`mov,mp4,m4a,3gp,3g2,mj2`)."""
    with opened_for_reading(source) as container:
        return str(container.format.name)


def dimensions_px(source: Source) -> tuple[int, int]:
    """Return width and height as the container declares them. Decodes nothing."""
    with opened_for_reading(source) as container:
        stream = video_stream_of(container)
        return int(stream.width), int(stream.height)


def duration_seconds(source: Source) -> float:
    """Return the duration as the container declares it, else by counting frames.

    Raises BadMedia when the file has neither a duration nor a frame rate.
    """
    with opened_for_reading(source) as container:
        if container.duration is not None:
            return float(Fraction(container.duration, 1_000_000))  # FFmpeg's AV_TIME_BASE
        stream = video_stream_of(container)
        if stream.average_rate:
            num_frames = stream.frames or sum(1 for _ in container.decode(stream))
            if num_frames:
                return float(num_frames / stream.average_rate)
    raise BadMedia("no duration; expected a container or a video stream that declares one")


def num_frames(source: Source) -> int:
    """Return the number of frames as the container declares it, 0 where it does not, or declares more than bytes."""
    with opened_for_reading(source) as container:
        declared = int(video_stream_of(container).frames or 0)
        return 0 if 0 < container.size < declared else declared


def frame_rate(source: Source) -> Fraction:
    """Return the mean frames a second, 1 where they are not known."""
    with opened_for_reading(source) as container:
        return Fraction(video_stream_of(container).average_rate or 1)


def regular_frame_rate(source: Source) -> Fraction | None:
    """Return the frames a second where frame n is at n / rate seconds, as finely as a time window needs; else None."""
    with opened_for_reading(source) as container:
        stream = video_stream_of(container)
        rate = stream.average_rate
        if not rate or stream.start_time or rate != stream.base_rate or rate * stream.time_base * 2 > 1:
            return None
        return Fraction(rate)


def codec_name(source: Source) -> str | None:
    """Return the codec of the first video stream, None without one."""
    with opened_for_reading(source) as container:
        return next((str(stream.codec.name) for stream in container.streams.video), None)


def copy_streams(source: Source, target: Source, tags: Mapping[str, str], to_format: str | None = None) -> None:
    """Write the streams of a file into another container without encoding them again.

    The file's own tags stay where `tags` has none of the name. `to_format` is needed for a buffer, which has no suffix.
    Raises BadMedia when the container cannot hold the streams.
    """
    options = {} if to_format is None else {"format": to_format.split(",")[0]}
    with opened_for_reading(source) as old, opened_for_writing(target, options=KEEPS_TAGS, **options) as new:
        new.metadata.update({key: value for key, value in old.metadata.items() if key not in tags} | dict(tags))
        kept = {
            stream.index: new.add_stream_from_template(stream, opaque=True)
            for stream in old.streams
            if stream.type in ("video", "audio", "subtitle")
        }
        for packet in old.demux():
            if packet.stream.index in kept and packet.dts is not None:  # the empty ones at the end have none
                packet.stream = kept[packet.stream.index]
                new.mux(packet)


def write_video(
    target: Source,
    images: Frames,
    frame_rate: Fraction,
    tags: Mapping[str, str],
    waveform: torch.Tensor | None = None,
    sample_rate_hz: int = 0,
    encoding: VideoEncoding = MP4_OF_H264,
) -> None:
    """Encode images [B, H, W, C] and audio [B, C, S], cut to their duration: as AAC, in WebM as Opus.

    Raises BadMedia for sides that are odd where H.264 stores colors in pairs of pixels, ValueError for audio with more
    than two channels.
    """
    height, width = images.shape[1:3]
    if encoding.codec == H264 and (height % 2 or width % 2):
        raise BadMedia(f"video: a side is odd; got {width}x{height} px, expected even sides")
    layout = None if waveform is None else layout_of(waveform)
    rate = Fraction(round(frame_rate * 1000), 1000)
    options = KEEPS_TAGS if encoding.container == MP4 else {}
    container_format = FFMPEG_CONTAINERS[encoding.container]
    with opened_for_writing(target, options=options, format=container_format) as container:
        container.metadata.update(tags)
        video = container.add_stream(ENCODERS[encoding.codec], rate=rate)
        video.width, video.height, video.pix_fmt = width, height, encoding.pixel_format
        video.options = encoding.encoder_options()
        for name, value in encoding.color_properties().items():
            setattr(video.codec_context, name, value)
        is_opus = encoding.container == WEBM
        audio_rate_hz = OPUS_RATE_HZ if is_opus else sample_rate_hz
        audio = None if waveform is None else container.add_stream("libopus" if is_opus else AAC, rate=audio_rate_hz)
        _encode_colours(container, video, images, encoding)
        if waveform is not None and audio is not None and layout is not None:
            wanted = math.ceil(Fraction(sample_rate_hz) / rate * images.shape[0])
            one_after_another = torch.cat(list(waveform[:, :, :wanted]), dim=-1)  # [C, B * S]
            frame = audio_frame(one_after_another, sample_rate_hz, layout)
            for resampled in _resampled(frame, layout, audio_rate_hz) if is_opus else (frame,):
                container.mux(audio.encode(resampled))
            container.mux(audio.encode(None))


def _resampled(frame: Any, layout: str, rate_hz: int) -> Iterator[Any]:
    from av.audio.resampler import AudioResampler

    resampler = AudioResampler(format="fltp", layout=layout, rate=rate_hz)
    yield from resampler.resample(frame)
    yield from resampler.resample(None)


def _encode_colours(container: Any, stream: Any, images: Frames, encoding: VideoEncoding) -> None:
    """Encode images with the matrix and the bits of an encoding; 16 bits keep their precision until there are 10."""
    import av

    is_deep = encoding.bit_depth >= 10
    levels, kind, name = (65535, torch.uint16, "rgb48le") if is_deep else (255, torch.uint8, "rgb24")
    for image in images:
        pixels = (image[..., :3].float() * levels).clamp(0, levels).to("cpu", kind)  # [H, W, 3]
        frame = av.VideoFrame.from_ndarray(pixels.contiguous().numpy(), format=name)
        converted = frame.reformat(format=encoding.pixel_format, dst_colorspace=encoding.matrix)
        for key, value in encoding.color_properties().items():
            setattr(converted, key, value)
        container.mux(stream.encode(converted))
    container.mux(stream.encode(None))


def bit_depth(source: Source) -> int:
    """Return the bits of the channels of a file's video."""
    with opened_for_reading(source) as container:
        return bit_depth_of(next(iter(container.streams.video), None))


def color_space(source: Source) -> str | None:
    """Return the name of the colours of a file's video, None where the file tells none that is known."""
    with opened_for_reading(source) as container:
        return color_space_of(next(iter(container.streams.video), None))


def write_webm(
    target: Source, images: Frames, codec: str, frames_per_second: float, crf: float, tags: Mapping[str, str]
) -> None:
    """Encode images [B, H, W, C] as VP9 or AV1 of constant quality. `crf` is 0 (best) to 63."""
    encoder, pixel_format, options = WEBM_CODECS[codec]
    with opened_for_writing(target) as container:
        container.metadata.update(tags)
        stream = container.add_stream(encoder, rate=Fraction(round(frames_per_second * 1000), 1000))
        stream.width, stream.height, stream.pix_fmt = images.shape[2], images.shape[1], pixel_format
        stream.bit_rate = 0
        stream.options = {"crf": str(crf), **options}
        _encode_images(container, stream, images)


def _encode_images(container: Any, stream: Any, images: Frames) -> None:
    import av

    for image in images:
        pixels = (image[..., :3] * 255).clamp(0, 255).to("cpu", torch.uint8)  # [H, W, 3]
        frame = av.VideoFrame.from_ndarray(pixels.contiguous().numpy(), format="rgb24")
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))
