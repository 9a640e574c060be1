"""Node that resizes images and masks, by any of nine ways to say the size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch

from darkroom.engine.images.pixels import resize
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Matched, Out, Socket
from darkroom.engine.nodes.parameters import DynamicChoice, Field
from darkroom.engine.nodes.widgets import Combo, Float, Int

VERSION = "0.30.0"
MAX_SIDE_PX = 16384
PIXELS_PER_MEGAPIXEL = 1024 * 1024
METHODS = ("nearest-exact", "bilinear", "area", "bicubic", "lanczos")

RESIZED = Matched("COMFY_MATCHTYPE_V3", template="input_type", allowed=("IMAGE", "MASK"))
SIDE = Int(min=0, max=MAX_SIDE_PX, step=1)
CROP = Field("crop", Combo(("disabled", "center")), "center")
WAYS = (
    ("scale dimensions", (Field("width", SIDE, 512), Field("height", SIDE, 512), CROP)),
    ("scale by multiplier", (Field("multiplier", Float(min=0.01, max=8.0, step=0.01), 1.0),)),
    ("scale longer dimension", (Field("longer_size", SIDE, 512),)),
    ("scale shorter dimension", (Field("shorter_size", SIDE, 512),)),
    ("scale width", (Field("width", SIDE, 512),)),
    ("scale height", (Field("height", SIDE, 512),)),
    ("scale total pixels", (Field("megapixels", Float(min=0.01, max=16.0, step=0.01), 1.0),)),
    ("match size", (Field("match", Socket("IMAGE,MASK")), CROP)),
    ("scale to multiple", (Field("multiple", Int(min=1, max=MAX_SIDE_PX, step=1), 8),)),
)


@node("ResizeImageMaskNode", display_name="Resize Image/Mask", category="image/transform",
      python_module="comfy_extras.nodes_post_processing", comfyui_version=VERSION)  # fmt: skip
def resize_image_mask_node(
    context: NodeContext,
    *,
    input: Annotated[torch.Tensor, RESIZED],
    resize_type: Annotated[Mapping[str, Any], DynamicChoice(fields=WAYS)],
    scale_method: Annotated[str, Combo(METHODS)] = "area",
) -> Annotated[torch.Tensor, RESIZED, Out("resized")]:
    """Resize an image [B, H, W, C] or a mask [B, H, W], float32 of 0..1."""
    if resize_type["resize_type"] == "scale to multiple":
        return _covered(input, resize_type["multiple"], scale_method)
    width, height = _size(input.shape[2], input.shape[1], resize_type)
    if (width, height) == (0, 0):
        return input
    return _resized(input, width, height, scale_method, resize_type.get("crop") or "disabled")


def _size(width: int, height: int, way: Mapping[str, Any]) -> tuple[int, int]:
    """Return the size to resize to, in pixels; (0, 0) is as it is."""
    kind = way["resize_type"]
    if kind == "scale by multiplier":
        return round(width * way["multiplier"]), round(height * way["multiplier"])
    if kind == "scale total pixels":
        scale = math.sqrt(int(way["megapixels"] * PIXELS_PER_MEGAPIXEL) / (width * height))
        return round(width * scale), round(height * scale)
    if kind == "match size":
        return way["match"].shape[2], way["match"].shape[1]
    if kind in ("scale longer dimension", "scale shorter dimension"):
        is_longer = kind == "scale longer dimension"
        size = way["longer_size" if is_longer else "shorter_size"]
        if width == height:
            return size, size
        return (
            (size, round(height / width * size))
            if (width > height) == is_longer
            else (round(width / height * size), size)
        )
    wanted_width, wanted_height = way.get("width") or 0, way.get("height") or 0
    if wanted_width == 0 < wanted_height:
        wanted_width = max(1, round(width * wanted_height / height))
    elif wanted_height == 0 < wanted_width:
        wanted_height = max(1, round(height * wanted_width / width))
    return wanted_width, wanted_height


def _covered(samples: torch.Tensor, multiple: int, method: str) -> torch.Tensor:
    """Resize to cover the largest size of multiples that fits, then cut the middle out."""
    height, width = samples.shape[1:3]
    wanted_width, wanted_height = width // multiple * multiple, height // multiple * multiple
    if not wanted_width or not wanted_height or (wanted_width, wanted_height) == (width, height):
        return samples
    across, down = wanted_width / width, wanted_height / height
    if across >= down:
        scaled_width, scaled_height = wanted_width, max(wanted_height, math.ceil(height * across))
    else:
        scaled_width, scaled_height = max(wanted_width, math.ceil(width * down)), wanted_height
    left, top = (scaled_width - wanted_width) // 2, (scaled_height - wanted_height) // 2
    scaled = _resized(samples, scaled_width, scaled_height, method)
    return scaled[:, top : top + wanted_height, left : left + wanted_width]


def _resized(samples: torch.Tensor, width: int, height: int, method: str, crop: str = "disabled") -> torch.Tensor:
    if samples.ndim == 4:
        return resize(samples.movedim(-1, 1), width, height, method, crop).movedim(1, -1)
    return resize(samples.unsqueeze(1), width, height, method, crop).squeeze(1)


NODES = (resize_image_mask_node,)
