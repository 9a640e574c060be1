"""Context windows of latents of several streams: those of a video, and the same times of its audio.

Windows count the places of the first stream. `B` batch, `N` numbers of all streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import Condition
from darkroom.engine.diffusion.context_windows import WindowPlan, shuffled_noise
from darkroom.engine.diffusion.nested_latent import StreamShapes, packed, unpacked

LATENT_SHAPES = "latent_shapes"  # an input of networks that take several streams


def shapes_in(conds: Sequence[Sequence[Condition] | None]) -> StreamShapes:
    """Return the shapes of the streams that conditions are prepared for, none for a latent of one."""
    conditions = (item for side in conds for item in side or ())
    found: Any = next((item["model_conds"].get(LATENT_SHAPES) for item in conditions if "model_conds" in item), None)
    return () if found is None else found.cond


def streams_in(x: torch.Tensor, shapes: StreamShapes) -> list[torch.Tensor]:
    """Return the streams of a latent [B, 1, N]; a latent of one as it is."""
    return unpacked(x, shapes) if shapes else [x]


def same_times(places: Sequence[int], count: int, stream_count: int) -> list[int]:
    """Return the places of a stream of `stream_count` at the times of places of one of `count`, each once in order."""
    found: dict[int, None] = {}
    for place in places:
        first = min(round(place * stream_count / count), stream_count - 1)
        end = max(min(round((place + 1) * stream_count / count), stream_count), first + 1)
        found |= dict.fromkeys(range(first, end))
    return list(found)


def plan_of_stream(plan: WindowPlan, places: Sequence[int], count: int, stream_count: int) -> WindowPlan:
    """Return the plan of a window of a further stream: its length, and an overlap of the same time."""
    overlap = max(round(plan.overlap * (stream_count / count)), 0)
    return replace(plan, length=len(places), overlap=overlap)


def shuffled_streams(noise: torch.Tensor, dim: int, plan: WindowPlan, seed: int, shapes: StreamShapes) -> torch.Tensor:
    """Return noise [B, 1, N] of which each stream is shuffled, in windows of the same time."""
    streams = unpacked(noise, shapes)
    count = streams[0].shape[dim]
    shuffled = []
    for stream in streams:
        ratio = stream.shape[dim] / count
        length, overlap = max(round(plan.length * ratio), 1), max(round(plan.overlap * ratio), 0)
        shuffled.append(shuffled_noise(stream, dim, replace(plan, length=length, overlap=overlap), seed))
    return packed(shuffled)
