"""Nodes that prepare images for training, which serve other images too.

IMAGE is float32 `[B, H, W, C]` of 0..1. What is resized or cropped goes through 8 bits a channel, as in ComfyUI.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np
import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.images.training_pixels import (
    TooManyPixels,
    cropped,
    distinct,
    grid,
    resized,
    size_by_edge,
)
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.basic.lists import IMAGE_SOCKET, single_images
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.sockets import IMAGE
from darkroom.engine.nodes.widgets import Float, Int

VERSION = "0.33.0"
MODULE = "comfy_extras.nodes_dataset"
MAX_SIDE = 8192
NUMPY_SEEDS = 2**32 - 1
EACH_ALONE = NodeFacts(items="alone")

ADVANCED = {"advanced": True}
Factor = Annotated[float, Float(min=0.0, max=2.0)]
Side = Annotated[int, Int(min=1, max=MAX_SIDE)]
Seed = Annotated[int, Int(min=0, max=0xFFFFFFFFFFFFFFFF)]
Images = Annotated[IMAGE, Out("images")]
ImageList = Annotated[Sequence[torch.Tensor], Socket("IMAGE")]


def _each(context: NodeContext, images: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Change the images of a batch one by one."""
    changed = []
    for image in images:
        context.cancel.check()
        changed.append(change(image))
    return torch.stack(changed).to(images.device)


def _resized(context: NodeContext, images: torch.Tensor, edge: int, *, longer: bool) -> torch.Tensor:
    height, width = images.shape[1:3]
    new_width, new_height = size_by_edge(width, height, edge, longer=longer)
    most = context.files.max_pixels()
    if new_width * new_height * images.shape[0] > most:
        raise TooManyPixels(new_width, new_height, most)
    return _each(context, images, lambda image: resized(image, new_width, new_height))


@node("ResizeImagesByShorterEdge", display_name="Resize Images by Shorter Edge (DEPRECATED)",
      category="image/transform", python_module=MODULE, deprecated=True, experimental=True, facts=EACH_ALONE,
      comfyui_version=VERSION)  # fmt: skip
def resize_images_by_shorter_edge(context: NodeContext, *, images: IMAGE, shorter_edge: Side = 512) -> Images:
    """Resize images by their shorter side. Raises TooManyPixels."""
    return _resized(context, images, shorter_edge, longer=False)


@node("ResizeImagesByLongerEdge", display_name="Resize Images by Longer Edge (DEPRECATED)",
      category="image/transform", python_module=MODULE, deprecated=True, experimental=True, facts=EACH_ALONE,
      comfyui_version=VERSION)  # fmt: skip
def resize_images_by_longer_edge(context: NodeContext, *, images: IMAGE, longer_edge: Side = 1024) -> Images:
    """Resize images by their longer side. Raises TooManyPixels, and ValueError where no pixel would be left."""
    return _resized(context, images, longer_edge, longer=True)


@node("CenterCropImages", display_name="Crop Image (Center)", category="image/transform", python_module=MODULE,
      experimental=True, facts=EACH_ALONE, comfyui_version=VERSION)  # fmt: skip
