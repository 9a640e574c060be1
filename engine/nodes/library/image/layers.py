"""Nodes that stack images as layers, and compose a stack as ComfyUI's page arranges it.

`B` batch, `H W` pixels: IMAGE is float32 `[B, H, W, C]` of 0..1, MASK `[B, H, W]`, 1 where it is transparent, LAYERS as
in `engine/images/layers/layer.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch

from darkroom.engine.images.encode import metadata_texts
from darkroom.engine.images.layers.blend_modes import BLEND_MODES
from darkroom.engine.images.layers.composite import composite
from darkroom.engine.images.layers.layer import (
    MAX_SIDE_PX,
    VERSION,
    Document,
    Layer,
    canvas_of,
    extent_of,
    layers_of,
    mask_of,
    whole,
)
from darkroom.engine.images.layers.saved_composition import fingerprint_of, first_placement, read_composition
from darkroom.engine.images.regions import boxes_of
from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.image.images import PREVIEW_PNG_LEVEL, ExtraPngInfo, Prompt, save_all
from darkroom.engine.nodes.markers import Optional, Socket
from darkroom.engine.nodes.page_widgets import WITHOUT_SOCKET, PageWidget
from darkroom.engine.nodes.sockets import IMAGE, MASK
from darkroom.engine.nodes.widgets import Combo, Flag, Float, Int, Text

MODULE = "comfy_extras.nodes_compositor"
ALIASES = ["compositor", "composite", "layer", "layers", "layer editor", "psd"]
MAX_Z = 1000
EMPTY_PX = 64
NOTHING_SAVED: Mapping[str, object] = {}
OPAQUE = 1.0 - 1e-3

Layers = Annotated[Document, Socket("LAYERS")]
OptionalLayers = Annotated[Layers | None, Optional()]
OptionalMask = Annotated[MASK | None, Optional()]
Place = Annotated[int, Int(min=-MAX_SIDE_PX, max=MAX_SIDE_PX), Optional()]
Side = Annotated[int, Int(min=0, max=MAX_SIDE_PX), Optional()]
Switch = Annotated[bool, Flag(), Optional()]


@node("AddLayer", category="image", display_name="Add Layer", python_module=MODULE, experimental=True)
def add_layer(
    context: NodeContext,
    *,
    image: IMAGE,
    layers: OptionalLayers = None,
    mask: OptionalMask = None,
    name: Annotated[str, Text(multiline=False), Optional()] = "",
    x: Place = 0,
    y: Place = 0,
    opacity: Annotated[float, Float(min=0.0, max=1.0, step=0.01), Optional()] = 1.0,
    blend_mode: Annotated[str, Combo(tuple(BLEND_MODES)), Optional()] = "normal",
    rotation: Annotated[float, Float(min=-360.0, max=360.0, step=1.0), Optional()] = 0.0,
    width: Side = 0,
    height: Side = 0,
    z_index: Annotated[int, Int(min=-MAX_Z, max=MAX_Z), Optional()] = 0,
    flip_h: Switch = False,
    flip_v: Switch = False,
) -> Layers:
    """Put a layer on a stack, or begin one. A size of 0 is the image's; the rotation is clockwise, in degrees."""
    given = {
        "mask": mask,
        "name": name or None,
        "opacity": opacity if opacity != 1.0 else None,
        "blend_mode": blend_mode if blend_mode != "normal" else None,
        "rotation": math.radians(rotation) or None,
        "w": width or None,
        "h": height or None,
        "flip_h": flip_h or None,
        "flip_v": flip_v or None,
    }
    item = {"image": image, "type": "raster", "x": x, "y": y, "z_index": z_index}
    return _with_items(layers, [item | {key: value for key, value in given.items() if value is not None}])


@node("LayersFromBoundingBoxes", category="image", display_name="Layers From Bounding Boxes", python_module=MODULE,
      experimental=True)  # fmt: skip
def layers_from_bounding_boxes(
    context: NodeContext,
    *,
    image: IMAGE,
    bboxes: Annotated[object, Socket("BOUNDING_BOX,ARRAY,STRING")],
    mask: OptionalMask = None,
    layers: OptionalLayers = None,
    crop_to_content: Switch = True,
    canvas_width: Side = 0,
    canvas_height: Side = 0,
) -> Layers:
    """Put each image of a batch on a stack, at the place and in the size of its box; those without a box at the corner.

    A box's `metadata` may name the layer, give its `z_index`, and the part of the image that has content.
    """
    boxes = boxes_of(bboxes, canvas_width, canvas_height)
    before = (layers or {}).get("layers") or ()
    first_z = max((whole(item.get("z_index")) for item in before), default=-1) + 1
    items = []
    for index in range(len(image)):
        frame = image[index : index + 1]
        box = boxes[index] if index < len(boxes) else {}
        item = _item_of_box(frame, mask_of(mask, index), box, crop_to_content)
        items.append({"z_index": first_z + index, **item})
    canvas = (canvas_width, canvas_height) if canvas_width and canvas_height else None
    return _with_items(layers, items, canvas)


