"""The names that LoRA files use for the weights of Stable Diffusion 3's transformer."""

from __future__ import annotations

from collections.abc import Iterable

from darkroom.engine.adapters.lora_names import LoraTarget, denoiser_keys, named_by_trainers, rows_of, swapped_halves
from darkroom.engine.families.sd3.diffusers_names import BLOCK, FUSED, LAST_SWAPPED, LAST_TEXT_SWAPPED, NETWORK
from darkroom.engine.families.sd3.transformer import Sd3Config

PREFIXES = ("transformer.", "base_model.model.")
FLAT_PREFIXES = ("lora_transformer_", "lycoris_")


def diffusers_names(config: Sd3Config) -> dict[str, LoraTarget]:
    """Return the weights of the network, or parts of them, by diffusers' names of layers."""
    names: dict[str, LoraTarget] = {theirs: f"{ours}.weight" for theirs, ours in NETWORK.items()}
    for index in range(config.num_blocks):
        theirs, ours = f"transformer_blocks.{index}", f"joint_blocks.{index}"
        names |= {f"{theirs}.{their}": f"{ours}.{our}.weight" for their, our in BLOCK.items()}
        for our, parts in FUSED.items():
            for place, their in enumerate(parts):
                names[f"{theirs}.{their}"] = rows_of(f"{ours}.{our}.weight", place * config.width, config.width)
    last = config.num_blocks - 1
    names[LAST_SWAPPED[0]] = swapped_halves(f"{LAST_SWAPPED[1]}.weight")
    theirs, ours = LAST_TEXT_SWAPPED
    names[f"transformer_blocks.{last}.{theirs}"] = swapped_halves(f"joint_blocks.{last}.{ours}.weight")
    return names


def lora_keys(weight_names: Iterable[str], config: Sd3Config) -> dict[str, LoraTarget]:
    """Return a map from the names used in LoRA files to the weights of the network, or parts of them."""
    return {
        **denoiser_keys(weight_names, {}),
        **named_by_trainers(diffusers_names(config), PREFIXES, FLAT_PREFIXES),
    }
