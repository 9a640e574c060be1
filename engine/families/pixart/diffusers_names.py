"""The names of the diffusers library for the layers of PixArt's transformer, in its files and in those of LoRAs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from darkroom.engine.adapters.lora_names import LoraTarget, denoiser_keys, named_by_trainers, rows_of
from darkroom.engine.families.base import Shapes
from darkroom.engine.families.layouts import composed_layout
from darkroom.engine.families.pixart.transformer import PixArtConfig
from darkroom.engine.formats.weight_file import Item, Joined
from darkroom.engine.layers.shapes import count_children

MARKS = ("adaln_single.emb.timestep_embedder.linear_1.bias", "pos_embed.proj.bias")
PREFIXES = ("", "transformer.")
NETWORK = {
    "adaln_single.emb.resolution_embedder.linear_1": "csize_embedder.mlp.0",
    "adaln_single.emb.resolution_embedder.linear_2": "csize_embedder.mlp.2",
    "adaln_single.emb.aspect_ratio_embedder.linear_1": "ar_embedder.mlp.0",
    "adaln_single.emb.aspect_ratio_embedder.linear_2": "ar_embedder.mlp.2",
    "adaln_single.emb.timestep_embedder.linear_1": "t_embedder.mlp.0",
    "adaln_single.emb.timestep_embedder.linear_2": "t_embedder.mlp.2",
    "adaln_single.linear": "t_block.1",
    "pos_embed.proj": "x_embedder.proj",
    "caption_projection.linear_1": "y_embedder.y_proj.fc1",
    "caption_projection.linear_2": "y_embedder.y_proj.fc2",
    "proj_out": "final_layer.linear",
}
TABLES = {
    "scale_shift_table": "final_layer.scale_shift_table",
    "caption_projection.y_embedding": "y_embedder.y_embedding",
}
BLOCK = {
    "attn1.to_out.0": "attn.proj",
    "attn2.to_q": "cross_attn.q_linear",
    "attn2.to_out.0": "cross_attn.proj",
    "ff.net.0.proj": "mlp.fc1",
    "ff.net.2": "mlp.fc2",
}
FUSED = {
    "attn.qkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
    "cross_attn.kv_linear": ("attn2.to_k", "attn2.to_v"),
}
LORA_PREFIXES = ("transformer.", "base_model.model.", "unet.base_model.model.")


def lora_keys(weight_names: Iterable[str], config: PixArtConfig) -> dict[str, LoraTarget]:
    """Return a map from the names used in LoRA files to the weights of the network, or parts of them."""
    names: dict[str, LoraTarget] = {theirs: f"{ours}.weight" for theirs, ours in NETWORK.items()}
    for index in range(config.num_blocks):
        theirs, ours = f"transformer_blocks.{index}", f"blocks.{index}"
        names |= {f"{theirs}.{their}": f"{ours}.{our}.weight" for their, our in BLOCK.items()}
        for our, parts in FUSED.items():
            for place, their in enumerate(parts):
                names[f"{theirs}.{their}"] = rows_of(f"{ours}.{our}.weight", place * config.width, config.width)
    return {**denoiser_keys(weight_names, {}), **named_by_trainers(names, LORA_PREFIXES, ())}


def _names(shapes: Shapes) -> Iterator[tuple[str, Item]]:
    """Yield (the network's name, what of the file it is) for all tensors that such a file may have."""
    yield from ((ours, theirs) for theirs, ours in TABLES.items())
    for kind in ("weight", "bias"):
        yield from ((f"{ours}.{kind}", f"{theirs}.{kind}") for theirs, ours in NETWORK.items())
    for index in range(count_children(shapes, "transformer_blocks")):
        theirs, ours = f"transformer_blocks.{index}", f"blocks.{index}"
        yield f"{ours}.scale_shift_table", f"{theirs}.scale_shift_table"
        for kind in ("weight", "bias"):
            yield from ((f"{ours}.{our}.{kind}", f"{theirs}.{their}.{kind}") for their, our in BLOCK.items())
            for our, parts in FUSED.items():
                yield f"{ours}.{our}.{kind}", Joined(tuple(f"{theirs}.{part}.{kind}" for part in parts))


find_diffusers = composed_layout(PREFIXES, MARKS, _names)
