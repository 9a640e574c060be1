"""Files of CLIP's picture encoder, in the layout of the transformers library or of OpenCLIP, as networks on the CPU."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from engine.architectures.clip_vision import ClipVisionConfig, ClipVisionModel
from engine.checkpoints.inspect import Shapes, describe
from engine.checkpoints.load import Destination, fill
from engine.errors import BadModelFile
from engine.formats.weight_file import ChangedTensors, WeightFile, open_weights

EXPECTED = "a CLIP vision model (ViT-L, ViT-H or ViT-bigG)"
MARK = "vision_model.embeddings.class_embedding"
HEADS = 16  # of all three
MOST_LAYERS_OF_QUICK_GELU = 24  # OpenAI's ViT-L; the larger ones are OpenCLIP's, trained with the exact function

OPEN_CLIP = "visual."
OPEN_CLIP_MARK = "visual.transformer.resblocks.0.attn.in_proj_weight"
OPEN_CLIP_NAMES = {
    "class_embedding": "embeddings.class_embedding",
    "conv1.weight": "embeddings.patch_embedding.weight",
    "positional_embedding": "embeddings.position_embedding.weight",
    "ln_pre.weight": "pre_layrnorm.weight", "ln_pre.bias": "pre_layrnorm.bias",
    "ln_post.weight": "post_layernorm.weight", "ln_post.bias": "post_layernorm.bias",
}  # fmt: skip
OPEN_CLIP_LAYERS = {
    "ln_1": "layer_norm1", "ln_2": "layer_norm2", "mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2",
    "attn.out_proj": "self_attn.out_proj",
}  # fmt: skip
BLOCK = re.compile(r"^transformer\.resblocks\.(\d+)\.(.+?)[._](weight|bias)$")

# By which other picture encoders are known.
OTHERS = (
    ("vision_model.head.", "a SigLIP vision model"),
    ("encoder.layer.0.layer_scale1.", "a DINOv2 vision model"),
)

# ComfyUI keeps these as float32, whatever it keeps the others in.
EXACT = ("vision_model.pre_layrnorm.", "vision_model.post_layernorm.", "visual_projection.")


def load_clip_vision(path: Path, dtype: torch.dtype, *, to: Destination = Destination.RAM) -> ClipVisionModel:
    """The picture encoder of a file, its layers kept as `dtype`. Raises `BadModelFile`."""
    file = open_weights(path)
    if OPEN_CLIP_MARK in file.tensors:
        file = ChangedTensors(path, dict(_from_open_clip(file)), file.metadata)
    if MARK not in file.tensors:
        found = next((what for mark, what in OTHERS if any(name.startswith(mark) for name in file.tensors)), None)
        raise BadModelFile(path.name, found or describe(file.shapes), EXPECTED)
    try:
        config = _config(file.shapes)
    except (KeyError, IndexError) as error:
        raise BadModelFile(path.name, f"no tensor {error}", EXPECTED) from error
    with torch.device("meta"):
        network = ClipVisionModel(config)
    names = {name: name for name in file.tensors}
    fill(network, file, names, lambda name: torch.float32 if name.startswith(EXACT) else dtype, to=to)
    return network


def _config(shapes: Shapes) -> ClipVisionConfig:
    layers = [name for name in shapes if name.startswith("vision_model.encoder.layers.")]
    num_layers = 1 + max((int(name.split(".")[3]) for name in layers), default=-1)
    width, _, _, patch_px = shapes["vision_model.embeddings.patch_embedding.weight"]
    num_tokens = shapes["vision_model.embeddings.position_embedding.weight"][0]
    return ClipVisionConfig(
        num_layers=num_layers,
        width=width,
        heads=HEADS,
        inner_width=shapes["vision_model.encoder.layers.0.mlp.fc1.weight"][0],
        activation="quick_gelu" if num_layers <= MOST_LAYERS_OF_QUICK_GELU else "gelu",
        patch_px=patch_px,
        image_px=math.isqrt(num_tokens - 1) * patch_px,
        projection_width=shapes["visual_projection.weight"][0],
    )


def _from_open_clip(file: WeightFile) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors under the transformers library's names; OpenCLIP joins the three projections of an attention."""
    for key in file.tensors:
        name = key.removeprefix(OPEN_CLIP)
        if not key.startswith(OPEN_CLIP):
            continue
        if name in OPEN_CLIP_NAMES:
            yield f"vision_model.{OPEN_CLIP_NAMES[name]}", file.tensor(key)
        elif name == "proj":
            yield "visual_projection.weight", file.tensor(key).transpose(0, 1)
        elif match := BLOCK.match(name):
            yield from _layer(match, file.tensor(key))


def _layer(match: re.Match[str], tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """One tensor of a layer. `match` is that of `BLOCK`."""
    index, part, kind = match.groups()
    place = f"vision_model.encoder.layers.{index}"
    if part == "attn.in_proj":
        for name, item in zip(("q_proj", "k_proj", "v_proj"), tensor.chunk(3), strict=True):
            yield f"{place}.self_attn.{name}.{kind}", item
    elif part in OPEN_CLIP_LAYERS:
        yield f"{place}.{OPEN_CLIP_LAYERS[part]}.{kind}", tensor
