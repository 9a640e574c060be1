"""The names of the diffusers library for the weights of AuraFlow's transformer, as LoRA files use them."""

from __future__ import annotations

from collections.abc import Iterable

from darkroom.engine.adapters.lora_names import LoraTarget, denoiser_keys, named_by_trainers, swapped_halves
from darkroom.engine.families.aura_flow.transformer import AuraFlowConfig

NETWORK = {
    "time_step_proj.linear_1": "t_embedder.mlp.0",
    "time_step_proj.linear_2": "t_embedder.mlp.2",
    "context_embedder": "cond_seq_linear",
    "pos_embed.proj": "init_x_linear",
    "proj_out": "final_linear",
}
DOUBLE = {
    "attn.to_q": "attn.w2q",
    "attn.to_k": "attn.w2k",
    "attn.to_v": "attn.w2v",
    "attn.to_out.0": "attn.w2o",
    "attn.add_q_proj": "attn.w1q",
    "attn.add_k_proj": "attn.w1k",
    "attn.add_v_proj": "attn.w1v",
    "attn.to_add_out": "attn.w1o",
    "ff.linear_1": "mlpX.c_fc1",
    "ff.linear_2": "mlpX.c_fc2",
    "ff.out_projection": "mlpX.c_proj",
    "ff_context.linear_1": "mlpC.c_fc1",
    "ff_context.linear_2": "mlpC.c_fc2",
    "ff_context.out_projection": "mlpC.c_proj",
    "norm1.linear": "modX.1",
    "norm1_context.linear": "modC.1",
}
SINGLE = {
    "attn.to_q": "attn.w1q",
    "attn.to_k": "attn.w1k",
    "attn.to_v": "attn.w1v",
    "attn.to_out.0": "attn.w1o",
    "norm1.linear": "modCX.1",
    "ff.linear_1": "mlp.c_fc1",
    "ff.linear_2": "mlp.c_fc2",
    "ff.out_projection": "mlp.c_proj",
}


def diffusers_names(config: AuraFlowConfig) -> dict[str, LoraTarget]:
    """Return the weights of the network by diffusers' names of layers."""
    names: dict[str, LoraTarget] = {theirs: f"{ours}.weight" for theirs, ours in NETWORK.items()}
    names["norm_out.linear"] = swapped_halves("modF.1.weight")
    for kinds, theirs, ours, count in (
        (DOUBLE, "joint_transformer_blocks", "double_layers", config.num_double),
        (SINGLE, "single_transformer_blocks", "single_layers", config.num_single),
    ):
        for index in range(count):
            names |= {f"{theirs}.{index}.{their}": f"{ours}.{index}.{our}.weight" for their, our in kinds.items()}
    return names


def lora_keys(weight_names: Iterable[str], config: AuraFlowConfig) -> dict[str, LoraTarget]:
    """Return a map from the names used in LoRA files to the weights of the network."""
    return {**denoiser_keys(weight_names, {}), **named_by_trainers(diffusers_names(config), ("transformer.",), ())}
