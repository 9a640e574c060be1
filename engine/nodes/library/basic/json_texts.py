"""Nodes that read JSON, write it, and put prompts together in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.basic.patterns import joined
from darkroom.engine.nodes.library.basic.value_texts import json_text
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.page_widgets import PageWidget
from darkroom.engine.nodes.parameters import DynamicChoice, Field
from darkroom.engine.nodes.sockets import STRING
from darkroom.engine.nodes.widgets import Int, Text

VERSION = "0.33.0"
MODULE = "comfy_extras.nodes_string"

Line = Text(multiline=False)
Multiline = Annotated[str, Text(multiline=True)]
Indent = Annotated[int, Int(min=0, max=8)]
PALETTE = PageWidget("COLORS", extra={"socketless": False})  # a list of colours, each `#rrggbb`
STYLES = (
    ("none", ()),
    ("photo", (Field("photo", Line, ""),)),
    ("art_style", (Field("art_style", Line, ""),)),
)


@node("JsonExtractString", display_name="Extract Text from JSON", category="text", python_module=MODULE,
      comfyui_version=VERSION)  # fmt: skip
def json_extract_string(context: NodeContext, *, json_string: Multiline, key: Annotated[str, Line]) -> STRING:
    """Return a value of a JSON object as text; empty without that key, for null, and for what is no JSON object."""
    try:
        data = json.loads(json_string)
        value = data.get(key) if isinstance(data, dict) else None
        return "" if value is None else joined((str(value),))
    except (ValueError, TypeError, RecursionError):  # no JSON, digits without end, nested too deeply
        return ""


@node("ConvertDictionaryToString", display_name="Convert Dictionary to String", category="text", python_module=MODULE,
      comfyui_version=VERSION)  # fmt: skip
def convert_dictionary_to_string(
    context: NodeContext, *, dictionary: Annotated[Mapping[str, Any], Socket("DICT")], indent: Indent = 2
) -> STRING:
    """Write a dictionary as JSON, on one line for an indent of 0."""
    return json_text(dictionary, indent or None)


@node("ConvertArrayToString", display_name="Convert Array to String", category="text", python_module=MODULE,
      comfyui_version=VERSION)  # fmt: skip
def convert_array_to_string(
    context: NodeContext, *, array: Annotated[Sequence[Any], Socket("ARRAY")], indent: Indent = 2
) -> STRING:
    """Write a list as JSON, on one line for an indent of 0."""
    return json_text(array, indent or None)


@node("BuildJsonPromptIdeogram", display_name="Build JSON Prompt (Ideogram)", category="text",
      python_module="comfy_extras.nodes_json_prompt", experimental=True, comfyui_version=VERSION)  # fmt: skip
def build_json_prompt_ideogram(
    context: NodeContext,
    *,
    element: Annotated[Any, Socket("ARRAY")],
    high_level_description: Multiline = "",
    background: Multiline = "",
    style: Annotated[Mapping[str, str], DynamicChoice(fields=STYLES)],
    aesthetics: Annotated[str, Line] = "",
    lighting: Annotated[str, Line] = "",
    medium: Annotated[str, Line] = "",
    color_palette: Annotated[Any, PALETTE] = (),
) -> Annotated[dict[str, Any], Socket("DICT"), Out("prompt")]:
    """Return the structured prompt of Ideogram 4: a description, a style, a background and elements."""
    caption: dict[str, Any] = {}
    if high_level_description.strip():
        caption["high_level_description"] = high_level_description
    if style["style"] != "none":
        described = _photo_style if style["style"] == "photo" else _art_style
        caption["style_description"] = {"aesthetics": aesthetics, "lighting": lighting, **described(style, medium)}
        colours = _colours_of(color_palette)
        if colours:
            caption["style_description"]["color_palette"] = colours
    elements = list(element) if isinstance(element, list) else []
    caption["compositional_deconstruction"] = {"background": background, "elements": elements}
    return caption


def _photo_style(style: Mapping[str, str], medium: str) -> dict[str, str]:
    return {"photo": style.get("photo", ""), "medium": medium}


def _art_style(style: Mapping[str, str], medium: str) -> dict[str, str]:
    return {"medium": medium, "art_style": style.get("art_style", "")}


def _colours_of(palette: Any) -> list[str]:
    """Return the colours of a palette, a list or a mapping of them, in capital letters."""
    found = palette.values() if isinstance(palette, Mapping) else palette or ()
    return [colour.upper() for colour in found if isinstance(colour, str) and colour]


NODES = (
    json_extract_string,
    convert_dictionary_to_string,
    convert_array_to_string,
    build_json_prompt_ideogram,
)
