"""Networks that edit an image by instruction (Brooks et al. 2022, arXiv 2211.09800): InstructPix2Pix."""

from __future__ import annotations

from darkroom.engine.diffusion.denoiser import Denoiser


class EditedImageDenoiser(Denoiser):
    """A network that reads the edited image's latent beside the noisy one, as its variant's `concat_keys` say.

    Custom nodes recognise such networks by the class.
    """

    comfy_name = "IP2P"
