"""Videos are written in the container, codec, depth and colours that are asked for, and read back so."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest
import torch

from darkroom.engine.media.video import VideoComponents, VideoFromComponents, VideoFromFile
from darkroom.engine.media.video_encoding import VideoEncoding, encoding_of


def video(bit_depth: int = 8, *, is_audible: bool = False) -> VideoFromComponents:
    images = torch.linspace(0, 1, 4 * 32 * 48 * 3).reshape(4, 32, 48, 3)
    audio: Any = {"waveform": torch.zeros(1, 2, 22050), "sample_rate": 44100} if is_audible else None
    return VideoFromComponents(VideoComponents(images, Fraction(8), audio), bit_depth)


@pytest.mark.parametrize(
    ("container", "codec", "expected"),
    [
        ("auto", "auto", ("mp4", "h264")),
        ("mkv", "auto", ("mkv", "h264")),
        ("webm", "auto", ("webm", "av1")),
        ("mp4", "av1", ("mp4", "av1")),
    ],
)
def test_what_is_left_open_follows_from_the_container(container: str, codec: str, expected: tuple[str, str]) -> None:
    found = encoding_of(container, codec)
    assert (found.container, found.codec) == expected


def test_hdr_has_ten_bits() -> None:
    assert encoding_of("mp4", "h264", color_space="HDR").pixel_format == "yuv420p10le"
    assert encoding_of("mp4", "h264").pixel_format == "yuv420p"


def test_a_quality_of_0_is_lossless() -> None:
    assert VideoEncoding(codec="av1", crf=0).encoder_options() == {"svtav1-params": "lossless=1"}
    assert VideoEncoding(crf=0).encoder_options() == {"crf": "0"}
    assert VideoEncoding().encoder_options() == {}


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"container": "avi", "codec": "auto"}, "format: not supported; got avi, expected one of auto, mp4, mkv, webm"),
        ({"container": "mp4", "codec": "vp9"}, "codec: not supported; got vp9"),
        ({"container": "webm", "codec": "h264"}, "codec: WebM does not hold it; got h264, expected av1"),
        ({"container": "mp4", "codec": "auto", "color_space": "P3"}, "color_space: not supported; got P3"),
    ],
)
def test_others_are_refused(asked: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        encoding_of(**asked)


@pytest.mark.parametrize(("container", "codec"), [("mp4", "h264"), ("mkv", "h264"), ("webm", "av1"), ("mp4", "av1")])
def test_the_file_is_what_was_asked_for(tmp_path: Path, container: str, codec: str) -> None:
    path = tmp_path / f"a.{container}"
    video(is_audible=True).save_to(str(path), container, codec, {"prompt": {"1": 2}})
    with av.open(str(path)) as opened:
        assert {"mkv": "matroska"}.get(container, container) in opened.format.name.split(",")
        assert opened.streams.video[0].codec.canonical_name == codec
        audio = opened.streams.audio[0]
        expected = ("opus", 48000) if container == "webm" else ("aac", 44100)
        assert (audio.codec_context.codec.canonical_name, audio.rate) == expected
    assert VideoFromFile(path).get_components().images.shape == (4, 32, 48, 3)
    assert VideoFromFile(path).get_color_space() == "sRGB"


@pytest.mark.parametrize("space", ["HDR", "HDR PQ"])
def test_colours_and_depth_are_kept_when_a_file_is_encoded_again(tmp_path: Path, space: str) -> None:
    video().save_to(str(tmp_path / "a.mp4"), color_space=space)
    read = VideoFromFile(tmp_path / "a.mp4")
    assert (read.get_bit_depth(), read.get_color_space()) == (10, space)
    read.save_to(str(tmp_path / "b.mkv"), "mkv")
    again = VideoFromFile(tmp_path / "b.mkv")
    assert (again.get_bit_depth(), again.get_color_space()) == (10, space)
    with pytest.raises(ValueError, match=f"got sRGB, expected auto or {space}"):
        read.save_to(str(tmp_path / "c.mp4"), color_space="sRGB")


def test_the_depth_a_video_was_made_with_is_what_it_is_encoded_with(tmp_path: Path) -> None:
    assert video(10).get_bit_depth() == 10
    video(10).save_to(str(tmp_path / "a.mp4"))
    assert VideoFromFile(tmp_path / "a.mp4").get_bit_depth() == 10


def test_a_lower_quality_is_a_smaller_file(tmp_path: Path) -> None:
    images = torch.rand(4, 64, 64, 3, generator=torch.Generator().manual_seed(0))
    noise = VideoFromComponents(VideoComponents(images, Fraction(8)))
    for crf in (10.0, 45.0):
        noise.save_to(str(tmp_path / f"{crf}.mp4"), crf=crf)
    assert (tmp_path / "45.0.mp4").stat().st_size < (tmp_path / "10.0.mp4").stat().st_size / 2
