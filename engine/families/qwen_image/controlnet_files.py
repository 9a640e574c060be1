"""The ControlNets of Qwen-Image, of any image and of an image with a hole to paint: InstantX's and DiffSynth's.

The latter are model patches, whose node is `QwenImageDiffsynthControlnet`.
"""

from __future__ import annotations

from functools import partial

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import ControlNetwork, ControlReading, Network, Shapes, TensorReader
from darkroom.engine.families.qwen_image.diffsynth_control import (
    FIRST,
    MARK,
    DiffSynthControl,
    diffsynth_control_config,
)
from darkroom.engine.families.qwen_image.transformer import (
    BLOCK,
    HINT,
    QwenImageConfig,
    QwenImageControlNet,
    qwen_image_config,
)
from darkroom.engine.formats.weight_file import Names

FIRST_ONWARD = "controlnet_blocks.0.weight"


def _layout(shapes: Shapes) -> Names | None:
    return {name: name for name in shapes} if {FIRST_ONWARD, BLOCK, HINT} <= shapes.keys() else None


def _reading(latents: LatentFormat, config: QwenImageConfig, file: TensorReader) -> ControlReading:
    return ControlReading(latents, config.hint_channels > latents.latent_channels, inputs=())


def _steers(config: QwenImageConfig, steered: object) -> bool:
    return (
        isinstance(steered, QwenImageConfig)
        and config.width == steered.width
        and config.context_dim == steered.context_dim
        and config.in_channels == steered.in_channels
    )


def _blockwise_layout(shapes: Shapes) -> Names | None:
    return {name: name for name in shapes} if {MARK, FIRST} <= shapes.keys() else None


BLOCKWISE = Network(
    layouts=(_blockwise_layout,),
    in_checkpoint=(),
    configure=diffsynth_control_config,
    build=DiffSynthControl,
)


def control_networks(latents: LatentFormat) -> tuple[ControlNetwork, ...]:
    """Return the kinds of ControlNets, which read latents of that format."""
    network = Network(
        layouts=(_layout,),
        in_checkpoint=(),
        configure=qwen_image_config,
        build=QwenImageControlNet,
    )
    return (ControlNetwork(network, partial(_reading, latents), _steers),)
