"""The names that LoRA files use for the weights of transformers of double-stream blocks, such as Flux.1's.

Networks without some of its layers have no weights for their names.
"""

from __future__ import annotations

from collections.abc import Iterable

from darkroom.engine.adapters.lora_names import (
    LoraTarget,
    denoiser_keys,
    named_by_trainers,
    rows_of,
    swapped_halves,
)
from darkroom.engine.families.flux.diffusers_names import (
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
from darkroom.engine.families.flux.transformer import BlockConfig

PREFIXES = ("transformer.", "")
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
