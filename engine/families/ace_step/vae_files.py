"""The autoencoder of ACE-Step: its files, and the numbers of its latents."""

from __future__ import annotations

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.ace_step.dcae import MARK, AceStepDcae, AceStepDcaeConfig, ace_step_dcae_config
from darkroom.engine.families.ace_step.vocoder import AceStepVocoderConfig
from darkroom.engine.families.weight_norm_layout import audio_autoencoder
from darkroom.engine.settings import DtypePolicy

AUTOENCODER = audio_autoencoder(
    "vae.",
    MARK,
    configure=ace_step_dcae_config,
    build=AceStepDcae,
    sizes={
        "full": AceStepDcaeConfig(),
        "small": AceStepDcaeConfig(channels=16, vocoder=AceStepVocoderConfig((16, 24, 32, 48), first_channels=128)),
    },
    dtypes=DtypePolicy(prefers=("bfloat16", "float16")),
)


class AceStepLatentFormat(LatentFormat):
    """Latents of 8 channels and 16 rows, not scaled."""

    latent_channels = 8
    num_rows = 16
