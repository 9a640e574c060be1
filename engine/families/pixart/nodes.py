"""Node classes made for PixArt: prompts with the size of the image."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING
from darkroom.engine.nodes.widgets import Int, PromptText

SideOrNone = Annotated[int, Int(min=0, max=MAX_SIDE_PX)]


@node("CLIPTextEncodePixArtAlpha", display_name="CLIP Text Encode (PixArt Alpha)", category="model/conditioning/pixart",
      python_module="comfy_extras.nodes_pixart")  # fmt: skip
def clip_text_encode_pixart_alpha(
    context: NodeContext,
    *,
    width: SideOrNone = 1024,
    height: SideOrNone = 1024,
    text: Annotated[str, PromptText(multiline=True, dynamicPrompts=True)],
    clip: CLIP,
) -> CONDITIONING:
    """Encodes text and sets the resolution conditioning for PixArt Alpha. Does not apply to PixArt Sigma."""  # noqa: D401 - ComfyUI's words
    return clip.encode_from_tokens_scheduled(clip.tokenize(text), add_dict={"width": width, "height": height})


NODES = (clip_text_encode_pixart_alpha,)
