"""Files of MoGe, as networks with weights on the CPU.

Their encoder has the names of DINOv2's own code or those of the transformers library, as the network has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.unsupported import describe
from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import Item, Names, Part, open_weights, shape_of
from darkroom.engine.models.kinds.geometry.moge import MogeV1, MogeV1Config, MogeV2, moge_config

EXPECTED = "MoGe, version 1 or 2"
PREFIXES = ("encoder.backbone.", "backbone.")
HEADS = ("encoder.output_projections.0.weight", "head.upsample_blocks.0.0.0.weight")
ALONE = {
    "patch_embed.proj.weight": "embeddings.patch_embeddings.projection.weight",
    "patch_embed.proj.bias": "embeddings.patch_embeddings.projection.bias",
    "cls_token": "embeddings.cls_token", "pos_embed": "embeddings.position_embeddings",
    "norm.weight": "layernorm.weight", "norm.bias": "layernorm.bias",
}  # fmt: skip
OF_LAYER = {
    "ls1.gamma": "layer_scale1.lambda1", "ls2.gamma": "layer_scale2.lambda1", "attn.proj.": "attention.output.dense.",
    "mlp.w12.": "mlp.weights_in.", "mlp.w3.": "mlp.weights_out.",
}  # fmt: skip
FUSED = ("query", "key", "value")  # in the order in which `qkv` holds them
LAYER = re.compile(r"^blocks\.(?:\d+\.)?(\d+)\.(.+)$")


@refuses(EXPECTED)
def load_moge(path: Path, dtype: torch.dtype, *, to: Destination = Destination.RAM) -> MogeV1 | MogeV2:
    """Load the network of a file: float32, with weights rounded to `dtype`. Raises `BadModelFile`."""
    file = open_weights(path)
    shapes = file.shapes
    if not any(name in shapes for name in HEADS):
        raise BadModelFile(path.name, describe(shapes, file.metadata), EXPECTED)
    names: Names = {name: item for key in shapes for name, item in _own_names(key)}
    try:
        config = moge_config({name: shape_of(item, shapes) for name, item in names.items()})
    except KeyError as error:
        raise BadModelFile(path.name, f"no tensor {error}", EXPECTED) from error
    with unfilled():
        network = MogeV1(config) if isinstance(config, MogeV1Config) else MogeV2(config)
    fill(network, file, names, torch.float32, to=to, through=dtype)
    return network


def _own_names(key: str) -> Iterator[tuple[str, Item]]:
    """Yield the names in the network that a tensor of the file stands for, each with what it is of that tensor."""
    prefix = next((prefix for prefix in PREFIXES if key.startswith(prefix)), None)
    inner = "" if prefix is None else key.removeprefix(prefix)
    match = LAYER.match(inner)
    if inner in ALONE:
        yield f"{prefix}{ALONE[inner]}", key
    elif match is None:
        yield key, key
    elif match[2].startswith("attn.qkv."):
        kind = match[2].removeprefix("attn.qkv.")
        for index, part in enumerate(FUSED):
            yield f"{prefix}encoder.layer.{match[1]}.attention.attention.{part}.{kind}", Part(key, index, len(FUSED))
    else:
        name = match[2]
        for theirs, ours in OF_LAYER.items():
            name = name.replace(theirs, ours)
        yield f"{prefix}encoder.layer.{match[1]}.{name}", key
