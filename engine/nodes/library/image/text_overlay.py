"""The node that draws a text over images. IMAGE is float32 `[B, H, W, C]` of 0..1."""

from __future__ import annotations

from typing import Annotated

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.images.text_overlay import TextStyle, color_of, with_text
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.page_widgets import Color
from darkroom.engine.nodes.sockets import IMAGE
from darkroom.engine.nodes.widgets import Combo, Flag, Float, Text

MAX_CHARACTERS = 4_000


def _complaint(environment: NodeEnvironment, text: str = "", color: str = "#ffffff") -> str | None:
    if len(text) > MAX_CHARACTERS:
        return f"text: too long; got {len(text)} characters, expected at most {MAX_CHARACTERS}"
    try:
        color_of(color)
    except ValueError:
        return f"color: no colour; got {color[:100]!r}, expected one such as #ff0000 or red"
    return None


@node("TextOverlay", display_name="Draw Text Overlay", category="text",
      python_module="comfy_extras.nodes_text_overlay", check=_complaint, facts=NodeFacts(items="alone"),
      comfyui_version="0.33.0")  # fmt: skip
def text_overlay(
    context: NodeContext,
    *,
    images: IMAGE,
    text: Annotated[str, Text(multiline=True)] = "",
    font_size: Annotated[float, Float(min=0.5, max=50.0, step=0.5)] = 5.0,
    color: Color = "#ffffff",
    position: Annotated[str, Combo(("top", "bottom"))] = "top",
    align: Annotated[str, Combo(("left", "center", "right"))] = "left",
    outline: Annotated[bool, Flag()] = True,
) -> Annotated[IMAGE, Out("images")]:
    """Draw a text over images, in a font of `font_size` percent of their height that shrinks until all of it fits.

    `\\n` and `\\t` written out are a new line and a tab. Raises ValueError for a text that is too long, for what is no
    colour, and for images without three channels.
    """
    complaint = _complaint(None, text, color)  # type: ignore[arg-type]  # of values that links gave
    if complaint is not None:
        raise ValueError(complaint)
    if not text.strip():
        return images
    if images.shape[-1] != 3:
        raise ValueError(f"images: channels; got {list(images.shape)}, expected [B, H, W, 3]")
    style = TextStyle(font_size / 100, color_of(color), position, align, outline)
    return with_text(images, text.replace("\\n", "\n").replace("\\t", "\t"), style, context.cancel.check)


NODES = (text_overlay,)
