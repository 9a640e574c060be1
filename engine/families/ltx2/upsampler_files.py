"""The latent upsampler of LTX-2: its files, whose metadata `config` describe it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from darkroom.engine.families.base import Network, NotRecognised
from darkroom.engine.families.layouts import behind_first
from darkroom.engine.families.ltx2.upsampler import SHARES, LatentUpsampler, LatentUpsamplerConfig
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.settings import DtypePolicy

METADATA = "config"
MARK = "post_upsample_res_blocks.0.conv2.bias"  # as ComfyUI knows it
LABEL = "a latent upsampler of LTX-2"
LAYOUTS = (behind_first(("",), MARK),)


def configure(shapes: Shapes) -> LatentUpsamplerConfig:
    """Return the configuration as far as shapes tell it."""
    first = shapes["initial_conv.weight"]
    return LatentUpsamplerConfig(
        latent_channels=first[1],
        hidden_channels=first[0],
        num_blocks=count_children(shapes, "res_blocks"),
        is_flat=len(first) == 4,
    )


def as_described(config: LatentUpsamplerConfig, metadata: Mapping[str, str]) -> LatentUpsamplerConfig:
    """Return the configuration with what it enlarges, as a file's metadata tell. Raises `NotRecognised`."""
    try:
        described: dict[str, Any] = json.loads(metadata[METADATA])
        space, time = (bool(described.get(f"{axis}_upsample", axis == "spatial")) for axis in ("spatial", "temporal"))
        share = float(described.get("spatial_scale", 2.0)) if described.get("rational_resampler", False) else None
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise NotRecognised(f"{LABEL} whose metadata {METADATA!r} do not describe it ({error})") from error
    if not space and not time:
        raise NotRecognised(f"{LABEL} that enlarges nothing")
    if config.is_flat and (time or share is not None):
        raise NotRecognised(f"{LABEL} of single images that enlarges more than rows and columns")
    if share is not None and share not in SHARES:
        raise NotRecognised(f"{LABEL} that enlarges by {share}, expected {', '.join(map(str, SHARES))}")
    return replace(config, enlarges_space=space, enlarges_time=time, share=share if space and not time else None)


def description(config: LatentUpsamplerConfig) -> dict[str, dict[str, object]]:
    """Return the metadata of a file with a network of this configuration."""
    return {
        METADATA: {
            "_class_name": "LatentUpsampler",
            "in_channels": config.latent_channels,
            "mid_channels": config.hidden_channels,
            "num_blocks_per_stage": config.num_blocks,
            "dims": 2 if config.is_flat else 3,
            "spatial_upsample": config.enlarges_space,
            "temporal_upsample": config.enlarges_time,
            "spatial_scale": 2.0 if config.share is None else config.share,
            "rational_resampler": config.share is not None,
        }
    }


LATENT_UPSAMPLER = Network(
    layouts=LAYOUTS,
    in_checkpoint=LAYOUTS,
    configure=configure,
    build=LatentUpsampler,
    dtypes=DtypePolicy(prefers=("bfloat16",)),
    as_described=as_described,
    description=description,
    sizes={"full": LatentUpsamplerConfig(), "small": LatentUpsamplerConfig(hidden_channels=32, num_blocks=1)},
)
