"""Inpaint: redraws the masked part of an image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from darkroom.modifiers.example_image import EXAMPLE_IMAGE
from darkroom.modifiers.image_to_image import ImageFields
from darkroom.modifiers.modifier import Denoise, Into, Name, OfFamily, no_boolean, with_ancestors_only

Grow = Annotated[int, Field(ge=0, le=64), BeforeValidator(no_boolean)]


class Inpaint(ImageFields):
    """Redraw the masked part of an image after a text.

    Without `mask_image` the transparent part of `input_image` is redrawn. The size is that of `input_image`. A network
    that is made for painting gets mask and image as inputs of its own; `masked_content` and `grow_mask_by` are then
    without effect.
    """

    workflow_file: ClassVar[str] = "inpaint.json"
    example: ClassVar[Mapping[str, Any]] = {
        "prompt": "a lighthouse at dawn",
        "input_image": EXAMPLE_IMAGE,
        "mask_image": EXAMPLE_IMAGE,
    }

    mask_image: Annotated[
        Name | None,
        Into("11", "image"),
        Field(description="An image, given as `input_image` is, that is light where it is drawn anew."),
    ] = None
    mask_channel: Annotated[
        Literal["red", "green", "blue", "alpha"],
        Into("11", "channel"),
        Field(description="Which channel of `mask_image` is the mask."),
    ] = "red"
    masked_content: Annotated[
        Literal["erase", "keep"],
        Field(description="erase: what is covered is forgotten; keep: it is drawn over, for a `denoise` below 1."),
    ] = "erase"
    grow_mask_by: Annotated[
        Grow, Into("12", "grow_mask_by"), Field(description="Pixels by which the mask grows (erase only).")
    ] = 6
    denoise: Annotated[Denoise, Into("3", "denoise"), Field(description="Change below the mask; 0 none, 1 all.")] = 1.0
    inpaint_method: Annotated[
        Literal["latent", "conditioning"],
        OfFamily("inpaint"),
        Field(
            description="conditioning: the network sees the mask and the image around it (networks that are made for "
            "that, such as Flux.1 Fill); latent: any other network draws on the latent below the mask."
        ),
    ] = "latent"

    def fill(self, workflow: Mapping[str, Any]) -> dict[str, Any]:
        prompt = super().fill(workflow)
        mask = ["10", 1] if self.mask_image is None else ["11", 0]
        prompt["12"]["inputs"]["mask"] = prompt["15"]["inputs"]["mask"] = mask
        if self.inpaint_method == "conditioning":
            prompt["16"]["inputs"]["mask"] = mask
            outputs = ("positive", "negative", "latent_image")
            prompt["3"]["inputs"] |= {name: ["16", slot] for slot, name in enumerate(outputs)}
        else:
            prompt["3"]["inputs"]["latent_image"] = ["12" if self.masked_content == "erase" else "15", 0]
        return with_ancestors_only(prompt, "9")
