"""The latents of SDXL's autoencoder, which several families share."""

from __future__ import annotations

from darkroom.engine.families.sd15.vae_files import Sd15LatentFormat


class SdxlLatentFormat(Sd15LatentFormat):
    """Latent format of the autoencoder for large images (Podell et al. 2023, arXiv 2307.01952, 2.4).

    The table of colours is public knowledge of the community (fitted by least squares).
    """

    scale_factor = 0.13025
    latent_rgb_factors = (
        (0.3651, 0.4232, 0.4341),
        (-0.2533, -0.0042, 0.1068),
        (0.1076, 0.1111, -0.0362),
        (-0.3165, -0.2492, -0.2188),
    )
    latent_rgb_factors_bias = (0.1084, -0.0175, -0.0011)
    taesd_decoder_name = "taesdxl_decoder"
