"""The node that evaluates long batches and videos in context windows."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.diffusion.context_windows import FUSE_WEIGHTS, SCHEDULES, WindowPlan
from darkroom.engine.diffusion.windowed_batches import CONTEXT_HANDLER, ContextWindows, with_shuffled_noise
from darkroom.engine.diffusion.wrappers import SAMPLER_SAMPLE
from darkroom.engine.models.model import Model
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import MODEL
from darkroom.engine.nodes.widgets import Combo, Flag, Int, Text

CATEGORY = "model/patch"
MODULE = "comfy_extras.nodes_context_windows"
SAMPLE_KEY = "ContextWindows_sampler_sample"
FIRST = (0,)  # the position of a start image

Schedule = Annotated[str, Combo(tuple(SCHEDULES))]
FuseMethod = Annotated[str, Combo(tuple(FUSE_WEIGHTS))]
Positions = Annotated[str, Text(multiline=False)]


def with_windows(model: Model, windows: ContextWindows) -> Model:
    """Return a clone of the model that is evaluated in windows."""
    patched = model.clone()
    patched.model_options[CONTEXT_HANDLER] = windows
    if windows.freenoise:
        patched.add_wrapper_with_key(SAMPLER_SAMPLE, SAMPLE_KEY, with_shuffled_noise)
    return patched


def positions_in(text: str) -> tuple[int, ...]:
    """Return the positions in a text like "0, 3". Raises ValueError for anything else."""
    positions = tuple(int(item) for item in text.split(",")) if text.strip() else ()
    if min(positions, default=0) < 0:
        raise ValueError(text)
    return positions


def _check_positions(
    environment: NodeEnvironment,
    *,
    context_length: int = 16,
    cond_retain_index_list: str | None = "",
    latent_retain_index_list: str | None = "",
) -> str | None:
    for name, text in (
        ("cond_retain_index_list", cond_retain_index_list),
        ("latent_retain_index_list", latent_retain_index_list),
    ):
        try:
            is_known = max(positions_in(text or ""), default=0) < context_length
        except ValueError:
            is_known = False
        if not is_known:
            return (
                f"{name}: no positions in a window; got {text!r}, expected numbers from 0 to {context_length - 1} with "
                "commas between"
            )
    return None


@node(
    "ContextWindowsManual",
    display_name="Context Windows (Manual)",
    category=CATEGORY,
    python_module=MODULE,
    experimental=True,
    check=_check_positions,
)
def context_windows_manual(
    context: NodeContext,
    *,
    model: MODEL,
    context_length: Annotated[int, Int(min=1)] = 16,
    context_overlap: Annotated[int, Int(min=0)] = 4,
    context_schedule: Schedule = "standard_static",
    context_stride: Annotated[int, Int(min=1)] = 1,
    closed_loop: Annotated[bool, Flag()] = False,
    fuse_method: FuseMethod = "pyramid",
    dim: Annotated[int, Int(min=0, max=5)] = 0,
    freenoise: Annotated[bool, Flag()] = False,
    cond_retain_index_list: Positions = "",
    split_conds_to_windows: Annotated[bool, Flag()] = False,
    latent_retain_index_list: Positions = "",
    causal_window_fix: Annotated[bool, Flag()] = True,
) -> MODEL:
    """Evaluate MODEL in windows along one dimension of the latent.

    The lists name positions at which every window has what the whole conditions, or the whole latent, have there.
    """
    windows = ContextWindows(
        schedule=context_schedule,
        fuse_method=fuse_method,
        plan=WindowPlan(context_length, context_overlap, context_stride, closed_loop),
        dim=dim,
        freenoise=freenoise,
        cond_retained=positions_in(cond_retain_index_list),
        latent_retained=positions_in(latent_retain_index_list),
        split_conds_to_windows=split_conds_to_windows,
        causal_window_fix=causal_window_fix,
    )
    return with_windows(model, windows)


NODES = (context_windows_manual,)
