"""The ControlNets of Qwen-Image, of any picture and of a picture with a hole to paint: InstantX's and DiffSynth's.

The latter are model patches, whose node is `QwenImageDiffsynthControlnet`.
"""

from __future__ import annotations

from functools import partial

from engine.architectures.blockwise_control import FIRST, MARK, BlockwiseControl, blockwise_control_config
from engine.architectures.centred_double_stream import CentredDoubleStreamConfig, CentredDoubleStreamControl
from engine.architectures.centred_double_stream_shapes import BLOCK, HINT, centred_double_stream_config
from engine.diffusion.latent_format import LatentFormat
from engine.families.base import ControlNetwork, ControlReading, Network, Shapes, TensorReader
from engine.formats.weight_file import Names

FIRST_ONWARD = "controlnet_blocks.0.weight"


def _layout(shapes: Shapes) -> Names | None:
    return {name: name for name in shapes} if {FIRST_ONWARD, BLOCK, HINT} <= shapes.keys() else None


def _reading(latents: LatentFormat, config: CentredDoubleStreamConfig, file: TensorReader) -> ControlReading:
    return ControlReading(latents, config.hint_channels > latents.latent_channels, inputs=())


def _steers(config: CentredDoubleStreamConfig, steered: object) -> bool:
    return (
        isinstance(steered, CentredDoubleStreamConfig)
        and config.width == steered.width
        and config.context_dim == steered.context_dim
    )


def _blockwise_layout(shapes: Shapes) -> Names | None:
    return {name: name for name in shapes} if {MARK, FIRST} <= shapes.keys() else None


BLOCKWISE = Network(
    layouts=(_blockwise_layout,),
    in_checkpoint=(),
    configure=blockwise_control_config,
    build=BlockwiseControl,
)


def control_networks(latents: LatentFormat) -> tuple[ControlNetwork, ...]:
    """Return the kinds of ControlNets, which read latents of that format."""
    network = Network(
        layouts=(_layout,),
        in_checkpoint=(),
        configure=centred_double_stream_config,
        build=CentredDoubleStreamControl,
    )
    return (ControlNetwork(network, partial(_reading, latents), _steers),)
