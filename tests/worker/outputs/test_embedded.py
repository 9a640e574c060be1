"""Metadata leaves an image, or comes into it, and not a pixel or other chunk changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, PngImagePlugin

from darkroom.worker.outputs import png_chunks
from darkroom.worker.outputs.embedded import EXIF_MAKE, EXIF_MODEL, EXIF_ORIENTATION, rewrite
from darkroom.worker.outputs.png_chunks import texts_in_png

PROMPT = json.dumps({"1": {"class_type": "Draw", "inputs": {"text": "planted words"}}})
TEXTS = {"prompt": PROMPT, "workflow": json.dumps({"nodes": ["planted node"]})}
TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}


def noise(mode: str = "RGB") -> Image.Image:
    return Image.effect_noise((40, 30), 60).convert(mode)


def saying_image(path: Path, form: str, **options: Any) -> Path:
    """Write an image as ComfyUI's nodes save it, with a profile."""
    options["icc_profile"] = b"a profile"
    if form == "PNG":
        info = PngImagePlugin.PngInfo()
        for key, text in TEXTS.items():
            info.add_text(key, text)
        info.add_itxt("more", "planted more", zip=True)
        info.add(b"tIME", bytes(7))
        noise().save(path, form, pnginfo=info, **options)
    else:
        exif = Image.Exif()
        exif[EXIF_MODEL], exif[EXIF_MAKE] = f"prompt:{PROMPT}", f"workflow:{TEXTS['workflow']}"
        more = {"comment": b"planted comment"} if form == "JPEG" else {}
        noise().save(path, form, exif=exif, xmp=b"<x:xmpmeta>planted</x:xmpmeta>", **more, **options)
    return path


def pixels(path: Path) -> bytes:
    with Image.open(path) as image:
        return image.tobytes()


def said(path: Path) -> dict[str, str]:
    with Image.open(path) as image:
        image.load()
        if image.format == "PNG":
            return {str(key): value for key, value in image.info.items() if key != "icc_profile"}
        exif = image.getexif()
        texts = [str(exif[tag]) for tag in (EXIF_MODEL, EXIF_MAKE) if tag in exif]
        return dict(text.split(":", 1) for text in texts)


@pytest.mark.parametrize("form", TYPES)
def test_none_takes_everything_out_and_leaves_the_image(tmp_path: Path, form: str) -> None:
    source, target = saying_image(tmp_path / "a", form), tmp_path / "b"
    assert b"planted" in source.read_bytes()
    assert rewrite(source, target, TYPES[form], "none", TEXTS)
    assert b"planted" not in target.read_bytes() and pixels(source) == pixels(target)
    with Image.open(target) as image:
        assert image.info["icc_profile"] == b"a profile"


@pytest.mark.parametrize("form", TYPES)
def test_prompt_leaves_the_prompt_that_ran_alone(tmp_path: Path, form: str) -> None:
    source, target = saying_image(tmp_path / "a", form), tmp_path / "b"
    assert rewrite(source, target, TYPES[form], "prompt", {**TEXTS, "prompt": '{"1": {}}'})
    assert said(target) == {"prompt": '{"1": {}}'} and pixels(source) == pixels(target)


@pytest.mark.parametrize("words", ["plain", "beyond latin: \u732b"])
def test_a_png_with_the_prompt_of_an_earlier_job_gets_that_of_this_one(tmp_path: Path, words: str) -> None:
    source, target = tmp_path / "a.png", tmp_path / "b.png"
    info = PngImagePlugin.PngInfo()
    info.add_text("prompt", "planted earlier prompt")
    noise().save(source, pnginfo=info)
    assert rewrite(source, target, "image/png", "prompt", {"prompt": words})
    assert said(target) == {"prompt": words} and b"planted" not in target.read_bytes()
    assert not rewrite(target, tmp_path / "c.png", "image/png", "prompt", {"prompt": words})


