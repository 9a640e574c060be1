"""Nodes with networks that estimate how pixels move from one frame to another."""

from __future__ import annotations

from typing import Annotated

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import OPTICAL_FLOW
from darkroom.engine.nodes.widgets import ModelCombo


@node(
    "OpticalFlowLoader",
    display_name="Load Optical Flow Model",
    category="model/loaders",
    python_module="comfy_extras.nodes_void",
    facts=NodeFacts(items="alike"),
)
def optical_flow_loader(
    context: NodeContext, *, model_name: Annotated[str, ModelCombo("optical_flow")]
) -> OPTICAL_FLOW:
    """Load a network that estimates optical flow: RAFT's large one."""
    loaded: OPTICAL_FLOW = context.models.vision.flow_estimator(model_name)
    return loaded


NODES = (optical_flow_loader,)
