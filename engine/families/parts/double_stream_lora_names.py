"""The names that LoRA files use for the weights of transformers of double-stream blocks, such as Flux.1's.

Networks without some of its layers have no weights for their names. Some files have conventions of their own.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from engine.adapters.lora_names import (
    DENOISER_PREFIX,
    LoraTarget,
    denoiser_keys,
    named_by_trainers,
    rows_of,
    swapped_halves,
)
from engine.architectures.double_stream import BlockConfig
from engine.families.base import Tensors
from engine.families.parts.double_stream_diffusers_names import (
    DOUBLE,
    DOUBLE_FUSED,
    DOUBLE_NORMS,
    NETWORK,
    SINGLE,
    SINGLE_FUSED,
    SINGLE_NORMS,
    SWAPPED,
    blocks,
    fused_widths,
)

PREFIXES = ("transformer.",)
FIRST_DOWN, FIRST_UP = "img_in.lora_A.weight", "img_in.lora_B.weight"
TOOL_MARKS = (FIRST_DOWN, FIRST_UP, "single_blocks.0.norm.key_norm.scale")
# Parts of names in Black Forest Labs' LoRAs for Canny and Depth, and those that they stand for.
TOOL_NAMES = ((".lora_B.bias", ".diff_b"), ("_norm.scale", "_norm.scale.set_weight"))
PROCESSOR_MARKS = (
    "single_blocks.37.processor.qkv_lora.up.weight",
    "double_blocks.18.processor.qkv_lora2.up.weight",
)
# The same of LoRAs that are the attention processors of a trainer (USO: Wu et al. 2025, arXiv 2508.18966).
PROCESSOR_NAMES = (
    (".down.weight", ".lora_down.weight"), (".up.weight", ".lora_up.weight"), (".qkv_lora2.", ".txt_attn.qkv."),
    (".qkv_lora1.", ".img_attn.qkv."), (".proj_lora1.", ".img_attn.proj."), (".proj_lora2.", ".txt_attn.proj."),
    (".qkv_lora.", ".linear1_qkv."), (".proj_lora.", ".linear2."), (".processor.", "."),
)  # fmt: skip
FLAT_PREFIXES = ("lycoris_", "lora_transformer_")


def diffusers_names(config: BlockConfig) -> dict[str, LoraTarget]:
    """Return the weights of the network, or parts of them, by diffusers' names of layers."""
    names: dict[str, LoraTarget] = {theirs: f"{ours}.weight" for theirs, ours in NETWORK.items()}
    names |= {theirs: swapped_halves(f"{ours}.weight") for theirs, ours in SWAPPED.items()}
    rows = fused_widths(config)
    for theirs, ours, is_double in blocks(config.num_double, config.num_single):
        plain, norms, fused = (
            (DOUBLE, DOUBLE_NORMS, DOUBLE_FUSED) if is_double else (SINGLE, SINGLE_NORMS, SINGLE_FUSED)
        )
        names |= {f"{theirs}.{their}": f"{ours}.{our}.weight" for their, our in plain.items()}
        names |= {f"{theirs}.{their}": f"{ours}.{our}.scale" for their, our in norms.items()}
        for our, parts in fused.items():
            first = 0
            for their, number in zip(parts, rows[our], strict=True):
                names[f"{theirs}.{their}"] = rows_of(f"{ours}.{our}.weight", first, number)
                first += number
    return names


def lora_keys(weight_names: Iterable[str], config: BlockConfig) -> dict[str, LoraTarget]:
    """Return a map from the names used in LoRA files to the weights of the network, or parts of them."""
    attention = {
        f"diffusion_model.single_blocks.{index}.linear1_qkv": rows_of(
            f"diffusion_model.single_blocks.{index}.linear1.weight", 0, 3 * config.width
        )
        for index in range(config.num_single)
    }
    return {
        **denoiser_keys(weight_names, {}),
        **named_by_trainers(diffusers_names(config), PREFIXES, FLAT_PREFIXES),
        **attention,
    }


def renamed_lora(tensors: Tensors, config: object = None) -> Tensors:
    """Return a LoRA's tensors under the common names.

    Those of Black Forest Labs for Canny and Depth add to a first layer that is wider than the network's: it is filled
    up with zeros to their shape.
    """
    if all(mark in tensors for mark in TOOL_MARKS):
        shape = [tensors[FIRST_UP].shape[0], tensors[FIRST_DOWN].shape[1]]
        reshaped = {f"{DENOISER_PREFIX}img_in.reshape_weight": torch.tensor(shape)}
        return {**{_renamed(name, TOOL_NAMES): tensor for name, tensor in tensors.items()}, **reshaped}
    if all(mark in tensors for mark in PROCESSOR_MARKS):
        return {_renamed(name, PROCESSOR_NAMES): tensor for name, tensor in tensors.items()}
    return tensors


def _renamed(name: str, parts: Iterable[tuple[str, str]]) -> str:
    for theirs, ours in parts:
        name = name.replace(theirs, ours)
    return DENOISER_PREFIX + name
