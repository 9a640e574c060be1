"""The autoencoders of MiniMax H3, of videos and of audio: their files, and the numbers of its video latents."""

from __future__ import annotations

from dataclasses import replace

import torch

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import NotRecognised, Shape, Shapes
from darkroom.engine.families.minimax_h3 import audio_vae, vae
from darkroom.engine.families.minimax_h3.audio_vae import MiniMaxH3AudioVae, MiniMaxH3AudioVaeConfig
from darkroom.engine.families.minimax_h3.sizes import CELL_PX
from darkroom.engine.families.minimax_h3.vae import MiniMaxH3VideoVae, MiniMaxH3VideoVaeConfig
from darkroom.engine.families.vae_files import vae_network
from darkroom.engine.layers.alias_free import kaiser_sinc

STATISTICS = (".latents_mean", ".latents_std")


class MiniMaxH3LatentFormat(LatentFormat):
    """Video latents [B, 24, f, h, w], which the VAE standardises. The table of colours is the community's."""

    latent_channels = vae.LATENT_CHANNELS
    latent_dimensions = 3
    temporal_downscale_ratio = 4
    spacial_downscale_ratio = CELL_PX
    latent_rgb_factors = (
        (-0.018555, 0.024344, -0.017536), (0.150164, 0.137244, 0.129221), (0.027367, -0.050369, -0.208606),
        (-0.000793, -0.164622, -0.323161), (-0.048556, 0.01397, -0.074286), (0.01174, 0.014172, -0.006906),
        (0.061517, 0.061212, 0.110025), (0.035321, 0.086879, 0.110059), (-0.017426, 0.002997, 0.035356),
        (0.531539, 0.548819, 0.624404), (-0.024968, -0.040234, -0.034302), (-0.032549, -0.029096, -0.017221),
        (0.022609, 0.020286, 0.050661), (-0.084001, -0.038131, -0.020805), (-0.01883, 0.010412, 0.06112),
        (0.020777, 0.011196, -0.030994), (-0.00839, -0.012201, -0.025687), (-0.013281, -0.002924, 0.006331),
        (0.00026, 0.001833, -0.011038), (0.105471, 0.100482, 0.132106), (0.016529, 0.015213, 0.009999),
        (-0.014015, -0.017438, -0.019134), (-0.033787, -0.009984, -0.019725), (0.004224, 0.017284, 0.027196),
    )  # fmt: skip
    latent_rgb_factors_bias = (0.057426, -0.022078, -0.071449)


def _configure_video(shapes: Shapes) -> MiniMaxH3VideoVaeConfig:
    channels = shapes["decoder.x_embedder.weight"][1]
    if channels != vae.LATENT_CHANNELS:
        raise NotRecognised(f"a VAE of videos of {channels} latent channels, of another family")
    return vae.minimax_h3_video_vae_config(shapes)


def _configure_audio(shapes: Shapes) -> MiniMaxH3AudioVaeConfig:
    channels = shapes["dec_in_proj.weight"][1]
    if channels != audio_vae.LATENT_CHANNELS:
        raise NotRecognised(f"a VAE of audio of {channels} latent channels, of another family")
    return audio_vae.minimax_h3_audio_vae_config(shapes)


def _low_pass(shape: Shape) -> torch.Tensor:
    return kaiser_sinc().view(shape)


AUTOENCODER = replace(
    vae_network(
        vae.KEY,
        _configure_video,
        MiniMaxH3VideoVae,
        ("float16",),
        sizes={
            "full": MiniMaxH3VideoVaeConfig(),
            "small": MiniMaxH3VideoVaeConfig(
                level_channels=(32, 64, 64, 128, 128, 256), hidden_size=128, intermediate_size=512, num_layers=2
            ),
        },
    ),
    float32_ends=STATISTICS,
)
AUDIO_AUTOENCODER = replace(
    vae_network(
        audio_vae.KEY,
        _configure_audio,
        MiniMaxH3AudioVae,
        ("float32",),
        sizes={
            "full": MiniMaxH3AudioVaeConfig(),
            "small": MiniMaxH3AudioVaeConfig(channels=8, hidden_size=512, first_channels=256),
        },
    ),
    defaults=dict.fromkeys(audio_vae.FILTERS, _low_pass),
    float32_ends=STATISTICS,
)
