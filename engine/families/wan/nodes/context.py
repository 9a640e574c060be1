"""Context windows for long videos of Wan, whose lengths count frames."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.diffusion.context_windows import WindowPlan
from darkroom.engine.diffusion.windowed_batches import ContextWindows
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.sampling.context_windows import FIRST, MODULE, FuseMethod, Schedule, with_windows
from darkroom.engine.nodes.sockets import MODEL
from darkroom.engine.nodes.widgets import Flag, Int

TIME = 2  # dimension of a latent [B, C, t, h, w]
FRAMES_PER_CELL = 4
MAX_FRAMES = 16384
ADVANCED = {"advanced": True}


@node(
    "WanContextWindowsManual",
    display_name="Wan Context Windows",
    category="model/patch/wan",
    python_module=MODULE,
    experimental=True,
)
def wan_context_windows_manual(
    context: NodeContext,
    *,
    model: MODEL,
    context_length: Annotated[int, Int(min=1, max=MAX_FRAMES, step=4)] = 81,
    context_overlap: Annotated[int, Int(min=0)] = 30,
    context_schedule: Schedule = "standard_uniform",
    context_stride: Annotated[int, Int(min=1, extra=ADVANCED)] = 1,
    closed_loop: Annotated[bool, Flag(extra=ADVANCED)] = False,
    fuse_method: FuseMethod = "pyramid",
    freenoise: Annotated[bool, Flag(extra=ADVANCED)] = True,
    retain_first_frame: Annotated[bool, Flag()] = False,
    split_conds_to_windows: Annotated[bool, Flag(extra=ADVANCED)] = False,
) -> MODEL:
    """Evaluate a video model in windows of frames, the first of which has a latent frame of its own."""
    num_cells = (context_length - 1) // FRAMES_PER_CELL + 1
    windows = ContextWindows(
        schedule=context_schedule,
        fuse_method=fuse_method,
        plan=WindowPlan(num_cells, context_overlap // FRAMES_PER_CELL, context_stride, closed_loop),
        dim=TIME,
        freenoise=freenoise,
        cond_retained=FIRST if retain_first_frame else (),
        split_conds_to_windows=split_conds_to_windows,
    )
    return with_windows(model, windows)


NODES = (wan_context_windows_manual,)