def center_crop_images(context: NodeContext, *, images: IMAGE, width: Side = 512, height: Side = 512) -> Images:
    """Cut the middle out of images; sides that are shorter stay as they are."""
    left, top = max(0, (images.shape[2] - width) // 2), max(0, (images.shape[1] - height) // 2)
    return _each(context, images, lambda image: cropped(image, left, top, width, height))


@node("RandomCropImages", display_name="Crop Image (Random)", category="image/transform", python_module=MODULE,
      experimental=True, facts=EACH_ALONE, comfyui_version=VERSION)  # fmt: skip
def random_crop_images(
    context: NodeContext, *, images: IMAGE, width: Side = 512, height: Side = 512, seed: Seed = 0
) -> Images:
    """Cut images to a size at a random position, the same for all of a batch."""
    random = np.random.RandomState(seed % NUMPY_SEEDS)
    most_left, most_top = max(0, images.shape[2] - width), max(0, images.shape[1] - height)
    left = random.randint(0, most_left + 1) if most_left else 0
    top = random.randint(0, most_top + 1) if most_top else 0
    return _each(context, images, lambda image: cropped(image, left, top, width, height))


@node("NormalizeImages", display_name="Normalize Image Colors", category="image/color", python_module=MODULE,
      experimental=True, facts=EACH_ALONE, comfyui_version=VERSION)  # fmt: skip
def normalize_images(
    context: NodeContext,
    *,
    images: IMAGE,
    mean: Annotated[float, Float(min=0.0, max=1.0, extra=ADVANCED)] = 0.5,
    std: Annotated[float, Float(min=0.001, max=1.0, extra=ADVANCED)] = 0.5,
) -> Images:
    """Subtract a mean from images and divide them by a standard deviation; the result leaves 0..1."""
    return (images - mean) / std


@node("AdjustBrightness", display_name="Adjust Brightness", category="image/adjustments", python_module=MODULE,
      experimental=True, facts=EACH_ALONE, comfyui_version=VERSION)  # fmt: skip
def adjust_brightness(context: NodeContext, *, images: IMAGE, factor: Factor = 1.0) -> Images:
    """Multiply images by a factor: 1 changes nothing, 0 is black."""
    return (images * factor).clamp(0.0, 1.0)


@node("AdjustContrast", display_name="Adjust Contrast", category="image/adjustments", python_module=MODULE,
      experimental=True, facts=EACH_ALONE, comfyui_version=VERSION)  # fmt: skip
def adjust_contrast(context: NodeContext, *, images: IMAGE, factor: Factor = 1.0) -> Images:
    """Multiply the distance from medium grey by a factor: 1 changes nothing, 0 is grey."""
    return ((images - 0.5) * factor + 0.5).clamp(0.0, 1.0)


@node("ImageDeduplication", display_name="Deduplicate Images", category="image/batch", python_module=MODULE,
      input_is_list=True, is_input_list=True, experimental=True, comfyui_version=VERSION)  # fmt: skip
def image_deduplication(
    context: NodeContext,
    *,
    images: ImageList,
    similarity_threshold: Annotated[float, Float(min=0.0, max=1.0, extra=ADVANCED)] = 0.95,
) -> Annotated[list[torch.Tensor], IMAGE_SOCKET, Out("images", is_list=True)]:
    """Return the images of a list that are not like one before them, by a hash of 64 bits."""
    thresholds: Any = similarity_threshold  # all inputs come as lists
    single = single_images(images)
    kept = distinct([image[0] for image in single], thresholds[0], context.cancel.check)
    return [single[index] for index in kept]


@node("ImageGrid", display_name="Make Image Grid", category="image/batch", python_module=MODULE, input_is_list=True,
      is_input_list=True, experimental=True, comfyui_version=VERSION)  # fmt: skip
def image_grid(
    context: NodeContext,
    *,
    images: ImageList,
    columns: Annotated[int, Int(min=1, max=20)] = 4,
    cell_width: Annotated[int, Int(min=32, max=2048, extra=ADVANCED)] = 256,
    cell_height: Annotated[int, Int(min=32, max=2048, extra=ADVANCED)] = 256,
    padding: Annotated[int, Int(min=0, max=50, extra=ADVANCED)] = 4,
) -> Images:
    """Lay all images of a list out in a grid, each stretched to a cell. Raises TooManyPixels."""
    lists: Any = columns, cell_width, cell_height, padding  # all inputs come as lists
    num_columns, width, height, pad = (values[0] for values in lists)
    single = [image for batch in images for image in batch]
    return grid(single, num_columns, (width, height), pad, context.files.max_pixels())[None]


NODES = (
    resize_images_by_shorter_edge,
    resize_images_by_longer_edge,
    center_crop_images,
    random_crop_images,
    normalize_images,
    adjust_brightness,
    adjust_contrast,
    image_deduplication,
    image_grid,
)
