"""Node classes made for Stable Diffusion XL's refiner: a prompt with an aesthetic score."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING
from darkroom.engine.nodes.widgets import Float, Int, PromptText

SideOrNone = Annotated[int, Int(min=0, max=MAX_SIDE_PX)]


@node(
    "CLIPTextEncodeSDXLRefiner",
    display_name="CLIP Text Encode (SDXL Refiner)",
    category="model/conditioning/stable diffusion",
    python_module="comfy_extras.nodes_clip_sdxl",
)
def clip_text_encode_sdxl_refiner(
    context: NodeContext,
    *,
    ascore: Annotated[float, Float(min=0.0, max=1000.0, step=0.01)] = 6.0,
    width: SideOrNone = 1024,
    height: SideOrNone = 1024,
    text: Annotated[str, PromptText(multiline=True, dynamicPrompts=True)],
    clip: CLIP,
) -> CONDITIONING:
    """Encode a prompt for the refiner, with an aesthetic score and the size of the image it was trained on."""
    numbers = {"aesthetic_score": ascore, "width": width, "height": height}
    return clip.encode_from_tokens_scheduled(clip.tokenize(text), add_dict=numbers)


NODES = (clip_text_encode_sdxl_refiner,)
