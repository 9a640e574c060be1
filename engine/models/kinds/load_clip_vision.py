"""Files of image encoders as networks on the CPU.

CLIP's are in the layout of the transformers library or of OpenCLIP, SigLIP's and DINO's in the former.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.unsupported import describe
from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import Item, Names, Part, Transposed, WeightFile, open_weights, shape_of
from darkroom.engine.layers import dinov2, dinov3
from darkroom.engine.layers.clip_vision import ClipVisionConfig
from darkroom.engine.layers.image_encoders import ImageEncoder, ImageEncoderConfig, image_encoder
from darkroom.engine.layers.open_clip_names import FUSED, layer_names
from darkroom.engine.layers.shapes import Shapes

EXPECTED = (
    "a CLIP vision model (ViT-L, ViT-H or ViT-bigG), LLaVA's, SigLIP's or SigLIP 2's (so400m), DINOv2's or DINOv3's"
)
MARK = "vision_model.embeddings.patch_embedding.weight"
CLASS_TOKEN = "vision_model.embeddings.class_embedding"
POSITIONS = "vision_model.embeddings.position_embedding.weight"
PATCH_BIAS = "vision_model.embeddings.patch_embedding.bias"  # SigLIP's, which has no token of its class
PROJECTION = "visual_projection.weight"
LANGUAGE = "multi_modal_projector.linear_1.bias"  # LLaVA's, whose files may lack the projection
HEADS = 16  # of all four
SIGLIP_COLOURS = (0.5, 0.5, 0.5)  # mean and deviation
SIGLIP_PX = {729: 384}  # by tokens, where the patches do not cover the image
MOST_LAYERS_OF_QUICK_GELU = 24  # OpenAI's ViT-L; the larger ones are OpenCLIP's, trained with the exact function

OPEN_CLIP = "visual."
OPEN_CLIP_MARK = "transformer.resblocks.0.attn.in_proj_weight"
OPEN_CLIP_NAMES = {
    "class_embedding": "embeddings.class_embedding",
    "conv1.weight": "embeddings.patch_embedding.weight",
    "positional_embedding": "embeddings.position_embedding.weight",
    "ln_pre.weight": "pre_layrnorm.weight", "ln_pre.bias": "pre_layrnorm.bias",
    "ln_post.weight": "post_layernorm.weight", "ln_post.bias": "post_layernorm.bias",
}  # fmt: skip
# ComfyUI keeps these as float32, whatever it keeps the others in.
EXACT = ("vision_model.pre_layrnorm.", "vision_model.post_layernorm.", "visual_projection.")


@refuses(EXPECTED)
def load_clip_vision(
    path: Path, dtype: torch.dtype, *, to: Destination = Destination.RAM, prefix: str | None = None
) -> ImageEncoder:
    """Load the image encoder of a file, its layers stored as `dtype`. Raises `BadModelFile`.

    In a checkpoint its names are behind a prefix.
    """
    file = open_weights(path)
    start = "" if prefix is None else prefix
    open_clip = OPEN_CLIP if prefix is None else prefix
    names: Names = {name.removeprefix(start): name for name in file.tensors if name.startswith(start)}
    if open_clip + OPEN_CLIP_MARK in file.tensors:
        names = dict(_from_open_clip(file, open_clip))
    if not any(mark in names for mark in (MARK, dinov2.MARK, dinov3.MARK)):
        raise BadModelFile(path.name, describe(file.shapes, file.metadata), EXPECTED)
    shapes = file.shapes
    try:
        own = {name: shape_of(item, shapes) for name, item in names.items()}
        config = _config(own, names, shapes)
    except (KeyError, IndexError) as error:
        raise BadModelFile(path.name, f"no tensor {error}", EXPECTED) from error
    with unfilled():
        network = image_encoder(config)
    fill(network, file, names, lambda name: torch.float32 if name.startswith(EXACT) else dtype, to=to)
    return network


def _config(own: Shapes, names: Names, file_shapes: Shapes) -> ImageEncoderConfig:
    """Return the configuration of the encoder of a file, whose own tensors have the shapes `own`."""
    if dinov2.MARK in names:
        return dinov2.dinov2_config(own)
    return dinov3.dinov3_config(own) if dinov3.MARK in names else vision_config(names, file_shapes)


def vision_config(names: Names, file_shapes: Shapes) -> ClipVisionConfig:
    """Return the configuration of the encoder of a file. Raises LookupError for what is missing for it."""
    shapes = {name: file_shapes[item] for name, item in names.items() if isinstance(item, str)}
    layers = [name for name in names if name.startswith("vision_model.encoder.layers.")]
    num_layers = 1 + max((int(name.split(".")[3]) for name in layers), default=-1)
    width, *others = shapes[MARK]
    is_naflex = len(others) == 1  # SigLIP 2's patches pass a matrix
    patch_px = math.isqrt(others[0] // 3) if is_naflex else others[-1]
    num_tokens = shapes[POSITIONS][0]
    if is_naflex and math.isqrt(num_tokens) ** 2 != num_tokens:
        raise KeyError(f"{POSITIONS} of a square number of rows")
    if CLASS_TOKEN not in names and PATCH_BIAS not in names:
        raise KeyError(CLASS_TOKEN)
    if CLASS_TOKEN not in names:
        return ClipVisionConfig(
            num_layers=num_layers,
            width=width,
            heads=HEADS,
            inner_width=shapes["vision_model.encoder.layers.0.mlp.fc1.weight"][0],
            activation="gelu_tanh",
            patch_px=patch_px,
            image_px=SIGLIP_PX.get(num_tokens, math.isqrt(num_tokens) * patch_px),
            projection_width=0,
            has_class_token=False,
            most_patches=num_tokens if is_naflex else 0,
            mean=SIGLIP_COLOURS,
            deviation=SIGLIP_COLOURS,
        )
    language_width = shapes[LANGUAGE][0] if LANGUAGE in shapes else 0
    projection = names.get(PROJECTION)
    if projection is None and not language_width:
        raise KeyError(PROJECTION)
    return ClipVisionConfig(
        num_layers=num_layers,
        width=width,
        heads=HEADS,
        inner_width=shapes["vision_model.encoder.layers.0.mlp.fc1.weight"][0],
        activation="quick_gelu" if num_layers <= MOST_LAYERS_OF_QUICK_GELU else "gelu",
        patch_px=patch_px,
        image_px=math.isqrt(num_tokens - 1) * patch_px,
        projection_width=_projection_width(projection, file_shapes),
        language_width=language_width,
    )


def _projection_width(projection: Item | None, file_shapes: Shapes) -> int:
    """Return the width of the embedding that the projection gives, 0 without one."""
    if projection is None:
        return 0
    return file_shapes[projection.name][1] if isinstance(projection, Transposed) else file_shapes[str(projection)][0]


def _from_open_clip(file: WeightFile, prefix: str) -> Iterator[tuple[str, str | Part | Transposed]]:
    """Yield the transformers library's names, each with its tensor, part or transpose in the file."""
    for key in file.tensors:
        name = key.removeprefix(prefix)
        if not key.startswith(prefix):
            continue
        if name in OPEN_CLIP_NAMES:
            yield f"vision_model.{OPEN_CLIP_NAMES[name]}", key
        elif name == "proj":
            yield "visual_projection.weight", Transposed(key)
        for inner, third in layer_names(name):
            yield f"vision_model.{inner}", key if third is None else Part(key, third, len(FUSED))