@pytest.mark.parametrize("form", TYPES)
def test_full_adds_what_the_engine_did_not_write(tmp_path: Path, form: str) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    noise().save(source, form)
    assert rewrite(source, target, TYPES[form], "full", TEXTS)
    assert said(target) == TEXTS and pixels(source) == pixels(target)


@pytest.mark.parametrize("form", TYPES)
def test_an_image_that_is_as_wanted_is_not_written_again(tmp_path: Path, form: str) -> None:
    plain, told = tmp_path / "plain", saying_image(tmp_path / "told", form)
    noise().save(plain, form)
    assert not rewrite(plain, tmp_path / "b", TYPES[form], "none", TEXTS)
    assert not rewrite(told, tmp_path / "b", TYPES[form], "full", TEXTS)
    assert not rewrite(plain, tmp_path / "b", TYPES[form], "full", {})


@pytest.mark.parametrize("form", ["JPEG", "WEBP"])
def test_the_orientation_of_an_image_stays(tmp_path: Path, form: str) -> None:
    exif = Image.Exif()
    exif[EXIF_ORIENTATION], exif[EXIF_MODEL] = 6, "planted"
    noise().save(tmp_path / "a", form, exif=exif)
    assert rewrite(tmp_path / "a", tmp_path / "b", TYPES[form], "none", {})
    with Image.open(tmp_path / "b") as image:
        assert dict(image.getexif()) == {EXIF_ORIENTATION: 6}


def test_a_transparent_lossless_webp_stays_so(tmp_path: Path) -> None:
    image = noise()
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    image.save(tmp_path / "a", "WEBP", lossless=True)
    assert rewrite(tmp_path / "a", tmp_path / "b", "image/webp", "full", TEXTS)
    with Image.open(tmp_path / "b") as rewritten:
        assert rewritten.mode == "RGBA" and said(tmp_path / "b") == TEXTS
    assert pixels(tmp_path / "a") == pixels(tmp_path / "b")


def test_every_frame_of_an_animated_png_stays(tmp_path: Path) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("prompt", PROMPT)
    info.add(b"comf", b"prompt\0planted", after_idat=True)
    noise().save(tmp_path / "a.png", save_all=True, append_images=[noise(), noise()], pnginfo=info)
    assert "comf" in texts_in_png(tmp_path / "a.png")
    assert rewrite(tmp_path / "a.png", tmp_path / "b.png", "image/png", "none", {})
    with Image.open(tmp_path / "b.png") as image:
        assert getattr(image, "n_frames", 1) == 3
    assert b"planted" not in (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize(("form", "kept"), [("PNG", 60), ("JPEG", 30), ("WEBP", 60)])
def test_a_file_that_is_cut_off_is_an_error_not_a_crash(tmp_path: Path, form: str, kept: int) -> None:
    source = saying_image(tmp_path / "a", form)
    source.write_bytes(source.read_bytes()[:kept])
    with pytest.raises((ValueError, OSError)):
        rewrite(source, tmp_path / "b", TYPES[form], "none", {})


def test_a_jpeg_that_cannot_hold_the_prompt_says_so(tmp_path: Path) -> None:
    noise().save(tmp_path / "a", "JPEG")
    with pytest.raises(ValueError, match="65533"):
        rewrite(tmp_path / "a", tmp_path / "b", "image/jpeg", "prompt", {"prompt": "x" * 70_000})


def test_a_text_of_a_png_that_is_too_long_is_not_read_and_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(png_chunks, "MAX_TEXT_BYTES", 20)
    info = PngImagePlugin.PngInfo()
    info.add_text("prompt", "x" * 100)
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png", pnginfo=info)
    assert png_chunks.contents_of_png(tmp_path / "a.png") == [("prompt", None)]
    assert rewrite(tmp_path / "a.png", tmp_path / "b.png", "image/png", "prompt", {"prompt": "x" * 100})
    assert b"x" * 100 in (tmp_path / "b.png").read_bytes()
