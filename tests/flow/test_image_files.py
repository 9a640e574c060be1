"""Image files through the front's check and the engine's reader: both take the same ones, and name the others alike."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from darkroom.engine.images.decode import find_damage, read_image
from darkroom.worker.media.kinds import BrokenFile, check_file

SHARED = Path(__file__).parents[2] / ".." / "shared" / "field" / "inputs"
NOISE = np.random.default_rng(1).integers(0, 255, (48, 64, 3), np.uint8)


def encoded(form: str, **options: object) -> bytes:
    held = io.BytesIO()
    Image.fromarray(NOISE).save(held, form, **options)
    return held.getvalue()


def box(kind: bytes, content: bytes) -> bytes:
    return (len(content) + 8).to_bytes(4, "big") + kind + content


def with_brands(avif: bytes, major: bytes, *compatible: bytes) -> bytes:
    """An AVIF whose box `ftyp` has other brands."""
    size = int.from_bytes(avif[:4], "big")
    new = box(b"ftyp", major + b"\0\0\0\0" + b"".join(compatible))
    assert len(new) == size, "the places of the pixels are counted from the start of the file"
    return new + avif[size:]


AVIF = encoded("AVIF")
DRAWN = {
    "png": encoded("PNG"),
    "jpeg": encoded("JPEG"),
    "progressive jpeg": encoded("JPEG", progressive=True),
    "webp": encoded("WEBP"),
    "gif": encoded("GIF"),
    "tiff": encoded("TIFF"),
    "bmp": encoded("BMP"),
    "avif": AVIF,
    "avif as mif1": with_brands(AVIF, b"mif1", b"avif", b"mif1", b"miaf", b"MA1B"),
    "jpeg without its end": encoded("JPEG")[:-2],
    "half a jpeg": encoded("JPEG")[: len(encoded("JPEG")) // 2],
    "half a png": encoded("PNG")[: len(encoded("PNG")) // 2],
    "png without its end": encoded("PNG")[:-12],
}
UNREAD = {
    "heic": (box(b"ftyp", b"heic\0\0\0\0mif1heic") + bytes(64), "HEIC"),
    "heic as mif1": (box(b"ftyp", b"mif1\0\0\0\0mif1heic") + bytes(64), "HEIC"),
    "heif": (box(b"ftyp", b"mif1\0\0\0\0mif1vvic") + bytes(64), "HEIF"),
    "jpeg xl": (b"\xff\x0a" + bytes(64), "JPEG XL"),
    "jpeg xl in a box": (b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(64), "JPEG XL"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
    "pdf": (b"%PDF-1.7 " + bytes(64), "PDF"),
    "web page": (b"<!DOCTYPE html><html></html>", "a web page"),
    "photoshop": (b"8BPS" + bytes(64), "Photoshop"),
    "raw": (box(b"ftyp", b"crx \0\0\0\x01crx isom") + bytes(64), "CR3"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
}


def front_problem(path: Path) -> str | None:
    try:
        check_file(path, "image")
    except BrokenFile as broken:
        return str(broken)
    return None


@pytest.mark.parametrize("name", DRAWN)
def test_front_and_engine_take_the_same_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(DRAWN[name])
    assert front_problem(path) is None
    assert find_damage(path) is None
    assert read_image(path)[0].shape == (1, 48, 64, 3)


@pytest.mark.parametrize("name", UNREAD)
def test_front_and_engine_name_what_they_do_not_read(tmp_path: Path, name: str) -> None:
    content, words = UNREAD[name]
    path = tmp_path / "file"
    path.write_bytes(content)
    front, engine = front_problem(path), find_damage(path)
    assert front is not None and words in front and "video" not in front.split("; ")[0]
    assert engine is not None and words in engine


@pytest.mark.parametrize("num_bytes", range(40, 3000, 370))
@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "AVIF", "TIFF"])
def test_what_the_engine_reads_of_a_cut_file_the_front_takes(tmp_path: Path, form: str, num_bytes: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(encoded(form)[:num_bytes])
    if find_damage(path) is None:
        read_image(path)
        assert front_problem(path) is None


def test_the_files_of_the_field_are_drawn() -> None:
    if not SHARED.is_dir():
        pytest.skip("there is no ../shared/field/inputs")
    files = [path for path in SHARED.iterdir() if path.suffix in (".png", ".jpg", ".avif")]
    assert files, os.fspath(SHARED)
    for path in files:
        assert front_problem(path) is None, path
        assert find_damage(path) is None, path
        assert read_image(path)[0].numel() > 0
