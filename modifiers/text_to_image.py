"""Text2Image: generates an image from a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from darkroom.modifiers.model_files import NetworkFields
from darkroom.modifiers.modifier import LEFT_OUT, RANDOM_INT, Denoise, Into, OfFamily, Pixels
from darkroom.modifiers.sampling_fields import (
    CheckpointName,
    PromptStrength,
    SamplerName,
    SamplerSeed,
    SamplerSteps,
    SchedulerName,
)

Prompt = Annotated[str, Into("6", "text"), Field(description="Content of the image.")]


class TextToImageFields(NetworkFields):
    """Parameters of generating from text, each with the default that clients rely on.

    Size, steps, `cfg_scale`, sampler, scheduler and shift that are left out are those of the model's family. For the
    engine's default family, and where the engine does not say, they are those of the workflow.
    """

    workflow_file: ClassVar[str] = "text_to_image.json"

    prompt: Prompt = ""
    negative_prompt: Annotated[str, Into("7", "text"), Field(description="Content to avoid.")] = ""
    seed: SamplerSeed = RANDOM_INT
    steps: SamplerSteps = LEFT_OUT
    cfg_scale: PromptStrength = LEFT_OUT
    sampler_name: SamplerName = LEFT_OUT
    scheduler: SchedulerName = LEFT_OUT
    denoise: Annotated[Denoise, Into("3", "denoise"), Field(description="1 starts from pure noise.")] = 1.0
    ckpt_name: CheckpointName = LEFT_OUT
    width: Annotated[
        Pixels, Into("5", "width"), OfFamily("width"), Field(description="Pixels; cut to a multiple of 8.")
    ] = LEFT_OUT
    height: Annotated[
        Pixels, Into("5", "height"), OfFamily("height"), Field(description="Pixels; cut to a multiple of 8.")
    ] = LEFT_OUT


class Text2Image(TextToImageFields):
    """Draw an image from a text."""

    example: ClassVar[Mapping[str, Any]] = {
        "prompt": "a lighthouse on a cliff at dawn, oil painting",
        "negative_prompt": "blurry",
        "width": 256,
        "height": 256,
        "steps": 8,
    }

    prompt: Prompt
