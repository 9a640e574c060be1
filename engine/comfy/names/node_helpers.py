"""`node_helpers`: helper functions for conditioning and images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from PIL import ImageFile, UnidentifiedImageError

from darkroom.engine.images.compositing import same_channels

DTYPES = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "fp16": torch.float16,
    "float16": torch.float16,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
}


def conditioning_set_values(
    conditioning: list[list[Any]], values: Mapping[str, Any] | None = None, append: bool = False
) -> list[list[Any]]:
    """Return a copy with these values in every entry; `append` adds them to existing values of the same name."""
    changed: list[list[Any]] = []
    for entry in conditioning:
        options = dict(entry[1])
        for key, value in (values or {}).items():
            old = options.get(key) if append else None
            options[key] = value if old is None else old + value
        changed.append([entry[0], options])
    return changed


def pillow(function: Callable[..., object], arg: object) -> object:
    """Call a Pillow function; a truncated file is read as far as possible."""
    try:
        return function(arg)
    except (OSError, UnidentifiedImageError, ValueError):
        before = ImageFile.LOAD_TRUNCATED_IMAGES
        ImageFile.LOAD_TRUNCATED_IMAGES = True
        try:
            return function(arg)
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = before


def hasher() -> object:
    return hashlib.sha256


def string_to_torch_dtype(string: str) -> torch.dtype | None:
    return DTYPES.get(string)


def image_alpha_fix(destination: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both images with the same number of channels."""
    return same_channels(destination, source)
