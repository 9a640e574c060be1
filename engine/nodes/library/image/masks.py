"""Nodes that create MASK, take it from images, and combine, grow and feather it.

A MASK is float32 `[B, H, W]`, 1 where something applies. `[H, W]` is accepted wherever ComfyUI accepts it.
"""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.images.encode import metadata_texts
from darkroom.engine.images.morphology import dilate, dilate_cross
from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.image.images import PNG_LEVEL, save_all
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.sockets import IMAGE, MASK, ExtraPngInfo, Prompt
from darkroom.engine.nodes.widgets import Combo, Flag, Float, Int

MAX_SIDE_PX = 16384
MASK_MODULE = "comfy_extras.nodes_mask"
Position = Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=1)]
Side = Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=1)]


def batched(mask: torch.Tensor) -> torch.Tensor:
    """Reshape [H, W] or [..., H, W] to [B, H, W]."""
    return mask.reshape((-1, mask.shape[-2], mask.shape[-1]))


def mask_as_image(mask: torch.Tensor) -> torch.Tensor:
    """Return a mask as a grey image [B, H, W, 3]."""
    return batched(mask).unsqueeze(-1).expand(-1, -1, -1, 3)


@node("MaskToImage", display_name="Convert Mask to Image", category="image/mask", python_module=MASK_MODULE)
def mask_to_image(context: NodeContext, *, mask: MASK) -> IMAGE:
    return mask_as_image(mask)


@node("ImageToMask", display_name="Convert Image to Mask", category="image/mask", python_module=MASK_MODULE)
def image_to_mask(
    context: NodeContext, *, image: IMAGE, channel: Annotated[str, Combo(("red", "green", "blue", "alpha"))]
) -> MASK:
    return image[..., ("red", "green", "blue", "alpha").index(channel)]


@node("ImageColorToMask", display_name="Convert Image Color to Mask", category="image/mask", python_module=MASK_MODULE)
def image_color_to_mask(
    context: NodeContext,
    *,
    image: IMAGE,
    color: Annotated[int, Int(min=0, max=0xFFFFFF, step=1, extra={"display": "number"})] = 0,
) -> MASK:
    """Make a mask that is 1 where the image, rounded to 8 bits, has exactly the colour 0xRRGGBB."""
    levels = (image.clamp(0, 1) * 255.0).round().to(torch.int32)
    return ((levels[..., 0] << 16) + (levels[..., 1] << 8) + levels[..., 2] == color).float()


@node("SolidMask", display_name="Create Solid Mask", category="image/mask", python_module=MASK_MODULE)
def solid_mask(
    context: NodeContext,
    *,
    value: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 1.0,
    width: Side = 512,
    height: Side = 512,
) -> MASK:
    return torch.full((1, height, width), value, dtype=torch.float32)


@node("InvertMask", display_name="Invert Mask", category="image/mask", python_module=MASK_MODULE)
def invert_mask(context: NodeContext, *, mask: MASK) -> MASK:
    return 1.0 - mask


@node("CropMask", display_name="Crop Mask", category="image/mask", python_module=MASK_MODULE)
def crop_mask(
    context: NodeContext, *, mask: MASK, x: Position = 0, y: Position = 0, width: Side = 512, height: Side = 512
) -> MASK:
    return batched(mask)[:, y : y + height, x : x + width]


@node("MaskComposite", display_name="Combine Masks", category="image/mask", python_module=MASK_MODULE)
def mask_composite(
    context: NodeContext,
    *,
    destination: MASK,
    source: MASK,
    x: Position = 0,
    y: Position = 0,
    operation: Annotated[str, Combo(("multiply", "add", "subtract", "and", "or", "xor"))],
) -> MASK:
    """Paste `source` over `destination` with its corner at (x, y); parts outside are left out."""
    result, source = batched(destination).clone(), batched(source)
    there = result[:, y : y + source.shape[-2], x : x + source.shape[-1]]
    here = source[:, : there.shape[-2], : there.shape[-1]]
    if operation == "multiply":
        combined = there * here
    elif operation == "add":
        combined = there + here
    elif operation == "subtract":
        combined = there - here
    else:
        first, second = there.round().bool(), here.round().bool()
        combined = {"and": first & second, "or": first | second, "xor": first ^ second}[operation].float()
    result[:, y : y + source.shape[-2], x : x + source.shape[-1]] = combined
    return result.clamp(0.0, 1.0)


@node("FeatherMask", display_name="Feather Mask", category="image/mask", python_module=MASK_MODULE)
def feather_mask(
    context: NodeContext,
    *,
    mask: MASK,
    left: Position = 0,
    top: Position = 0,
    right: Position = 0,
    bottom: Position = 0,
) -> MASK:
    """Fade the edges in over that many pixels."""
    result = batched(mask).clone()
    height, width = result.shape[-2:]
    left, right, top, bottom = min(left, width), min(right, width), min(top, height), min(bottom, height)
    for i in range(left):
        result[:, :, i] *= (i + 1) / left
    for i in range(right):
        result[:, :, -(i + 1)] *= (i + 1) / right
    for i in range(top):
        result[:, i, :] *= (i + 1) / top
    for i in range(bottom):
        result[:, -(i + 1), :] *= (i + 1) / bottom
    return result


@node(
    "GrowMask",
    display_name="Grow Mask",
    category="image/mask",
    python_module=MASK_MODULE,
    advanced=("tapered_corners",),
)
def grow_mask(
    context: NodeContext,
    *,
    mask: MASK,
    expand: Annotated[int, Int(min=-MAX_SIDE_PX, max=MAX_SIDE_PX, step=1)] = 0,
    tapered_corners: Annotated[bool, Flag()] = True,
) -> MASK:
    """Dilate the mask by `expand` pixels (erode it, below 0); tapered corners use a cross instead of a square."""
    result = batched(mask)
    for _ in range(abs(expand)):
        result = _grown(result, tapered_corners) if expand > 0 else -_grown(-result, tapered_corners)
    return result.clone() if expand == 0 else result


def _grown(mask: torch.Tensor, is_cross: bool) -> torch.Tensor:
    """Return [B, H, W] with the largest value among each pixel and its neighbours."""
    planes = mask.unsqueeze(1)
    return (dilate_cross(planes) if is_cross else dilate(planes, 3)).squeeze(1)


@node("ThresholdMask", display_name="Threshold Mask", category="image/mask", python_module=MASK_MODULE)
def threshold_mask(
    context: NodeContext, *, mask: MASK, value: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 0.5
) -> MASK:
    return (mask > value).float()


@node("MaskPreview", display_name="Preview Mask", category="image/mask", is_output=True, python_module=MASK_MODULE)
def mask_preview(
    context: NodeContext,
    *,
    mask: MASK,
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> Annotated[NodeOutput, Socket("MASK"), Out("mask")]:
    """Show masks as grey images, saved to the temporary folder."""
    texts = metadata_texts(prompt, extra_pnginfo) if context.embed_metadata else {}
    saved = save_all(context, mask_as_image(mask), "ComfyUI", "temp", texts, PNG_LEVEL)
    return NodeOutput({**saved.ui, "animated": (False,)}, (mask,))


NODES = (
    mask_to_image,
    image_to_mask,
    image_color_to_mask,
    solid_mask,
    invert_mask,
    crop_mask,
    mask_composite,
    feather_mask,
    grow_mask,
    threshold_mask,
    mask_preview,
)
