"""VIDEO: images, audio and tags through files, streams that are copied, and the members that packs use."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest
import torch

from darkroom.engine.media.limits import BYTES_PER_PIXEL
from darkroom.engine.media.opened import BadMedia
from darkroom.engine.media.video import (
    Audio,
    VideoCodec,
    VideoComponents,
    VideoContainer,
    VideoFromComponents,
    VideoFromFile,
    VideoInput,
)
from darkroom.engine.media.video_files import write_video, write_webm

WIDTH, HEIGHT = 64, 48


def images(num_frames: int = 8) -> torch.Tensor:
    """Return a ramp that gets brighter with each frame, [B, H, W, 3]."""
    ramp = torch.linspace(0, 0.5, WIDTH).expand(HEIGHT, WIDTH)
    return torch.stack([(ramp + index / num_frames / 2)[..., None].expand(-1, -1, 3) for index in range(num_frames)])


def tone(seconds: float, rate_hz: int = 44100) -> Audio:
    time = torch.arange(int(rate_hz * seconds)) / rate_hz * 2 * math.pi
    return {"waveform": torch.sin(time * 440)[None, None].repeat(1, 2, 1) * 0.5, "sample_rate": rate_hz}


def made(audio: Audio | None = None, num_frames: int = 8) -> VideoFromComponents:
    return VideoFromComponents(VideoComponents(images(num_frames), Fraction(8), audio))


@pytest.fixture
def mp4(tmp_path: Path) -> Path:
    path = tmp_path / "made.mp4"
    made(tone(1.0)).save_to(str(path), metadata={"prompt": {"1": {}}, "note": "old"})
    return path


def tags_of(path: Path | io.BytesIO) -> dict[str, str]:
    with av.open(path if isinstance(path, io.BytesIO) else str(path)) as container:
        return dict(container.metadata)


def test_a_saved_video_has_the_images_the_audio_and_the_tags(mp4: Path) -> None:
    parts = VideoFromFile(mp4).get_components()
    assert parts.images.shape == (8, HEIGHT, WIDTH, 3) and parts.images.dtype == torch.float32
    assert (parts.images - images()).abs().mean() < 0.02
    assert parts.frame_rate == 8
    assert parts.audio is not None and parts.audio["sample_rate"] == 44100
    assert parts.audio["waveform"].shape[:2] == (1, 2) and parts.audio["waveform"].dtype == torch.float32
    middle = parts.audio["waveform"][0, :, 10_000:30_000]
    assert middle.square().mean().sqrt() == pytest.approx(0.5 / math.sqrt(2), abs=0.02)
    assert tags_of(mp4)["prompt"] == '{"1": {}}' and tags_of(mp4)["note"] == '"old"'


def test_audio_ends_with_the_images(tmp_path: Path) -> None:
    made(tone(5.0)).save_to(str(tmp_path / "a.mp4"))
    parts = VideoFromFile(tmp_path / "a.mp4").get_components()
    assert parts.audio is not None and parts.audio["waveform"].shape[-1] == pytest.approx(44100, rel=0.05)


def test_a_container_that_a_pack_has_opened_has_the_same_parts(mp4: Path) -> None:
    video = VideoFromFile(mp4)
    with av.open(str(mp4)) as container:
        opened = video.get_components_internal(container)
    parts = video.get_components()
    assert torch.equal(opened.images, parts.images) and opened.frame_rate == parts.frame_rate
    assert opened.audio is not None and parts.audio is not None
    assert torch.equal(opened.audio["waveform"], parts.audio["waveform"])


def test_size_duration_and_container_are_read_without_decoding(mp4: Path) -> None:
    for source in (mp4, io.BytesIO(mp4.read_bytes())):
        video = VideoFromFile(source)
        assert video.get_dimensions() == (WIDTH, HEIGHT)
        assert video.get_duration() == pytest.approx(1.0, abs=0.05)
        assert "mp4" in video.get_container_format().split(",")


def test_components_answer_the_same_questions() -> None:
    video = made()
    assert video.get_dimensions() == (WIDTH, HEIGHT)
    assert video.get_duration() == 1.0
    assert "mp4" in video.get_container_format().split(",")
    with av.open(video.get_stream_source()) as container:
        assert container.streams.video[0].codec.name == "h264"


def test_a_file_of_the_right_format_keeps_its_streams_bit_for_bit(mp4: Path, tmp_path: Path) -> None:
    VideoFromFile(mp4).save_to(str(tmp_path / "copy.mp4"), VideoContainer.MP4, VideoCodec.H264, {"note": "new"})

    def packets(path: Path) -> list[bytes]:
        with av.open(str(path)) as container:
            return [bytes(packet) for packet in container.demux(video=0) if packet.dts is not None]

    assert packets(tmp_path / "copy.mp4") == packets(mp4)
    tags = tags_of(tmp_path / "copy.mp4")
    assert tags["note"] == "new" and json.loads(tags["prompt"]) == {"1": {}}


def test_a_video_is_copied_into_a_buffer_in_its_own_container(mp4: Path) -> None:
    buffer = io.BytesIO()
    VideoFromFile(mp4).save_to(buffer)
    assert VideoFromFile(buffer).get_components().images.shape[0] == 8


@pytest.mark.parametrize("codec", ["vp9", "av1"])
def test_a_webm_becomes_h264_when_that_is_asked_for(tmp_path: Path, codec: str) -> None:
    write_webm(tmp_path / "a.webm", images(), codec, 8.0, 20.0, {"prompt": "{}"})
    video = VideoFromFile(tmp_path / "a.webm")
    assert (video.get_components().images - images()).abs().mean() < 0.03
    video.save_to(str(tmp_path / "b.mp4"), VideoContainer.MP4, VideoCodec.H264, {"note": {"a": 1}})
    with av.open(str(tmp_path / "b.mp4")) as container:
        assert container.streams.video[0].codec.name == "h264"
        assert container.metadata["note"] == '{"a": 1}'


def test_a_video_too_large_for_the_memory_is_refused_before_it_is_decoded(mp4: Path) -> None:
    small = VideoFromFile(mp4, lambda: 3 * WIDTH * HEIGHT * BYTES_PER_PIXEL)
    with pytest.raises(BadMedia, match=r"too large for the free memory; got 24576 pixels in 8 frames of 64x48 px"):
        small.get_components()


def test_a_video_that_does_not_declare_its_frames_is_refused_while_it_is_decoded(tmp_path: Path) -> None:
    write_webm(tmp_path / "a.webm", images(), "vp9", 8.0, 40.0, {})
    small = VideoFromFile(tmp_path / "a.webm", lambda: 3 * WIDTH * HEIGHT * BYTES_PER_PIXEL)
    with pytest.raises(BadMedia, match=r"too large for the free memory; got at least 12288 pixels in 4 frames"):
        small.get_components()


def test_the_audio_of_a_video_counts_as_well(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", images(), Fraction(1), {}, torch.zeros(1, 2, 8 * 44100), 44100)
    small = VideoFromFile(tmp_path / "a.mp4", lambda: 8 * WIDTH * HEIGHT * BYTES_PER_PIXEL)
    with pytest.raises(BadMedia, match=r"audio: too long for the free memory; got .* 2 channels at 44100 Hz"):
        small.get_components()


def test_odd_sides_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    video = VideoFromComponents(VideoComponents(torch.zeros(1, 15, 16, 3), Fraction(8)))
    with pytest.raises(BadMedia, match="got 16x15 px, expected even sides"):
        video.save_to(str(tmp_path / "a.mp4"))
    assert not (tmp_path / "a.mp4").exists()


@pytest.mark.parametrize(("format", "codec", "reason"), [("avi", "auto", "got avi"), ("auto", "vp9", "got vp9")])
def test_another_container_or_codec_is_refused(tmp_path: Path, format: str, codec: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        made().save_to(str(tmp_path / "a.mp4"), format, codec)


def test_a_file_without_images_is_no_video(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.wav"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(torch.zeros(1, 200, dtype=torch.int16).numpy(), "s16", "stereo")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    with pytest.raises(BadMedia, match="no video stream"):
        VideoFromFile(tmp_path / "a.wav").get_dimensions()


def test_extensions_are_those_of_the_containers() -> None:
    assert VideoContainer.get_extension("auto") == VideoContainer.get_extension(VideoContainer.MP4) == "mp4"
    with pytest.raises(ValueError, match="avi"):
        VideoContainer.get_extension("avi")


class Blank(VideoInput):
    """A pack's own video: nothing but what must be there."""

    def get_components(self) -> VideoComponents:
        return VideoComponents(torch.zeros(4, 32, 16, 3), Fraction(2))

    def save_to(  # type: ignore[override]  # packs wrote it before there was more to ask for
        self,
        path: str | io.BytesIO,
        format: str = VideoContainer.AUTO,
        codec: str = VideoCodec.AUTO,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        VideoFromComponents(self.get_components()).save_to(path, format, codec, metadata)


def test_a_packs_own_video_gets_the_rest_from_its_parts() -> None:
    video = Blank()
    assert video.get_dimensions() == (16, 32) and video.get_duration() == 2.0
    assert VideoFromFile(io.BytesIO(_content(video.get_stream_source()))).get_dimensions() == (16, 32)


def _content(source: str | io.BytesIO) -> bytes:
    assert isinstance(source, io.BytesIO)
    return source.getvalue()


@pytest.mark.parametrize(
    ("start", "duration", "frames", "seconds"),
    [(0.25, 0.5, slice(2, 6), 0.5), (-0.25, 0.0, slice(6, 8), 0.25), (0.0, 0.375, slice(0, 3), 0.375)],
)
def test_a_part_has_the_frames_and_the_samples_of_its_time(
    mp4: Path, start: float, duration: float, frames: slice, seconds: float
) -> None:
    whole = VideoFromFile(mp4).get_components()
    for video in (VideoFromFile(mp4), made(tone(1.0))):
        part = video.as_trimmed(start, duration, strict_duration=False)
        assert part is not None and part.get_duration() == pytest.approx(seconds, abs=0.05)
        parts = part.get_components()
        assert (parts.images - whole.images[frames]).abs().max() < 0.03  # H.264 loses some
        assert parts.audio is not None
        assert parts.audio["waveform"].shape[-1] == pytest.approx(seconds * 44100, abs=2100)


def test_a_part_is_saved_alone(mp4: Path, tmp_path: Path) -> None:
    part = VideoFromFile(mp4).as_trimmed(0.5, 0.25)
    assert part is not None
    part.save_to(str(tmp_path / "part.mp4"))
    assert VideoFromFile(tmp_path / "part.mp4").get_components().images.shape[0] == 2


def test_a_part_of_a_part_counts_from_the_part(mp4: Path) -> None:
    part = VideoFromFile(mp4).as_trimmed(0.25, 0.5)
    assert part is not None
    inner = part.as_trimmed(0.25, 0.125)
    assert inner is not None
    images = VideoFromFile(mp4).get_components().images
    assert (inner.get_components().images - images[4:5]).abs().max() < 0.01


def test_a_part_that_is_not_there_is_none(mp4: Path) -> None:
    for video in (VideoFromFile(mp4), made()):
        assert video.as_trimmed(9.0, 0.0, strict_duration=False) is None
        assert video.as_trimmed(0.5, 9.0, strict_duration=True) is None


def test_a_short_part_of_a_long_video_needs_the_memory_of_the_part(mp4: Path) -> None:
    room = 7 * WIDTH * HEIGHT * 18
    with pytest.raises(BadMedia, match="too large"):
        VideoFromFile(mp4, lambda: room).get_components()
    assert len(VideoFromFile(mp4, lambda: room, start_time=0.25, duration=0.25).get_components().images) == 2
    assert len(VideoFromFile(mp4, lambda: room, start_time=0.75).get_components().images) == 2
