"""Node classes made for AuraFlow, which flow models of other families take too."""

from __future__ import annotations

from typing import Annotated

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.sampling.model_sampling import MODEL_MODULE, sampled_with_flow
from darkroom.engine.nodes.sockets import MODEL
from darkroom.engine.nodes.widgets import Float

Shift = Annotated[float, Float(min=0.0, max=100.0, step=0.01)]


@node("ModelSamplingAuraFlow", category="model/patch", python_module=MODEL_MODULE, facts=NodeFacts(items="alike"))
def model_sampling_aura_flow(context: NodeContext, *, model: MODEL, shift: Shift = 1.73) -> MODEL:
    return sampled_with_flow(model, shift, 1.0)


NODES = (model_sampling_aura_flow,)
