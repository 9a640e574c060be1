"""The names in LoRA files of the layers of Qwen-Image 2.1's transformer."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch

from darkroom.engine.adapters.lora import LORA_FACTORS
from darkroom.engine.adapters.lora_names import LoraTarget, named_by_trainers, own_layer_keys, rows_of
from darkroom.engine.families.base import Tensors
from darkroom.engine.families.qwen_image21.layers import QwenImage21Config

FEED_FORWARD = "transformer_blocks.{}.img_mlp"
PARTS = ("gate_layer", "proj")  # in the order in which files of ComfyUI have joined them
PREFIXES = ("diffusion_model.", "transformer.", "")
FLAT_PREFIXES = ("lora_unet_", "lycoris_")
JOINED = re.compile(r"(.*img_mlp[._])gate_up([._].+)")  # behind it, the part of an adapter
# Parts of adapters that have a row for each row of the layer, or, of a Kronecker product, for as many of them each.
WITH_ROWS = frozenset(
    (
        *(up for up, _ in LORA_FACTORS), ".diff", ".set_weight", ".dora_scale", ".hada_w1_a", ".hada_w2_a", ".lokr_w1",
        ".lokr_w1_a",
    )
)  # fmt: skip


def lora_keys(weight_names: Iterable[str], config: QwenImage21Config) -> dict[str, LoraTarget]:
    """Return a map from the names used in LoRA files to the weights of the network, or parts of them.

    A network with joined layers of gates takes changes of the single ones, as the diffusers library has them.
    """
    keys = own_layer_keys(weight_names, config)
    if not config.joins_gates:
        return keys
    parts: dict[str, LoraTarget] = {}
    for layers in (FEED_FORWARD.format(index) for index in range(config.num_blocks)):
        for place, part in enumerate(PARTS):
            rows = rows_of(f"{layers}.gate_up.weight", place * config.inner_width, config.inner_width)
            parts[f"{layers}.{part}"] = rows
    return {**keys, **named_by_trainers(parts, PREFIXES, FLAT_PREFIXES)}


def renamed_lora(tensors: Tensors, config: QwenImage21Config) -> Tensors:
    """Return a LoRA's tensors for a network with these layers of gates.

    One with single layers takes changes of joined ones in two: each has the half of the rows that is its own. Adapters
    whose rows are not two halves stay as they are.
    """
    if config.joins_gates:
        return tensors
    found: dict[str, torch.Tensor] = {}
    uneven: set[str] = set()
    for name, tensor in tensors.items():
        match = JOINED.fullmatch(name)
        if match is not None and match[2] in WITH_ROWS and _has_rows(tensor) and tensor.shape[0] % 2:
            uneven.add(match[1])
    for name, tensor in tensors.items():
        match = JOINED.fullmatch(name)
        if match is None or match[1] in uneven:
            found[name] = tensor
            continue
        is_split = match[2] in WITH_ROWS and _has_rows(tensor)
        halves = tensor.chunk(2, dim=0) if is_split else (tensor, tensor)
        found |= {f"{match[1]}{part}{match[2]}": half for part, half in zip(PARTS, halves, strict=True)}
    return found


def _has_rows(tensor: torch.Tensor) -> bool:
    """Return False for scales that are of the inputs of a layer, not of its rows."""
    return tensor.ndim > 0 and tensor.shape[0] > 1
