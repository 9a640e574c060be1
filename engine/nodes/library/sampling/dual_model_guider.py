"""The guider whose negative side is predicted by another MODEL."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.diffusion.dual_model import DualModelGuider
from darkroom.engine.diffusion.options import Conditioning
from darkroom.engine.diffusion.sample import Guider
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import CONDITIONING, GUIDER, MODEL
from darkroom.engine.nodes.widgets import Float

WITHOUT_TEXT: Conditioning = [[None, {}]]  # the network reads the image alone


@node(
    "DualModelGuider",
    display_name="Dual Model CFG Guider",
    category="model/sampling/guiders",
    python_module="comfy_extras.nodes_custom_sampler",
    experimental=True,
)
def dual_model_guider(
    context: NodeContext,
    *,
    model: MODEL,
    model_negative: Annotated[MODEL | None, Optional()] = None,
    positive: CONDITIONING,
    cfg: Annotated[float, Float(min=0.0, max=100.0, step=0.1, round=0.01)] = 4.0,
    negative: Annotated[CONDITIONING | None, Optional()] = None,
) -> GUIDER:
    """Guide by a negative side of another model; without a negative it reads no text."""
    guider = Guider(model) if model_negative is None else DualModelGuider(model, model_negative)
    guider.set_conds(positive, WITHOUT_TEXT if negative is None else negative)
    guider.set_cfg(cfg)
    return guider


NODES = (dual_model_guider,)
