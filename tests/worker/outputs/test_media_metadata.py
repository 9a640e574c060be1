"""Real videos, audio and drawings: known by their first bytes, and delivered without what says how they were made."""

from __future__ import annotations

import hashlib
import struct
import tempfile
from contextlib import suppress
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from darkroom.worker.media.kinds import HEAD_BYTES
from darkroom.worker.outputs.audio_tags import TAGGED_TYPES, BrokenAudio, remove_tags
from darkroom.worker.outputs.delivered import Processing, process_output
from darkroom.worker.outputs.media_types import media_type_of
from darkroom.worker.outputs.options import OutputOptions
from darkroom.worker.outputs.svg_metadata import remove_metadata
from tests.worker.shared_media_processes import confined_coding

PLANTED = "planted-prompt"
TAGS = {"prompt": f'{{"1": "{PLANTED}"}}', "workflow": f'{{"2": "{PLANTED}"}}', "comment": PLANTED, "title": PLANTED}
VIDEOS = {
    "a.mp4": ("libx264", "video/mp4"),
    "a.mov": ("libx264", "video/quicktime"),
    "a.webm": ("libvpx-vp9", "video/webm"),
    "a.mkv": ("ffv1", "video/x-matroska"),
}
AUDIO = {
    "a.flac": ("flac", "audio/flac"),
    "a.mp3": ("libmp3lame", "audio/mpeg"),
    "a.opus": ("libopus", "audio/ogg"),
    "a.m4a": ("aac", "audio/mp4"),
}


def written(path: Path, codec: str, kind: str) -> Path:
    """Write a second of noise with PyAV, the tags in the container."""
    options = {"movflags": "use_metadata_tags"} if path.suffix in (".mp4", ".mov", ".m4a") else {}
    noise = numpy.random.default_rng(1)
    with av.open(str(path), "w", options=options) as container:
        container.metadata.update(TAGS)
        if kind == "video":
            video: Any = container.add_stream(codec, rate=Fraction(4))
            video.width, video.height, video.pix_fmt = 32, 16, "yuv420p"
            for _ in range(4):
                frame: Any = av.VideoFrame.from_ndarray(noise.integers(0, 255, (16, 32, 3), numpy.uint8), "rgb24")
                container.mux(video.encode(frame))
            container.mux(video.encode(None))
        else:
            audio: Any = container.add_stream(codec, rate=48000)
            samples = noise.uniform(-0.5, 0.5, (1, 2 * 48000)).astype(numpy.float32)
            frame = av.AudioFrame.from_ndarray(samples, "flt", "stereo")
            frame.sample_rate = 48000
            container.mux(audio.encode(frame))
            container.mux(audio.encode(None))
    return path


def decoded(path: Path) -> str:
    """Return a digest of everything that is seen and heard."""
    digest = hashlib.sha256()
    with av.open(str(path)) as container:
        streams = container.streams.audio or container.streams.video  # a cover counts as video
        for frame in container.decode(streams[0]):
            assert isinstance(frame, av.VideoFrame | av.AudioFrame)
            digest.update(frame.to_ndarray().tobytes())
    return digest.hexdigest()


