"""The node that takes a colour of the page's picker apart."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.nodes.base import NodeContext, NodeEnvironment
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.page_widgets import Color, rgb_of
from darkroom.engine.nodes.sockets import FLOAT, INT

WITHOUT_ALPHA, WITH_ALPHA = 7, 9  # characters of #RRGGBB and #RRGGBBAA


def _complaint(environment: NodeEnvironment, color: object) -> str | None:
    """Return the reason why a text is no colour, None for one that is."""
    is_colour = isinstance(color, str) and len(color) in (WITHOUT_ALPHA, WITH_ALPHA) and color[0] == "#"
    if is_colour and isinstance(color, str) and all(rgb_of(part) for part in (color[:7], "#" + color[-6:])):
        return None
    return f"not a colour; got {str(color)[:20]!r}, expected #RRGGBB or #RRGGBBAA"


@node("ColorToRGBInt", display_name="Color Picker", category="utilities", python_module="comfy_extras.nodes_color",
      check=_complaint)  # fmt: skip
def color_to_rgb_int(
    context: NodeContext, *, color: Color = "#ffffff"
) -> tuple[
    Annotated[INT, Out("rgb_int")],
    Annotated[str, Socket("COLOR"), Out("hex")],
    Annotated[FLOAT, Out("alpha")],
]:
    """Return a colour as a number of 24 bits, as text without its opacity, and its opacity, 0..1."""
    rgb = color[1:WITHOUT_ALPHA]
    alpha = int(color[WITHOUT_ALPHA:], 16) / 255.0 if len(color) == WITH_ALPHA else 1.0
    return int(rgb, 16), f"#{rgb}", alpha


NODES = (color_to_rgb_int,)
