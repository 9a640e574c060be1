"""The names of the diffusers library for the layers of Z-Image's transformer, in its files and in those of LoRAs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from darkroom.engine.adapters.lora_names import LoraTarget, denoiser_keys, named_by_trainers, rows_of, target_name
from darkroom.engine.families.base import Layout, Shapes
from darkroom.engine.families.layouts import composed_layout
from darkroom.engine.families.lumina2.layers import Lumina2Config
from darkroom.engine.formats.weight_file import Item, Joined
from darkroom.engine.layers.shapes import count_children

MARK = "noise_refiner.0.attention.norm_k.weight"
STACKS = ("layers", "context_refiner", "noise_refiner", "siglip_refiner")
NETWORK = {
    "all_x_embedder.2-1": "x_embedder",
    "all_final_layer.2-1.linear": "final_layer.linear",
    "all_final_layer.2-1.adaLN_modulation.1": "final_layer.adaLN_modulation.1",
    "cap_embedder.0": "cap_embedder.0",
    "cap_embedder.1": "cap_embedder.1",
    "t_embedder.mlp.0": "t_embedder.mlp.0",
    "t_embedder.mlp.2": "t_embedder.mlp.2",
    "siglip_embedder.0": "siglip_embedder.0",
    "siglip_embedder.1": "siglip_embedder.1",
}
PAD_TOKENS = ("x_pad_token", "cap_pad_token", "siglip_pad_token")
BLOCK = {
    "attention.norm_q": "attention.q_norm",
    "attention.norm_k": "attention.k_norm",
    "attention.to_out.0": "attention.out",
    "attention_norm1": "attention_norm1",
    "attention_norm2": "attention_norm2",
    "feed_forward.w1": "feed_forward.w1",
    "feed_forward.w2": "feed_forward.w2",
    "feed_forward.w3": "feed_forward.w3",
    "ffn_norm1": "ffn_norm1",
    "ffn_norm2": "ffn_norm2",
    "adaLN_modulation.0": "adaLN_modulation.0",
}
QKV = "attention.qkv"
PARTS = ("attention.to_q", "attention.to_k", "attention.to_v")
PREFIXES = ("diffusion_model.", "transformer.", "")
FLAT_PREFIXES = ("lycoris_",)


def _file_names(shapes: Shapes) -> Iterator[tuple[str, Item]]:
    """Yield (the network's name, what of the file it is) for all tensors that such a file may have."""
    yield from ((name, name) for name in PAD_TOKENS)
    for kind in ("weight", "bias"):
        yield from ((f"{ours}.{kind}", f"{theirs}.{kind}") for theirs, ours in NETWORK.items())
        for block in (f"{stack}.{index}" for stack in STACKS for index in range(count_children(shapes, stack))):
            yield from ((f"{block}.{ours}.{kind}", f"{block}.{theirs}.{kind}") for theirs, ours in BLOCK.items())
            yield f"{block}.{QKV}.{kind}", Joined(tuple(f"{block}.{part}.{kind}" for part in PARTS))


def file_layout() -> Layout:
    """Make the layout of files of the library."""
    return composed_layout(("", "transformer."), (MARK,), _file_names)


def _lora_targets(config: Lumina2Config) -> dict[str, LoraTarget]:
    """Return the weights of the network, or parts of them, by diffusers' names of layers."""
    names: dict[str, LoraTarget] = {theirs: f"{ours}.weight" for theirs, ours in NETWORK.items()}
    counts = dict.fromkeys(STACKS, config.num_refiners) | {"layers": config.num_layers}
    rows = (config.heads * config.head_width, *[config.key_heads * config.head_width] * 2)
    for block in (f"{stack}.{index}" for stack, count in counts.items() for index in range(count)):
        names |= {f"{block}.{theirs}": f"{block}.{ours}.weight" for theirs, ours in BLOCK.items()}
        for place, theirs in enumerate(PARTS):
            names[f"{block}.{theirs}"] = rows_of(f"{block}.{QKV}.weight", sum(rows[:place]), rows[place])
    return names


def lora_keys(weight_names: Iterable[str], config: Lumina2Config) -> Mapping[str, LoraTarget]:
    """Return a map from the names used in LoRA files to the weights of the network, or parts of them."""
    names = list(weight_names)
    by_trainers = named_by_trainers(_lora_targets(config), PREFIXES, FLAT_PREFIXES)
    kept = set(names)  # networks differ in the layers for SigLIP 2's tokens and in the last ones
    return {
        **{key: target for key, target in by_trainers.items() if target_name(target) in kept},
        **denoiser_keys(names, {}),
    }
