"""Image2Image: generates another image of the same size from an image and a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from darkroom.modifiers.example_image import EXAMPLE_IMAGE
from darkroom.modifiers.model_files import NetworkFields
from darkroom.modifiers.modifier import LEFT_OUT, RANDOM_INT, Denoise, Guidance, Into, Name, OfFamily, Seed, Steps


class ImageFields(NetworkFields):
    """Parameters of redrawing an image. The size is that of `input_image`.

    Steps, `cfg_scale`, sampler, scheduler and shift that are left out are those of the model's family. For the engine's
    default family, and where the engine does not say, they are those of the workflow.
    """

    input_image: Annotated[
        Name,
        Into("10", "image"),
        Field(description="An http(s) URL, a data: URI, base64, or a file of the input folder."),
    ]
    prompt: Annotated[str, Into("6", "text"), Field(description="Content of the image.")]
    negative_prompt: Annotated[str, Into("7", "text"), Field(description="Content to avoid.")] = ""
    seed: Annotated[Seed, Into("3", "seed"), Field(description="Left out: a random one.")] = RANDOM_INT
    steps: Annotated[Steps, Into("3", "steps"), OfFamily("steps"), Field(description="Sampling steps.")] = LEFT_OUT
    cfg_scale: Annotated[Guidance, Into("3", "cfg"), OfFamily("cfg"), Field(description="Weight of the prompts.")] = (
        LEFT_OUT
    )
    sampler_name: Annotated[
        Name, Into("3", "sampler_name"), OfFamily("sampler_name"), Field(description="A sampler of KSampler.")
    ] = LEFT_OUT
    scheduler: Annotated[
        Name, Into("3", "scheduler"), OfFamily("scheduler"), Field(description="A scheduler of KSampler.")
    ] = LEFT_OUT
    denoise: Annotated[Denoise, Into("3", "denoise"), Field(description="0 keeps the image, 1 forgets it.")] = 0.87
    ckpt_name: Annotated[Name, Into("14", "ckpt_name"), Field(description="A file of the checkpoints folder.")] = (
        LEFT_OUT
    )


class Image2Image(ImageFields):
    """Redraw an image after a text. The size is that of `input_image`."""

    workflow_file: ClassVar[str] = "image_to_image.json"
    example: ClassVar[Mapping[str, Any]] = {"prompt": "a lighthouse at dawn", "input_image": EXAMPLE_IMAGE}
