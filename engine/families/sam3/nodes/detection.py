"""SAM3_Detect: masks and boxes of what texts, boxes or points show in images.

`B` images, `H W` pixels, `N` objects: IMAGE is float32 `[B, H, W, C]` of 0..1, MASK float32 `[N, H, W]`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Annotated

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.families.sam3.nodes.inputs import (
    Boxes,
    ImageInput,
    ModelInput,
    NegativePoints,
    PositivePoints,
    TextInput,
    labelled,
)
from darkroom.engine.families.sam3.nodes.text_prompts import check_texts, texts_of
from darkroom.engine.families.sam3.nodes.working_memory import working_bytes
from darkroom.engine.families.sam3.prompt_encoder import NEGATIVE, POSITIVE, Points
from darkroom.engine.families.sam3.segmentation import FoundObject, ImagePrompts, ImageSegmenter
from darkroom.engine.images.boxes import Box, boxes_by_image
from darkroom.engine.images.pixels import colours_of
from darkroom.engine.models.vision_model import vision_model
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.free_memory import check_fits
from darkroom.engine.nodes.library.image.boxes import BoundingBox
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import MASK
from darkroom.engine.nodes.widgets import Flag, Float, Int

MODULE = "comfy_extras.nodes_sam3"
CATEGORY = "image/detection"
FAMILY = "sam3"
MAX_PROMPTS = 1024  # points or boxes of an image
VALUE_BYTES = 4


def _complaint(
    environment: NodeEnvironment,
    bboxes: object = None,
    positive_coords: str | None = None,
    negative_coords: str | None = None,
) -> str | None:
    """Return the fault of boxes and points that the prompt gives, None for good ones."""
    try:
        _points(positive_coords, negative_coords)
        _boxes(bboxes)
    except ValueError as error:
        return str(error)
    return None


@node("SAM3_Detect", display_name="SAM3 Detect", category=CATEGORY, python_module=MODULE, check=_complaint,
      facts=NodeFacts(items="alone", reads_images_with=FAMILY),
      search_aliases=["sam3", "segment anything", "open vocabulary", "text detection", "segment"])  # fmt: skip
def sam3_detect(
    context: NodeContext,
    *,
    model: ModelInput,
    image: ImageInput,
    conditioning: TextInput = None,
    bboxes: Boxes = None,
    positive_coords: PositivePoints = None,
    negative_coords: NegativePoints = None,
    threshold: Annotated[float, Float(min=0.0, max=1.0, step=0.01, extra=labelled("threshold"))] = 0.5,
    refine_iterations: Annotated[int, Int(min=0, max=5, extra=labelled("refine_iterations"))] = 2,
    individual_masks: Annotated[bool, Flag(extra=labelled("individual_masks"))] = False,
) -> tuple[Annotated[MASK, Out("masks")], Annotated[BoundingBox, Out("bboxes")]]:
    """Find what texts describe, what lies in boxes, and what points show, with boxes of what texts describe.

    There is a mask for each image, or for each object. Raises ValueError for a model of another family, prompts in
    another form, and masks that would not fit the free memory.
    """
    segmenting = vision_model(model, FAMILY)
    height, width = image.shape[1:3]
    points = _points(positive_coords, negative_coords)
    boxes = _boxes(bboxes)
    if conditioning:
        check_texts(segmenting.model.diffusion_model, conditioning)
    masks: list[torch.Tensor] = []
    found_boxes: list[list[Box]] = []
    pixels = colours_of(image, "image")
    with segmenting.in_use(working_bytes=working_bytes(segmenting)) as holder:
        network, device, dtype = holder.diffusion_model, segmenting.load_device, holder.compute_dtype
        segmenter = ImageSegmenter(network, device, dtype)
        texts = texts_of(network, conditioning or [], device, dtype)
        scale = torch.tensor([segmenter.image_px / width, segmenter.image_px / height])
        placed = None if points is None else Points((points.places * scale).to(device, dtype), points.labels.to(device))
        for index, item in enumerate(pixels):
            own = boxes[min(index, len(boxes) - 1)] if boxes else []
            prompts = ImagePrompts(texts, [_relative(box, width, height) for box in own], placed)
            union = torch.zeros(height, width)
            found_boxes.append([])
            for found in segmenter.found(item, prompts, threshold, refine_iterations):
                context.cancel.check()
                found_boxes[-1] += _box_of(found)
                if individual_masks:
                    check_fits(context, "individual_masks", (len(masks) + 2) * height * width * VALUE_BYTES)
                    masks.append(found.mask.cpu())
                else:
                    union = torch.maximum(union, found.mask.cpu())
            if not individual_masks:
                masks.append(union)
            context.report_progress(index + 1, len(image))
    return torch.stack(masks) if masks else torch.zeros(0, height, width), found_boxes


def _box_of(found: FoundObject) -> list[Box]:
    if found.box is None:
        return []
    left, top, right, bottom = found.box
    return [{"x": left, "y": top, "width": right - left, "height": bottom - top, "score": found.score}]


def _boxes(found: object) -> list[list[Box]]:
    """Return the boxes of each image, none where none are given. Raises ValueError for others and for too many."""
    boxes = [] if found is None else boxes_by_image(found)
    _check_number("bboxes", max(map(len, boxes), default=0))
    return boxes


def _relative(box: Box, width: int, height: int) -> tuple[float, float, float, float]:
    """Return centre, width and height of a box in pixels, of 0..1."""
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    return x / width, y / height, box["width"] / width, box["height"] / height


def _points(positive: str | None, negative: str | None) -> Points | None:
    """Return the points of both texts in pixels, None where there are none. Raises ValueError for other texts."""
    inside, outside = _coordinates("positive_coords", positive), _coordinates("negative_coords", negative)
    if not inside and not outside:
        return None
    labels = [POSITIVE] * len(inside) + [NEGATIVE] * len(outside)
    return Points(torch.tensor([[*inside, *outside]], dtype=torch.float32), torch.tensor([labels]))


def _coordinates(name: str, text: str | None) -> list[tuple[float, float]]:
    if not text:
        return []
    try:
        given = json.loads(text)
        found = [(float(point["x"]), float(point["y"])) for point in given]
    except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f'{name}: got {text[:60]!r}, expected JSON such as [{{"x": 10, "y": 20}}]') from error
    if not all(map(math.isfinite, _numbers(found))):
        raise ValueError(f"{name}: got {text[:60]!r}, expected finite numbers of pixels")
    _check_number(name, len(found))
    return found


def _numbers(points: Sequence[tuple[float, float]]) -> list[float]:
    return [number for point in points for number in point]


def _check_number(name: str, number: int) -> None:
    if number > MAX_PROMPTS:
        raise ValueError(f"{name}: got {number} for an image, expected at most {MAX_PROMPTS}")
