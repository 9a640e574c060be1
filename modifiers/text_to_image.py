"""Text2Image: generates a picture from a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from modifiers.modifier import RANDOM_INT, Denoise, Guidance, Into, Modifier, Name, Pixels, Seed, Steps

Prompt = Annotated[str, Into("6", "text"), Field(description="What to draw.")]


class TextToImageFields(Modifier):
    """Parameters of generating from text, each with the default that clients rely on.

    `cfg_scale` is honoured (clients have always sent it); left out it is 8, ComfyUI's own default.
    """

    workflow_file: ClassVar[str] = "text_to_image.json"

    prompt: Prompt = ""
    negative_prompt: Annotated[str, Into("7", "text"), Field(description="What to keep away from.")] = ""
    seed: Annotated[Seed, Into("3", "seed"), Field(description="Left out: a random one.")] = RANDOM_INT
    steps: Annotated[Steps, Into("3", "steps"), Field(description="Sampling steps.")] = 20
    cfg_scale: Annotated[Guidance, Into("3", "cfg"), Field(description="How strongly the prompts count.")] = 8.0
    sampler_name: Annotated[Name, Into("3", "sampler_name"), Field(description="A sampler of KSampler.")] = "euler"
    scheduler: Annotated[Name, Into("3", "scheduler"), Field(description="A scheduler of KSampler.")] = "normal"
    denoise: Annotated[Denoise, Into("3", "denoise"), Field(description="1 starts from pure noise.")] = 1.0
    ckpt_name: Annotated[Name, Into("4", "ckpt_name"), Field(description="A file of the checkpoints folder.")] = (
        "v1-5-pruned-emaonly-fp16.safetensors"
    )
    width: Annotated[Pixels, Into("5", "width"), Field(description="Pixels; cut to a multiple of 8.")] = 512
    height: Annotated[Pixels, Into("5", "height"), Field(description="Pixels; cut to a multiple of 8.")] = 512


class Text2Image(TextToImageFields):
    """Draw a picture from a text."""

    example: ClassVar[Mapping[str, Any]] = {
        "prompt": "a lighthouse on a cliff at dawn, oil painting",
        "negative_prompt": "blurry",
        "width": 256,
        "height": 256,
        "steps": 8,
    }

    prompt: Prompt
