"""Images of every mode and format become pixels and masks, upright; broken ones are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, ImageOps
from PIL.PngImagePlugin import PngInfo

from darkroom.engine.images.decode import find_damage, read_channel, read_first_frame, read_image
from darkroom.engine.images.pixel_budget import PictureTooLarge
from darkroom.engine.log_context import NodeWarning, logged_as


def saved(path: Path, image: Image.Image, **options: Any) -> Path:
    image.save(path, **options)
    return path


def test_an_image_without_alpha_has_a_blank_mask(tmp_path: Path) -> None:
    image, mask = read_image(saved(tmp_path / "a.png", Image.new("RGB", (8, 4), (255, 51, 0))))
    assert image.shape == (1, 4, 8, 3) and mask.shape == (1, 64, 64)
    torch.testing.assert_close(image[0, 0, 0], torch.tensor([1.0, 0.2, 0.0]))
    assert not mask.any()


def test_transparent_pixels_are_masked(tmp_path: Path) -> None:
    image = Image.new("RGBA", (8, 4), (255, 0, 0, 51))
    _, mask = read_image(saved(tmp_path / "a.png", image))
    torch.testing.assert_close(mask, torch.full((1, 4, 8), 0.8))


def test_palettes_with_a_transparent_colour_are_masked(tmp_path: Path) -> None:
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([255, 0, 0, 0, 255, 0])
    palette.putpixel((0, 0), 1)
    image, mask = read_image(saved(tmp_path / "a.png", palette, transparency=1))
    assert mask[0, 0, 0] == 1.0 and mask.sum() == 1.0
    assert image[0, 1, 1].tolist() == [1.0, 0.0, 0.0]


def test_images_are_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image, _ = read_image(saved(tmp_path / "a.jpg", Image.new("RGB", (8, 4)), exif=exif))
    assert image.shape == (1, 8, 4, 3)


def test_sixteen_bit_greys_in_integers_are_scaled(tmp_path: Path) -> None:
    greys = Image.fromarray(np.full((4, 4), 25500, np.int32))
    image, _ = read_image(saved(tmp_path / "a.tif", greys))
    torch.testing.assert_close(image[0, 0, 0], torch.full((3,), 100 / 255))


def test_frames_of_the_first_ones_size_become_a_batch(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 4), (shade, 0, 0)) for shade in (0, 128, 255)]
    image, mask = read_image(saved(tmp_path / "a.gif", frames[0], save_all=True, append_images=frames[1:]))
    assert image.shape == (3, 4, 8, 3) and mask.shape[0] == 3
    assert image[2, 0, 0, 0] > image[0, 0, 0, 0]


@pytest.mark.parametrize(("channel", "expected"), [("red", 10 / 255), ("green", 20 / 255), ("alpha", 1 - 40 / 255)])
def test_one_channel_is_read_as_a_mask(tmp_path: Path, channel: str, expected: float) -> None:
    path = saved(tmp_path / "a.png", Image.new("RGBA", (8, 4), (10, 20, 30, 40)))
    torch.testing.assert_close(read_channel(path, channel), torch.full((1, 4, 8), expected))


def warnings_of(read: Callable[[], object]) -> list[str]:
    told: list[NodeWarning] = []
    with logged_as("prompt", "1", "LoadImage", told):
        read()
    return [warning.type for warning in told]


def noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))


@pytest.mark.parametrize("ending", ["png", "jpg", "gif", "bmp"])
def test_what_is_there_of_a_cut_image_is_read_with_a_warning(tmp_path: Path, ending: str) -> None:
    path = saved(tmp_path / f"a.{ending}", noise())
    assert find_damage(path) is None
    assert warnings_of(lambda: read_image(path)) == []
    cut = tmp_path / f"cut.{ending}"
    cut.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert find_damage(cut) is None
    assert warnings_of(lambda: read_image(cut)) == ["image_cut"]
    assert warnings_of(lambda: read_first_frame(cut)) == ["image_cut"]
    assert warnings_of(lambda: read_channel(cut, "red")) == ["image_cut"]
    assert read_image(cut)[0].shape == read_image(path)[0].shape
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


@pytest.mark.parametrize("ending", ["webp", "avif"])
def test_a_cut_image_of_which_nothing_can_be_decoded_has_damage(tmp_path: Path, ending: str) -> None:
    path = saved(tmp_path / f"a.{ending}", noise())
    cut = tmp_path / f"cut.{ending}"
    cut.write_bytes(path.read_bytes()[: path.stat().st_size // 8])
    assert find_damage(cut)
    with pytest.raises((OSError, ValueError)):
        read_image(cut)


def test_what_is_there_of_a_cut_animation_is_read_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    noise().save(path, save_all=True, append_images=[ImageOps.invert(noise()), noise()])
    assert warnings_of(lambda: read_image(path)) == [] and len(read_image(path)[0]) == 3
    cut = tmp_path / "cut.png"
    cut.write_bytes(path.read_bytes()[: path.stat().st_size * 5 // 6])
    assert warnings_of(lambda: read_image(cut)) == ["image_cut"]
    assert len(read_image(cut)[0]) == 2


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize(("num_bytes", "is_cut"), [(1, False), (2, False), (40, True), (500, True), (705, True)])
def test_a_jpeg_without_its_end_alone_is_whole(tmp_path: Path, progressive: bool, num_bytes: int, is_cut: bool) -> None:
    path = saved(tmp_path / "a.jpg", noise(), progressive=progressive)
    short = tmp_path / "short.jpg"
    short.write_bytes(path.read_bytes()[:-num_bytes])
    assert warnings_of(lambda: read_image(short)) == (["image_cut"] if is_cut else [])
    if not is_cut:
        assert torch.equal(read_image(short)[0], read_image(path)[0])


@pytest.mark.parametrize("kind", ["zTXt", "iTXt"])
def test_a_text_of_any_length_is_left_out_without_a_warning(tmp_path: Path, kind: str) -> None:
    texts = PngInfo()
    (texts.add_text if kind == "zTXt" else texts.add_itxt)("workflow", "a" * 3_000_000, zip=True)
    path = saved(tmp_path / "a.png", noise(), pnginfo=texts)
    assert find_damage(path) is None
    assert warnings_of(lambda: read_image(path)) == []


def test_a_wrong_checksum_is_drawn(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", noise())
    content = bytearray(path.read_bytes())
    content[content.index(b"IDAT") + 300] ^= 1
    path.write_bytes(content)
    assert find_damage(path) is None
    assert warnings_of(lambda: read_image(path)) == ["image_cut"]


def test_formats_that_are_not_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.heic"
    path.write_bytes(b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic" + bytes(100))
    damage = find_damage(path)
    assert damage is not None and damage.startswith("HEIC, the format of iPhone photos; convert it")


def test_what_is_no_image_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_text("hello")
    assert find_damage(path) == "not an image in a known format"


def animation(path: Path, form: str, count: int, side: int = 64) -> Path:
    frames = [Image.new("RGB", (side, side), (index * 37 % 256, index * 11 % 256, 0)) for index in range(count)]
    frames[0].save(path, form, save_all=True, append_images=frames[1:])
    return path


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP", "TIFF", "AVIF"])
def test_frames_beyond_the_bound_are_refused_before_they_are_decoded(tmp_path: Path, form: str) -> None:
    path = animation(tmp_path / "a", form, 5)
    image, mask = read_image(path, 64 * 64 * 5)
    assert image.shape[0] == mask.shape[0] == (1 if form == "TIFF" else 5)  # of TIFF the first page alone
    with pytest.raises(PictureTooLarge, match="20480 pixels in 5 frames of up to 64x64 px; expected at most 20479"):
        read_image(path, 64 * 64 * 5 - 1)
    assert "in 5 frames" in (find_damage(path, 64 * 64 * 5 - 1) or "")


def test_small_frames_count_as_their_blank_masks(tmp_path: Path) -> None:
    with pytest.raises(PictureTooLarge, match="in 3 frames of up to 1x1 px"):
        read_image(animation(tmp_path / "a", "GIF", 5, side=1), 64 * 64 * 2)


def test_a_single_channel_has_the_bound_too(tmp_path: Path) -> None:
    with pytest.raises(PictureTooLarge, match="90000 pixels"):
        read_channel(saved(tmp_path / "a.png", Image.new("RGB", (300, 300))), "red", 80_000)
