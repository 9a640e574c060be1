"""Context windows for long videos of LTX-Video, whose lengths count frames."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.diffusion.context_windows import WindowPlan
from darkroom.engine.diffusion.windowed_batches import ContextWindows
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.sampling.context_windows import (
    CATEGORY,
    FIRST,
    MODULE,
    FuseMethod,
    Schedule,
    with_windows,
)
from darkroom.engine.nodes.sockets import MODEL
from darkroom.engine.nodes.widgets import Flag, Int

TIME = 2  # dimension of a latent [B, C, t, h, w]
FRAMES_PER_CELL = 8
MAX_FRAMES = 16384
ADVANCED = {"advanced": True}


@node(
    "LTXVContextWindows",
    display_name="LTXV Context Windows",
    category=CATEGORY,
    python_module=MODULE,
    experimental=True,
)
def ltxv_context_windows(
    context: NodeContext,
    *,
    model: MODEL,
    context_length: Annotated[int, Int(min=1, max=MAX_FRAMES, step=8)] = 145,
    context_overlap: Annotated[int, Int(min=0, step=8)] = 40,
    context_schedule: Schedule = "standard_uniform",
    context_stride: Annotated[int, Int(min=1, extra=ADVANCED)] = 1,
    closed_loop: Annotated[bool, Flag(extra=ADVANCED)] = False,
    fuse_method: FuseMethod = "pyramid",
    freenoise: Annotated[bool, Flag(extra=ADVANCED)] = True,
    retain_first_frame: Annotated[bool, Flag()] = False,
    split_conds_to_windows: Annotated[bool, Flag(extra=ADVANCED)] = False,
) -> MODEL:
    """Evaluate a video model in windows of frames, the first of which has a latent frame of its own."""
    first = FIRST if retain_first_frame else ()
    windows = ContextWindows(
        schedule=context_schedule,
        fuse_method=fuse_method,
        plan=WindowPlan(
            (context_length - 1) // FRAMES_PER_CELL + 1, context_overlap // FRAMES_PER_CELL, context_stride, closed_loop
        ),
        dim=TIME,
        freenoise=freenoise,
        cond_retained=first,
        latent_retained=first,
        split_conds_to_windows=split_conds_to_windows,
    )
    return with_windows(model, windows)


NODES = (ltxv_context_windows,)
