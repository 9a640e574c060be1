"""Image files are decoded by FFmpeg where it reads them, with the reader of the format that Pillow found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from darkroom.engine.images.decode import read_channel, read_image
from darkroom.engine.images.ffmpeg_frames import ANIMATED, demuxer_of, read_frames
from darkroom.engine.images.pixel_budget import PictureTooLarge

SIDES = [(64, 48), (50, 37)]  # rows of whole steps of FFmpeg's conversion, and others


def ramp(width: int, height: int) -> npt.NDArray[np.uint8]:
    return np.linspace(0, 255, width * height).reshape(height, width).astype(np.uint8)


def saved(path: Path, image: Image.Image, **options: Any) -> Path:
    image.save(path, **options)
    return path


@pytest.mark.parametrize(("width", "height"), SIDES)
def test_greys_are_within_a_level_of_what_is_stored_and_white_is_not_quite_one(
    tmp_path: Path, width: int, height: int
) -> None:
    stored = ramp(width, height)
    image, mask = read_image(saved(tmp_path / "a.png", Image.fromarray(stored)))
    assert image.shape == (1, height, width, 3) and not mask.any()
    expected = torch.from_numpy(stored / 255.0).float()
    for channel in range(3):
        torch.testing.assert_close(image[0, ..., channel], expected, rtol=0, atol=1 / 255)
    assert 0.99 < image.max() < 1.0


@pytest.mark.parametrize(("width", "height"), SIDES)
def test_colours_of_8_bits_are_exact(tmp_path: Path, width: int, height: int) -> None:
    stored = np.stack([ramp(width, height), 255 - ramp(width, height), ramp(width, height) // 2], axis=-1)
    image, _ = read_image(saved(tmp_path / "a.png", Image.fromarray(stored)))
    assert torch.equal(image[0], torch.from_numpy(stored) / 255.0)


def test_greys_of_16_bits_keep_them(tmp_path: Path) -> None:
    stored = np.arange(64 * 48, dtype=np.uint16).reshape(48, 64) + 30000
    image, _ = read_image(saved(tmp_path / "a.png", Image.fromarray(stored)))
    assert len(set(image[0, ..., 0].flatten().tolist())) > 1000


@pytest.mark.parametrize("name", ["a.png", "a.gif", "a.bmp"])
def test_an_image_of_a_palette_has_a_mask_of_its_size(tmp_path: Path, name: str) -> None:
    palette = Image.fromarray(np.stack([ramp(50, 37)] * 3, axis=-1)).convert("P")
    _, mask = read_image(saved(tmp_path / name, palette))
    assert mask.shape == (1, 37, 50) and mask.max() < 1 / 255


@pytest.mark.parametrize(("orientation", "corner"), [(3, (-1, -1)), (6, (0, -1)), (8, (-1, 0))])
def test_images_are_turned_as_their_orientation_says(tmp_path: Path, orientation: int, corner: tuple[int, int]) -> None:
    stored = np.zeros((32, 64, 3), np.uint8)
    stored[:8, :8] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    image, _ = read_image(saved(tmp_path / "a.png", Image.fromarray(stored), exif=exif))
    assert image[0, corner[0], corner[1], 0] == 1.0
    assert image.mean() == pytest.approx(64 / (32 * 64))


def test_a_channel_of_every_frame_is_a_mask(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 4), (shade, 0, 0)) for shade in (0, 51, 255)]
    path = saved(tmp_path / "a.png", frames[0], save_all=True, append_images=frames[1:])
    assert read_channel(path, "red")[:, 0, 0].tolist() == pytest.approx([0.0, 0.2, 1.0])


def test_the_reader_is_that_of_the_content_not_of_the_name(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", Image.new("RGB", (8, 8), (0, 255, 0)), format="BMP")
    with Image.open(path) as file:
        assert demuxer_of(file) == "bmp_pipe"
    image, _ = read_image(path)
    torch.testing.assert_close(image[0, 0, 0], torch.tensor([0.0, 1.0, 0.0]), rtol=0, atol=1 / 255)


def test_files_that_ffmpeg_cannot_read_whole_are_pillows(tmp_path: Path) -> None:
    frames = [Image.new("RGBA", (16, 16), (shade, 0, 0, 100)) for shade in (0, 255)]
    for path in (
        saved(tmp_path / "a.webp", frames[0], save_all=True, append_images=frames[1:]),
        saved(tmp_path / "a.avif", frames[0]),
        saved(tmp_path / "a.ico", frames[0]),
    ):
        with Image.open(path) as file:
            assert demuxer_of(file) is None, path.name
        assert read_image(path)[1].max() > 0.5


def test_more_pixels_than_allowed_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", Image.new("RGB", (64, 64)))
    assert read_frames(path, "png_pipe", 64 * 64, 1) is not None
    assert read_frames(path, "png_pipe", 64 * 64 - 1, 1) is None  # left to Pillow, whose size of it was checked
    with pytest.raises(PictureTooLarge, match="4096 pixels in 1 frames of up to 64x64 px; expected at most 4095"):
        read_image(path, 64 * 64 - 1)


@pytest.mark.parametrize("name", ["a.gif", "a.png"])
def test_more_frames_than_a_header_announces_are_counted(tmp_path: Path, name: str) -> None:
    frames = [Image.new("RGB", (64, 64), (shade, 0, 0)) for shade in (0, 51, 102, 153, 204)]
    path = saved(tmp_path / name, frames[0], save_all=True, append_images=frames[1:])
    demuxer = ANIMATED["PNG" if name == "a.png" else "GIF"]
    found = read_frames(path, demuxer, 5 * 64 * 64, 5)
    assert found is not None and len(found[0]) == 5
    with pytest.raises(PictureTooLarge, match="in 4 frames"):
        read_frames(path, demuxer, 3 * 64 * 64, 5)
    with pytest.raises(PictureTooLarge, match="in 3 frames"):
        read_frames(path, demuxer, 5 * 64 * 64, 2)


def test_a_file_of_another_format_gives_no_frames(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", Image.new("RGB", (8, 8)))
    assert read_frames(path, "gif", 10_000, 10) is None
