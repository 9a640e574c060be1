"""The node that brings the colours of images to those of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch

from darkroom.engine.images.color_transfer import METHODS, transferred
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.image.image_filters import POST_PROCESSING_MODULE
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.parameters import DynamicChoice, Field
from darkroom.engine.nodes.sockets import IMAGE
from darkroom.engine.nodes.widgets import Combo, Float, Int

MAX_FRAMES = 10000
BASELINES = (
    ("per_frame", ()),
    ("uniform", ()),
    ("target_frame", (Field("target_index", Int(min=0, max=MAX_FRAMES), 0),)),
)
ALIASES = (
    "color match", "color grading", "color correction", "match colors", "color transform", "mkl", "reinhard",
    "histogram",
)  # fmt: skip


@node("ColorTransfer", display_name="Transfer Color", category="image/filters", python_module=POST_PROCESSING_MODULE,
      search_aliases=list(ALIASES))  # fmt: skip
def color_transfer(
    context: NodeContext,
    *,
    image_target: IMAGE,
    image_ref: IMAGE,
    method: Annotated[str, Combo(METHODS)],
    source_stats: Annotated[Mapping[str, Any], DynamicChoice(fields=BASELINES)],
    strength: Annotated[float, Float(min=0.0, max=10.0, step=0.01)] = 1.0,
) -> Annotated[IMAGE, Out("image")]:
    """Bring the colours of `image_target` to those of `image_ref`, measured on each frame, on all, or on one."""
    if strength == 0:
        return image_target
    for name, image in (("image_target", image_target), ("image_ref", image_ref)):
        if image.shape[-1] != 3:
            raise ValueError(f"{name}: not three channels; got {image.shape[-1]}, expected red, green and blue")
    baseline = None
    if source_stats["source_stats"] == "uniform":
        baseline = slice(None)
    elif source_stats["source_stats"] == "target_frame":
        index = min(source_stats["target_index"], len(image_target) - 1)
        baseline = slice(index, index + 1)
    changed = torch.empty_like(image_target, dtype=torch.float32)
    for index, frame in enumerate(transferred(image_target, image_ref, method, baseline, strength)):
        context.cancel.check()
        changed[index] = frame
        context.report_progress(index + 1, len(changed))
    return changed


NODES = (color_transfer,)
