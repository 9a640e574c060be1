"""Nodes that compute frames between those of a video."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.models.kinds.frame_interpolation.frame_interpolator import FrameInterpolator
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.free_memory import check_fits
from darkroom.engine.nodes.sockets import FRAMES, INTERP_MODEL
from darkroom.engine.nodes.widgets import Int, ModelCombo

MODULE = "comfy_extras.nodes_frame_interpolation"
VALUE_BYTES = 4
PIXEL_BYTES = 3 * VALUE_BYTES


@node(
    "FrameInterpolationModelLoader",
    display_name="Load Frame Interpolation Model",
    category="model/loaders",
    python_module=MODULE,
    facts=NodeFacts(items="alike"),
)
def frame_interpolation_model_loader(
    context: NodeContext, *, model_name: Annotated[str, ModelCombo("frame_interpolation")]
) -> INTERP_MODEL:
    """Load a network that interpolates frames: RIFE or FILM."""
    loaded: INTERP_MODEL = context.models.vision.frame_interpolator(model_name)
    return loaded


@node(
    "FrameInterpolate",
    display_name="Run Frame Interpolation Model",
    category="video",
    python_module=MODULE,
    facts=NodeFacts(repeats="multiplier"),
)
def frame_interpolate(
    context: NodeContext,
    *,
    interp_model: INTERP_MODEL,
    images: FRAMES,
    multiplier: Annotated[int, Int(min=2, max=16)] = 2,
) -> FRAMES:
    """Compute frames between those of a video, so that it has `multiplier` times as many.

    Frames are computed as they are taken where the node behind this one takes them one by one. Raises ValueError for
    frames that the network cannot take, and where all frames together would not fit the free memory.
    """
    num_frames, height, width, channels = images.shape
    if num_frames < 2:
        return images
    problem = interp_model.find_problem(height, width, channels)
    if problem is not None:
        raise ValueError(f"images: {problem}")
    made = _stream(context, interp_model, images, multiplier)
    if context.output_is_streamed():
        return made
    check_fits(context, "images, multiplier", len(made) * height * width * PIXEL_BYTES)
    return made.whole()


def _stream(
    context: NodeContext, model: FrameInterpolator, images: torch.Tensor | FrameStream, multiplier: int
) -> FrameStream:
    num_frames, height, width, _ = images.shape
    total = (num_frames - 1) * multiplier + 1
    held_bytes = images.get_ram_usage() if isinstance(images, FrameStream) else images.nbytes

    def compute() -> Iterator[torch.Tensor]:
        for done, frame in enumerate(model.between(images, multiplier), start=1):
            context.cancel.check()
            context.report_progress(done, total)
            yield frame

    return FrameStream((total, height, width, 3), compute, held_bytes)


NODES = (frame_interpolation_model_loader, frame_interpolate)
