"""The names of the diffusers library for the weights of Stable Diffusion 3's transformer, as LoRA files use them."""

from __future__ import annotations

from collections.abc import Iterable

from engine.adapters.lora_names import LoraTarget, denoiser_keys, named_by_trainers, rows_of, swapped_halves
from engine.architectures.mmdit import MmditConfig

NETWORK = {
    "context_embedder": "context_embedder",
    "time_text_embed.timestep_embedder.linear_1": "t_embedder.mlp.0",
    "time_text_embed.timestep_embedder.linear_2": "t_embedder.mlp.2",
    "time_text_embed.text_embedder.linear_1": "y_embedder.mlp.0",
    "time_text_embed.text_embedder.linear_2": "y_embedder.mlp.2",
    "pos_embed.proj": "x_embedder.proj",
    "proj_out": "final_layer.linear",
}
BLOCK = {
    "norm1_context.linear": "context_block.adaLN_modulation.1",
    "attn.to_add_out": "context_block.attn.proj",
    "ff_context.net.0.proj": "context_block.mlp.fc1",
    "ff_context.net.2": "context_block.mlp.fc2",
    "attn.norm_added_q": "context_block.attn.ln_q",
    "attn.norm_added_k": "context_block.attn.ln_k",
    "norm1.linear": "x_block.adaLN_modulation.1",
    "attn.to_out.0": "x_block.attn.proj",
    "attn.norm_q": "x_block.attn.ln_q",
    "attn.norm_k": "x_block.attn.ln_k",
    "attn2.to_out.0": "x_block.attn2.proj",
    "attn2.norm_q": "x_block.attn2.ln_q",
    "attn2.norm_k": "x_block.attn2.ln_k",
    "ff.net.0.proj": "x_block.mlp.fc1",
    "ff.net.2": "x_block.mlp.fc2",
}
# Layers whose rows are those of three of diffusers' layers.
FUSED = {
    "x_block.attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "context_block.attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "x_block.attn2.qkv": ("attn2.to_q", "attn2.to_k", "attn2.to_v"),
}
PREFIXES = ("transformer.", "base_model.model.")
FLAT_PREFIXES = ("lora_transformer_", "lycoris_")


def diffusers_names(config: MmditConfig) -> dict[str, LoraTarget]:
    """Return the weights of the network, or parts of them, by diffusers' names of layers."""
    names: dict[str, LoraTarget] = {theirs: f"{ours}.weight" for theirs, ours in NETWORK.items()}
    for index in range(config.num_blocks):
        theirs, ours = f"transformer_blocks.{index}", f"joint_blocks.{index}"
        names |= {f"{theirs}.{their}": f"{ours}.{our}.weight" for their, our in BLOCK.items()}
        for our, parts in FUSED.items():
            for place, their in enumerate(parts):
                names[f"{theirs}.{their}"] = rows_of(f"{ours}.{our}.weight", place * config.width, config.width)
    last = config.num_blocks - 1
    names["norm_out.linear"] = swapped_halves("final_layer.adaLN_modulation.1.weight")
    names[f"transformer_blocks.{last}.norm1_context.linear"] = swapped_halves(
        f"joint_blocks.{last}.context_block.adaLN_modulation.1.weight"
    )
    return names


def lora_keys(weight_names: Iterable[str], config: MmditConfig) -> dict[str, LoraTarget]:
    """Return a map from the names used in LoRA files to the weights of the network, or parts of them."""
    return {
        **denoiser_keys(weight_names, {}),
        **named_by_trainers(diffusers_names(config), PREFIXES, FLAT_PREFIXES),
    }
