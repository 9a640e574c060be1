"""The loader of LTX-2's text encoder, whose projection is in the checkpoint of the model."""

from __future__ import annotations

from typing import Annotated

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import CLIP
from darkroom.engine.nodes.widgets import Combo, ModelCombo

MODULE = "comfy_extras.nodes_lt_audio"
TEXT_TYPE = "ltxv"


@node(
    "LTXAVTextEncoderLoader",
    display_name="Load LTXV Audio Text Encoder",
    category="model/loaders",
    python_module=MODULE,
    facts=NodeFacts(reads_early=True, items="alike"),
    advanced=("device",),
)
def ltxav_text_encoder_loader(
    context: NodeContext,
    *,
    text_encoder: Annotated[str, ModelCombo("text_encoders")],
    ckpt_name: Annotated[str, ModelCombo("checkpoints")],
    device: Annotated[str, Combo(("default", "cpu"))],
) -> CLIP:
    """Load Gemma 3 12B with the projection of its states in a checkpoint of LTX-2."""
    clip: CLIP = context.models.clip_set(
        [text_encoder], text_type=TEXT_TYPE, on_cpu=device == "cpu", checkpoint=ckpt_name
    )
    return clip


NODES = (ltxav_text_encoder_loader,)
