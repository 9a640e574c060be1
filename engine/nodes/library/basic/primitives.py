"""Nodes that hold one plain value, and a node that shows any value as text."""

from __future__ import annotations

import sys
from typing import Annotated

from torch._tensor_str import printoptions

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.basic.patterns import TextTooLong
from darkroom.engine.nodes.library.basic.value_texts import check_length, json_text
from darkroom.engine.nodes.markers import Socket
from darkroom.engine.nodes.sockets import ANY, BOOLEAN, FLOAT, INT, STRING
from darkroom.engine.nodes.widgets import Flag, Float, Int, Text

CATEGORY = "utilities/primitive"
SHOWN_EDGE_ITEMS = 6  # of each side of a large tensor, as ComfyUI shows it
MODULE = "comfy_extras.nodes_primitive"


@node("PrimitiveString", display_name="Text", category=CATEGORY, python_module=MODULE)
def primitive_string(context: NodeContext, *, value: Annotated[str, Text(multiline=False)]) -> STRING:
    return value


@node(
    "PrimitiveStringMultiline",
    display_name="Text (Multiline)",
    category=CATEGORY,
    python_module=MODULE,
    essentials_category="Basics",
)
def primitive_string_multiline(context: NodeContext, *, value: Annotated[str, Text(multiline=True)]) -> STRING:
    return value


@node("PrimitiveInt", display_name="Int", category=CATEGORY, python_module=MODULE)
def primitive_int(
    context: NodeContext,
    *,
    value: Annotated[int, Int(min=-sys.maxsize, max=sys.maxsize, extra={"control_after_generate": "fixed"})],
) -> INT:
    return value


@node("PrimitiveFloat", display_name="Float", category=CATEGORY, python_module=MODULE)
def primitive_float(
    context: NodeContext, *, value: Annotated[float, Float(min=-sys.maxsize, max=sys.maxsize, step=0.1)]
) -> FLOAT:
    return value


@node("PrimitiveBoolean", display_name="Boolean", category=CATEGORY, python_module=MODULE,
      facts=NodeFacts(gives="value"))  # fmt: skip
def primitive_boolean(context: NodeContext, *, value: Annotated[bool, Flag()]) -> BOOLEAN:
    return value


@node(
    "PreviewAny",
    display_name="Preview as Text",
    category="utilities",
    is_output=True,
    python_module="comfy_extras.nodes_preview_any",
)
def preview_any(context: NodeContext, *, source: ANY) -> Annotated[NodeOutput, Socket("STRING")]:
    """Show any value as text, and return the text.

    Text is unchanged, numbers are as Python writes them, other values are JSON, or `str` if JSON cannot represent them.
    Raises TextTooLong.
    """
    text = _as_text(source)
    return NodeOutput({"text": (text,)}, (text,))


def _as_text(value: object) -> str:
    if value is None or isinstance(value, (str, int, float)):
        return str(value)
    check_length(value)
    try:
        return json_text(value, 4)
    except TextTooLong:
        raise
    except (TypeError, ValueError, RecursionError):  # no JSON value, or one that contains itself
        with printoptions(edgeitems=SHOWN_EDGE_ITEMS):
            return str(value)


NODES = (
    primitive_string,
    primitive_string_multiline,
    primitive_int,
    primitive_float,
    primitive_boolean,
    preview_any,
)
