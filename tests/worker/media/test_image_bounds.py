"""Images that take more than their bytes show are refused before anything of them is decoded."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from darkroom.worker.media.kinds import BrokenFile, check_file

MAX_PIXELS = 64 * 64 * 20
FORMATS = ("GIF", "PNG", "WEBP", "TIFF", "AVIF")
ENDINGS = {"GIF": "gif", "PNG": "png", "WEBP": "webp", "TIFF": "tiff", "AVIF": "avif"}


def frames(form: str, count: int, side: int = 64) -> bytes:
    first, *rest = [Image.new("RGB", (side, side), (index * 37 % 256, index * 11 % 256, 9)) for index in range(count)]
    held = io.BytesIO()
    first.save(held, form, save_all=True, append_images=rest)
    return held.getvalue()


def put(folder: Path, content: bytes) -> Path:
    path = folder / "picture"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("form", FORMATS)
def test_frames_are_counted_before_they_are_decoded(form: str, tmp_path: Path) -> None:
    kind = check_file(put(tmp_path, frames(form, 20)), "image", MAX_PIXELS)
    assert kind.extension == ENDINGS[form]
    with pytest.raises(BrokenFile, match=r"pixels in 21 frames of up to 64x64 px; expected at most 81920"):
        check_file(put(tmp_path, frames(form, 21)), "image", MAX_PIXELS)


def test_small_frames_count_as_what_their_masks_take(tmp_path: Path) -> None:
    with pytest.raises(BrokenFile, match="21 frames"):
        check_file(put(tmp_path, frames("GIF", 30, side=1)), "image", MAX_PIXELS)


def test_a_single_image_has_the_same_bound(tmp_path: Path) -> None:
    with pytest.raises(BrokenFile, match="90000 pixels"):
        check_file(put(tmp_path, frames("PNG", 1, side=300)), "image", MAX_PIXELS)


def test_a_gifs_frame_may_be_larger_than_its_canvas(tmp_path: Path) -> None:
    content = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0)
    content += b"," + struct.pack("<HHHHB", 0, 0, 4000, 4000, 0) + b"\x02\x02\x4c\x01\x00;"
    with pytest.raises(BrokenFile, match="4000x4000"):
        check_file(put(tmp_path, content), "image", MAX_PIXELS)


def test_a_file_of_a_hundred_thousand_frames_is_refused_at_once(tmp_path: Path) -> None:
    content = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0)
    content += (b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x4c\x01\x00") * 100_000 + b";"
    with pytest.raises(BrokenFile, match="10001 frames; expected at most 10000"):
        check_file(put(tmp_path, content), "image", 1 << 40)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", len(content), kind) + content + struct.pack(">I", zlib.crc32(kind + content))


def png_with(*extra: bytes) -> bytes:
    content = frames("PNG", 1)
    return content[:33] + b"".join(extra) + content[33:]


PROFILE = chunk(b"iCCP", b"a\0\0" + zlib.compress(b"\0" * 900_000))


def tiff_with_numbers(count: int) -> bytes:
    entries = struct.pack("<HHLL", 256, 3, 1, 8) + struct.pack("<HHLL", 257, 3, 1, 8)
    entries += struct.pack("<HHLL", 258, 3, count, 100)
    return b"II*\0" + struct.pack("<LH", 8, 3) + entries + struct.pack("<L", 0) + b"\x08\0" * count


def progressive(num_scans: int) -> bytes:
    held = io.BytesIO()
    Image.effect_noise((64, 64), 90).convert("RGB").save(held, "JPEG", progressive=True)
    content = held.getvalue()
    last = content.rindex(b"\xff\xda")
    return content[:-2] + content[last:-2] * num_scans + b"\xff\xd9"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: png_with(PROFILE, PROFILE), "several colour profiles"),
        (
            lambda: png_with(*[chunk(b"iTXt", b"a\0\1\0\0\0" + zlib.compress(b"\0" * 10**6))] * 80),
            "65 compressed texts",
        ),
        (lambda: tiff_with_numbers(2_000_000), "2000000 numbers in its tag 258"),
        (lambda: progressive(300), "more than 200 scans"),
        (lambda: png_with(chunk(b"eXIf", b"\0" * (17 << 20))), "bytes of Exif"),
    ],
    ids=["profiles", "packed texts", "tags", "scans", "exif"],
)
def test_what_costs_much_beside_the_pixels_is_refused(make: Callable[[], bytes], said: str, tmp_path: Path) -> None:
    with pytest.raises(BrokenFile, match=said):
        check_file(put(tmp_path, make()), "image")


PACKED_TEXT = chunk(b"zTXt", b"a\0\0" + zlib.compress(b"\0" * 50_000_000))


@pytest.mark.parametrize(
    "content",
    [png_with(PROFILE), progressive(5), png_with(PACKED_TEXT)],
    ids=["profile", "scans", "a text that is left out"],
)
def test_ordinary_ones_of_these_pass(content: bytes, tmp_path: Path) -> None:
    check_file(put(tmp_path, content), "image")


def test_bytes_that_only_look_like_scans_are_none(tmp_path: Path) -> None:
    held = io.BytesIO()
    Image.new("RGB", (8, 8)).save(held, "JPEG", comment=b"\xff\xda" * 1000)
    check_file(put(tmp_path, held.getvalue()), "image")


@pytest.mark.parametrize("form", ["GIF", "TIFF"])
def test_files_that_are_cut_off_anywhere_end_the_count(form: str, tmp_path: Path) -> None:
    whole = frames(form, 3)
    for end in range(16, len(whole), 7):
        try:
            check_file(put(tmp_path, whole[:end]), "image")
        except BrokenFile:
            continue


def latent(header: Any, data: bytes = b"\0" * 64) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(shape: Any = (1, 4, 2, 2), end: Any = 64, dtype: Any = "F32") -> dict[str, Any]:
    return {"latent_tensor": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}


def test_a_latent_is_read_by_its_header(tmp_path: Path) -> None:
    assert check_file(put(tmp_path, latent(tensor())), "latent").extension == "latent"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (latent(b'{"a":' + b"[" * 5000), "is not JSON"),
        (latent(b"{" + b" " * (9 << 20) + b"}"), "header of 9437186 bytes; expected at most 8388608"),
        (latent({}), "no tensor 'latent_tensor'"),
        (latent({str(index): {} for index in range(100)}), "100 tensors"),
        (latent(tensor(shape=[1 << 40, 1 << 40])), "malformed"),
        (latent(tensor(shape=[-1])), "malformed"),
        (latent(tensor(shape=[1e400])), "malformed"),
        (latent(tensor(end=1 << 40)), "malformed"),
        (latent(tensor(dtype=["F32"])), "malformed"),
        (latent({"latent_tensor": 5}), "malformed"),
    ],
)
def test_a_latent_whose_header_lies_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(BrokenFile, match=said):
        check_file(put(tmp_path, content), "latent")
