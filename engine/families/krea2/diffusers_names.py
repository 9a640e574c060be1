"""The names of the diffusers library for the layers of Krea 2's transformer, in files of LoRAs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from darkroom.engine.adapters.lora_names import LoraTarget, denoiser_keys, named_by_trainers
from darkroom.engine.families.krea2.transformer import NUM_FUSION_BLOCKS, Krea2Config

NETWORK = {
    "img_in": "first",
    "time_embed.linear_1": "tmlp.0",
    "time_embed.linear_2": "tmlp.2",
    "time_mod_proj": "tproj.1",
    "txt_in.linear_1": "txtmlp.1",
    "txt_in.linear_2": "txtmlp.3",
    "text_fusion.projector": "txtfusion.projector",
    "final_layer.linear": "last.linear",
}
BLOCK = {
    "attn.to_q": "attn.wq",
    "attn.to_k": "attn.wk",
    "attn.to_v": "attn.wv",
    "attn.to_gate": "attn.gate",
    "attn.to_out.0": "attn.wo",
    "attn.to_out": "attn.wo",
    "ff.gate": "mlp.gate",
    "ff.up": "mlp.up",
    "ff.down": "mlp.down",
}
PREFIXES = ("diffusion_model.", "transformer.", "")
FLAT_PREFIXES = ("lycoris_",)


def _lora_targets(config: Krea2Config) -> dict[str, LoraTarget]:
    """Return the weights of the network by diffusers' names of layers."""
    stacks = {"transformer_blocks": ("blocks", config.num_blocks)}
    stacks |= {
        f"text_fusion.{kind}": (f"txtfusion.{kind}", NUM_FUSION_BLOCKS)
        for kind in ("layerwise_blocks", "refiner_blocks")
    }
    names: dict[str, LoraTarget] = {theirs: f"{ours}.weight" for theirs, ours in NETWORK.items()}
    for theirs, (ours, count) in stacks.items():
        for index in range(count):
            names |= {f"{theirs}.{index}.{layer}": f"{ours}.{index}.{own}.weight" for layer, own in BLOCK.items()}
    return names


def lora_keys(weight_names: Iterable[str], config: Krea2Config) -> Mapping[str, LoraTarget]:
    """Return a map from the names used in LoRA files to the weights of the network."""
    return {
        **named_by_trainers(_lora_targets(config), PREFIXES, FLAT_PREFIXES),
        **denoiser_keys(weight_names, {}),
    }
