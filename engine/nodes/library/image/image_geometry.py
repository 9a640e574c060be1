"""Nodes that scale, crop, pad, stitch, rotate and flip images.

`B` batch, `H W` pixels, `C` channels: IMAGE is float32 `[B, H, W, C]` of 0..1, MASK `[B, H, W]`.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
import torch.nn.functional as F

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.images.compositing import with_last_repeated
from darkroom.engine.images.pixels import IMAGE_METHODS, resize_image
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import IMAGE, MASK
from darkroom.engine.nodes.widgets import Choice, Combo, Flag, Float, Int

MAX_SIDE_PX = 16384
IMAGES_MODULE = "comfy_extras.nodes_images"
SPACING_COLORS = {
    "white": (1.0, 1.0, 1.0),
    "black": (0.0, 0.0, 0.0),
    "red": (1.0, 0.0, 0.0),
    "green": (0.0, 1.0, 0.0),
    "blue": (0.0, 0.0, 1.0),
}

Side = Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=1)]
Method = Annotated[str, Choice(IMAGE_METHODS)]


@node(
    "ImageScale",
    display_name="Upscale Image",
    category="image/upscaling",
    facts=NodeFacts(items="alone"),
    essentials_category="Image Tools",
)
def image_scale(
    context: NodeContext,
    *,
    image: IMAGE,
    upscale_method: Method,
    width: Side = 512,
    height: Side = 512,
    crop: Annotated[str, Choice(("disabled", "center"))],
) -> IMAGE:
    """Scale an image. A side of 0 follows from the other; with both 0 the image is unchanged."""
    if width == 0 and height == 0:
        return image
    old_height, old_width = image.shape[1:3]
    if width == 0:
        width = max(1, round(old_width * height / old_height))
    elif height == 0:
        height = max(1, round(old_height * width / old_width))
    return resize_image(image, width, height, upscale_method, crop)


@node(
    "ImageScaleBy",
    display_name="Upscale Image By",
    category="image/upscaling",
    facts=NodeFacts(items="alone"),
    essentials_category="Image Tools",
)
def image_scale_by(
    context: NodeContext,
    *,
    image: IMAGE,
    upscale_method: Method,
    scale_by: Annotated[float, Float(min=0.01, max=8.0, step=0.01)] = 1.0,
) -> IMAGE:
    old_height, old_width = image.shape[1:3]
    return resize_image(image, round(old_width * scale_by), round(old_height * scale_by), upscale_method)


@node(
    "ImageScaleToTotalPixels",
    display_name="Scale Image to Total Pixels",
    category="image/upscaling",
    python_module="comfy_extras.nodes_post_processing",
    advanced=("resolution_steps",),
)
def image_scale_to_total_pixels(
    context: NodeContext,
    *,
    image: IMAGE,
    upscale_method: Annotated[str, Combo(IMAGE_METHODS)],
    megapixels: Annotated[float, Float(min=0.01, max=16.0, step=0.01)] = 1.0,
    resolution_steps: Annotated[int, Int(min=1, max=256)] = 1,
) -> IMAGE:
    """Scale an image to a number of megapixels (1024 x 1024 each), keeping its aspect ratio.

    Both sides become multiples of `resolution_steps`.
    """
    sides_px = image.shape[1:3]
    scale = math.sqrt(megapixels * 1024 * 1024 / (sides_px[0] * sides_px[1]))
    height, width = (round(side * scale / resolution_steps) * resolution_steps for side in sides_px)
    return resize_image(image, width, height, upscale_method)


@node(
    "ImageScaleToMaxDimension",
    display_name="Scale Image to Max Dimension",
    category="image/upscaling",
    python_module=IMAGES_MODULE,
)
def image_scale_to_max_dimension(
    context: NodeContext,
    *,
    image: IMAGE,
    upscale_method: Annotated[str, Combo(("area", "lanczos", "bilinear", "nearest-exact", "bilinear", "bicubic"))],
    largest_size: Side = 512,
) -> IMAGE:
    """Scale the longer side to `largest_size`, keeping the aspect ratio."""
    height, width = image.shape[1:3]
    if height > width:
        return resize_image(image, round((width / height) * largest_size), largest_size, upscale_method)
    if width > height:
        return resize_image(image, largest_size, round((height / width) * largest_size), upscale_method)
    return resize_image(image, largest_size, largest_size, upscale_method)


@node(
    "ImageCrop",
    display_name="Crop Image (DEPRECATED)",
    category="image/transform",
    python_module=IMAGES_MODULE,
    deprecated=True,
    essentials_category="Image Tools",
)
def image_crop(
    context: NodeContext,
    *,
    image: IMAGE,
    width: Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=1)] = 512,
    height: Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=1)] = 512,
    x: Side = 0,
    y: Side = 0,
) -> IMAGE:
    """Crop an image; parts outside of it are left out, but at least one pixel remains."""
    x, y = min(x, image.shape[2] - 1), min(y, image.shape[1] - 1)
    return image[:, y : y + height, x : x + width, :]


@node("ImageFlip", display_name="Flip Image", category="image/transform", python_module=IMAGES_MODULE)
def image_flip(
    context: NodeContext,
    *,
    image: IMAGE,
    flip_method: Annotated[str, Combo(("x-axis: vertically", "y-axis: horizontally"))],
) -> IMAGE:
    return torch.flip(image, dims=[1 if flip_method.startswith("x") else 2])


@node(
    "ImageRotate",
    display_name="Rotate Image",
    category="image/transform",
    python_module=IMAGES_MODULE,
    essentials_category="Image Tools",
)
def image_rotate(
    context: NodeContext,
    *,
    image: IMAGE,
    rotation: Annotated[str, Combo(("none", "90 degrees", "180 degrees", "270 degrees"))],
) -> IMAGE:
    """Rotate an image clockwise."""
    quarter_turns = 0 if rotation == "none" else int(rotation.split()[0]) // 90
    return torch.rot90(image, k=quarter_turns, dims=[2, 1])


@node(
    "ImagePadForOutpaint",
    display_name="Pad Image for Outpainting",
    category="image/transform",
    advanced=("feathering",),
)
def image_pad_for_outpaint(
    context: NodeContext,
    *,
    image: IMAGE,
    left: Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=8)] = 0,
    top: Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=8)] = 0,
    right: Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=8)] = 0,
    bottom: Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=8)] = 0,
    feathering: Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=1)] = 40,
) -> tuple[IMAGE, MASK]:
    """Pad an image with grey, and return a mask of the area to paint, feathered towards the padded sides."""
    batch, height, width, channels = image.shape
    padded = torch.full((batch, height + top + bottom, width + left + right, channels), 0.5)
    padded[:, top : top + height, left : left + width] = image
    mask = torch.ones(height + top + bottom, width + left + right)
    mask[top : top + height, left : left + width] = _feather(height, width, (left, top, right, bottom), feathering)
    return padded, mask.unsqueeze(0)


def _feather(height: int, width: int, sides: tuple[int, int, int, int], feathering: int) -> torch.Tensor:
    """Return a mask [H, W]: 1 at a padded border, falling quadratically to 0 over `feathering` pixels.

    It is 0 where the feathering is too wide.
    """
    left, top, right, bottom = sides
    if not 0 < feathering * 2 < min(height, width):
        return torch.zeros(height, width)
    rows, columns = torch.arange(height), torch.arange(width)
    far_rows, far_columns = torch.full_like(rows, height), torch.full_like(columns, width)
    from_top_or_bottom = torch.minimum(rows if top else far_rows, height - rows if bottom else far_rows)
    from_left_or_right = torch.minimum(columns if left else far_columns, width - columns if right else far_columns)
    distance = torch.minimum(from_top_or_bottom[:, None], from_left_or_right[None, :])
    return ((feathering - distance).clamp(min=0) / feathering) ** 2


@node(
    "ResizeAndPadImage",
    display_name="Resize And Pad Image",
    category="image/transform",
    python_module=IMAGES_MODULE,
    advanced=("padding_color", "interpolation"),
)
def resize_and_pad_image(
    context: NodeContext,
    *,
    image: IMAGE,
    target_width: Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=1)] = 512,
    target_height: Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=1)] = 512,
    padding_color: Annotated[str, Combo(("white", "black"))],
    interpolation: Annotated[str, Combo(("area", "bicubic", "nearest-exact", "bilinear", "lanczos"))],
) -> IMAGE:
    """Scale an image to fit into the target, keeping its aspect ratio, and centre it on a plain background."""
    batch, height, width, channels = image.shape
    scale = min(target_width / width, target_height / height)
    new_width, new_height = int(width * scale), int(height * scale)
    ground = 0.0 if padding_color == "black" else 1.0
    padded = image.new_full((batch, target_height, target_width, channels), ground)
    left, top = (target_width - new_width) // 2, (target_height - new_height) // 2
    resized = resize_image(image, new_width, new_height, interpolation)
    padded[:, top : top + new_height, left : left + new_width] = resized
    return padded


@node(
    "ImageStitch",
    display_name="Stitch Images",
    category="image/transform",
    python_module=IMAGES_MODULE,
    facts=NodeFacts(joins="sides", side_input="direction"),
    advanced=("spacing_width", "spacing_color"),
)
def image_stitch(
    context: NodeContext,
    *,
    image1: IMAGE,
    direction: Annotated[str, Combo(("right", "down", "left", "up"))] = "right",
    match_image_size: Annotated[bool, Flag()] = True,
    spacing_width: Annotated[int, Int(min=0, max=1024, step=2)] = 0,
    spacing_color: Annotated[str, Combo(tuple(SPACING_COLORS))] = "white",
    image2: Annotated[IMAGE | None, Optional()] = None,
) -> IMAGE:
    """Place the second image beside the first one, optionally with a band between them.

    The second is scaled to the first one's height (or width), or the smaller one is padded: in the band's colour when
    that is white, else in black.
    """
    if image2 is None:
        return image1
    is_beside = direction in ("left", "right")
    color = SPACING_COLORS[spacing_color]
    batch = max(image1.shape[0], image2.shape[0])
    first, second = with_last_repeated(image1, batch), with_last_repeated(image2, batch)
    if match_image_size:
        second = _scaled_beside(second, first, is_beside)
    else:
        ground = 1.0 if spacing_color == "white" else 0.0
        across = 1 if is_beside else 2  # the dimension that has to agree
        side = max(first.shape[across], second.shape[across])
        first, second = (_padded_to(item, across, side, ground) for item in (first, second))
    channels = max(first.shape[-1], second.shape[-1])
    first, second = (F.pad(item, (0, channels - item.shape[-1]), value=1.0) for item in (first, second))
    parts = [second, first] if direction in ("left", "up") else [first, second]
    if spacing_width > 0:
        width = spacing_width + spacing_width % 2
        height_px, width_px = (first.shape[1], width) if is_beside else (width, first.shape[2])
        band = first.new_tensor((*color, 1.0))[:channels].expand(batch, height_px, width_px, channels)
        parts.insert(1, band)
    return torch.cat(parts, dim=2 if is_beside else 1)


def _scaled_beside(image: torch.Tensor, other: torch.Tensor, is_beside: bool) -> torch.Tensor:
    """Scale `image` to the height of `other` (the width, for above or below), keeping its aspect ratio."""
    aspect = image.shape[2] / image.shape[1]
    height, width = other.shape[1:3]
    if is_beside:
        return resize_image(image, int(height * aspect), height, "lanczos")
    return resize_image(image, width, int(width / aspect), "lanczos")


def _padded_to(image: torch.Tensor, dim: int, side: int, value: float) -> torch.Tensor:
    missing = side - image.shape[dim]
    before, after = missing // 2, missing - missing // 2
    sides = (0, 0, 0, 0, before, after) if dim == 1 else (0, 0, before, after)
    return F.pad(image, sides, value=value)


NODES = (
    image_scale,
    image_scale_by,
    image_scale_to_total_pixels,
    image_scale_to_max_dimension,
    image_crop,
    image_flip,
    image_rotate,
    image_pad_for_outpaint,
    resize_and_pad_image,
    image_stitch,
)
