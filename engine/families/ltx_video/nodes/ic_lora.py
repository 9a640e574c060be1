"""Parameters of IC-LoRAs, LoRAs that let a video follow another one, in the metadata of their files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from darkroom.engine.families.ltx_video.nodes.videos import CATEGORY, MODULE
from darkroom.engine.models.patching.patcher_registries import LORA_METADATA
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import IC_LORA_PARAMETERS, MODEL

FACTOR = "reference_downscale_factor"  # how many times smaller than the video the guides in training were


def downscale_factor_of(parameters: Mapping[str, Any] | None) -> int:
    """Return how many times smaller than the video guides are: a whole number, 1 where the parameters give none."""
    try:
        return max(1, round(float((parameters or {})[FACTOR])))
    except (KeyError, OverflowError, TypeError, ValueError):
        return 1


@node("GetICLoRAParameters", display_name="Get IC-LoRA Parameters", category=CATEGORY, python_module=MODULE)
def get_ic_lora_parameters(
    context: NodeContext, *, iclora_model: MODEL
) -> Annotated[IC_LORA_PARAMETERS, Out("iclora_parameters")]:
    """Return the parameters of the IC-LoRA that the last LoRA loader before this node applied, for `LTXVAddGuide`."""
    metadata: Any = iclora_model.get_attachment(LORA_METADATA) or {}
    factor = next((value for name, value in metadata.items() if name.endswith(FACTOR)), None)
    return {FACTOR: downscale_factor_of({FACTOR: factor})}


NODES = (get_ic_lora_parameters,)
