"""The configuration of Stable Cascade's networks, read from the shapes of their tensors. Pure."""

from __future__ import annotations

import math

from engine.families.cascade.unet import BlockKind, CascadeConfig, CascadeLevel
from engine.layers.unet_shapes import Shapes, count_children

LAST = "clf.1.weight"  # of both stages
TEXT = "clip_txt_mapper.weight"  # of stage C
EMBEDDING = "clip_mapper.weight"  # of stage B
LATENT_CHANNELS = {True: 16, False: 4}  # of stage C, of stage B
CONDITIONS = ("sca", "crp")


def cascade_config(shapes: Shapes) -> CascadeConfig:
    """Return the configuration of the stage with these tensors (names without prefix)."""
    is_stage_c = TEXT in shapes
    down = tuple(_level(shapes, "down", index) for index in range(count_children(shapes, "down_blocks")))
    up = tuple(_level(shapes, "up", index) for index in range(count_children(shapes, "up_blocks")))
    channels = LATENT_CHANNELS[is_stage_c]
    mapper = next(name for name in shapes if name.endswith(".mapper.weight"))
    conditions = tuple(
        name for name in CONDITIONS if mapper.replace("mapper.weight", f"mapper_{name}.weight") in shapes
    )
    mapped_dim = next(shape[1] for name, shape in shapes.items() if name.endswith("kv_mapper.1.weight"))
    pooled = shapes["clip_txt_pooled_mapper.weight" if is_stage_c else EMBEDDING]
    return CascadeConfig(
        latent_channels=channels,
        patch=math.isqrt(shapes[LAST][0] // channels),
        down=down,
        up=up,
        mapped_dim=mapped_dim,
        pooled_dim=pooled[1],
        tokens_per_embedding=pooled[0] // mapped_dim,
        conditions=conditions,
        number_dim=shapes[mapper][1],
        text_dim=shapes[TEXT][1] if is_stage_c else 0,
        picture_dim=shapes["clip_img_mapper.weight"][1] if is_stage_c else 0,
        prior_channels=0 if is_stage_c else shapes["effnet_mapper.0.weight"][1],
    )


def _level(shapes: Shapes, half: str, index: int) -> CascadeLevel:
    name = f"{half}_blocks.{index}"
    blocks = tuple(_kind(shapes, f"{name}.{place}") for place in range(count_children(shapes, name)))
    repeats = 1 + count_children(shapes, f"{half}_repeat_mappers.{index}")
    return CascadeLevel(shapes[f"{name}.0.depthwise.weight"][0], blocks, repeats)


def _kind(shapes: Shapes, name: str) -> BlockKind:
    if f"{name}.depthwise.weight" in shapes:
        return "residual"
    return "time" if f"{name}.mapper.weight" in shapes else "attention"
