"""The transformers of CogVideoX as denoising networks: where files have them, and their names in LoRA files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from darkroom.engine.adapters.lora_names import DENOISER_PREFIX, LoraTarget, denoiser_keys, named_by_trainers
from darkroom.engine.families.base import Layout, Match, NotRecognised, Shapes, TensorIndex
from darkroom.engine.families.cogvideox.transformer import (
    FIRST,
    FLOAT32_ENDS,
    HEAD_DIM,
    MARK,
    TEXT,
    CogVideoXConfig,
    CogVideoXTransformer,
    cogvideox_config,
)
from darkroom.engine.families.transformer_files import PREFIXES, detect_by, transformer
from darkroom.engine.formats.weight_file import Names, shape_of
from darkroom.engine.settings import DtypePolicy

# Ends of names of layers in the diffusers library, and here.
DIFFUSERS_ENDS = {
    "attn1.to_q": "q",
    "attn1.to_k": "k",
    "attn1.to_v": "v",
    "attn1.to_out.0": "attn_out",
    "attn1.norm_q": "norm_q",
    "attn1.norm_k": "norm_k",
    "ff.net.0.proj": "ff_proj",
    "ff.net.2": "ff_out",
}
BLOCK = re.compile(r"blocks\.(\d{1,3})\.(.+)")
EMBEDDING = re.compile(r"(time|ofs)_embedding_linear_([12])")
DIFFUSERS_MARK = "transformer_blocks.0.norm1.linear.weight"
DIFFUSERS_PREFIXES = (*PREFIXES, "transformer.")
THEIR_BLOCK = re.compile(r"transformer_blocks\.(\d{1,3})\.(.+)")
THEIR_EMBEDDING = re.compile(r"(time|ofs)_embedding\.linear_([12])")
MOST_HIDDEN, MOST_LAYERS, MOST_INPUT, MOST_OUTPUT = 16384, 200, 1024, 64
"""Sizes above these are no network's: one is built before its tensors are looked for."""
VARIANTS = {16: "", 32: "image", 48: "inpaint"}  # by the channels that the network reads


def diffusers_name(layer: str) -> str:
    """Return the name that the diffusers library has for a layer."""
    block, embedding = BLOCK.fullmatch(layer), EMBEDDING.fullmatch(layer)
    if block is not None:
        theirs = {ours: end for end, ours in DIFFUSERS_ENDS.items()}
        return f"transformer_blocks.{block[1]}.{theirs.get(block[2], block[2])}"
    return layer if embedding is None else f"{embedding[1]}_embedding.linear_{embedding[2]}"


def own_name(layer: str) -> str:
    """Return the name here of a layer of the diffusers library."""
    block, embedding = THEIR_BLOCK.fullmatch(layer), THEIR_EMBEDDING.fullmatch(layer)
    if block is not None:
        return f"blocks.{block[1]}.{DIFFUSERS_ENDS.get(block[2], block[2])}"
    return layer if embedding is None else f"{embedding[1]}_embedding_linear_{embedding[2]}"


def _diffusers_layout(shapes: Shapes) -> Names | None:
    """Return the names of the weights in a file of the diffusers library; None for another file."""
    prefixes = (prefix for prefix in DIFFUSERS_PREFIXES if prefix + DIFFUSERS_MARK in shapes)
    prefix = next(prefixes, None)
    if prefix is None or prefix + TEXT not in shapes:
        return None
    names = (name.removeprefix(prefix) for name in shapes if name.startswith(prefix))
    return {_renamed(name): prefix + name for name in names}


def _renamed(name: str) -> str:
    layer, dot, end = name.rpartition(".")
    return own_name(layer) + dot + end


def _configure(shapes: Shapes) -> CogVideoXConfig:
    """Return the configuration. Raises NotRecognised for sizes that no such network has, LookupError."""
    if len(shapes[MARK]) != 2 or len(shapes[FIRST]) not in (2, 4):
        raise NotRecognised("a transformer like CogVideoX's with layers of other dimensions")
    config = cogvideox_config(shapes)
    sizes = (
        (config.hidden_size, MOST_HIDDEN), (config.num_layers, MOST_LAYERS), (config.in_channels, MOST_INPUT),
        (config.out_channels, MOST_OUTPUT), (config.time_embed_dim, MOST_HIDDEN), (config.text_dim, MOST_HIDDEN),
        (config.intermediate_size, MOST_HIDDEN * 4),
    )  # fmt: skip
    if config.hidden_size % HEAD_DIM or not all(0 < size <= most for size, most in sizes):
        raise NotRecognised(
            f"a transformer like CogVideoX's of hidden size {config.hidden_size} and {config.num_layers} layers, "
            f"expected multiples of {HEAD_DIM} up to {MOST_HIDDEN}, and up to {MOST_LAYERS} layers"
        )
    return config


LAYOUTS: tuple[Layout, ...] = (_diffusers_layout,)
DENOISER = replace(
    transformer(
        MARK,
        configure=_configure,
        build=CogVideoXTransformer,
        dtypes=DtypePolicy(prefers=("bfloat16", "float16")),
        other_layouts=LAYOUTS,
    ),
    float32_ends=FLOAT32_ENDS,  # as in ComfyUI
)
_detect = detect_by(DENOISER, needs=(FIRST, TEXT))


def detect(index: TensorIndex) -> Match | None:
    """Recognise the network by the norms of its blocks and its first layers; the variant by the channels it reads."""
    match = _detect(index)
    if match is None:
        return None
    try:
        config = _configure({ours: shape_of(theirs, index.shapes) for ours, theirs in match.names.items()})
    except (LookupError, ValueError):
        return match  # refused by name where it is loaded
    return replace(match, variant=VARIANTS.get(config.in_channels, ""))


def lora_keys(weight_names: Iterable[str], config: object) -> Mapping[str, LoraTarget]:
    """Return a map from the names used in LoRA files to the weights: the network's own names, and diffusers'."""
    names = list(weight_names)
    layers = [name.removeprefix(DENOISER_PREFIX) for name in names if name.endswith(".weight")]
    own: dict[str, LoraTarget] = {name.removesuffix(".weight"): name for name in layers}
    theirs: dict[str, LoraTarget] = {diffusers_name(layer): name for layer, name in own.items()}
    prefixes = ("", "transformer.", DENOISER_PREFIX)
    return {
        **denoiser_keys(names, {}),
        **named_by_trainers(theirs, prefixes, ("lora_unet_", "lora_transformer_", "lycoris_")),
        **named_by_trainers(own, prefixes, ("lora_unet_", "lora_transformer_", "lycoris_")),
    }
