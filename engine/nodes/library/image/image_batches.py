"""Nodes that create plain images, and join and split batches of images.

`B` batch, `H W` pixels: IMAGE is float32 `[B, H, W, C]` of 0..1.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.nn.functional as F

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.images.batches import position_in_batch
from darkroom.engine.images.pixels import resize_image
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Hidden, Out, Socket
from darkroom.engine.nodes.sockets import IMAGE
from darkroom.engine.nodes.widgets import Int

MAX_SIDE_PX = 16384
IMAGES_MODULE = "comfy_extras.nodes_images"


@node("EmptyImage", display_name="Empty Image", category="image")
def empty_image(
    context: NodeContext,
    *,
    width: Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=1)] = 512,
    height: Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=1)] = 512,
    batch_size: Annotated[int, Int(min=1, max=4096)] = 1,
    color: Annotated[int, Int(min=0, max=0xFFFFFF, step=1, extra={"display": "color"})] = 0,
) -> IMAGE:
    channels = torch.tensor([color >> shift & 0xFF for shift in (16, 8, 0)], dtype=torch.float64) / 255
    return channels.float().expand(batch_size, height, width, 3).clone()


@node(
    "ImageBatch",
    display_name="Batch Images (DEPRECATED)",
    category="image/batch",
    facts=NodeFacts(joins="items"),
    deprecated=True,
)
def image_batch(context: NodeContext, *, image1: IMAGE, image2: IMAGE) -> IMAGE:
    """Join two batches; the second is scaled to the size of the first and cropped to fit.

    Where one has alpha the other becomes opaque.
    """
    channels = max(image1.shape[-1], image2.shape[-1])
    image1, image2 = (F.pad(item, (0, channels - item.shape[-1]), value=1.0) for item in (image1, image2))
    if image1.shape[1:] != image2.shape[1:]:
        image2 = resize_image(image2, image1.shape[2], image1.shape[1], "bilinear", "center")
    return torch.cat((image1, image2), dim=0)


@node(
    "RepeatImageBatch",
    display_name="Repeat Image Batch",
    category="image/batch",
    python_module=IMAGES_MODULE,
    facts=NodeFacts(repeats="amount"),
)
def repeat_image_batch(
    context: NodeContext, *, image: IMAGE, amount: Annotated[int, Int(min=1, max=4096)] = 1
) -> IMAGE:
    return image.repeat((amount, 1, 1, 1))


@node(
    "ImageFromBatch",
    display_name="Get Image from Batch",
    category="image/batch",
    python_module=IMAGES_MODULE,
    facts=NodeFacts(cuts="length"),
)
def image_from_batch(
    context: NodeContext,
    *,
    image: IMAGE,
    batch_index: Annotated[int, Int(min=-MAX_SIDE_PX, max=MAX_SIDE_PX)] = 0,
    length: Annotated[int, Int(min=1, max=4096)] = 1,
) -> IMAGE:
    """Take `length` images from `batch_index` on; a negative one counts from the end."""
    first = position_in_batch(batch_index, image.shape[0])
    return image[first : first + length].clone()


@node("GetImageSize", display_name="Get Image Size", category="image", python_module=IMAGES_MODULE)
def get_image_size(
    context: NodeContext, *, image: IMAGE, unique_id: Annotated[object, Hidden("UNIQUE_ID")] = None
) -> tuple[
    Annotated[int, Socket("INT"), Out("width")],
    Annotated[int, Socket("INT"), Out("height")],
    Annotated[int, Socket("INT"), Out("batch_size")],
]:
    """Return width and height in pixels, and the number of images."""
    num_images, height, width = image.shape[:3]
    if unique_id:
        context.report_text(f"width: {width}, height: {height}\n batch size: {num_images}")
    return width, height, num_images


@node(
    "RebatchImages",
    display_name="Rebatch Images",
    category="image/batch",
    python_module="comfy_extras.nodes_rebatch",
    input_is_list=True,
)
def rebatch_images(
    context: NodeContext, *, images: IMAGE, batch_size: Annotated[int, Int(min=1, max=4096)] = 1
) -> Annotated[torch.Tensor, Socket("IMAGE"), Out(is_list=True)]:
    """Regroup a list of batches into batches of another size. Images of one new batch must have the same size."""
    batches: Any = images  # both inputs come as lists
    sizes: Any = batch_size
    size = sizes[0]
    singles = [image for batch in batches for image in batch.split(1)]
    rebatched: Any = [torch.cat(singles[start : start + size]) for start in range(0, len(singles), size)]
    result: torch.Tensor = rebatched
    return result


NODES = (empty_image, image_batch, repeat_image_batch, image_from_batch, rebatch_images, get_image_size)
