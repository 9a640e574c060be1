"""Node classes made for Stable Diffusion XL: a prompt for each text encoder, with sizes and crop."""

from __future__ import annotations

from typing import Annotated

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING
from darkroom.engine.nodes.widgets import Int, PromptText

SideOrNone = Annotated[int, Int(min=0, max=MAX_SIDE_PX)]


@node(
    "CLIPTextEncodeSDXL",
    display_name="CLIP Text Encode (SDXL)",
    category="model/conditioning/stable diffusion",
    python_module="comfy_extras.nodes_clip_sdxl",
    facts=NodeFacts(items="alike"),
    advanced=("crop_w", "crop_h"),
)
def clip_text_encode_sdxl(
    context: NodeContext,
    *,
    clip: CLIP,
    width: SideOrNone = 1024,
    height: SideOrNone = 1024,
    crop_w: SideOrNone = 0,
    crop_h: SideOrNone = 0,
    target_width: SideOrNone = 1024,
    target_height: SideOrNone = 1024,
    text_g: Annotated[str, PromptText(multiline=True, dynamicPrompts=True)],
    text_l: Annotated[str, PromptText(multiline=True, dynamicPrompts=True)],
) -> CONDITIONING:
    """Encode a prompt for each of two text encoders, with the sizes of original and target image and of the crop.

    The shorter prompt is filled up with empty chunks.
    """
    tokens = {**clip.tokenize(text_g), "l": clip.tokenize(text_l)["l"]}
    empty = clip.tokenize("")
    longest = max(len(tokens["l"]), len(tokens["g"]))
    for slot in ("l", "g"):
        while len(tokens[slot]) < longest:
            tokens[slot] = [*tokens[slot], *empty[slot]]
    numbers = {
        "width": width, "height": height, "crop_w": crop_w, "crop_h": crop_h, "target_width": target_width,
        "target_height": target_height,
    }  # fmt: skip
    return clip.encode_from_tokens_scheduled(tokens, add_dict=numbers)


NODES = (clip_text_encode_sdxl,)
