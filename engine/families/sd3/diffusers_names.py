"""The names of the diffusers library for the layers of Stable Diffusion 3's transformer, in its files and LoRAs.

Layers of the library that are one in the network have their rows behind each other there.
"""

from __future__ import annotations

from collections.abc import Iterator

from darkroom.engine.families.base import Shapes
from darkroom.engine.families.layouts import composed_layout, swapped_halves_of
from darkroom.engine.formats.weight_file import Item, Joined
from darkroom.engine.layers.shapes import count_children

MARK = "transformer_blocks.0.attn.add_q_proj.weight"
FIRST = "pos_embed.proj.weight"
PREFIXES = ("", "transformer.")
PLACES = ("pos_embed", "pos_embed.pos_embed")
NETWORK = {
    "context_embedder": "context_embedder",
    "time_text_embed.timestep_embedder.linear_1": "t_embedder.mlp.0",
    "time_text_embed.timestep_embedder.linear_2": "t_embedder.mlp.2",
    "time_text_embed.text_embedder.linear_1": "y_embedder.mlp.0",
    "time_text_embed.text_embedder.linear_2": "y_embedder.mlp.2",
    "pos_embed.proj": "x_embedder.proj",
    "proj_out": "final_layer.linear",
}
LAST_SWAPPED = ("norm_out.linear", "final_layer.adaLN_modulation.1")  # shift and scale in the other order
LAST_TEXT_SWAPPED = ("norm1_context.linear", "context_block.adaLN_modulation.1")  # in the last block, which ends there
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
KINDS = ("weight", "bias")


def _names(shapes: Shapes) -> Iterator[tuple[str, Item]]:
    """Yield (the network's name, what of the file it is) for all tensors that such a file may have."""
    yield PLACES
    num_blocks = count_children(shapes, "transformer_blocks")
    last = f"transformer_blocks.{num_blocks - 1}.{LAST_TEXT_SWAPPED[0]}"
    ends = shapes.get(f"{last}.weight", (0,))[0] == 2 * shapes[FIRST][0]  # a network that steers another goes on
    for kind in KINDS:
        for theirs, ours in NETWORK.items():
            yield f"{ours}.{kind}", f"{theirs}.{kind}"
        yield f"{LAST_SWAPPED[1]}.{kind}", swapped_halves_of(f"{LAST_SWAPPED[0]}.{kind}")
        for index in range(num_blocks):
            block, own_block = f"transformer_blocks.{index}", f"joint_blocks.{index}"
            for theirs, ours in BLOCK.items():
                yield f"{own_block}.{ours}.{kind}", f"{block}.{theirs}.{kind}"
            for ours, parts in FUSED.items():
                yield f"{own_block}.{ours}.{kind}", Joined(tuple(f"{block}.{part}.{kind}" for part in parts))
        if ends:
            yield f"joint_blocks.{num_blocks - 1}.{LAST_TEXT_SWAPPED[1]}.{kind}", swapped_halves_of(f"{last}.{kind}")


file_layout = composed_layout(PREFIXES, (MARK, FIRST), _names)
