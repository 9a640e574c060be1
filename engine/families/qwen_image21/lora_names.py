"""The names in LoRA files of the layers of Qwen-Image 2.1's transformer."""

from __future__ import annotations

from collections.abc import Iterable

from engine.adapters.lora_names import LoraTarget, named_by_trainers, own_layer_keys, rows_of
from engine.architectures.spliced_stream_layers import SplicedStreamConfig

FEED_FORWARD = "transformer_blocks.{}.img_mlp"
PARTS = ("gate_layer", "proj")  # in the order in which files of ComfyUI have joined them
PREFIXES = ("diffusion_model.", "transformer.", "")
FLAT_PREFIXES = ("lora_unet_", "lycoris_")


def lora_keys(weight_names: Iterable[str], config: SplicedStreamConfig) -> dict[str, LoraTarget]:
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
