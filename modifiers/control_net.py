"""ControlNet: generates an image from a prompt that follows the shapes of another image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from darkroom.modifiers.example_image import EXAMPLE_IMAGE
from darkroom.modifiers.modifier import Into, Name, Share, no_boolean, with_ancestors_only
from darkroom.modifiers.text_to_image import Prompt, TextToImageFields

Strength = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False), BeforeValidator(no_boolean)]
Threshold = Annotated[float, Field(ge=0.01, le=0.99, allow_inf_nan=False), BeforeValidator(no_boolean)]


class ControlNet(TextToImageFields):
    """Draw an image from a text that follows the shapes of another image.

    Otherwise the parameters are those of Text2Image. The control image is scaled to the size of the new one.
    """

    workflow_file: ClassVar[str] = "control_net.json"
    example: ClassVar[Mapping[str, Any]] = {
        "prompt": "a lighthouse at dawn",
        "control_image": EXAMPLE_IMAGE,
        "preprocessor": "canny",
        "width": 256,
        "height": 256,
        "steps": 8,
    }

    prompt: Prompt
    control_image: Annotated[
        Name,
        Into("10", "image"),
        Field(description="An http(s) URL, a data: URI, base64, or a file of the input folder."),
    ]
    control_net_name: Annotated[
        Name, Into("12", "control_net_name"), Field(description="A file of the controlnet folder.")
    ]
    preprocessor: Annotated[
        Literal["none", "canny"], Field(description="none: the image is a map already; canny: its edges are drawn.")
    ] = "none"
    canny_low: Annotated[Threshold, Into("11", "low_threshold"), Field(description="Weak edges from here on.")] = 0.4
    canny_high: Annotated[Threshold, Into("11", "high_threshold"), Field(description="Strong edges from here on.")] = (
        0.8
    )
    strength: Annotated[Strength, Into("13", "strength"), Field(description="Strength of the control.")] = 1.0
    start_percent: Annotated[Share, Into("13", "start_percent"), Field(description="From this part of the steps.")] = (
        0.0
    )
    end_percent: Annotated[Share, Into("13", "end_percent"), Field(description="To this part of the steps.")] = 1.0

    def fill(self, workflow: Mapping[str, Any]) -> dict[str, Any]:
        prompt = super().fill(workflow)
        prompt["13"]["inputs"]["image"] = ["11" if self.preprocessor == "canny" else "10", 0]
        return with_ancestors_only(prompt, "9")
