"""The networks of HunyuanVideo 1.5 that refine enlarged latents: their files."""

from __future__ import annotations

from darkroom.engine.families.base import Network, NotRecognised
from darkroom.engine.families.hunyuan_image_refiner.vae_files import VAE_CHANNELS
from darkroom.engine.families.hunyuan_video15.upsamplers import (
    SrTo720pConfig,
    SRTo720pUpsampler,
    SrTo1080pConfig,
    SRTo1080pUpsampler,
)
from darkroom.engine.families.layouts import behind_first
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.settings import DtypePolicy

MARK_720P = "blocks.0.block.0.conv.weight"  # as ComfyUI knows them
MARK_1080P = "up.0.block.0.conv1.conv.weight"
SHORTCUT = "nin_shortcut."
TYPES = DtypePolicy(prefers=("float32",))  # as in ComfyUI: they are small, and run once


def _check_channels(*counts: int) -> None:
    other = next((count for count in counts if count != VAE_CHANNELS), None)
    if other is not None:
        raise NotRecognised(f"a latent upsampler of {other} channels, where HunyuanVideo 1.5 has {VAE_CHANNELS}")


def configure_720p(shapes: Shapes) -> SrTo720pConfig:
    """Return the configuration of the network for 720 rows. Raises `NotRecognised`, or LookupError."""
    hidden, channels = shapes["in_conv.conv.weight"][:2]
    _check_channels(channels, shapes["out_conv.conv.weight"][0])
    return SrTo720pConfig(channels, hidden, count_children(shapes, "blocks"))


def configure_1080p(shapes: Shapes) -> SrTo1080pConfig:
    """Return the configuration of the network for 1080 rows. Raises `NotRecognised`, or LookupError."""
    first, channels = shapes["conv_in.conv.weight"][:2]
    _check_channels(channels, shapes["conv_out.conv.weight"][0])
    levels = tuple(shapes[f"up.{level}.block.0.conv1.conv.weight"][0] for level in range(count_children(shapes, "up")))
    if levels[0] != first or first % channels:
        raise NotRecognised(f"a latent upsampler whose first layer has {first} channels, of {levels[0]} behind it")
    return SrTo1080pConfig(levels, channels, count_children(shapes, "up.0.block"))


def layout_1080p(shapes: Shapes) -> Names | None:
    """Return the names of a file's weights: its shortcuts are no convolutions within a layer."""
    if MARK_1080P not in shapes or "conv_in.conv.weight" not in shapes:
        return None
    return {name.replace(SHORTCUT, f"{SHORTCUT}conv."): name for name in shapes}


LAYOUTS_720P = (behind_first(("",), MARK_720P),)
UPSAMPLERS = (
    Network(
        layouts=LAYOUTS_720P,
        in_checkpoint=LAYOUTS_720P,
        configure=configure_720p,
        build=SRTo720pUpsampler,
        dtypes=TYPES,
        sizes={"full": SrTo720pConfig(), "small": SrTo720pConfig(hidden_channels=16, num_blocks=2)},
    ),
    Network(
        layouts=(layout_1080p,),
        in_checkpoint=(layout_1080p,),
        configure=configure_1080p,
        build=SRTo1080pUpsampler,
        dtypes=TYPES,
        sizes={"small": SrTo1080pConfig(level_channels=(32, 64))},
    ),
)
