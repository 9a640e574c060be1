"""The audio decoder of MiniMax Music 3: its files, and the numbers of its latents."""

from __future__ import annotations

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import NotRecognised, Shapes
from darkroom.engine.families.minimax_music3.vae import (
    CHANNELS_PER_SIDE,
    KEY,
    LATENT_CHANNELS,
    MARK,
    SAMPLES_PER_CELL,
    STRIDES,
    MiniMaxMusic3Vae,
    MiniMaxMusic3VaeConfig,
    minimax_music3_vae_config,
)
from darkroom.engine.families.weight_norm_layout import audio_autoencoder
from darkroom.engine.settings import DtypePolicy


def _configure(shapes: Shapes) -> MiniMaxMusic3VaeConfig:
    channels = shapes[KEY][1]
    kernels = [shapes[f"decoder.model.{level}.block.1.weight_v"][2] for level in range(1, len(STRIDES) + 1)]
    if channels != CHANNELS_PER_SIDE or kernels != [2 * stride for stride in STRIDES]:
        raise NotRecognised(f"a decoder of audio of {channels} channels and kernels {kernels}, of another family")
    return minimax_music3_vae_config(shapes)


AUTOENCODER = audio_autoencoder(
    "vae.",
    MARK,
    configure=_configure,
    build=MiniMaxMusic3Vae,
    sizes={"full": MiniMaxMusic3VaeConfig(), "small": MiniMaxMusic3VaeConfig(channels=64, hidden_size=32)},
    dtypes=DtypePolicy(prefers=("float32",)),
)


class MiniMaxMusic3LatentFormat(LatentFormat):
    """Latents of 128 channels and one axis, not scaled."""

    latent_channels = LATENT_CHANNELS
    latent_dimensions = 1
    temporal_downscale_ratio = SAMPLES_PER_CELL
