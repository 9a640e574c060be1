"""A node of a pack that moves blocks between devices, which memory management here does by itself."""

from __future__ import annotations

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import MODEL


@node("wanBlockSwap", display_name=None, category="", python_module="comfy_extras.nodes_nop", deprecated=True)
def wan_block_swap(context: NodeContext, *, model: MODEL) -> MODEL:
    """Return the model as it is."""
    return model


NODES = (wan_block_swap,)