def record(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        media_type = media_type_of(path, file.read(HEAD_BYTES))
    return {"filename": path.name, "path": path.name, "local_path": str(path), "media_type": media_type}


def delivered(path: Path, level: Any = "none", **options: Any) -> dict[str, Any]:
    return process_output(
        record(path), path.name, path.parent, Processing(OutputOptions(**options), level, {}, confined_coding())
    )


MEDIA = {**{name: ("video", *rest) for name, rest in VIDEOS.items()}, **{n: ("audio", *r) for n, r in AUDIO.items()}}


@pytest.mark.parametrize("name", MEDIA)
def test_a_file_is_delivered_without_its_tags_and_looks_and_sounds_the_same(tmp_path: Path, name: str) -> None:
    kind, codec, media_type = MEDIA[name]
    path = written(tmp_path / name, codec, kind)
    assert PLANTED.encode() in path.read_bytes()
    made = delivered(path)
    assert (made["media_type"], made["path"]) == (media_type, f"delivered/{name}")
    clean = Path(made["local_path"])
    assert PLANTED.encode() not in clean.read_bytes()
    assert decoded(clean) == decoded(path)
    assert made["size_bytes"] == clean.stat().st_size
    assert PLANTED.encode() in path.read_bytes()  # the original may be the engine's own file
    again = process_output(
        record(clean), name, clean.parent, Processing(OutputOptions(), "none", {}, confined_coding())
    )
    assert again["path"] == name  # nothing is left to take out


@pytest.mark.parametrize("name", MEDIA)
def test_a_file_whose_metadata_are_wanted_is_delivered_itself(tmp_path: Path, name: str) -> None:
    kind, codec, _ = MEDIA[name]
    path = written(tmp_path / name, codec, kind)
    found = delivered(path, "full", format="webp", thumbnail_size=64)
    thumbnail = found.pop("thumbnail")
    assert thumbnail["media_type"] == "image/webp" and thumbnail["width"] == (32 if kind == "video" else 64)
    assert found == record(path)


def test_covers_and_the_tags_at_the_end_of_an_mp3_go_too(tmp_path: Path) -> None:
    from mutagen import apev2, id3

    path = written(tmp_path / "a.mp3", "libmp3lame", "audio")
    tags = id3.ID3(path)
    tags.add(id3.APIC(mime="image/png", data=PLANTED.encode() * 10))
    tags.save(path)
    ape = apev2.APEv2()
    ape["prompt"] = PLANTED
    ape.save(path)
    with path.open("ab") as file:
        file.write(b"TAG" + PLANTED.encode().ljust(125))
    clean = Path(delivered(path)["local_path"])
    assert PLANTED.encode() not in clean.read_bytes()
    assert decoded(clean) == decoded(path)


def test_covers_of_a_flac_go_too(tmp_path: Path) -> None:
    from mutagen.flac import FLAC, Picture

    path = written(tmp_path / "a.flac", "flac", "audio")
    audio, cover = FLAC(path), Picture()
    cover.data, cover.mime = PLANTED.encode() * 10, "image/png"
    audio.add_picture(cover)
    audio.save()
    audio.delete()  # only the cover is left
    clean = Path(delivered(path)["local_path"])
    assert PLANTED.encode() not in clean.read_bytes() and decoded(clean) == decoded(path)


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b"fLaC", "audio/flac"),
        (b"OggS" + bytes(60), "audio/ogg"),
        (b"ID3\x04\0\0\x7f\x7f\x7f\x7f", "audio/mpeg"),
    ],
)
def test_broken_audio_is_named_so_and_not_written(tmp_path: Path, content: bytes, media_type: str) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(BrokenAudio, match="audio tags: unreadable; got "):
        remove_tags(tmp_path / "a", tmp_path / "b", media_type)
    assert not (tmp_path / "b").exists()
    assert "metadata stays as it is" in delivered(tmp_path / "a")["metadata_error"]


@cache
def whole(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return written(Path(folder, name), MEDIA[name][1], "audio").read_bytes()[:6000]


@pytest.mark.parametrize("name", ["a.flac", "a.mp3", "a.opus"])
@settings(max_examples=120, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=6), length=st.integers(1, 6000))
def test_damaged_audio_is_refused_or_cleaned(name: str, changes: list[tuple[int, int]], length: int) -> None:
    content = bytearray(whole(name))
    for place, value in changes:
        content[place] = value
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, name)
        source.write_bytes(content[:length])
        for media_type in TAGGED_TYPES:
            with suppress(BrokenAudio):
                remove_tags(source, Path(folder, "b"), media_type)


DRAWING = b'<svg xmlns="http://www.w3.org/2000/svg" width="4">%s<rect width="4"/></svg>'


@pytest.mark.parametrize(
    "metadata",
    [
        b"\n<metadata><![CDATA[planted-prompt]]></metadata>",
        b"<metadata id='a'>planted-prompt</metadata >",
        b"<metadata><![CDATA[</metadata>planted-prompt]]></metadata>",
        b"<metadata>planted-prompt</metadata><metadata>planted-prompt</metadata>",
    ],
)
def test_a_drawing_is_delivered_without_its_metadata(tmp_path: Path, metadata: bytes) -> None:
    path = tmp_path / "a.svg"
    path.write_bytes(DRAWING % metadata)
    made = delivered(path, format="webp", thumbnail_size=64)
    assert made["media_type"] == "image/svg+xml" and not {"conversion_error", "thumbnail"} & made.keys()
    assert Path(made["local_path"]).read_bytes() == DRAWING % b""


@pytest.mark.parametrize("inside", [b"", b"<metadata><![CDATA[never closed</metadata>", b"<metadatum/>"])
def test_a_drawing_without_metadata_stays(tmp_path: Path, inside: bytes) -> None:
    (tmp_path / "a.svg").write_bytes(DRAWING % inside)
    assert not remove_metadata(tmp_path / "a.svg", tmp_path / "b.svg")


def test_the_first_bytes_of_mpeg_audio_and_matroska_are_known() -> None:
    for second in (0xFB, 0xFA, 0xF3, 0xF2, 0xE3):
        assert media_type_of(Path("x"), bytes((0xFF, second)) + bytes(30)) == "audio/mpeg"
    document = b"\x42\x82\x88matroska"
    assert media_type_of(Path("x"), b"\x1a\x45\xdf\xa3\x93" + document) == "video/x-matroska"
    assert media_type_of(Path("x"), b"\x1a\x45\xdf\xa3\x8f\x42\x82\x84webm") == "video/webm"
    assert media_type_of(Path("x"), struct.pack(">I", 32) + b"ftypavif") == "image/avif"
