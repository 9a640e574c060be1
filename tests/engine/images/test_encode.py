"""Data that the engine writes into a file with the pixels: prompt, extras, frames."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from PIL import Image, ImageSequence

from darkroom.engine.images.animations import write_animated_png
from darkroom.engine.images.encode import metadata_texts, write_animated_webp, write_png

PROMPT = {"1": {"class_type": "é", "inputs": {}}}
TEXTS = metadata_texts(PROMPT, {"workflow": {"nodes": []}})


def test_the_prompt_and_every_extra_are_texts() -> None:
    assert {"prompt": json.dumps(PROMPT), "workflow": '{"nodes": []}'} == TEXTS
    assert metadata_texts(None, None) == {}


def test_a_png_carries_its_texts_in_order_and_its_pixels(tmp_path: Path) -> None:
    write_png(tmp_path / "a.png", torch.full((4, 8, 3), 0.5), TEXTS, 4)
    with Image.open(tmp_path / "a.png") as image:
        assert list(image.info.items()) == list(TEXTS.items())
        assert image.size == (8, 4) and image.getpixel((0, 0)) == (127, 127, 127)
    assert (tmp_path / "a.png").read_bytes().count(b"tEXt") == 2


def test_a_png_without_texts_has_no_text_chunk(tmp_path: Path) -> None:
    write_png(tmp_path / "a.png", torch.zeros(4, 8, 3), {}, 1)
    assert b"tEXt" not in (tmp_path / "a.png").read_bytes()


def test_animations_have_all_frames_and_their_texts(tmp_path: Path) -> None:
    frames = torch.linspace(0, 1, 3).reshape(3, 1, 1, 1).expand(3, 4, 8, 3)
    write_animated_png(tmp_path / "a.png", frames, TEXTS, 10.0, 4)
    write_animated_webp(tmp_path / "a.webp", frames, TEXTS, 10.0, lossless=True, quality=80, method=0)
    for name in ("a.png", "a.webp"):
        with Image.open(tmp_path / name) as image:
            assert sum(1 for _ in ImageSequence.Iterator(image)) == 3
    assert b"comfprompt\0" in (tmp_path / "a.png").read_bytes()
    with Image.open(tmp_path / "a.webp") as image:
        exif = image.getexif()
        assert exif[0x0110] == f"prompt:{TEXTS['prompt']}" and exif[0x010F] == f"workflow:{TEXTS['workflow']}"
