"""LAYERS: a stack of images with their places, as nodes pass it on, and as one layer for each image.

`H W` pixels: the image of a layer is float32 `[1, H, W, C]`, 0..1, C of 3 or 4; its mask `[1, H, W]`, 1 where it is
transparent. A document is `{"version": 1, "layers": [item], "canvas"?: (width, height)}`, an item
`{"image", "type": "raster", "x", "y", "z_index", "mask"?, "name"?, "opacity"?, "blend_mode"?, "rotation"?, "w"?, "h"?,
"flip_h"?, "flip_v"?, "visible"?}`, rotations in radians.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from darkroom.engine.images.layers.blend_modes import BLEND_MODES

MAX_LAYERS = 50
MAX_SIDE_PX = 16384
VERSION = 1

Document = dict[str, Any]
Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Placement:
    """Position and look of a layer. Position and size are in pixels before the rotation about its middle (radians)."""

    x: float
    y: float
    width: float
    height: float
    rotation: float = 0.0
    opacity: float = 1.0
    blend: str = "normal"
    is_visible: bool = True
    is_flipped_h: bool = False
    is_flipped_v: bool = False

    def bounds(self) -> tuple[int, int, int, int]:
        """Return left, top, width and height of the smallest whole rectangle that holds the rotated layer."""
        cos, sin = math.cos(self.rotation), math.sin(self.rotation)
        half_width, half_height = self.width / 2, self.height / 2
        middle_x, middle_y = self.x + half_width, self.y + half_height
        corners = [(dx * half_width, dy * half_height) for dx in (-1, 1) for dy in (-1, 1)]
        xs = [middle_x + dx * cos - dy * sin for dx, dy in corners]
        ys = [middle_y + dx * sin + dy * cos for dx, dy in corners]
        left, top = math.floor(min(xs)), math.floor(min(ys))
        return left, top, max(1, math.ceil(max(xs)) - left), max(1, math.ceil(max(ys)) - top)


@dataclass(frozen=True, slots=True)
class Layer:
    """One image of a stack, its opacity [H, W] where it has one, its name and its first place.

    `channels` is the number that the image came with.
    """

    image: torch.Tensor  # [H, W, 3]
    alpha: torch.Tensor | None
    name: str | None
    placement: Placement
    channels: int = 3


def layers_of(document: object) -> list[Layer]:
    """Return the layers of a document, lowest first: a batch gives consecutive ones.

    Raises ValueError for an item of another kind, and for more than 50 layers.
    """
    if not isinstance(document, Mapping) or document.get("version", VERSION) not in (None, VERSION):
        raise ValueError(
            f"layers: no stack of layers; got {type(document).__name__}, expected one of version {VERSION}"
        )
    items = sorted(map(_checked, document.get("layers") or ()), key=lambda item: whole(item.get("z_index")))
    count = sum(item["image"].shape[0] for item in items)
    if count > MAX_LAYERS:
        raise ValueError(f"layers: too many; got {count}, expected at most {MAX_LAYERS}")
    return [layer for item in items for layer in _layers_of_item(item)]


def canvas_of(document: object) -> tuple[int, int] | None:
    """Return width and height that a document declares, None if it declares none."""
    found = document.get("canvas") if isinstance(document, Mapping) else None
    if not isinstance(found, tuple | list) or len(found) != 2:
        return None
    width, height = (whole(side) for side in found)
    return (width, height) if width > 0 and height > 0 else None


def whole(value: object, default: int = 0) -> int:
    """Return a number as an integer, the default for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return int(value) if is_number else default  # type: ignore[call-overload]


def extent_of(layers: list[Layer]) -> tuple[int, int]:
    """Return width and height of the canvas that reaches as far right and down as the layers."""
    rights, bottoms = [1], [1]
    for layer in layers:
        left, top, width, height = layer.placement.bounds()
        rights.append(left + width)
        bottoms.append(top + height)
    return max(rights), max(bottoms)


def mask_of(mask: object, index: int) -> torch.Tensor | None:
    """Return the mask [1, H, W] of one image of a batch: its own, or the only one."""
    if not isinstance(mask, torch.Tensor) or (mask.shape[0] != 1 and index >= mask.shape[0]):
        return None
    return mask[:1] if mask.shape[0] == 1 else mask[index : index + 1]


def _checked(item: object) -> Item:
    if not isinstance(item, Mapping) or item.get("type", "raster") != "raster":
        raise ValueError("layers: no layer of an image; expected items of the type raster")
    image, blend = item.get("image"), item.get("blend_mode", "normal")
    if not isinstance(image, torch.Tensor) or image.ndim != 4 or image.shape[-1] not in (3, 4):
        raise ValueError("layers: a layer without an image; expected one of three or four channels")
    if blend not in BLEND_MODES:
        raise ValueError(f"layers: no blend mode; got {str(blend)[:40]!r}, expected one of {', '.join(BLEND_MODES)}")
    return item


def _layers_of_item(item: Item) -> Iterator[Layer]:
    images: torch.Tensor = item["image"]
    placement = _placement_of(item)
    name = item.get("name")
    for index, image in enumerate(images):
        alpha = _alpha_of(image, mask_of(item.get("mask"), index))
        yield Layer(image[..., :3], alpha, name if isinstance(name, str) else None, placement, image.shape[-1])


def _placement_of(item: Item) -> Placement:
    height, width = item["image"].shape[1:3]
    rotation = item.get("rotation")
    is_number = isinstance(rotation, int | float) and not isinstance(rotation, bool)
    wanted_width, wanted_height = whole(item.get("w")), whole(item.get("h"))
    return Placement(
        whole(item.get("x")),
        whole(item.get("y")),
        wanted_width if wanted_width > 0 else int(width),
        wanted_height if wanted_height > 0 else int(height),
        float(rotation) if is_number else 0.0,  # type: ignore[arg-type]
        item.get("opacity", 1.0),
        item.get("blend_mode", "normal"),
        bool(item.get("visible", True)),
        bool(item.get("flip_h", False)),
        bool(item.get("flip_v", False)),
    )


def _alpha_of(image: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return the opacity [H, W] of an image [H, W, C] with a mask [1, h, w]; None where all is opaque."""
    own = image[..., 3] if image.shape[-1] == 4 else None
    if mask is None:
        return own
    transparent = mask.float()
    if transparent.shape[1:] != image.shape[:2]:
        size = tuple(image.shape[:2])
        transparent = torch.nn.functional.interpolate(transparent.unsqueeze(1), size=size, mode="bilinear")[:, 0]
    opaque = (1.0 - transparent[0]).clamp(0.0, 1.0)
    return opaque if own is None else own * opaque
