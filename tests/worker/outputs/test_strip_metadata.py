"""Files that are no PNG, JPEG or WebP say nothing of how they were made any more, and hold what they held."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path

import numpy
import pytest
from PIL import Image, ImageSequence
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from darkroom.worker.outputs.strip_metadata import BrokenContainer, strip_metadata

PLANTED = b"planted-prompt"


def blanked(folder: Path, name: str, content: bytes) -> bytes:
    (folder / name).write_bytes(content)
    assert strip_metadata(folder / name, folder / "blank")
    made = (folder / "blank").read_bytes()
    assert PLANTED in content and PLANTED not in made
    assert not strip_metadata(folder / "blank", folder / "again")  # nothing is left to take out
    return made


def test_a_gif_keeps_its_frames_and_loses_its_comment(tmp_path: Path) -> None:
    frames = [Image.new("P", (20, 10), number) for number in range(3)]
    for frame in frames:
        frame.putpalette([value for number in range(256) for value in (number, 255 - number, 7)])
    held = io.BytesIO()
    comment = PLANTED + b" " * 600  # more than one block
    frames[0].save(held, "GIF", save_all=True, append_images=frames[1:], duration=70, loop=0, comment=comment)
    made = Image.open(io.BytesIO(blanked(tmp_path, "a.gif", held.getvalue())))
    before = Image.open(held)
    assert (made.info["duration"], made.info["loop"], "comment" in made.info) == (70, 0, False)
    shown = [[frame.convert("RGB").tobytes() for frame in ImageSequence.Iterator(gif)] for gif in (made, before)]
    assert shown[0] == shown[1] and len(shown[0]) == 3


def test_a_latent_keeps_its_tensors_and_a_model_what_it_is(tmp_path: Path) -> None:
    tensors = {"latent_tensor": numpy.arange(12.0).reshape(3, 4)}
    said = {"prompt": json.dumps({"1": PLANTED.decode()}), "format": "pt", "modelspec.title": "mine"}
    save_file(tensors, tmp_path / "a.latent", metadata=said)
    blanked(tmp_path, "b.latent", (tmp_path / "a.latent").read_bytes())
    assert (load_file(tmp_path / "blank")["latent_tensor"] == tensors["latent_tensor"]).all()
    with safe_open(tmp_path / "blank", "numpy") as file:
        assert file.metadata() == {"format": "pt", "modelspec.title": "mine"}


def glb(described: dict[str, object], binary: bytes = b"corners!") -> bytes:
    """A binary glTF file with this description."""
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % 4)
    chunks = struct.pack("<I4s", len(text), b"JSON") + text + struct.pack("<I4s", len(binary), b"BIN\0") + binary
    return struct.pack("<4sII", b"glTF", 2, 12 + len(chunks)) + chunks


def test_a_mesh_keeps_its_corners_and_every_offset(tmp_path: Path) -> None:
    asset = {"version": "2.0", "extras": {"prompt": PLANTED.decode()}}
    content = glb({"asset": asset, "buffers": [{"byteLength": 8}]})
    made = blanked(tmp_path, "a.glb", content)
    assert len(made) == len(content) and made.endswith(b"corners!")
    (length,) = struct.unpack_from("<I", made, 12)
    assert json.loads(made[20 : 20 + length]) == {"asset": {"version": "2.0"}, "buffers": [{"byteLength": 8}]}


def test_a_mesh_without_a_description_is_named_so(tmp_path: Path) -> None:
    (tmp_path / "a.glb").write_bytes(struct.pack("<4sIII4s", b"glTF", 2, 32, 4, b"BIN\0") + bytes(12))
    with pytest.raises(BrokenContainer, match="expected JSON"):
        strip_metadata(tmp_path / "a.glb", tmp_path / "b.glb")


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", len(content) + 8, kind) + content


def test_a_video_in_mp4_keeps_every_offset(tmp_path: Path) -> None:
    head = box(b"ftyp", b"isom" + bytes(8)) + box(b"mdat", b"frames")
    track = box(b"trak", box(b"tkhd", b"track") + box(b"udta", PLANTED))
    content = head + box(b"moov", box(b"mvhd", b"movie") + track + box(b"udta", box(b"meta", PLANTED)))
    made = blanked(tmp_path, "a.mp4", content)
    assert len(made) == len(content) and made.startswith(head)
    assert b"movie" in made and b"track" in made and made.count(b"free") == 2


def element(identity: bytes, content: bytes) -> bytes:
    return identity + (1 << 56 | len(content)).to_bytes(8, "big") + content


@pytest.mark.parametrize("is_short", [True, False])
def test_a_video_in_webm_keeps_every_offset(tmp_path: Path, is_short: bool) -> None:
    tags = b"\x12\x54\xc3\x67" + bytes((0x80 | len(PLANTED),)) + PLANTED
    cluster = element(b"\x1f\x43\xb6\x75", b"frames")
    inner = (tags if is_short else element(b"\x12\x54\xc3\x67", PLANTED)) + cluster
    content = element(b"\x1a\x45\xdf\xa3", b"webm") + element(b"\x18\x53\x80\x67", inner)
    made = blanked(tmp_path, "a.webm", content)
    assert len(made) == len(content) and made.endswith(cluster)


def nested_boxes(depth: int) -> bytes:
    content = b""
    for _ in range(depth):
        content = box(b"moov", content)
    return content


@pytest.mark.parametrize(
    "content",
    [
        b"GIF89a" + bytes(7) + b"!\xfe\x05ab",
        b"GIF89a" + bytes(7) + b"?",
        struct.pack("<Q", 1000) + b"{}" + bytes(40),
        struct.pack("<Q", 4) + b"{no}" + bytes(40),
        box(b"ftyp", b"isom") + struct.pack(">I4s", 999, b"moov"),
        b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\xff\x1f\x43\xb6\x75\xff" + PLANTED,
        box(b"ftyp", b"isom") + nested_boxes(2000),
        struct.pack("<Q", 20_000) + b'{"a":' + b"[" * 19_995,
        struct.pack("<Q", 40 << 20) + b"{" + bytes(41 << 20),
    ],
)
def test_a_file_that_is_broken_is_named_so_and_not_written(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(BrokenContainer):
        strip_metadata(tmp_path / "a", tmp_path / "blank")
    assert not (tmp_path / "blank").exists()


def test_what_is_of_no_known_kind_stays(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"just a text, " + PLANTED)
    assert not strip_metadata(tmp_path / "a", tmp_path / "blank")
