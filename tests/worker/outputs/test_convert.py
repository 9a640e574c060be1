"""Images come out in the format that was asked for, looking as they did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops, ImageStat

from darkroom.worker.outputs.convert import ConversionFailed, convert, make_thumbnail
from darkroom.worker.outputs.options import FORMATS, ImageFormat


def gradient(mode: str = "RGB", size: tuple[int, int] = (64, 48)) -> Image.Image:
    ramp = Image.linear_gradient("L").resize(size)
    return Image.merge("RGB", (ramp, ramp.transpose(Image.Transpose.ROTATE_180), ramp)).convert(mode)


def difference(first: Path, second: Path) -> float:
    """Mean difference of the colours, 0..255."""
    with Image.open(first) as one, Image.open(second) as other:
        return sum(ImageStat.Stat(ImageChops.difference(one.convert("RGB"), other.convert("RGB"))).mean) / 3


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_looks_like_the_original(tmp_path: Path, form: ImageFormat) -> None:
    gradient().save(tmp_path / "a.png", icc_profile=b"a profile")
    convert(tmp_path / "a.png", tmp_path / "b", form, None, {})
    with Image.open(tmp_path / "b") as image:
        assert (image.format or "").lower() == form and image.info["icc_profile"] == b"a profile"
    assert difference(tmp_path / "a.png", tmp_path / "b") < 3


@pytest.mark.parametrize("form", ["jpeg", "webp", "avif"])
def test_less_quality_is_a_smaller_file(tmp_path: Path, form: ImageFormat) -> None:
    Image.effect_noise((128, 128), 60).convert("RGB").save(tmp_path / "a.png")
    for quality in (10, 90):
        convert(tmp_path / "a.png", tmp_path / str(quality), form, quality, {})
    assert (tmp_path / "10").stat().st_size < 0.7 * (tmp_path / "90").stat().st_size


@pytest.mark.parametrize("form", ["webp", "avif", "png"])
def test_transparency_is_kept_where_the_format_has_it(tmp_path: Path, form: ImageFormat) -> None:
    Image.new("RGBA", (16, 16), (255, 0, 0, 0)).save(tmp_path / "a.png")
    convert(tmp_path / "a.png", tmp_path / "b", form, None, {})
    with Image.open(tmp_path / "b") as image:
        assert image.convert("RGBA").getpixel((8, 8))[3] == 0  # type: ignore[index]


def test_transparency_goes_onto_white_in_a_jpeg(tmp_path: Path) -> None:
    Image.new("RGBA", (16, 16), (255, 0, 0, 0)).save(tmp_path / "a.png")
    convert(tmp_path / "a.png", tmp_path / "b", "jpeg", None, {})
    with Image.open(tmp_path / "b") as image:
        assert min(image.getpixel((8, 8))) > 250  # type: ignore[arg-type]


def test_sixteen_bits_are_scaled_to_eight(tmp_path: Path) -> None:
    Image.new("I;16", (16, 16), 32768).save(tmp_path / "a.png")
    convert(tmp_path / "a.png", tmp_path / "b", "webp", 100, {})
    with Image.open(tmp_path / "b") as image:
        assert abs(image.convert("L").getpixel((8, 8)) - 127) < 4  # type: ignore[operator]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "CMYK"])
@pytest.mark.parametrize("form", FORMATS)
def test_every_mode_can_be_converted(tmp_path: Path, mode: str, form: ImageFormat) -> None:
    gradient("RGB").convert(mode).save(tmp_path / "a.tiff")
    convert(tmp_path / "a.tiff", tmp_path / "b", form, None, {})
    assert (tmp_path / "b").stat().st_size > 0


@pytest.mark.parametrize("form", ["webp", "avif", "png"])
def test_every_frame_of_an_animation_is_kept(tmp_path: Path, form: ImageFormat) -> None:
    frames = [gradient(), gradient().transpose(Image.Transpose.ROTATE_180), Image.new("RGB", (64, 48), "red")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:], duration=70)
    convert(tmp_path / "a.gif", tmp_path / "b", form, None, {})
    with Image.open(tmp_path / "b") as image:
        assert getattr(image, "n_frames", 1) == 3


def test_an_animation_is_no_jpeg(tmp_path: Path) -> None:
    gradient().save(tmp_path / "a.gif", save_all=True, append_images=[Image.new("RGB", (64, 48), "red")])
    with pytest.raises(ConversionFailed, match="holds one image, this file has 2"):
        convert(tmp_path / "a.gif", tmp_path / "b", "jpeg", None, {})


def test_what_the_original_said_is_not_carried_over_but_the_texts_are(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0110] = "planted"
    gradient().save(tmp_path / "a.jpg", exif=exif, comment=b"planted")
    for form in FORMATS:
        convert(tmp_path / "a.jpg", tmp_path / "b", form, None, {"prompt": '{"mine": 1}'})
        content = (tmp_path / "b").read_bytes()
        assert b"planted" not in content and b'{"mine": 1}' in content


@pytest.mark.parametrize("content", [b"", b"text", b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_image_is_an_error_with_a_reason(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ConversionFailed):
        convert(tmp_path / "a", tmp_path / "b", "webp", None, {})


@pytest.mark.parametrize(("size", "thumbnail"), [((400, 200), (100, 50)), ((30, 60), (30, 60))])
def test_a_thumbnail_keeps_the_shape_and_is_never_larger(tmp_path: Path, size: Any, thumbnail: Any) -> None:
    gradient(size=size).save(tmp_path / "a.png")
    made = make_thumbnail(tmp_path / "a.png", tmp_path / "b", 100)
    with Image.open(tmp_path / "b") as image:
        assert image.size == thumbnail == (made.width_px, made.height_px)


def test_a_turned_photograph_has_an_upright_thumbnail(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    gradient(size=(400, 200)).save(tmp_path / "a.jpg", exif=exif)
    assert make_thumbnail(tmp_path / "a.jpg", tmp_path / "b", 100).height_px == 100


def test_an_animation_of_too_many_pixels_stays_as_it_is(tmp_path: Path) -> None:
    frames = [Image.new("P", (1024, 1024), number % 2) for number in range(130)]
    for frame in frames:
        frame.putpalette([0, 0, 0, 255, 255, 255])
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    with pytest.raises(ConversionFailed, match="129 frames of up to 1024x1024 px; expected at most"):
        convert(tmp_path / "a.gif", tmp_path / "b", "webp", None, {})
