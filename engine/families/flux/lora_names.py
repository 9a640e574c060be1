"""The names of the diffusers library for the weights of Flux's transformer, as LoRA files use them."""

from __future__ import annotations

from collections.abc import Iterable

from engine.adapters.lora_names import LoraTarget, denoiser_keys, named_by_trainers, rows_of, swapped_halves
from engine.architectures.double_stream import DoubleStreamConfig

NETWORK = {
    "x_embedder": "img_in.weight",
    "context_embedder": "txt_in.weight",
    "time_text_embed.timestep_embedder.linear_1": "time_in.in_layer.weight",
    "time_text_embed.timestep_embedder.linear_2": "time_in.out_layer.weight",
    "time_text_embed.text_embedder.linear_1": "vector_in.in_layer.weight",
    "time_text_embed.text_embedder.linear_2": "vector_in.out_layer.weight",
    "time_text_embed.guidance_embedder.linear_1": "guidance_in.in_layer.weight",
    "time_text_embed.guidance_embedder.linear_2": "guidance_in.out_layer.weight",
    "proj_out": "final_layer.linear.weight",
}
DOUBLE = {
    "attn.to_out.0": "img_attn.proj.weight",
    "norm1.linear": "img_mod.lin.weight",
    "norm1_context.linear": "txt_mod.lin.weight",
    "attn.to_add_out": "txt_attn.proj.weight",
    "ff.net.0.proj": "img_mlp.0.weight",
    "ff.net.2": "img_mlp.2.weight",
    "ff_context.net.0.proj": "txt_mlp.0.weight",
    "ff_context.net.2": "txt_mlp.2.weight",
}
DOUBLE_FUSED = {
    "img_attn.qkv.weight": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "txt_attn.qkv.weight": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
}
SINGLE = {"norm.linear": "modulation.lin.weight", "proj_out": "linear2.weight"}
SINGLE_FUSED = ("attn.to_q", "attn.to_k", "attn.to_v")
PREFIXES = ("transformer.",)
FLAT_PREFIXES = ("lycoris_", "lora_transformer_")


def diffusers_names(config: DoubleStreamConfig) -> dict[str, LoraTarget]:
    """Return the weights of the network, or parts of them, by diffusers' names of layers."""
    names: dict[str, LoraTarget] = dict(NETWORK)
    width = config.width
    for index in range(config.num_double):
        theirs, ours = f"transformer_blocks.{index}", f"double_blocks.{index}"
        names |= {f"{theirs}.{their}": f"{ours}.{our}" for their, our in DOUBLE.items()}
        for our, parts in DOUBLE_FUSED.items():
            for place, their in enumerate(parts):
                names[f"{theirs}.{their}"] = rows_of(f"{ours}.{our}", place * width, width)
    for index in range(config.num_single):
        theirs, ours = f"single_transformer_blocks.{index}", f"single_blocks.{index}"
        names |= {f"{theirs}.{their}": f"{ours}.{our}" for their, our in SINGLE.items()}
        for place, their in enumerate(SINGLE_FUSED):
            names[f"{theirs}.{their}"] = rows_of(f"{ours}.linear1.weight", place * width, width)
        inner = width * config.inner_factor
        names[f"{theirs}.proj_mlp"] = rows_of(f"{ours}.linear1.weight", 3 * width, inner)
    names["norm_out.linear"] = swapped_halves("final_layer.adaLN_modulation.1.weight")
    return names


def lora_keys(weight_names: Iterable[str], config: DoubleStreamConfig) -> dict[str, LoraTarget]:
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
