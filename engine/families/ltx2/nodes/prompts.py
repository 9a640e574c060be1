"""Longer prompts for LTX-2, which its text encoder writes of short ones."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.families.ltx2.prompts import instructed, without_thoughts
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.text_generation import SamplingMode, written_text
from darkroom.engine.nodes.markers import Optional, Out
from darkroom.engine.nodes.sockets import AUDIO, CLIP, IMAGE, STRING
from darkroom.engine.nodes.widgets import Flag, Int, PromptText


@node("TextGenerateLTX2Prompt", display_name="Generate LTX2 Prompt", category="text",
      python_module="comfy_extras.nodes_textgen", advanced=("use_default_template",))  # fmt: skip
def text_generate_ltx2_prompt(
    context: NodeContext,
    *,
    clip: CLIP,
    prompt: Annotated[str, PromptText(multiline=True, dynamicPrompts=True)] = "",
    image: Annotated[IMAGE | None, Optional()] = None,
    video: Annotated[IMAGE | None, Optional()] = None,
    audio: Annotated[AUDIO | None, Optional()] = None,
    max_length: Annotated[int, Int(min=1, max=32768)] = 512,
    sampling_mode: SamplingMode,
    thinking: Annotated[bool, Flag(), Optional()] = False,
    use_default_template: Annotated[bool, Flag(), Optional()] = True,
) -> Annotated[STRING, Out("generated_text")]:
    """Let a language model write a detailed prompt of a video with audio, of the prompt and an image to begin with.

    The prompt itself comes back where nothing is written. The instructions are the engine's own, not ComfyUI's.
    """
    text = written_text(
        context, clip, instructed(prompt, has_image=image is not None), sampling_mode, max_length,
        unread={"video": video, "audio": audio}, image=image, skip_template=not use_default_template,
        thinking=thinking,
    )  # fmt: skip
    return without_thoughts(text) or prompt


NODES = (text_generate_ltx2_prompt,)
