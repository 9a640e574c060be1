"""The configuration of a ControlNet of Flux, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.families.flux.controlnet import HINT_CHANNELS, FluxControlNetConfig, HintKind
from engine.families.flux.transformer import FluxConfig
from engine.families.flux.transformer_shapes import GUIDANCE
from engine.layers.patches import PATCH
from engine.layers.unet_shapes import Shapes, count_children

PIXELS_MARK = "input_hint_block.0.weight"
ACTIVATED_MARK = "input_cond_block.encoder.0.weight"
MODES = "controlnet_mode_embedder.weight"


def flux_controlnet_config(shapes: Shapes) -> FluxControlNetConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    width, context_dim = shapes["txt_in.weight"]
    trunk = FluxConfig(
        width=width,
        num_double=count_children(shapes, "double_blocks"),
        num_single=count_children(shapes, "single_blocks"),
        context_dim=context_dim,
        label_dim=shapes["vector_in.in_layer.weight"][1],
        in_channels=shapes["img_in.weight"][1] // PATCH**2,
        has_guidance=GUIDANCE in shapes,
        inner_factor=shapes["double_blocks.0.img_mlp.0.weight"][0] // width,
    )
    hint = HintKind.LATENT
    if PIXELS_MARK in shapes:
        hint = HintKind.PIXELS
    elif ACTIVATED_MARK in shapes:
        hint = HintKind.PIXELS_ACTIVATED
    channels = shapes["pos_embed_input.weight"][1] // PATCH**2 if hint is HintKind.LATENT else HINT_CHANNELS
    return FluxControlNetConfig(trunk, hint, channels, shapes.get(MODES, (0,))[0])
