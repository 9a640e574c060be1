"""Files whose faults show before anything is computed with them."""

from __future__ import annotations

import io
import wave
from fractions import Fraction
from pathlib import Path

import av
import pytest
import torch

from darkroom.engine.media.faults import check_audio, check_video
from darkroom.engine.media.opened import BadMedia
from darkroom.engine.media.video_files import write_video, write_webm

IMAGES = torch.rand(8, 32, 32, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    plain = io.BytesIO()
    write_video(plain, IMAGES, Fraction(8), {}, torch.zeros(1, 2, 44100), 44100)
    (folder / "plain.mp4").write_bytes(plain.getvalue())
    with (
        av.open(io.BytesIO(plain.getvalue()), "r") as source,
        av.open(str(folder / "early.mp4"), "w", options={"movflags": "+faststart"}) as target,
    ):
        kept = {stream.index: target.add_stream_from_template(stream) for stream in source.streams}
        for packet in source.demux():
            if packet.dts is not None:
                packet.stream = kept[packet.stream.index]
                target.mux(packet)
    whole = (folder / "early.mp4").read_bytes()  # its table comes first, so that a part of it can be opened
    (folder / "cut.mp4").write_bytes(whole[: len(whole) * 2 // 3])
    (folder / "cut_late.mp4").write_bytes(plain.getvalue()[: len(whole) * 2 // 3])
    write_webm(folder / "silent.webm", IMAGES, "vp9", 8.0, 40.0, {})
    (folder / "cut.webm").write_bytes((folder / "silent.webm").read_bytes()[:-200])
    with av.open(str(folder / "empty.mkv"), "w") as container:
        stream = container.add_stream("ffv1", rate=8)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "bgr0"
        container.start_encoding()
    with wave.open(str(folder / "empty.wav"), "wb") as audio:
        audio.setnchannels(2)
        audio.setsampwidth(2)
        audio.setframerate(44100)
    (folder / "text.mp4").write_text("this is text and no video")
    (folder / "picture.mp4").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    return folder


@pytest.mark.parametrize("name", ["plain.mp4", "early.mp4", "silent.webm", "cut.webm"])
def test_a_video_that_can_be_read_has_no_fault(folder: Path, name: str) -> None:
    """FFmpeg gives the frames that are left of a WebM without its end, as ComfyUI reads it."""
    check_video(folder / name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cut.mp4", r"the end of the file is missing; got \d+ bytes, expected at least \d+"),
        ("cut_late.mp4", "FFmpeg refuses it: Invalid data found"),
        ("empty.mkv", "the file ends before its first frame"),
        ("empty.wav", "no video stream"),
        ("text.mp4", "FFmpeg refuses it: Invalid data found"),
        ("picture.mp4", "no video and no audio"),
    ],
)
def test_a_fault_of_a_video_is_named(folder: Path, name: str, words: str) -> None:
    with pytest.raises(BadMedia, match=words):
        check_video(folder / name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("silent.webm", "no audio stream"),
        ("empty.wav", "an audio stream without samples"),
        ("cut.mp4", "the end of the file is missing"),
    ],
)
def test_a_fault_of_audio_is_named(folder: Path, name: str, words: str) -> None:
    with pytest.raises(BadMedia, match=words):
        check_audio(folder / name)


def test_audio_in_a_video_has_no_fault(folder: Path) -> None:
    check_audio(folder / "plain.mp4")
