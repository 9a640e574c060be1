"""Nodes made for Lumina-Image 2.0: a prompt behind one of the instructions that the model was trained with."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING
from darkroom.engine.nodes.widgets import Combo, PromptText

MARK = "<Prompt Start>"  # between the instruction and the prompt
INSTRUCTIONS = {
    "superior": (
        "You are an assistant designed to generate superior images with the superior degree of image-text alignment "
        "based on textual prompts or user prompts."
    ),
    "alignment": (
        "You are an assistant designed to generate high-quality images with the highest degree of image-text "
        "alignment based on textual prompts."
    ),
}


@node("CLIPTextEncodeLumina2", display_name="CLIP Text Encode (Lumina 2)", category="model/conditioning/lumina",
      python_module="comfy_extras.nodes_lumina2")  # fmt: skip
def clip_text_encode_lumina2(
    context: NodeContext,
    *,
    system_prompt: Annotated[str, Combo(tuple(INSTRUCTIONS))],
    user_prompt: Annotated[str, PromptText(multiline=True, dynamicPrompts=True)],
    clip: CLIP,
) -> CONDITIONING:
    """Encodes a system prompt and a user prompt using a CLIP model into an embedding that can be used to guide the diffusion model towards generating specific images."""  # noqa: D401, E501 - ComfyUI's
    return clip.encode_from_tokens_scheduled(clip.tokenize(f"{INSTRUCTIONS[system_prompt]} {MARK} {user_prompt}"))


NODES = (clip_text_encode_lumina2,)
