"""Denoising networks of full width and few layers, for benchmarks beside other engines.

They have every kind of layer that the published network has, in its width, so that a step costs what those layers
cost, and they load on a machine that could not hold the whole.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from darkroom.engine.families.registry import family_named
from darkroom.engine.families.sdxl.family import CONTEXT_DIM, LABEL_DIM, unet_config
from darkroom.engine.models.random_weights import write_random_denoiser

FLUX_DOUBLE, FLUX_SINGLE = 1, 2


def sdxl_layers() -> Any:
    """Return the configuration of SDXL with the depths of Segmind Vega: 1 and 2 transformer blocks for 2 and 10."""
    return unet_config(
        model_channels=320, context_dim=CONTEXT_DIM, channel_mult=(1, 2, 4), depths=(0, 1, 2), middle_depth=2,
        label_dim=LABEL_DIM,
    )  # fmt: skip


def flux_layers() -> Any:
    """Return the configuration of Flux with one of its 19 double and two of its 38 single blocks."""
    return replace(family_named("flux").scales["full"].denoiser, num_double=FLUX_DOUBLE, num_single=FLUX_SINGLE)


def write_layers(family: str, path: Path) -> None:
    """Write the network of few layers of a family, float16, as a file for `UNETLoader`."""
    config = {"sdxl": sdxl_layers, "flux": flux_layers}[family]()
    write_random_denoiser(path, config, family=family_named(family))
