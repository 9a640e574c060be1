"""OpenCLIP's names for the weights of a CLIP tower, and those of the transformers library, used by the networks.

OpenCLIP stores the query, key and value projections of an attention as one tensor and a tower's projection transposed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LAYER_PARTS = {
    "ln_1": "layer_norm1", "ln_2": "layer_norm2", "mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2",
    "attn.out_proj": "self_attn.out_proj",
}  # fmt: skip
TEXT_ENDS = {
    "token_embedding.weight": "embeddings.token_embedding.weight",
    "positional_embedding": "embeddings.position_embedding.weight",
    "ln_final.weight": "final_layer_norm.weight", "ln_final.bias": "final_layer_norm.bias",
}  # fmt: skip
FUSED = ("q_proj", "k_proj", "v_proj")  # in the order in which `in_proj` holds them
LAYER = re.compile(r"^transformer\.resblocks\.(\d+)\.(.+?)[._](weight|bias)$")
TEXT_MARK = "transformer.resblocks.0.attn.in_proj_weight"


def layer_names(name: str) -> Iterator[tuple[str, int | None]]:
    """Yield the names (from `encoder.layers.` on) that a tensor of OpenCLIP's transformer stands for.

    Each comes with the index of the third of the tensor that it is, None for the whole tensor.
    """
    match = LAYER.match(name)
    if match is None:
        return
    index, part, kind = match.groups()
    if part == "attn.in_proj":
        for third, projection in enumerate(FUSED):
            yield f"encoder.layers.{index}.self_attn.{projection}.{kind}", third
    elif part in LAYER_PARTS:
        yield f"encoder.layers.{index}.{LAYER_PARTS[part]}.{kind}", None


def text_tower_names(name: str) -> Iterator[tuple[str, int | None]]:
    """Yield the names (from `text_model.` on) that a tensor of OpenCLIP's text tower stands for, as `layer_names`."""
    if name in TEXT_ENDS:
        yield f"text_model.{TEXT_ENDS[name]}", None
    for inner, third in layer_names(name):
        yield f"text_model.{inner}", third


def open_clip_text_names(num_layers: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield OpenCLIP's names for a text tower of so many layers, each with the names of the weights it holds."""
    for theirs, ours in TEXT_ENDS.items():
        yield theirs, (f"text_model.{ours}",)
    for index in range(num_layers):
        layer, block = f"text_model.encoder.layers.{index}", f"transformer.resblocks.{index}"
        for kind in ("weight", "bias"):
            yield f"{block}.attn.in_proj_{kind}", tuple(f"{layer}.self_attn.{name}.{kind}" for name in FUSED)
            for theirs, ours in LAYER_PARTS.items():
                yield f"{block}.{theirs}.{kind}", (f"{layer}.{ours}.{kind}",)
