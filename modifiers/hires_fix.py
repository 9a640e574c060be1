"""HiresFix: generates a small image, enlarges it, and redraws it at the large size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from darkroom.modifiers.modifier import LEFT_OUT, Denoise, Factor, Into, Name, OfFamily, Steps, with_ancestors_only
from darkroom.modifiers.text_to_image import Prompt, TextToImageFields


class HiresFix(TextToImageFields):
    """Draw an image from a text in two passes: small, then enlarged and drawn over, which keeps large ones in shape.

    `width` and `height` are those of the first pass. Otherwise the parameters are those of Text2Image.
    """

    workflow_file: ClassVar[str] = "hires_fix.json"
    example: ClassVar[Mapping[str, Any]] = {
        "prompt": "a lighthouse at dawn, oil painting",
        "hires_scale": 1.5,
        "hires_steps": 4,
        "width": 256,
        "height": 256,
        "steps": 8,
    }

    prompt: Prompt
    hires_scale: Annotated[
        Factor, Into("20", "scale_by"), Into("22", "scale_by"), Field(description="Sides of the second pass.")
    ] = 1.5
    hires_steps: Annotated[
        Steps, Into("24", "steps"), OfFamily("steps"), Field(description="Sampling steps of the second pass.")
    ] = LEFT_OUT
    hires_denoise: Annotated[
        Denoise, Into("24", "denoise"), Field(description="Change by the second pass; 0 none, 1 all.")
    ] = 0.5
    upscale_in: Annotated[
        Literal["latent", "pixel"], Field(description="Data enlarged between the passes: the latent or the image.")
    ] = "latent"
    upscale_method: Annotated[
        Name | None, Field(description="Method; left out: bislerp for the latent, lanczos for the image.")
    ] = None

    def fill(self, workflow: Mapping[str, Any]) -> dict[str, Any]:
        prompt = super().fill(workflow)
        first, second = prompt["3"]["inputs"], prompt["24"]["inputs"]
        second |= {name: first[name] for name in ("seed", "cfg", "sampler_name", "scheduler")}
        enlarge, gives = ("20", "20") if self.upscale_in == "latent" else ("22", "23")
        if self.upscale_method is not None:
            prompt[enlarge]["inputs"]["upscale_method"] = self.upscale_method
        second["latent_image"] = [gives, 0]
        return with_ancestors_only(prompt, "9")

    @classmethod
    def field_at(cls, node_id: str, input_name: str) -> str | None:
        if input_name == "upscale_method" and node_id in ("20", "22"):
            return "upscale_method"
        return super().field_at(node_id, input_name)
