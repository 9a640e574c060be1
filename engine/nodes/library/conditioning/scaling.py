"""The node that scales CONDITIONING."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import CONDITIONING
from darkroom.engine.nodes.widgets import Float


@node("ConditioningMultiply", display_name="Conditioning (Multiply)", category="model/conditioning/transform")
def conditioning_multiply(
    context: NodeContext,
    *,
    conditioning: CONDITIONING,
    multiplier: Annotated[float, Float(min=-100.0, max=100.0, step=0.01)] = 1.0,
) -> CONDITIONING:
    """Multiply the tokens and the pooled output of each condition."""
    scaled = []
    for tokens, options in conditioning:
        pooled = options.get("pooled_output")
        changed = options if pooled is None else {**options, "pooled_output": pooled * multiplier}
        scaled.append([tokens * multiplier, dict(changed)])
    return scaled


NODES = (conditioning_multiply,)
