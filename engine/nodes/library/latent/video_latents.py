"""Nodes that edit latents of videos frame by frame: `samples` `[B, C, F, h, w]`, `F` latent frames."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.latent.latent_geometry import LATENT_MODULE
from darkroom.engine.nodes.markers import Optional, Out
from darkroom.engine.nodes.sockets import LATENT, Latent
from darkroom.engine.nodes.widgets import Combo, Int

MAX_FRAMES = 16384
LEAST_DEVIATION = 1e-8
MEAN_BELOW, MEAN_ABOVE, DEVIATION_BELOW, DEVIATION_ABOVE = 0.3, 0.35, 0.35, 0.5  # by which a frame may change

Count = Annotated[int, Int(min=1, max=MAX_FRAMES, step=1)]


@node("ReplaceVideoLatentFrames", display_name="Replace Video Latent Frames", category="model/latent/batch",
      python_module=LATENT_MODULE, facts=NodeFacts(keeps_channels=True))  # fmt: skip
def replace_video_latent_frames(
    context: NodeContext,
    *,
    destination: LATENT,
    index: Annotated[int, Int(min=-MAX_FRAMES, max=MAX_FRAMES, step=1)] = 0,
    source: Annotated[LATENT | None, Optional()] = None,
) -> LATENT:
    """Put the frames of `source` over those of `destination` from `index` on, which counts from the end below 0.

    Frames that do not fit are not put at all. What else the source has, its mask for one, comes with its frames.
    """
    if source is None:
        return destination
    samples, frames = _video(destination, "destination"), _video(source, "source")
    first = index + samples.shape[2] if index < 0 else index
    if first < 0 or first + frames.shape[2] > samples.shape[2]:
        return destination
    replaced = samples.clone()
    replaced[:, :, first : first + frames.shape[2]] = frames
    result = source.copy()
    result["samples"] = replaced
    return result


@node("LatentCutToBatch", display_name=None, category="model/latent/advanced", python_module=LATENT_MODULE,
      search_aliases=["slice to batch", "split latent", "tile latent"])  # fmt: skip
def latent_cut_to_batch(
    context: NodeContext,
    *,
    samples: LATENT,
    dim: Annotated[str, Combo(("t", "x", "y"))],
    slice_size: Count = 1,
) -> LATENT:
    """Cut a latent along one axis into slices of `slice_size`, which become items of the batch.

    What is left at the end is dropped. A latent without that axis stays as it is.
    """
    old = samples["samples"]
    axis = old.ndim - {"x": 1, "y": 2, "t": 3}[dim]
    if axis < 2:
        return samples
    size = min(slice_size, old.shape[axis])
    along = old.movedim(axis, 1)[:, : old.shape[axis] // size * size]
    cut = samples.copy()
    cut["samples"] = along.reshape(-1, size, *along.shape[2:]).movedim(1, axis)
    return cut


@node("NormalizeVideoLatentStart", display_name=None, category="model/conditioning",
      python_module="comfy_extras.nodes_kandinsky5", facts=NodeFacts(keeps_channels=True))  # fmt: skip
def normalize_video_latent_start(
    context: NodeContext, *, latent: LATENT, start_frame_count: Count = 4, reference_frame_count: Count = 5
) -> Annotated[LATENT, Out("latent")]:
    """Bring mean and deviation of each of the first frames closer to those of the frames behind them."""
    samples = _video(latent, "latent")
    num_frames = samples.shape[2]
    if num_frames <= 1:
        return latent
    if start_frame_count >= num_frames:
        raise ValueError(
            f"start_frame_count: no frames are left to compare with; got {start_frame_count}, expected less than "
            f"{num_frames}"
        )
    reference = samples[:, :, start_frame_count:][:, :, : min(reference_frame_count, num_frames - 1)]
    changed = samples.clone()
    changed[:, :, :start_frame_count] = _normalized(samples[:, :, :start_frame_count], reference)
    result = latent.copy()
    result["samples"] = changed
    return result


def _normalized(frames: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Return frames [B, C, F, h, w], each with mean and deviation of the reference as far as the limits allow."""
    mean = frames.mean(dim=(1, 3, 4), keepdim=True)
    deviation = frames.std(dim=(1, 3, 4), keepdim=True)
    wanted_mean = reference.mean().clamp(mean - MEAN_BELOW, mean + MEAN_ABOVE)
    wanted_deviation = reference.std().clamp(deviation - DEVIATION_BELOW, deviation + DEVIATION_ABOVE)
    return (frames - mean) / (deviation + LEAST_DEVIATION) * wanted_deviation + wanted_mean


def _video(latent: Latent, name: str) -> torch.Tensor:
    """Return the samples of a video's latent. Raises ValueError for one of images, or without any."""
    samples = latent.get("samples")
    if samples is None:
        raise ValueError(
            f"{name}: no latent of a video; got an empty one, expected [B, C, F, h, w] (give the node that makes it a "
            "start_image)"
        )
    if samples.ndim != 5:
        raise ValueError(f"{name}: no latent of a video; got {list(samples.shape)}, expected [B, C, F, h, w]")
    return samples


NODES = (replace_video_latent_frames, latent_cut_to_batch, normalize_video_latent_start)
