"""Nodes that exchange images with the client of a run: sent through its WebSocket, or taken by its camera.

`B` batch, `H W` pixels: IMAGE is float32 `[B, H, W, C]` of 0..1.
"""

from __future__ import annotations

import math
from typing import Annotated

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.images.decode import read_image
from darkroom.engine.images.pixels import to_pillow
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.file_content import content_hash
from darkroom.engine.nodes.library.image.images import damaged_file
from darkroom.engine.nodes.sockets import IMAGE
from darkroom.engine.nodes.widgets import Flag, Int, RecordedFile

MAX_SIDE_PX = 16384


def _never_the_same(environment: NodeEnvironment) -> float:
    """Return a value that equals nothing: what was sent once is not there for the next client."""
    return math.nan


@node("SaveImageWebsocket", category="api/image", is_output=True, fingerprint=_never_the_same,
      python_module="custom_nodes.websocket_image_save", facts=NodeFacts(saved_by="SaveImage"))  # fmt: skip
def save_image_websocket(context: NodeContext, *, images: IMAGE) -> NodeOutput:
    """Send images to the client as binary previews of full size, PNG without metadata. Nothing is stored."""
    num_images = images.shape[0]
    for index, image in enumerate(images.detach().cpu()):  # [H, W, C]
        if context.report_preview is not None:
            context.report_preview(("PNG", to_pillow(image), None))
        context.report_progress(index, num_images)
    return NodeOutput({})


def _content(environment: NodeEnvironment, image: object) -> str | None:
    return content_hash(environment, image)


@node("WebcamCapture", display_name="Webcam Capture", category="image", check=damaged_file, fingerprint=_content,
      python_module="comfy_extras.nodes_webcam", essentials_category="Basics")  # fmt: skip
def webcam_capture(
    context: NodeContext,
    *,
    image: Annotated[str, RecordedFile("image", "WEBCAM")],
    width: Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=1)] = 0,
    height: Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=1)] = 0,
    capture_on_queue: Annotated[bool, Flag()] = True,
) -> IMAGE:
    """Load an image that ComfyUI's page has taken. Size and moment are the page's."""
    return read_image(context.files.input_path(image), context.files.max_pixels())[0]


NODES = (save_image_websocket, webcam_capture)
