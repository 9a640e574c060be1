"""The node of regions that are drawn on a canvas in ComfyUI's page, for prompts that place things."""

from __future__ import annotations

from typing import Annotated, Any

from darkroom.engine.images.region_preview import region_preview
from darkroom.engine.images.regions import boxes_of, regions_of
from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.image.images import ExtraPngInfo, Prompt
from darkroom.engine.nodes.markers import Optional, Out, Socket
from darkroom.engine.nodes.page_widgets import WITHOUT_SOCKET, PageWidget
from darkroom.engine.nodes.sockets import IMAGE
from darkroom.engine.nodes.widgets import Int

MAX_SIDE_PX = 16384
NONE_DRAWN: list[Any] = []

Side = Annotated[int, Int(min=64, max=MAX_SIDE_PX, step=16)]
Outputs = tuple[
    Annotated[IMAGE, Out("preview")],
    Annotated[Any, Socket("BOUNDING_BOX"), Out("bboxes")],
    Annotated[Any, Socket("ARRAY"), Out("elements")],
]


@node("CreateBoundingBoxes", display_name="Create Bounding Boxes", category="utilities", is_output=True,
      python_module="comfy_extras.nodes_bounding_boxes", experimental=True)  # fmt: skip
def create_bounding_boxes(
    context: NodeContext,
    *,
    width: Side = 1024,
    height: Side = 1024,
    editor_state: Annotated[object, PageWidget("BOUNDING_BOXES", extra={"socketless": False})] = NONE_DRAWN,
    background: Annotated[IMAGE | None, Optional()] = None,
    bboxes: Annotated[object, Socket("BOUNDING_BOX,ARRAY,STRING"), Optional()] = None,
    last_incoming: Annotated[object, PageWidget("BOUNDING_BOXES", extra=WITHOUT_SOCKET), Optional()] = NONE_DRAWN,
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> Annotated[NodeOutput, Outputs]:
    """Return a preview of the regions, the regions in pixels, and as elements of a prompt.

    Those of a link count until the page has drawn on them; then what was drawn counts while the link brings the same.
    """
    incoming = boxes_of(bboxes, width, height)
    drawn = incoming if incoming and incoming != last_incoming else editor_state
    regions = regions_of(drawn, width, height)
    preview = region_preview(regions, width, height, None if background is None else background[0])
    boxes = [region.box(width, height) for region in regions]
    shown: dict[str, list[Any]] = {"dims": [width, height], **({"input_bboxes": incoming} if incoming else {})}
    return NodeOutput(shown, (preview, [boxes] if boxes else [], [region.element() for region in regions]))


NODES = (create_bounding_boxes,)
