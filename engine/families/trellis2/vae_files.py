"""The decoders of TRELLIS 2: their files, and the scale of their latents."""

from __future__ import annotations

import torch

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.trellis2.vae import (
    COLOR_CHANNELS,
    SHAPE_MARK,
    TEXTURE_MARK,
    ShapeVaeConfig,
    SparseDecoderConfig,
    StructureDecoderConfig,
    Trellis2ShapeVae,
    Trellis2TextureVae,
    shape_vae_config,
    texture_vae_config,
)
from darkroom.engine.families.vae_files import vae_network

LATENT_CHANNELS = 32
SMALL_CHANNELS = (32, 16, 16, 8, 8)
# Mean and deviation of each channel, as published in the pipeline's configuration.
SHAPE_MEAN = (
    0.781296, 0.018091, -0.495192, -0.558457, 1.060530, 0.093252, 1.518149, -0.933218,
    -0.732996, 2.604095, -0.118341, -2.143904, 0.495076, -2.179512, -2.130751, -0.996944,
    0.261421, -2.217463, 1.260067, -0.150213, 3.790713, 1.481266, -1.046058, -1.523667,
    -0.059621, 2.220780, 1.621212, 0.877230, 0.567247, -3.175944, -3.186688, 1.578665,
)  # fmt: skip
SHAPE_DEVIATION = (
    5.972266, 4.706852, 5.445010, 5.209927, 5.320220, 4.547237, 5.020802, 5.444004,
    5.226681, 5.683095, 4.831436, 5.286469, 5.652043, 5.367606, 5.525084, 4.730578,
    4.805265, 5.124013, 5.530808, 5.619001, 5.103930, 5.417670, 5.269677, 5.547194,
    5.634698, 5.235274, 6.110351, 5.511298, 6.237273, 4.879207, 5.347008, 5.405691,
)  # fmt: skip
TEXTURE_MEAN = (
    3.501659, 2.212398, 2.226094, 0.251093, -0.026248, -0.687364, 0.439898, -0.928075,
    0.029398, -0.339596, -0.869527, 1.038479, -0.972385, 0.126042, -1.129303, 0.455149,
    -1.209521, 2.069067, 0.544735, 2.569128, -0.323407, 2.293000, -1.925608, -1.217717,
    1.213905, 0.971588, -0.023631, 0.106750, 2.021786, 0.250524, -0.662387, -0.768862,
)  # fmt: skip
TEXTURE_DEVIATION = (
    2.665652, 2.743913, 2.765121, 2.595319, 3.037293, 2.291316, 2.144656, 2.911822,
    2.969419, 2.501689, 2.154811, 3.163343, 2.621215, 2.381943, 3.186697, 3.021588,
    2.295916, 3.234985, 3.233086, 2.260140, 2.874801, 2.810596, 3.292720, 2.674999,
    2.680878, 2.372054, 2.451546, 2.353556, 2.995195, 2.379849, 2.786195, 2.775190,
)  # fmt: skip


class Trellis2LatentFormat(LatentFormat):
    """Latents as the networks sample them: structures [B, 32, 16, 16, 16], or cells [B, 32, N, 1]."""

    latent_channels = LATENT_CHANNELS


def unscaled_shape(latent: torch.Tensor) -> torch.Tensor:
    """Return the channels of cells [N, 32] of a shape as its decoder reads them."""
    return latent * torch.tensor(SHAPE_DEVIATION).to(latent) + torch.tensor(SHAPE_MEAN).to(latent)


def unscaled_texture(latent: torch.Tensor) -> torch.Tensor:
    """Return the channels of cells [N, 32] of a texture as its decoder reads them."""
    return latent * torch.tensor(TEXTURE_DEVIATION).to(latent) + torch.tensor(TEXTURE_MEAN).to(latent)


SHAPE_DECODER = vae_network(
    SHAPE_MARK,
    shape_vae_config,
    Trellis2ShapeVae,
    ("float16", "bfloat16"),
    sizes={
        "full": ShapeVaeConfig(),
        "small": ShapeVaeConfig(
            SparseDecoderConfig(channels=SMALL_CHANNELS), StructureDecoderConfig(channels=(16, 8, 8), num_blocks=1)
        ),
    },
)
TEXTURE_DECODER = vae_network(
    TEXTURE_MARK,
    texture_vae_config,
    Trellis2TextureVae,
    ("float16", "bfloat16"),
    sizes={
        "full": SparseDecoderConfig(out_channels=COLOR_CHANNELS),
        "small": SparseDecoderConfig(channels=SMALL_CHANNELS, out_channels=COLOR_CHANNELS),
    },
)