def _item_of_box(
    image: torch.Tensor, mask: torch.Tensor | None, box: Mapping[str, object], is_cropped: bool
) -> dict[str, object]:
    """Return the layer of one image [1, H, W, C] with its box."""
    found = box.get("metadata")
    metadata: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    x, y = whole(box.get("x")), whole(box.get("y"))
    size = {"w": whole(box.get("width")), "h": whole(box.get("height"))}
    content = _content(metadata.get("content_rect"), image) if is_cropped else None
    if content is not None:
        rows, columns = content
        image = image[:, rows, columns]
        mask = None if mask is None else mask[:, rows, columns]
        x, y, size = x + columns.start, y + rows.start, {}
    name = next((text for key in ("name", "desc") if isinstance(text := metadata.get(key), str) and text), None)
    given = {"mask": mask, "name": name, **{key: side for key, side in size.items() if side > 0}}
    if isinstance(metadata.get("z_index"), int | float):
        given["z_index"] = whole(metadata["z_index"])
    item = {"image": image, "type": "raster", "x": x, "y": y}
    return item | {key: value for key, value in given.items() if value is not None}


def _content(rectangle: object, image: torch.Tensor) -> tuple[slice, slice] | None:
    """Return rows and columns of `[left, top, width, height]` within an image [1, H, W, C]; None for no rectangle."""
    if not isinstance(rectangle, list | tuple) or len(rectangle) != 4:
        return None
    left, top, width, height = map(whole, rectangle)
    left, top = min(max(left, 0), image.shape[2]), min(max(top, 0), image.shape[1])
    right, bottom = min(left + max(width, 0), image.shape[2]), min(top + max(height, 0), image.shape[1])
    return (slice(top, bottom), slice(left, right)) if left < right and top < bottom else None


def _with_items(
    stack: Document | None, items: list[dict[str, object]], canvas: tuple[int, int] | None = None
) -> Document:
    """Return a stack with further layers; its canvas stays if no other is given."""
    canvas = canvas or canvas_of(stack)
    before = (stack or {}).get("layers") or ()
    return {"version": VERSION, "layers": [*before, *items], **({"canvas": canvas} if canvas else {})}


@node("ImageCompositor", display_name="Create Layered Image", category="image", python_module=MODULE, is_output=True,
      experimental=True, has_intermediate_output=True, search_aliases=ALIASES)  # fmt: skip
def image_compositor(
    context: NodeContext,
    *,
    layers: Layers,
    compositor: Annotated[object, PageWidget("COMPOSITOR", extra=WITHOUT_SOCKET)] = NOTHING_SAVED,
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> Annotated[NodeOutput, tuple[IMAGE, MASK]]:
    """Compose a stack, as the page has saved it if that was for these layers, else with their first places.

    The image has four channels where it is transparent.
    """
    found = layers_of(layers)
    fingerprints = [fingerprint_of(layer) for layer in found]
    saved = read_composition(compositor)
    is_replayed = saved is not None and bool(found) and saved.fingerprints == fingerprints
    limit = context.files.max_pixels()
    if saved is not None and is_replayed:
        canvas = composite(saved.stack(found), saved.canvas_px, saved.background, limit, context.cancel.check)
    elif found:
        stack = [(layer, first_placement(layer)) for layer in found]
        canvas = composite(stack, canvas_of(layers) or extent_of(found), None, limit, context.cancel.check)
    else:
        canvas = torch.zeros(EMPTY_PX, EMPTY_PX, 4)
        canvas[..., 3] = 1.0
    is_opaque = bool((canvas[..., 3] >= OPAQUE).all())
    image = canvas[None, ..., :3] if is_opaque else canvas[None]
    mask = torch.zeros(1, *canvas.shape[:2]) if is_opaque else 1.0 - canvas[None, ..., 3]
    texts = metadata_texts(prompt, extra_pnginfo) if context.embed_metadata else {}
    shown = {**save_all(context, image, "ComfyUI", "temp", texts, PREVIEW_PNG_LEVEL).ui, "animated": (False,)}
    shown["compositor_layers"] = [item for layer in found for item in _preview(context, layer, texts)]
    shown["compositor_inputs"] = fingerprints
    shown["compositor_bboxes"] = [_place_shown(layer) for layer in found]
    if compositor and not is_replayed:
        shown["compositor_state_stale"] = [True]
    return NodeOutput(shown, (image, mask))


def _preview(context: NodeContext, layer: Layer, texts: dict[str, str]) -> list[object]:
    pixels = layer.image if layer.alpha is None else torch.cat((layer.image, layer.alpha[..., None]), dim=-1)
    return list(save_all(context, pixels[None], "ComfyUI", "temp", texts, PREVIEW_PNG_LEVEL).ui["images"])


def _place_shown(layer: Layer) -> dict[str, object]:
    """Return the first place of a layer as the page's editor reads it."""
    own = layer.placement
    return {
        "x": own.x, "y": own.y, "width": own.width, "height": own.height, "rotation": own.rotation, "name": layer.name,
        "visible": own.is_visible, "opacity": own.opacity, "blend": own.blend, "flipH": own.is_flipped_h,
        "flipV": own.is_flipped_v,
    }  # fmt: skip


NODES = (add_layer, image_compositor, layers_from_bounding_boxes)
