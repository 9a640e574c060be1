"""The node of an image that is painted in ComfyUI's page.

`H W` pixels: IMAGE is float32 `[1, H, W, 3]` of 0..1, MASK `[1, H, W]`, 1 where paint covers.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from PIL import Image

from darkroom.engine.images.decode import read_first_frame
from darkroom.engine.images.pixels import from_pillow
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.file_content import content_hash
from darkroom.engine.nodes.library.image.images import PREVIEW_PNG_LEVEL, damaged_file, save_all
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.page_widgets import WITHOUT_SOCKET, Color, rgb_of
from darkroom.engine.nodes.sockets import IMAGE, MASK
from darkroom.engine.nodes.widgets import InputFile, Int

HIDDEN: Any = {**WITHOUT_SOCKET, "hidden": True}

Side = Annotated[int, Int(min=64, max=4096, step=64, extra=HIDDEN)]


class PaintedFile(InputFile):
    """The file that the page uploads; an empty name before anything is painted."""

    def type_in(self, environment: NodeEnvironment) -> Any:
        return "STRING"


def _unreadable(environment: NodeEnvironment, mask: object) -> str | None:
    return damaged_file(environment, mask) if str(mask or "").strip() else None


def _content(environment: NodeEnvironment, mask: object) -> str | None:
    return content_hash(environment, mask) if str(mask or "").strip() else ""


PAINTER = PaintedFile(
    "image", extra={"widgetType": "PAINTER", "image_upload": True, "multiline": False, **WITHOUT_SOCKET}
)


@node("Painter", display_name="Painter", category="image", python_module="comfy_extras.nodes_painter",
      has_intermediate_output=True, check=_unreadable, fingerprint=_content)  # fmt: skip
def painter(
    context: NodeContext,
    *,
    mask: Annotated[str, PAINTER] = "",
    width: Side = 512,
    height: Side = 512,
    bg_color: Color = "#000000",
    image: Annotated[IMAGE | None, Optional()] = None,
) -> Annotated[NodeOutput, tuple[IMAGE, MASK]]:
    """Put what was painted over the first image, or over a plain one, and show it."""
    if image is None:
        color = torch.tensor(rgb_of(bg_color) or (0, 0, 0)) / 255.0
        ground = color.expand(1, height, width, 3).clone()
    else:
        ground = image[:1].cpu()
    cover = torch.zeros(ground.shape[:3])
    if mask.strip():
        paint = read_first_frame(context.files.input_path(mask), context.files.max_pixels()).convert("RGBA")
        size = (ground.shape[2], ground.shape[1])
        scaled = paint if paint.size == size else paint.resize(size, Image.Resampling.LANCZOS)
        pixels = from_pillow(scaled)[None]  # [1, H, W, 4]
        opacity = pixels[..., 3:]
        ground = pixels[..., :3] * opacity + ground[..., :3] * (1.0 - opacity)
        cover = opacity[..., 0]
    shown = save_all(context, ground, "ComfyUI", "temp", {}, PREVIEW_PNG_LEVEL)
    return NodeOutput({**shown.ui, "animated": (False,)}, (ground, cover))


NODES = (painter,)
