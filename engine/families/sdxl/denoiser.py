"""The labels of Stable Diffusion XL: size of the original image, corner of the crop, size of the target."""

from __future__ import annotations

from darkroom.engine.diffusion.options import Options
from darkroom.engine.families.sd15.instruct_pix2pix import EditedImageDenoiser
from darkroom.engine.families.sdxl.size_labels import SizeLabelledDenoiser

NUM_NUMBERS = 6


class LargeImageDenoiser(SizeLabelledDenoiser):
    """A network whose sizes are, unless a node sets them, those of the image, uncropped."""

    comfy_name = "SDXL"

    def numbers(self, options: Options) -> list[float]:
        height, width = options["height"], options["width"]
        crop = (options.get("crop_h", 0), options.get("crop_w", 0))
        return [height, width, *crop, options.get("target_height", height), options.get("target_width", width)]


class InstructedDenoiser(EditedImageDenoiser, LargeImageDenoiser):
    """A network that edits an image by instruction: CosXL Edit and those trained with the diffusers library."""

    comfy_name = "SDXL_instructpix2pix"
