"""The autoencoder of ACE-Step: its files, and the numbers of its latents."""

from __future__ import annotations

from engine.architectures.music_dcae import MARK, MusicDcae, MusicDcaeConfig, music_dcae_config
from engine.architectures.music_vocoder import MusicVocoderConfig
from engine.diffusion.latent_format import LatentFormat
from engine.families.parts.normed_layout import sound_autoencoder
from engine.settings import DtypePolicy

FULL = MusicDcaeConfig()
SMALL = MusicDcaeConfig(channels=16, vocoder=MusicVocoderConfig((16, 24, 32, 48), first_channels=128))
AUTOENCODER = sound_autoencoder(
    "vae.",
    MARK,
    configure=music_dcae_config,
    build=MusicDcae,
    dtypes=DtypePolicy(prefers=("bfloat16", "float16")),
)


class AceStepLatentFormat(LatentFormat):
    """Latents of 8 channels and 16 rows, not scaled."""

    latent_channels = 8
    num_rows = 16
