"""LoraText2Image: generates an image from a prompt, with one or several LoRAs on the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from darkroom.modifiers.modifier import Choices, Name, no_boolean
from darkroom.modifiers.text_to_image import Prompt, TextToImageFields

Strength = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False), BeforeValidator(no_boolean)]
FIRST_ID = 100
MAX_LORAS = 16


class Lora(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[Name, Field(description="A file of the loras folder.")]
    strength: Annotated[Strength, Field(description="Strength of its change to the model.")] = 1.0
    strength_clip: Annotated[
        Strength | None, Field(description="Strength of its change to the text encoder; left out: as the model.")
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        """Return the fields without those that are null, which count as left out."""
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


def _as_list(value: Any) -> Any:
    """Return a list of LoRAs; a single LoRA needs no list, and a file name is a LoRA at full strength."""
    items = value if isinstance(value, list) else [value]
    return [{"name": item} if isinstance(item, str) else item for item in items]


class LoraText2Image(TextToImageFields):
    """Draw an image from a text, with one or several LoRAs on the checkpoint, applied in their order.

    Otherwise the parameters are those of Text2Image.
    """

    example: ClassVar[Mapping[str, Any]] = {
        "prompt": "a lighthouse at dawn, watercolour",
        "width": 256,
        "height": 256,
        "steps": 8,
        "loras": [],  # `example_with` inserts one that the engine has
    }

    prompt: Prompt
    loras: Annotated[
        list[Lora],
        BeforeValidator(_as_list, json_schema_input_type=str | list[str | Lora] | Lora),
        Field(min_length=1, max_length=MAX_LORAS, description="The LoRAs, each a name or an object with strengths."),
    ]

    def fill(self, workflow: Mapping[str, Any]) -> dict[str, Any]:
        """Insert a loader for each LoRA between the checkpoint and each input that takes its model or text encoder."""
        prompt = super().fill(workflow)
        takers = [node["inputs"] for node in prompt.values()]
        last = "4"
        for index, lora in enumerate(self.loras):
            strength_clip = lora.strength if lora.strength_clip is None else lora.strength_clip
            inputs: dict[str, Any] = {"model": [last, 0], "clip": [last, 1], "lora_name": lora.name}
            inputs |= {"strength_model": lora.strength, "strength_clip": strength_clip}
            last = str(FIRST_ID + index)
            prompt[last] = {"class_type": "LoraLoader", "inputs": inputs, "_meta": {"title": f"LoRA {index + 1}"}}
        for inputs in takers:
            for name in ("model", "clip"):
                if name in inputs:
                    inputs[name] = [last, inputs[name][1]]
        return prompt

    @classmethod
    def field_at(cls, node_id: str, input_name: str) -> str | None:
        index = int(node_id) - FIRST_ID if node_id.isdigit() else -1
        names = {"lora_name": "name", "strength_model": "strength", "strength_clip": "strength_clip"}
        if 0 <= index < MAX_LORAS and input_name in names:
            return f"loras.{index}.{names[input_name]}"
        return super().field_at(node_id, input_name)

    @classmethod
    def example_with(cls, workflow: Mapping[str, Any], choices: Choices) -> dict[str, Any] | None:
        files = choices("LoraLoader", "lora_name")
        shown = super().example_with(workflow, choices) if files else None
        return shown and {**shown, "loras": [{"name": (files or [""])[0], "strength": 0.8}]}
