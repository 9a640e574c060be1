"""Nodes that decide: switches, logical operations, choices whose values the page's user wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Lazy, Matched, Out, Socket
from darkroom.engine.nodes.parameters import Field, Growing
from darkroom.engine.nodes.sockets import ANY, BOOLEAN, STRING
from darkroom.engine.nodes.widgets import Flag, OpenCombo

MODULE = "comfy_extras.nodes_logic"
VERSION = "0.30.0"
CATEGORY = "utilities/logic"
MAX_VALUES = 10

SWITCH = NodeFacts(chosen_by="switch", alternatives={"true": "on_true", "false": "on_false"})
SWITCHED = Matched("COMFY_MATCHTYPE_V3", template="switch")
Values = Annotated[Mapping[str, Any], Growing(item=Field("value", Socket("*")), prefix="value", min=1, max=MAX_VALUES)]


def _wanted_side(switch: object = None, **_: object) -> tuple[str, ...]:
    return () if switch is None else ("on_true" if switch else "on_false",)


@node("ComfySwitchNode", display_name="If/Else Switch", category=CATEGORY, python_module=MODULE, needs=_wanted_side,
      experimental=True, comfyui_version=VERSION, facts=SWITCH)  # fmt: skip
def comfy_switch_node(
    context: NodeContext,
    *,
    switch: Annotated[bool, Flag()],
    on_false: Annotated[object, SWITCHED, Lazy()] = None,
    on_true: Annotated[object, SWITCHED, Lazy()] = None,
) -> Annotated[object, SWITCHED, Out("output")]:
    """Pass one of two values on; what the other needs is not computed."""
    return on_true if switch else on_false


@node("CustomCombo", display_name="Custom Combo", category="utilities", python_module=MODULE, takes_any_value=True,
      experimental=True, comfyui_version=VERSION, facts=NodeFacts(page_values=("index", "option#")))  # fmt: skip
def custom_combo(
    context: NodeContext, *, choice: Annotated[str, OpenCombo()], **others: object
) -> tuple[STRING, Annotated[object, Socket("INT"), Out("INDEX")]]:
    """Return a choice among values that the page keeps, and its place among them, as given."""
    return choice, others.get("index", 0)


@node("ComfyNotNode", display_name="Not", category=CATEGORY, python_module=MODULE, comfyui_version=VERSION)
def comfy_not_node(context: NodeContext, *, value: ANY) -> BOOLEAN:
    return not value


@node("ComfyAndNode", display_name="And", category=CATEGORY, python_module=MODULE, comfyui_version=VERSION)
def comfy_and_node(context: NodeContext, *, values: Values) -> BOOLEAN:
    return all(values.values())


@node("ComfyOrNode", display_name="Or", category=CATEGORY, python_module=MODULE, comfyui_version=VERSION)
def comfy_or_node(context: NodeContext, *, values: Values) -> BOOLEAN:
    return any(values.values())


NODES = (comfy_switch_node, custom_combo, comfy_not_node, comfy_and_node, comfy_or_node)
