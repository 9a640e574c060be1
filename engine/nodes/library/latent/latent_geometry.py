"""Nodes that resize, rotate, crop and join latents.

LATENT `samples` is `[B, C, h, w]`; a cell stands for 8 x 8 pixels, and widgets give pixels.
"""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.images.compositing import repeated
from darkroom.engine.images.pixels import LATENT_METHODS, resize
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import LATENT, Latent
from darkroom.engine.nodes.widgets import Choice, Combo, Float, Int

MAX_SIDE_PX = 16384
CELL_PX = 8
MIN_SIDE_PX = 64
LATENT_MODULE = "comfy_extras.nodes_latent"

Position = Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=8)]
Method = Annotated[str, Choice(LATENT_METHODS)]


def with_samples(latent: Latent, samples: torch.Tensor) -> Latent:
    """Return the latent with other samples; its noise mask and batch indices are kept."""
    changed = latent.copy()
    changed["samples"] = samples
    return changed


@node(
    "LatentUpscale",
    display_name="Upscale Latent",
    category="model/latent",
    facts=NodeFacts(items="alone", keeps_channels=True),
)
def latent_upscale(
    context: NodeContext,
    *,
    samples: LATENT,
    upscale_method: Method,
    width: Position = 512,
    height: Position = 512,
    crop: Annotated[str, Choice(("disabled", "center"))],
) -> LATENT:
    """Resize a latent; no side gets below 64 pixels.

    A side of 0 follows from the other; with both 0 the latent is unchanged.
    """
    if width == 0 and height == 0:
        return samples
    old_height, old_width = samples["samples"].shape[-2:]
    if width == 0:
        height = max(MIN_SIDE_PX, height)
        width = round(old_width * height / old_height)
    elif height == 0:
        width = max(MIN_SIDE_PX, width)
        height = round(old_height * width / old_width)
    width, height = max(MIN_SIDE_PX, width), max(MIN_SIDE_PX, height)
    resized = resize(samples["samples"], width // CELL_PX, height // CELL_PX, upscale_method, crop)
    return with_samples(samples, resized)


@node(
    "LatentUpscaleBy",
    display_name="Upscale Latent By",
    category="model/latent",
    facts=NodeFacts(items="alone", keeps_channels=True),
)
def latent_upscale_by(
    context: NodeContext,
    *,
    samples: LATENT,
    upscale_method: Method,
    scale_by: Annotated[float, Float(min=0.01, max=8.0, step=0.01)] = 1.5,
) -> LATENT:
    height, width = samples["samples"].shape[-2:]
    resized = resize(samples["samples"], round(width * scale_by), round(height * scale_by), upscale_method)
    return with_samples(samples, resized)


@node(
    "LatentRotate",
    display_name="Rotate Latent",
    category="model/latent/transform",
    facts=NodeFacts(keeps_channels=True),
)
def latent_rotate(
    context: NodeContext,
    *,
    samples: LATENT,
    rotation: Annotated[str, Choice(("none", "90 degrees", "180 degrees", "270 degrees"))],
) -> LATENT:
    """Rotate a latent clockwise."""
    quarter_turns = 0 if rotation == "none" else int(rotation.split()[0]) // 90
    return with_samples(samples, torch.rot90(samples["samples"], k=quarter_turns, dims=[3, 2]))


@node("LatentFlip", display_name="Flip Latent", category="model/latent/transform", facts=NodeFacts(keeps_channels=True))
def latent_flip(
    context: NodeContext,
    *,
    samples: LATENT,
    flip_method: Annotated[str, Choice(("x-axis: vertically", "y-axis: horizontally"))],
) -> LATENT:
    return with_samples(samples, torch.flip(samples["samples"], dims=[2 if flip_method.startswith("x") else 3]))


@node("LatentCrop", display_name="Crop Latent", category="model/latent/transform", facts=NodeFacts(keeps_channels=True))
def latent_crop(
    context: NodeContext,
    *,
    samples: LATENT,
    width: Annotated[int, Int(min=64, max=MAX_SIDE_PX, step=8)] = 512,
    height: Annotated[int, Int(min=64, max=MAX_SIDE_PX, step=8)] = 512,
    x: Position = 0,
    y: Position = 0,
) -> LATENT:
    """Crop a latent; parts outside are left out, but 64 pixels of each side remain.

    A side that has less than that counts from its end, as in ComfyUI, and may lose more than was asked for.
    """
    old = samples["samples"]
    left = min(x // CELL_PX, old.shape[3] - MIN_SIDE_PX // CELL_PX)
    top = min(y // CELL_PX, old.shape[2] - MIN_SIDE_PX // CELL_PX)
    return with_samples(samples, old[:, :, top : top + height // CELL_PX, left : left + width // CELL_PX])


@node("LatentConcat", display_name=None, category="model/latent/advanced", python_module=LATENT_MODULE)
def latent_concat(
    context: NodeContext,
    *,
    samples1: LATENT,
    samples2: LATENT,
    dim: Annotated[str, Combo(("x", "-x", "y", "-y", "t", "-t"))],
) -> LATENT:
    """Join latents side by side; a minus puts the second first.

    `t` is the dimension before the height: channels, here.
    """
    first = samples1["samples"]
    second = repeated(samples2["samples"], first.shape[0])
    parts = (second, first) if dim.startswith("-") else (first, second)
    return with_samples(samples1, torch.cat(parts, dim=_dimension(dim)))


@node("LatentCut", display_name=None, category="model/latent/advanced", python_module=LATENT_MODULE)
def latent_cut(
    context: NodeContext,
    *,
    samples: LATENT,
    dim: Annotated[str, Combo(("x", "y", "t"))],
    index: Annotated[int, Int(min=-MAX_SIDE_PX, max=MAX_SIDE_PX, step=1)] = 0,
    amount: Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=1)] = 1,
) -> LATENT:
    """Take `amount` cells from `index` on; a negative index counts from the end. At least one cell remains."""
    old, along = samples["samples"], _dimension(dim)
    size = old.shape[along]
    start = min(index, size - 1) if index >= 0 else max(index + size, 0)
    return with_samples(samples, old.narrow(along, start, min(amount, size - start)))


def _dimension(name: str) -> int:
    return {"x": -1, "y": -2, "t": -3}[name.removeprefix("-")]


NODES = (
    latent_upscale,
    latent_upscale_by,
    latent_rotate,
    latent_flip,
    latent_crop,
    latent_concat,
    latent_cut,
)
