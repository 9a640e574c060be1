"""A folder of images as one batch, and the captions beside them, as training takes them.

Folders of the layout of kohya-ss/sd-scripts are read too: a folder in it named `10_cat` holds images of which each is
taken ten times. Images are float32 `[B, H, W, 3]` of 0..1.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image

from darkroom.engine.images.decode import read_first_frame
from darkroom.engine.images.pixels import from_pillow

ENDINGS = (".png", ".jpg", ".jpeg", ".webp")
MAX_DIGITS = 9  # of a number of times
MAX_IMAGES = 100_000  # of a set, each as often as its folder says
RESIZE_METHODS = ("None", "Stretch", "Crop", "Pad")

Size = tuple[int | None, int | None]  # width, height


def images_in(folder: Path, *, with_repeats: bool = False) -> list[Path]:
    """Return the images of a folder by name.

    `with_repeats`: those of the folders in it too, each as often as its folder's name says. Raises ValueError for more
    than `MAX_IMAGES`.
    """
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in ENDINGS and not path.is_dir():
            found.append(path)
        elif with_repeats and path.is_dir():
            inner, count = images_in(path), path.name.split("_")[0]
            times = int(count[:MAX_DIGITS]) if count.isdecimal() else 1
            if len(found) + len(inner) * times > MAX_IMAGES:
                raise ValueError(f"folder: too many images, by {path.name}; expected at most {MAX_IMAGES}")
            found.extend(inner * times)
    return found


def caption_path(image: Path) -> Path:
    """Return the path of an image's text: `x.txt` beside `x.png`."""
    return image.with_suffix(".txt")


def captions_of(images: Sequence[Path]) -> list[str]:
    """Return the text beside each image, "" where there is none."""
    texts = map(caption_path, images)
    return [text.read_text("utf-8").strip() if text.is_file() else "" for text in texts]


def read_set(
    paths: Sequence[Path], resize_method: str, size: Size = (None, None), max_pixels: int = sys.maxsize
) -> torch.Tensor:
    """Read the first frame of each image as one batch [B, H, W, 3].

    All get `size`, that of the first image where it is (None, None): `Stretch` and `Pad` scale an image to it,
    `Crop` cuts its upper left corner out. Raises ValueError for no images, and with `None` for one of another size;
    OSError for what is no image.
    """
    if not paths:
        raise ValueError(f"folder: no images in it; got none, expected files that end in {', '.join(ENDINGS)}")
    width, height = size
    batch = []
    left = max_pixels
    for path in paths:
        image = read_first_frame(path, left).convert("RGB")
        if width is None and height is None:
            width, height = image.size
        wanted = (width or image.width, height or image.height)
        batch.append(from_pillow(_fitted(image, wanted, resize_method, path.name)))
        left -= wanted[0] * wanted[1]
        width, height = wanted
    return torch.stack(batch)


def _fitted(image: Image.Image, size: tuple[int, int], method: str, name: str) -> Image.Image:
    if image.size == size:
        return image
    if method == "Crop":
        return image.crop((0, 0, *size))
    if method in ("Stretch", "Pad"):
        return image.resize(size, Image.Resampling.LANCZOS)
    raise ValueError(
        f"resize_method: {name} has another size than the set; got None for {image.width}x{image.height} px in a "
        f"set of {size[0]}x{size[1]} px, expected one of {', '.join(RESIZE_METHODS[1:])}, or images of one size"
    )
