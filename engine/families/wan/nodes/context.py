"""Context windows for long videos of Wan, whose lengths count frames."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.diffusion.context_windows import FUSE_WEIGHTS, SCHEDULES, ContextWindows, WindowPlan
from darkroom.engine.nodes.base import Combo, Flag, Int, NodeContext, node
from darkroom.engine.nodes.sockets import MODEL

TIME = 2  # dimension of a latent [B, C, t, h, w]
FRAMES_PER_CELL = 4
MAX_FRAMES = 16384


def _cells(num_frames: int) -> int:
    """Return the latent frames of so many frames, the first of which has one of its own."""
    return (num_frames - 1) // FRAMES_PER_CELL + 1


@node("WanContextWindowsManual", display_name="WAN Context Windows (Manual)", category="context",
      python_module="comfy_extras.nodes_context_windows", experimental=True)  # fmt: skip
def wan_context_windows_manual(
    context: NodeContext,
    *,
    model: MODEL,
    context_length: Annotated[int, Int(min=1, max=MAX_FRAMES, step=4)] = 81,
    context_overlap: Annotated[int, Int(min=0)] = 30,
    context_schedule: Annotated[str, Combo(tuple(SCHEDULES))],
    context_stride: Annotated[int, Int(min=1)] = 1,
    closed_loop: Annotated[bool, Flag()] = False,
    fuse_method: Annotated[str, Combo(tuple(FUSE_WEIGHTS))] = "pyramid",
) -> MODEL:
    """Manually set context windows for WAN-like models (dim=2)."""
    plan = WindowPlan(_cells(context_length), _cells(context_overlap), context_stride, closed_loop)
    patched = model.clone()
    patched.model_options["context_handler"] = ContextWindows(context_schedule, fuse_method, plan, TIME)
    return patched


NODES = (wan_context_windows_manual,)
