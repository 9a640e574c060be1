"""The networks of Stable Diffusion 1 that have a class of their own in ComfyUI."""

from __future__ import annotations

from darkroom.engine.families.sd15.instruct_pix2pix import EditedImageDenoiser


class InstructedDenoiser(EditedImageDenoiser):
    """InstructPix2Pix, as trained by its authors."""

    comfy_name = "SD15_instructpix2pix"
