"""Networks that edit a picture by instruction (Brooks et al. 2022, arXiv 2211.09800): InstructPix2Pix."""

from __future__ import annotations

from darkroom.engine.diffusion.denoiser import Denoiser


class EditedPictureDenoiser(Denoiser):
    """A network that reads the edited picture's latent beside the noisy one, as its variant's `concat_keys` say.

    Custom nodes recognise such networks by the class.
    """

    comfy_name = "IP2P"
