"""Descriptions of files that no family recognises, for error messages, by characteristic tensors."""

from __future__ import annotations

from collections.abc import Mapping

from darkroom.engine.families.base import Shapes
from darkroom.engine.families.later_networks import NO_METADATA, describe_later
from darkroom.engine.families.wrapped_names import wrapping_prefixes
from darkroom.engine.layers.shapes import count_children
from darkroom.engine.layers.unet_shapes import FIRST, unet_traits

# Beginnings of tensor names, most telling first.
MARKS: tuple[tuple[str, str], ...] = (
    ("conditioner.embedders.1.", "a Stable Diffusion XL checkpoint that is not whole"),
    ("conditioner.embedders.0.model.", "a Stable Diffusion XL refiner or 2.x checkpoint"),
    ("model.diffusion_model.label_emb.", "a Stable Diffusion XL or unCLIP checkpoint"),
    ("label_emb.", "only a part of a UNet with labels, as Stable Diffusion XL has it"),
    ("add_embedding.", "only a part of a UNet with labels in diffusers layout, as Stable Diffusion XL has it"),
    ("cond_stage_model.model.", "a Stable Diffusion 2.x checkpoint that is not whole"),
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
LORA_ENDS = (".lora_A.weight", ".lora_down.weight", ".lora.down.weight")
# Beginnings of the names of networks' tensors behind any prefix, most telling first.
NETWORKS: tuple[tuple[str, str], ...] = (
    ("distilled_guidance_layer.", "Chroma"),
    ("txt_in.individual_token_refiner.", "Hunyuan Video"),
    ("double_blocks.", "Flux"),
    ("joint_blocks.", "Stable Diffusion 3"),
    ("txtfusion.", "Krea 2"),
    ("transformer_blocks.0.img_mod.", "Qwen-Image"),
    ("double_layers.", "AuraFlow"),
    ("caption_projection.0.linear.", "HiDream"),
    ("context_refiner.", "Lumina 2"),
    ("patchify_proj.", "LTX-Video"),
    ("head.modulation", "Wan"),
    ("mlp_t5.", "Hunyuan DiT"),
    ("t5_yproj.", "Mochi"),
    ("blocks.block0.", "Cosmos"),
    ("t_block.1.", "PixArt"),
    ("single_transformer_blocks.", "Flux in diffusers layout"),
)
# Beginnings of the names of single files of text encoders.
TEXT_NETWORKS: tuple[tuple[str, str], ...] = (
    ("encoder.block.0.layer.0.SelfAttention.", "a T5 text encoder"),
    ("model.embed_tokens.", "a language model"),
    ("model.language_model.", "a language model that sees images"),
)
# Prefixes of the layers of language models, without and with an encoder of images beside them.
LANGUAGE_PREFIXES = (("model.", "a language model"), ("model.language_model.", "a language model that sees images"))
PARTS: tuple[tuple[str, str], ...] = (
    ("text_model.encoder.", "a CLIP text encoder"),
    ("decoder.conv_in.", "a VAE"),
    ("decoder.upsamples.", "the VAE of Wan"),
    ("input_blocks.", "a UNet without VAE and text encoder"),
    ("diffusion_model.input_blocks.", "a UNet without VAE and text encoder"),
    ("model.diffusion_model.", "a UNet without VAE and text encoder"),
)

# By which control files of other kinds are known.
CONTROL_MARKS = (
    ("controlnet_blocks.0.", "a ControlNet of Stable Diffusion 3, Flux or Qwen in another layout"),
    ("after_proj_list.", "a ControlNet of Hunyuan DiT"),
)


def describe(shapes: Shapes, metadata: Mapping[str, str] = NO_METADATA) -> str:
    """Describe a file by its tensors, and by its metadata where tensors do not distinguish networks."""
    described = (
        describe_later(shapes, metadata)
        or _first(MARKS, shapes)
        or _describe_lora(shapes)
        or _describe_network(shapes)
        or _describe_unet(shapes)
        or _describe_language_model(shapes)
        or _first((*PARTS, *TEXT_NETWORKS), shapes)
    )
    if described is not None:
        return described
    return f"{len(shapes)} tensors of no known network" + (f", {next(iter(shapes))!r} first" if shapes else "")


def _describe_language_model(shapes: Shapes) -> str | None:
    """Describe a language model by its size, which tells apart those that families read; None for other files."""
    for prefix, what in LANGUAGE_PREFIXES:
        rows = shapes.get(f"{prefix}embed_tokens.weight", ())
        num_layers = count_children(shapes, f"{prefix}layers")
        if len(rows) == 2 and num_layers:
            return f"{what}, of {num_layers} layers and width {rows[1]}"
    return None


def _describe_lora(shapes: Shapes) -> str | None:
    """Describe a LoRA that is known by the ends of its names, None for other files."""
    return "a LoRA" if any(name.endswith(LORA_ENDS) for name in shapes) else None


def _describe_network(shapes: Shapes) -> str | None:
    """Describe a network of another kind than a UNet, None without one.

    Families read whole ones: what comes here lacks layers, or has them under names of another layout.
    """
    for mark, label in NETWORKS:
        for prefix in ("", *wrapping_prefixes(shapes)):
            first = next((name for name in shapes if name.startswith(prefix + mark)), None)
            if first is not None:
                return f"only a part of the network of {label}, or one in an unknown layout ({first!r} first)"
    return None


def _describe_unet(shapes: Shapes) -> str | None:
    """Describe a UNet that no family recognises, None without one."""
    prefix = next((prefix for prefix in ("", *wrapping_prefixes(shapes)) if prefix + FIRST in shapes), None)
    if prefix is None:
        return None
    unet = {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}
    traits = unet_traits(unet)
    return f"a UNet of {traits.in_channels} input channels for text encoders of width {traits.context_dim}"


def describe_control(shapes: Shapes) -> str | None:
    """Describe a control file of a kind that is not supported, None for others."""
    return _first(CONTROL_MARKS, shapes)


def _first(marks: tuple[tuple[str, str], ...], shapes: Shapes) -> str | None:
    return next((text for mark, text in marks if any(name.startswith(mark) for name in shapes)), None)
