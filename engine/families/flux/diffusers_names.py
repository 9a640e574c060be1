"""The names of the diffusers library for the layers of transformers such as Flux.1's, in files and in those of LoRAs.

Layers of the library that are one in the network have their rows behind each other there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from darkroom.engine.families.base import Layout, Shapes
from darkroom.engine.families.flux.transformer import BlockConfig
from darkroom.engine.families.layouts import composed_layout, swapped_halves_of
from darkroom.engine.formats.weight_file import Item, Joined
from darkroom.engine.layers.shapes import count_children

MARK = "transformer_blocks.0.attn.norm_added_k.weight"
FIRST = "x_embedder.weight"
PREFIXES = ("", "transformer.")
NETWORK = {
    "x_embedder": "img_in",
    "context_embedder": "txt_in",
    "time_text_embed.timestep_embedder.linear_1": "time_in.in_layer",
    "time_text_embed.timestep_embedder.linear_2": "time_in.out_layer",
    "time_text_embed.text_embedder.linear_1": "vector_in.in_layer",
    "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
    "time_text_embed.guidance_embedder.linear_1": "guidance_in.in_layer",
    "time_text_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
    "proj_out": "final_layer.linear",
}
SWAPPED = {"norm_out.linear": "final_layer.adaLN_modulation.1"}  # shift and scale in the other order
DOUBLE = {
    "attn.to_out.0": "img_attn.proj",
    "norm1.linear": "img_mod.lin",
    "norm1_context.linear": "txt_mod.lin",
    "attn.to_add_out": "txt_attn.proj",
    "ff.net.0.proj": "img_mlp.0",
    "ff.net.2": "img_mlp.2",
    "ff_context.net.0.proj": "txt_mlp.0",
    "ff_context.net.2": "txt_mlp.2",
}
DOUBLE_NORMS = {
    "attn.norm_q": "img_attn.norm.query_norm",
    "attn.norm_k": "img_attn.norm.key_norm",
    "attn.norm_added_q": "txt_attn.norm.query_norm",
    "attn.norm_added_k": "txt_attn.norm.key_norm",
}
DOUBLE_FUSED = {
    "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
}
SINGLE = {"norm.linear": "modulation.lin", "proj_out": "linear2"}
SINGLE_NORMS = {"attn.norm_q": "norm.query_norm", "attn.norm_k": "norm.key_norm"}
SINGLE_FUSED = {"linear1": ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")}
KINDS = ("weight", "bias")


def blocks(num_double: int, num_single: int) -> Iterator[tuple[str, str, bool]]:
    """Yield the blocks: the library's name, the network's, and True for one of two streams."""
    for index in range(num_double):
        yield f"transformer_blocks.{index}", f"double_blocks.{index}", True
    for index in range(num_single):
        yield f"single_transformer_blocks.{index}", f"single_blocks.{index}", False


def fused_widths(config: BlockConfig) -> dict[str, tuple[int, ...]]:
    """Return the rows of each of the layers that are one in the network, by its name there."""
    width = config.width
    return {
        **dict.fromkeys(DOUBLE_FUSED, (width,) * 3),
        **dict.fromkeys(SINGLE_FUSED, (width, width, width, width * config.inner_factor)),
    }


def _names(further: Mapping[str, str], shapes: Shapes) -> Iterator[tuple[str, Item]]:
    """Yield (the network's name, what of the file it is) for all tensors that such a file may have."""
    for kind in KINDS:
        for theirs, ours in {**NETWORK, **further}.items():
            yield f"{ours}.{kind}", f"{theirs}.{kind}"
        for theirs, ours in SWAPPED.items():
            yield f"{ours}.{kind}", swapped_halves_of(f"{theirs}.{kind}")
    numbers = (count_children(shapes, name) for name in ("transformer_blocks", "single_transformer_blocks"))
    for block, own_block, is_double in blocks(*numbers):
        for theirs, ours in (DOUBLE_NORMS if is_double else SINGLE_NORMS).items():
            yield f"{own_block}.{ours}.scale", f"{block}.{theirs}.weight"
        for kind in KINDS:
            for theirs, ours in (DOUBLE if is_double else SINGLE).items():
                yield f"{own_block}.{ours}.{kind}", f"{block}.{theirs}.{kind}"
            for ours, parts in (DOUBLE_FUSED if is_double else SINGLE_FUSED).items():
                yield f"{own_block}.{ours}.{kind}", Joined(tuple(f"{block}.{part}.{kind}" for part in parts))


def file_layout(further: Mapping[str, str]) -> Layout:
    """Make the layout of files of the library. `further` are layers beside those above."""
    return composed_layout(PREFIXES, (MARK, FIRST), partial(_names, further))
