"""The autoencoder of HunyuanImage 2.1's refiner: its files, and the numbers of its latents."""

from __future__ import annotations

from functools import partial

from engine.architectures.latent_unet_shapes import count_children
from engine.architectures.paired_frames_autoencoder import PairedFramesAutoencoder, PairedFramesVaeConfig
from engine.diffusion.latent_format import LatentFormat
from engine.families.base import Network, NotRecognised, Shapes
from engine.families.parts.layouts import behind_first, saved_behind
from engine.settings import DtypePolicy

PREFIX = "vae."
PREFIXES = (PREFIX, "first_stage_model.", "")  # of files of the network alone
MARK = "decoder.conv_in.conv.weight"
FRAME_CHANNELS = 32
FULL = PairedFramesVaeConfig(level_channels=(128, 256, 512, 1024, 1024))
SMALL = PairedFramesVaeConfig(level_channels=(16, 16, 32, 64, 64), blocks_per_level=1)  # for tests


class RefinerLatentFormat(LatentFormat):
    """Latents [B, 64, f, h, w] of cells of 16 pixels."""

    latent_channels = 2 * FRAME_CHANNELS
    latent_dimensions = 3
    spatial_ratio = 16
    scale_factor = 1.03682


def _configure(shapes: Shapes) -> PairedFramesVaeConfig:
    channels = shapes[MARK][1]
    if channels != FRAME_CHANNELS or "encoder.conv_in.conv.weight" not in shapes:
        raise NotRecognised(f"a VAE of videos of {channels} latent channels, of another family")
    levels = count_children(shapes, "encoder.down")
    return PairedFramesVaeConfig(
        level_channels=tuple(shapes[f"encoder.down.{level}.block.0.conv1.conv.weight"][0] for level in range(levels)),
        frame_channels=channels,
        blocks_per_level=count_children(shapes, "encoder.down.0.block"),
        picture_channels=shapes["encoder.conv_in.conv.weight"][1],
    )


AUTOENCODER = Network(
    layouts=(behind_first(PREFIXES, MARK),),
    in_checkpoint=(behind_first((PREFIX,), MARK),),
    configure=_configure,
    build=PairedFramesAutoencoder,
    saved=partial(saved_behind, PREFIX),
    dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
)
