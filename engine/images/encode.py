"""Tensors to image files: PNG with the prompt inside, and animated WebP.

`H W` pixels, `C` channels; images are float32 `[H, W, C]`, 0..1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from darkroom.engine.images.animations import Frames, FrameSequence
from darkroom.engine.images.pixels import to_pillow

EXIF_MAKE, EXIF_MODEL = 0x010F, 0x0110


def metadata_texts(prompt: object, extra_pnginfo: Mapping[str, object] | None) -> dict[str, str]:
    """Return a saved image's metadata as JSON: `prompt` and each key of `extra_pnginfo` (the client's `workflow`)."""
    texts = {} if prompt is None else {"prompt": json.dumps(prompt)}
    return texts | {key: json.dumps(value) for key, value in (extra_pnginfo or {}).items()}


def write_png(path: Path, image: torch.Tensor, texts: Mapping[str, str], compress_level: int) -> None:
    """Write `image` [H, W, C] with each of `texts` as a tEXt chunk (iTXt where Latin-1 does not hold it)."""
    chunks = PngInfo()
    for key, text in texts.items():
        chunks.add_text(key, text)
    to_pillow(image).save(path, format="PNG", pnginfo=chunks, compress_level=compress_level)


def write_animated_webp(
    path: Path, images: Frames, texts: Mapping[str, str], fps: float, *, lossless: bool, quality: int, method: int
) -> None:
    """Write frames as one WebP; `method` is its effort, 0 (fast) to 6. `texts` go into EXIF tags.

    `prompt` is in the camera model, the others in the tags below the maker: where ComfyUI's clients look for them.
    """
    frames = FrameSequence(images)
    frames.save(
        path,
        format="WEBP",
        save_all=True,
        duration=int(1000.0 / fps),
        exif=_exif_of(frames, texts),
        lossless=lossless,
        quality=quality,
        method=method,
    )


def _exif_of(image: Image.Image, texts: Mapping[str, str]) -> Image.Exif:
    exif = image.getexif()
    others: Sequence[str] = [key for key in texts if key != "prompt"]
    if "prompt" in texts:
        exif[EXIF_MODEL] = f"prompt:{texts['prompt']}"
    for index, key in enumerate(others):
        exif[EXIF_MAKE - index] = f"{key}:{texts[key]}"
    return exif
