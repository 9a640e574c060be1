"""The ControlNets of HunyuanDiT (Tencent): canny, depth, pose."""

from __future__ import annotations

from functools import partial

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import ControlNetwork, ControlReading, Network, Shapes, TensorReader
from darkroom.engine.families.hunyuan_dit.controlnet import HunyuanDitControlNet
from darkroom.engine.families.hunyuan_dit.denoiser import INPUTS
from darkroom.engine.families.hunyuan_dit.transformer import MARK, HunyuanDitConfig, hunyuan_dit_config
from darkroom.engine.formats.weight_file import Names

ONWARD = "after_proj_list.0.weight"


def _layout(shapes: Shapes) -> Names | None:
    return {name: name for name in shapes} if {ONWARD, MARK} <= shapes.keys() else None


def _reading(latents: LatentFormat, config: HunyuanDitConfig, file: TensorReader) -> ControlReading:
    return ControlReading(latents, inputs=(*INPUTS, "image_meta_size"))


def _steers(config: HunyuanDitConfig, steered: object) -> bool:
    return (
        isinstance(steered, HunyuanDitConfig)
        and config.width == steered.width
        and config.context_dim == steered.context_dim
        and config.second_dim == steered.second_dim
        and config.num_blocks == steered.num_blocks // 2 - 1
    )


def control_networks(latents: LatentFormat) -> tuple[ControlNetwork, ...]:
    """Return the kinds of ControlNets, which read latents of that format."""
    network = Network(layouts=(_layout,), in_checkpoint=(), configure=hunyuan_dit_config, build=HunyuanDitControlNet)
    return (ControlNetwork(network, partial(_reading, latents), _steers),)
