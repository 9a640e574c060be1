"""Descriptions of files that no family recognises, for error messages, by characteristic tensors."""

from __future__ import annotations

from engine.architectures.latent_unet_shapes import FIRST, unet_traits
from engine.families.base import Shapes

# Beginnings of tensor names, most telling first.
MARKS: tuple[tuple[str, str], ...] = (
    ("conditioner.embedders.1.", "a Stable Diffusion XL checkpoint that is not whole"),
    ("conditioner.embedders.0.model.", "a Stable Diffusion XL refiner or 2.x checkpoint"),
    ("model.diffusion_model.label_emb.", "a Stable Diffusion XL or unCLIP checkpoint"),
    ("label_emb.", "the UNet of Stable Diffusion XL"),
    ("add_embedding.", "the UNet of Stable Diffusion XL or of another family"),
    ("cond_stage_model.model.", "a Stable Diffusion 2.x checkpoint that is not whole"),
    ("model.diffusion_model.joint_blocks.", "a Stable Diffusion 3 checkpoint"),
    ("joint_blocks.", "the network of Stable Diffusion 3"),
    ("model.diffusion_model.double_blocks.", "a Flux checkpoint"),
    ("double_blocks.", "the network of Flux"),
    ("lora_unet_", "a LoRA"),
    ("lora_te_", "a LoRA"),
    ("control_model.", "a ControlNet"),
    ("controlnet_", "a ControlNet in diffusers layout"),
    ("input_hint_block.", "a ControlNet"),
    ("down_blocks.", "a UNet in diffusers layout"),
    ("string_to_param", "a textual inversion"),
    ("clip_l", "a textual inversion"),
    ("emb_params", "a textual inversion"),
)
PARTS: tuple[tuple[str, str], ...] = (
    ("text_model.encoder.", "a CLIP text encoder"),
    ("decoder.conv_in.", "a VAE"),
    ("input_blocks.", "a UNet without VAE and text encoder"),
    ("diffusion_model.input_blocks.", "a UNet without VAE and text encoder"),
    ("model.diffusion_model.", "a UNet without VAE and text encoder"),
)

# By which control files of other kinds are known.
CONTROL_MARKS = (
    ("controlnet_blocks.0.", "a ControlNet of Stable Diffusion 3, Flux or Qwen"),
    ("after_proj_list.", "a ControlNet of Hunyuan DiT"),
)
# And style models.
STYLE_MARKS = (("redux_down.weight", "a style model of Flux (Redux)"),)
UNET_PREFIXES = ("model.diffusion_model.", "diffusion_model.", "")


def describe(shapes: Shapes) -> str:
    """Describe a file by its tensors."""
    for prefix, description in MARKS:
        if any(name.startswith(prefix) for name in shapes):
            return description
    unet = _describe_unet(shapes)
    if unet is not None:
        return unet
    for prefix, description in PARTS:
        if any(name.startswith(prefix) for name in shapes):
            return description
    return f"{len(shapes)} tensors of no known network" + (f", {next(iter(shapes))!r} first" if shapes else "")


def _describe_unet(shapes: Shapes) -> str | None:
    """Describe a UNet that no family recognises, None without one."""
    prefix = next((prefix for prefix in UNET_PREFIXES if prefix + FIRST in shapes), None)
    if prefix is None:
        return None
    unet = {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}
    traits = unet_traits(unet)
    return f"a UNet of {traits.in_channels} input channels for text encoders of width {traits.context_dim}"


def describe_control(shapes: Shapes) -> str | None:
    """Describe a control file of a kind that is not supported, None for others."""
    return _first(CONTROL_MARKS, shapes)


def describe_style(shapes: Shapes) -> str | None:
    """Describe a style model of a kind that is not supported, None for others."""
    return _first(STYLE_MARKS, shapes)


def _first(marks: tuple[tuple[str, str], ...], shapes: Shapes) -> str | None:
    return next((text for mark, text in marks if any(name.startswith(mark) for name in shapes)), None)
