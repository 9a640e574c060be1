"""Files of SUPIR: the control with its adapters, and the encoder of degraded images where there is one."""

from __future__ import annotations

from darkroom.engine.families.base import Network, NotRecognised
from darkroom.engine.families.sdxl.supir import (
    ENCODER,
    HEAD_CHANNELS,
    AdapterSpec,
    AttentionSpec,
    ShiftSpec,
    Supir,
    SupirConfig,
)
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.unet_shapes import unet_half_config
from darkroom.engine.layers.vae_kl import VaeConfig
from darkroom.engine.layers.vae_levels import vae_levels

CONTROL, ADAPTERS = "control_model.", "project_modules."
PREFIXES = (("model.control_model.", "model.diffusion_model.project_modules."), (CONTROL, ADAPTERS))
ENCODER_PREFIX = "first_stage_model.denoise_encoder."
MARK = "input_hint_block.0.weight"
UNUSED = CONTROL + "mask_LQ"


def layout(shapes: Shapes) -> Names | None:
    """Return the names of the weights in a file, None for one of another kind."""
    for control, adapters in PREFIXES:
        if control + MARK in shapes and adapters + "0.zero_conv.weight" in shapes:
            ours = {control: CONTROL, adapters: ADAPTERS, ENCODER_PREFIX: ENCODER}
            names = {
                own + key.removeprefix(prefix): key
                for prefix, own in ours.items()
                for key in shapes
                if key.startswith(prefix)
            }
            return {name: key for name, key in names.items() if name != UNUSED}
    return None


def configure(shapes: Shapes) -> SupirConfig:
    """Return the configuration of the network. Raises `NotRecognised`, or LookupError for a missing tensor."""
    parts = {
        prefix: {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}
        for prefix in (CONTROL, ADAPTERS, ENCODER)
    }
    control = unet_half_config(parts[CONTROL], head_channels=HEAD_CHANNELS)
    if not control.label_dim or control.in_channels != parts[CONTROL][MARK][1]:
        raise NotRecognised("a SUPIR control of a UNet without labels, or of another one's latents")
    adapters = tuple(_adapter(parts[ADAPTERS], f"{index}.") for index in range(count_children(shapes, ADAPTERS[:-1])))
    inner_channels = parts[ADAPTERS]["0.mlp_shared.0.weight"][0]
    return SupirConfig(control, adapters, inner_channels, _encoder(parts[ENCODER]) if parts[ENCODER] else None)


def _adapter(shapes: Shapes, prefix: str) -> AdapterSpec:
    if prefix + "attn.to_q.weight" in shapes:
        channels, features = shapes[prefix + "attn.to_k.weight"]
        if channels % HEAD_CHANNELS:
            raise NotRecognised(f"a SUPIR adapter whose attention has {channels} channels, no heads of {HEAD_CHANNELS}")
        return AttentionSpec(features, channels)
    channels, features = shapes[prefix + "zero_conv.weight"][:2]
    return ShiftSpec(features, channels, shapes[prefix + "param_free_norm.weight"][0] - channels)


def _encoder(own: Shapes) -> VaeConfig:
    levels = vae_levels({f"encoder.{name}": shape for name, shape in own.items()})
    return VaeConfig(
        base_channels=own["conv_in.weight"][0],
        level_channels=levels.level_channels,
        blocks_per_level=levels.blocks_per_level,
        latent_channels=own["conv_out.weight"][0] // 2,
        image_channels=levels.image_channels,
    )


SUPIR = Network(layouts=(layout,), in_checkpoint=(layout,), configure=configure, build=Supir)
