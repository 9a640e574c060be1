"""A node that lets a text encoder write text, such as a longer prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Optional, Out
from darkroom.engine.nodes.parameters import DynamicChoice, Field
from darkroom.engine.nodes.sockets import AUDIO, CLIP, IMAGE, STRING
from darkroom.engine.nodes.widgets import Flag, Float, Int, PromptText
from darkroom.engine.text.token_sampling import TokenSampling

VERSION = "0.30.0"
MAX_SEED = 0xFFFFFFFFFFFFFFFF
RANDOM = (
    Field("temperature", Float(min=0.01, max=2.0, step=0.000001), 0.7),
    Field("top_k", Int(min=0, max=1000), 64),
    Field("top_p", Float(min=0.0, max=1.0, step=0.01), 0.95),
    Field("min_p", Float(min=0.0, max=1.0, step=0.01), 0.05),
    Field("repetition_penalty", Float(min=0.0, max=5.0, step=0.01), 1.05),
    Field("seed", Int(min=0, max=MAX_SEED), 0),
    Field("presence_penalty", Float(min=0.0, max=5.0, step=0.01), 0.0, is_optional=True),
)

SAMPLING = (("on", RANDOM), ("off", ()))
SamplingMode = Annotated[Mapping[str, Any], DynamicChoice(fields=SAMPLING, extra={"display_name": "Sampling Mode"})]


def written_text(
    context: NodeContext,
    clip: Any,
    prompt: str,
    sampling_mode: Mapping[str, Any],
    max_length: int,
    *,
    unread: Mapping[str, object],
    **options: Any,
) -> str:
    """Return the text of a language model behind a prompt. `options` are those of its tokenizer.

    Raises ValueError for a text encoder that writes no text, and for what it does not read: `unread`, by name.
    """
    for name, given in unread.items():
        if given is not None:
            raise ValueError(f"{name}: this text encoder reads text and images; got {name}, expected none")
    tokens = clip.tokenize(prompt, min_length=1, **options)
    chosen = dict(sampling_mode)
    is_random = chosen.pop("sampling_mode") == "on"
    sampling = (
        TokenSampling(**{name: value for name, value in chosen.items() if value is not None}) if is_random else None
    )
    sampling = sampling or TokenSampling()
    written: list[int] = []
    for token in clip.written(tokens, sampling.draw, most=max_length):
        written.append(token)
        context.report_progress(len(written), max_length)
    text: str = clip.decode(written)
    return text


@node("TextGenerate", display_name="Generate Text", category="text", python_module="comfy_extras.nodes_textgen",
      comfyui_version=VERSION, advanced=("use_default_template",))  # fmt: skip
def text_generate(
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
    """Let a language model answer a prompt, with images where it reads them; tokens are drawn, or the likeliest ones.

    Raises ValueError for a text encoder that writes no text, and for videos and audio, which none of them reads.
    """
    return written_text(
        context, clip, prompt, sampling_mode, max_length, unread={"video": video, "audio": audio}, image=image,
        skip_template=not use_default_template, thinking=thinking,
    )  # fmt: skip


NODES = (text_generate,)
