"""Size, frames and duration of videos and audio, and thumbnails of videos."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import pytest
import torch
from PIL import Image

from darkroom.engine.media.audio_files import audio_frame
from darkroom.engine.media.facts import media_facts
from darkroom.engine.media.opened import BadMedia
from darkroom.engine.media.video_files import write_video, write_webm
from darkroom.worker.media.facts import is_media, with_media_facts
from darkroom.worker.outputs.convert import ConversionFailed
from tests.worker.shared_media_processes import confined_coding


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A red video of 9 frames, 8 a second, with a second of audio."""
    path = tmp_path_factory.mktemp("video") / "clip.mp4"
    frames = torch.zeros(9, 32, 48, 3)
    frames[..., 0] = 1.0
    write_video(path, frames, Fraction(8), {}, torch.zeros(1, 1, 16_000), 16_000)
    return path


def test_a_video_has_a_size_frames_and_a_duration(video: Path) -> None:
    facts = {"width": 48, "height": 32, "frames": 9, "fps": 8.0, "duration_seconds": 1.125}
    facts |= {"sample_rate": 16000, "channels": 2}
    assert media_facts(video) == facts
    clip, text = {"filename": "clip.mp4", "media_type": "video/mp4"}, {"text": "done"}
    assert with_media_facts([(clip, video), (text, None)]) == [{**clip, **facts}, text]


def test_audio_has_a_rate_and_channels_also_without_a_declared_duration(tmp_path: Path) -> None:
    for name in ("a.flac", "a.adts"):
        with av.open(str(tmp_path / name), "w") as container:
            stream = container.add_stream("flac" if name == "a.flac" else "aac", rate=16_000, layout="stereo")
            container.mux(stream.encode(audio_frame(torch.zeros(2, 16_000), 16_000, "stereo")))
            container.mux(stream.encode(None))
        facts = media_facts(tmp_path / name)
        assert (facts["sample_rate"], facts["channels"]) == (16_000, 2)
        assert facts["duration_seconds"] == pytest.approx(1.0, abs=0.2)


def test_frames_are_counted_where_the_container_does_not_say(tmp_path: Path) -> None:
    path = tmp_path / "clip.webm"
    write_webm(path, torch.rand(5, 32, 32, 3), "vp9", 5.0, 40, {})
    facts = media_facts(path)
    assert (facts["frames"], facts["duration_seconds"]) == (5, 1.0)


def test_files_of_other_kinds_and_damaged_ones_get_no_facts(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.mp4"
    damaged.write_bytes(b"\0\0\0\x18ftypisom" + bytes(40))
    with pytest.raises(BadMedia):
        media_facts(damaged)
    for media_type in ("video/mp4", "image/png"):
        assert with_media_facts([({"media_type": media_type}, damaged)]) == [{"media_type": media_type}]
    assert is_media("audio/flac") and not is_media(None)


def test_the_thumbnail_of_a_video_is_its_first_frame(video: Path, tmp_path: Path) -> None:
    target = tmp_path / "small.webp"
    made = confined_coding().make_video_thumbnail(video, target, 24)
    assert (made.width_px, made.height_px) == (24, 16)
    with Image.open(target) as small:
        red, green, blue = small.convert("RGB").getpixel((12, 8))  # type: ignore[misc]
    assert red > 200 and green < 60 and blue < 60
    with pytest.raises(ConversionFailed):
        confined_coding().make_video_thumbnail(target, tmp_path / "none.webp", 24)
