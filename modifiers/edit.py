"""Edit: changes an image after an instruction, with further images to take from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from darkroom.modifiers.example_image import EXAMPLE_IMAGE
from darkroom.modifiers.model_files import ModelFileFields, Shift
from darkroom.modifiers.modifier import (
    LEFT_OUT,
    RANDOM_INT,
    Choices,
    Guidance,
    Into,
    Name,
    OfFamily,
    with_ancestors_only,
)
from darkroom.modifiers.sampling_fields import (
    CHECKPOINT,
    SAMPLER,
    CheckpointName,
    PromptStrength,
    SamplerName,
    SamplerSeed,
    SamplerSteps,
    SchedulerName,
)

# Nodes of the workflow.
SAVED = "9"
ENCODERS = ("6", "7")
SHIFTED, NORMED = "14", "15"
IMAGES = ("10", "20", "30")
REFERENCES = ("13", "23", "33")
TEXT, GUIDED, ZEROED = "16", "17", "18"
SCALED_FOR_ENCODER, SCALED = "19", "11"
START = "12"
JOINED = "40"  # encodes the instruction and its opposite, and gives the latent
JOINED_LATENT = 2  # its output
KEEPING = "41"  # the model that computes the images once, not in each step
FURTHER = "40_{}"  # node of a further image, by its number

MAX_IMAGES = {"encoder": 3, "references": 3, "interleaved": 16}


class Edit(ModelFileFields):
    """Change an image after an instruction. The size is that of `input_image`, at about a megapixel.

    The checkpoint must be of a family that edits by instructions, such as Qwen-Image-Edit, Qwen-Image 2.1 or Flux.1
    Kontext. Steps, `cfg_scale`, sampler and scheduler that are left out are those of the family.
    """

    workflow_file: ClassVar[str] = "edit.json"
    example: ClassVar[Mapping[str, Any]] = {"prompt": "make it winter", "input_image": EXAMPLE_IMAGE}

    input_image: Annotated[
        Name,
        Into("10", "image"),
        Field(description="An http(s) URL, a data: URI, base64, or a file of the input folder."),
    ]
    input_image_2: Annotated[Name | None, Into("20", "image"), Field(description="A further image.")] = None
    input_image_3: Annotated[Name | None, Into("30", "image"), Field(description="A further image.")] = None
    further_images: Annotated[
        Annotated[list[Name], Field(max_length=MAX_IMAGES["interleaved"] - 3)] | None,
        Field(description="Images after the third (method `interleaved` only), up to 16 in all."),
    ] = None
    prompt: Annotated[
        str,
        Into("6", "prompt"),
        Into("16", "text"),
        Into(JOINED, "prompt"),
        Field(description="The instruction: what is to change."),
    ]
    negative_prompt: Annotated[
        str,
        Into("7", "prompt"),
        Into(JOINED, "negative_prompt"),
        Field(description="Content to avoid (methods `encoder` and `interleaved`)."),
    ] = ""
    seed: SamplerSeed = RANDOM_INT
    steps: SamplerSteps = LEFT_OUT
    cfg_scale: PromptStrength = LEFT_OUT
    sampler_name: SamplerName = LEFT_OUT
    scheduler: SchedulerName = LEFT_OUT
    guidance: Annotated[
        Guidance, Into("17", "guidance"), Field(description="Weight of the instruction (`references` only).")
    ] = 2.5
    shift: Annotated[Shift, Into("14", "shift"), Field(description="Shift of the noise levels (`encoder` only).")] = 3.0
    ckpt_name: CheckpointName = LEFT_OUT
    edit_method: Annotated[
        Literal["encoder", "references", "interleaved"] | None,
        OfFamily("edit"),
        Field(
            description="encoder: the text encoder sees the images too (Qwen-Image-Edit); references: the model sees "
            "their latents alone (Flux.1 Kontext); interleaved: their latents stand between the words (Qwen-Image 2.1)."
        ),
    ] = LEFT_OUT

    @model_validator(mode="after")
    def _has_method(self) -> Self:
        if self.edit_method is None:
            raise PydanticCustomError(
                "ckpt_name",
                "must be of a family that edits images by an instruction; where the engine does not know the family "
                "of a file, `edit_method` has to be given",
            )
        return self

    @model_validator(mode="after")
    def _takes_the_images(self) -> Self:
        num_images, most = len(self._images()), MAX_IMAGES[self.edit_method or "encoder"]
        if num_images > most:
            raise PydanticCustomError(
                "further_images",
                "too many images for the method `{method}`; got {num_images}, expected at most {most}",
                {"method": str(self.edit_method), "num_images": num_images, "most": most},
            )
        return self

    def _images(self) -> list[str]:
        """Return the images that are given, in their order."""
        return [
            name
            for name in (self.input_image, self.input_image_2, self.input_image_3, *(self.further_images or ()))
            if name is not None
        ]

    @classmethod
    def field_at(cls, node_id: str, input_name: str) -> str | None:
        start, number = FURTHER.format(""), node_id.rpartition("_")[2]
        if node_id.startswith(start) and number.isdecimal():
            return f"further_images.{int(number)}"
        return super().field_at(node_id, input_name)

    @classmethod
    def example_with(cls, workflow: Mapping[str, Any], choices: Choices) -> dict[str, Any] | None:
        """Return None: by the names of its files alone an engine does not say that one of them edits images."""
        return None

    def fill(self, workflow: Mapping[str, Any]) -> dict[str, Any]:
        prompt = super().fill(workflow)
        further = (self.input_image_2, self.input_image_3)
        given = [True, *(name is not None for name in further)]
        if self.edit_method == "interleaved":
            _wire_joined(prompt, given, self.further_images or ())
        elif self.edit_method == "encoder":
            _wire_encoder(prompt, given)
        else:
            _wire_references(prompt, given)
        return with_ancestors_only(prompt, SAVED)


def _wire_encoder(prompt: dict[str, Any], given: list[bool]) -> None:
    """Connect the text encoder, which gets the images that are given."""
    for node_id in ENCODERS:
        for place, is_given in enumerate(given, start=1):
            if not is_given:
                del prompt[node_id]["inputs"][f"image{place}"]
    prompt[START]["inputs"]["pixels"] = [SCALED_FOR_ENCODER, 0]
    _wire_sampler(prompt, NORMED, ENCODERS[0], ENCODERS[1])


def _wire_references(prompt: dict[str, Any], given: list[bool]) -> None:
    """Connect the latents of the images that are given, one behind the other."""
    last = TEXT
    for node_id, is_given in zip(REFERENCES, given, strict=True):
        if is_given:
            prompt[node_id]["inputs"]["conditioning"] = [last, 0]
            last = node_id
    prompt[GUIDED]["inputs"]["conditioning"] = [last, 0]
    prompt[START]["inputs"]["pixels"] = [SCALED, 0]
    _wire_sampler(prompt, CHECKPOINT, GUIDED, ZEROED)


def _wire_joined(prompt: dict[str, Any], given: list[bool], further: Sequence[str]) -> None:
    """Connect the node that encodes instruction and images together, whose latent has the size of the first."""
    inputs = prompt[JOINED]["inputs"]
    shown = [node_id for node_id, is_given in zip(IMAGES, given, strict=True) if is_given]
    for index, name in enumerate(further):
        node_id = FURTHER.format(index)
        prompt[node_id] = {"class_type": "LoadImage", "inputs": {"image": name}, "_meta": {"title": "Further image"}}
        shown.append(node_id)
    for place in range(1, len(IMAGES) + 1):
        del inputs[f"images.image_{place}"]
    inputs |= {f"images.image_{place}": [node_id, 0] for place, node_id in enumerate(shown, start=1)}
    _wire_sampler(prompt, KEEPING, JOINED, JOINED)
    prompt[SAMPLER]["inputs"] |= {"negative": [JOINED, 1], "latent_image": [JOINED, JOINED_LATENT]}


def _wire_sampler(prompt: dict[str, Any], model: str, positive: str, negative: str) -> None:
    prompt[SAMPLER]["inputs"] |= {"model": [model, 0], "positive": [positive, 0], "negative": [negative, 0]}
