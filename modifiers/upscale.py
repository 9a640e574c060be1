"""Upscale: enlarges an image by a network, by interpolation, or by redrawing it at the larger size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from darkroom.modifiers.example_image import EXAMPLE_IMAGE
from darkroom.modifiers.image_to_image import ImageFields
from darkroom.modifiers.modifier import Denoise, Factor, Into, Name, with_ancestors_only

DEFAULT_FACTOR = 2.0


class Upscale(ImageFields):
    """Enlarge an image: by an upscaling network, by interpolation, or by enlarging its latent and drawing it over.

    `prompt` and everything about sampling count with `method` latent only.
    """

    workflow_file: ClassVar[str] = "upscale.json"
    example: ClassVar[Mapping[str, Any]] = {"input_image": EXAMPLE_IMAGE, "method": "pixel", "scale": 2}

    method: Annotated[
        Literal["model", "pixel", "latent"],
        Field(description="model: by `upscale_model`; pixel: by interpolation; latent: drawn over at the larger size."),
    ] = "pixel"
    upscale_model: Annotated[
        Name | None, Into("22", "model_name"), Field(description="A file of the upscale_models folder.")
    ] = None
    scale: Annotated[
        Factor | None,
        Field(description="Factor of the sides, 2 if left out; with `model` a factor upon what the network gives."),
    ] = None
    interpolation: Annotated[
        Name | None, Field(description="Left out: lanczos for pixel and model, bislerp for latent.")
    ] = None
    prompt: Annotated[str, Into("6", "text"), Field(description="Content of the image.")] = ""
    denoise: Annotated[Denoise, Into("3", "denoise"), Field(description="Change by redrawing; 0 none, 1 all.")] = 0.5

    @model_validator(mode="after")
    def _has_what_the_method_needs(self) -> Upscale:
        if self.method == "model" and self.upscale_model is None:
            raise PydanticCustomError("upscale_model", "`upscale_model` is required with the method `model`")
        return self

    def fill(self, workflow: Mapping[str, Any]) -> dict[str, Any]:
        prompt = super().fill(workflow)
        enlarge = prompt["20" if self.method == "latent" else "21"]["inputs"]
        enlarge["scale_by"] = self.scale or DEFAULT_FACTOR
        if self.interpolation is not None:
            enlarge["upscale_method"] = self.interpolation
        if self.method == "model":
            prompt["21"]["inputs"]["image"] = ["23", 0]
        last = {"model": "23" if self.scale is None else "21", "pixel": "21", "latent": "8"}[self.method]
        prompt["9"]["inputs"]["images"] = [last, 0]
        return with_ancestors_only(prompt, "9")

    @classmethod
    def field_at(cls, node_id: str, input_name: str) -> str | None:
        if node_id in ("20", "21"):
            return {"upscale_method": "interpolation", "scale_by": "scale"}.get(input_name)
        return super().field_at(node_id, input_name)
