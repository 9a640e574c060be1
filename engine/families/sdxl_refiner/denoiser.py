"""The labels of Stable Diffusion XL's refiner: size of the original image, corner of the crop, aesthetic score."""

from __future__ import annotations

from darkroom.engine.diffusion.options import Options
from darkroom.engine.families.sdxl.size_labels import SizeLabelledDenoiser

NUM_NUMBERS = 5
SCORE, NEGATIVE_SCORE = 6.0, 2.5  # of the image that is asked for, and of the one that is not


class RefinerDenoiser(SizeLabelledDenoiser):
    """A network whose numbers are, unless a node sets them, the image's size, no crop, and a score by the side."""

    comfy_name = "SDXLRefiner"

    def numbers(self, options: Options) -> list[float]:
        score = NEGATIVE_SCORE if options.get("prompt_type") == "negative" else SCORE
        size = (options["height"], options["width"])
        return [*size, options.get("crop_h", 0), options.get("crop_w", 0), options.get("aesthetic_score", score)]
