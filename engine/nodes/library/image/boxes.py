"""Nodes that make, draw and cut out bounding boxes.

`B` batch, `H W` pixels: IMAGE is float32 `[B, H, W, C]` of 0..1, BOUNDING_BOX as in `engine/images/boxes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import torch

from darkroom.engine.images.boxes import SIDES, Box, boxes_by_image, checked_box, corners_of
from darkroom.engine.images.draw_boxes import with_boxes
from darkroom.engine.images.pixels import resize_image
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.image.images import PREVIEW_PNG_LEVEL, save_all
from darkroom.engine.nodes.markers import Optional, Out, Socket
from darkroom.engine.nodes.page_widgets import WITHOUT_SOCKET, PageWidget
from darkroom.engine.nodes.sockets import IMAGE
from darkroom.engine.nodes.widgets import Combo, Int

MAX_SIDE_PX = 16384
BLANK_PX = 640  # of an image without boxes
IMAGES_MODULE = "comfy_extras.nodes_images"
DETECTION_ALIASES = ["bbox", "bounding box", "object detection", "rt_detr", "visualize detections", "coco"]
DEFAULT_BOX: Final[Mapping[str, int]] = {"x": 0, "y": 0, "width": 512, "height": 512}
FALLBACK_SHARE, FALLBACK_TOP = 0.3, 0.1  # of an image, for boxes that lie outside of it

BoundingBox = Annotated[Any, Socket("BOUNDING_BOX")]
LinkedBoxes = Annotated[Any, PageWidget("BOUNDING_BOX", extra={**WITHOUT_SOCKET, "forceInput": True})]
Place = Annotated[int, Int(min=0, max=MAX_SIDE_PX)]
Extent = Annotated[int, Int(min=1, max=MAX_SIDE_PX)]
Pixels = Annotated[int, Int(min=64, max=4096, step=8)]


@node("PrimitiveBoundingBox", display_name="Bounding Box", category="utilities/primitive", python_module=IMAGES_MODULE)
def primitive_bounding_box(
    context: NodeContext, *, x: Place = 0, y: Place = 0, width: Extent = 512, height: Extent = 512
) -> BoundingBox:
    return {"x": x, "y": y, "width": width, "height": height}


def _complaint(environment: NodeEnvironment, crop_region: object) -> str | None:
    """Return the fault of a region that the prompt gives, None for a good one."""
    try:
        box = checked_box(crop_region)
    except ValueError:
        box = {}
    if box and min(box["x"], box["y"]) >= 0 and min(box["width"], box["height"]) >= 1:
        return None
    return f"no region; got {str(crop_region)[:60]}, expected {', '.join(SIDES)} in pixels, none negative"


@node("ImageCropV2", display_name="Crop Image", category="image/transform", python_module=IMAGES_MODULE,
      check=_complaint, essentials_category="Image Tools", has_intermediate_output=True,
      search_aliases=["crop", "cut", "trim"])  # fmt: skip
def image_crop_v2(
    context: NodeContext,
    *,
    image: IMAGE,
    crop_region: Annotated[
        object, PageWidget("BOUNDING_BOX", extra={**WITHOUT_SOCKET, "component": "ImageCrop"})
    ] = DEFAULT_BOX,
) -> Annotated[NodeOutput, Socket("IMAGE")]:
    """Crop images to a region and show them; parts outside are left out, but at least one pixel remains."""
    left, top, right, bottom = corners_of(checked_box(crop_region))
    x, y = max(0, min(left, image.shape[2] - 1)), max(0, min(top, image.shape[1] - 1))
    width, height = max(1, right - left), max(1, bottom - top)
    cropped = image[:, y : y + height, x : x + width]
    shown = save_all(context, cropped, "ComfyUI", "temp", {}, PREVIEW_PNG_LEVEL)
    return NodeOutput({**shown.ui, "animated": (False,)}, (cropped,))


@node("DrawBBoxes", display_name="Draw BBoxes", category="image/detection",
      python_module="comfy_extras.nodes_rtdetr", search_aliases=DETECTION_ALIASES)  # fmt: skip
def draw_bboxes(
    context: NodeContext,
    *,
    bboxes: LinkedBoxes = DEFAULT_BOX,
    image: Annotated[IMAGE | None, Optional()] = None,
) -> Annotated[IMAGE, Out("out_image")]:
    """Draw the boxes of each image with their labels; without images, on black ones that hold all boxes."""
    boxes = boxes_by_image(bboxes)
    if image is None:
        image = _blank(context, boxes)
    by_image = boxes * len(image) if len(boxes) == 1 else [*boxes, *([] for _ in image)]
    return torch.stack([with_boxes(item, by_image[index]) for index, item in enumerate(image)])


def _blank(context: NodeContext, boxes: Sequence[Sequence[Box]]) -> torch.Tensor:
    """Return black images that hold the boxes. Raises ValueError where they would be too large."""
    corners = [corners_of(box) for frame in boxes for box in frame]
    width = max((right for _, _, right, _ in corners), default=BLANK_PX)
    height = max((bottom for _, _, _, bottom in corners), default=BLANK_PX)
    num_images, limit = max(1, len(boxes)), context.files.max_pixels()
    if not 0 < max(width, height) <= MAX_SIDE_PX or min(width, height) < 1 or num_images * width * height > limit:
        raise ValueError(
            f"bboxes: no image holds them; got {num_images} of {width}x{height} px, expected sides of 1 to "
            f"{MAX_SIDE_PX} px and {limit} pixels in all"
        )
    return torch.zeros(num_images, height, width, 3)


@node("CropByBBoxes", display_name="Crop By Bounding Boxes", category="image/transform",
      python_module="comfy_extras.nodes_sdpose",
      search_aliases=["crop", "face crop", "bbox crop", "pose", "bounding box"])  # fmt: skip
def crop_by_bboxes(
    context: NodeContext,
    *,
    image: IMAGE,
    bboxes: LinkedBoxes = DEFAULT_BOX,
    output_width: Pixels = 512,
    output_height: Pixels = 512,
    padding: Annotated[int, Int(min=0, max=1024, step=1)] = 0,
    keep_aspect: Annotated[str, Combo(("stretch", "pad"))] = "stretch",
) -> IMAGE:
    """Cut out of each image the region that holds its boxes, and scale it to one size.

    Images without boxes are left out; without any the images stay as they are. Boxes outside of an image give its upper
    middle.
    """
    boxes = boxes_by_image(bboxes)
    crops = []
    for index, item in enumerate(image):  # [H, W, C]
        context.cancel.check()
        own = boxes[min(index, len(boxes) - 1)] if boxes else []
        if own:
            crops.append(_cropped(item, own, output_width, output_height, padding, is_padded=keep_aspect == "pad"))
    return torch.stack(crops) if crops else image


def _cropped(
    image: torch.Tensor, boxes: Sequence[Box], width: int, height: int, padding: int, *, is_padded: bool
) -> torch.Tensor:
    """Return the region of the boxes in an image [H, W, C], scaled to `height` x `width`, black around if padded."""
    left, top, right, bottom = _region(image, boxes, padding)
    found = image[None, top:bottom, left:right]
    if not found.numel():
        return image.new_zeros(height, width, image.shape[-1])
    if not is_padded:
        return resize_image(found, width, height, "area")[0]
    scale = min(width / (right - left), height / (bottom - top))
    inner_width, inner_height = max(1, round((right - left) * scale)), max(1, round((bottom - top) * scale))
    x, y = (width - inner_width) // 2, (height - inner_height) // 2
    padded = image.new_zeros(height, width, image.shape[-1])
    padded[y : y + inner_height, x : x + inner_width] = resize_image(found, inner_width, inner_height, "area")[0]
    return padded


def _region(image: torch.Tensor, boxes: Sequence[Box], padding: int) -> tuple[int, int, int, int]:
    """Return the corners of the part of an image [H, W, C] that holds the boxes and a padding."""
    height, width = image.shape[:2]
    lefts, tops, rights, bottoms = zip(*(corners_of(box) for box in boxes), strict=True)
    left, top = max(0, min(lefts) - padding), max(0, min(tops) - padding)
    right, bottom = min(width, max(rights) + padding), min(height, max(bottoms) + padding)
    if left < right and top < bottom:
        return left, top, right, bottom
    side = int(min(height, width) * FALLBACK_SHARE)
    left, top = max(0, (width - side) // 2), max(0, int(height * FALLBACK_TOP))
    return left, top, min(width, left + side), min(height, top + side)


NODES = (primitive_bounding_box, image_crop_v2, draw_bboxes, crop_by_bboxes)
