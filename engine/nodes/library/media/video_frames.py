"""Nodes that take some frames of a video."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.media.selected_frames import selected
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import VIDEO
from darkroom.engine.nodes.widgets import Combo, Int

VERSION = "0.33.0"
MODULE = "comfy_extras.nodes_dataset"
NUMPY_SEEDS = 2**32 - 1

Seed = Annotated[int, Int(min=0, max=0xFFFFFFFFFFFFFFFF)]
Length = Annotated[int, Int(min=1, max=99999)]
Video = Annotated[VIDEO, Out("video")]


def sampled_indices(num_frames: int, wanted: int, strategy: str, seed: int) -> range | list[int]:
    """Return the indices of at most `wanted` of a video's frames, in order.

    `head` and `tail` take neighbours, `uniform` frames at equal distances from the first to the last (the middle one
    where one is wanted), `random` different ones by a seed.
    """
    wanted = min(wanted, num_frames)
    if strategy == "head":
        return range(wanted)
    if strategy == "tail":
        return range(num_frames - wanted, num_frames)
    if strategy == "random":
        random = np.random.RandomState(seed % NUMPY_SEEDS)
        chosen: list[int] = random.choice(num_frames, size=wanted, replace=False).tolist()
        return sorted(chosen)
    if wanted == 1:
        return [num_frames // 2]
    return [round(index * (num_frames - 1) / (wanted - 1)) for index in range(wanted)]


@node("VideoFrameSample", display_name="Sample Video Frame", category="video", python_module=MODULE,
      experimental=True, facts=NodeFacts(cuts="num_frames"), comfyui_version=VERSION)  # fmt: skip
def video_frame_sample(
    context: NodeContext,
    *,
    video: VIDEO,
    num_frames: Annotated[int, Int(min=1, max=9999)] = 16,
    strategy: Annotated[str, Combo(("uniform", "head", "tail", "random"))] = "uniform",
    seed: Seed = 0,
) -> Video:
    """Take some frames of a video; frames that are no neighbours lose its audio."""
    return selected(video, sampled_indices(video.get_frame_count(), num_frames, strategy, seed))


@node("VideoTemporalCrop", display_name="Crop Video (Temporal)", category="video/transform", python_module=MODULE,
      experimental=True, facts=NodeFacts(cuts="length"), comfyui_version=VERSION)  # fmt: skip
def video_temporal_crop(
    context: NodeContext,
    *,
    video: VIDEO,
    start_frame: Annotated[int, Int(min=0, max=99999)] = 0,
    length: Length = 16,
) -> Video:
    """Take neighbouring frames of a video, with the audio of that time. A start behind its end is its last frame."""
    num_frames = video.get_frame_count()
    start = min(start_frame, max(num_frames - 1, 0))
    return selected(video, range(start, min(start + length, num_frames)))


@node("VideoRandomTemporalCrop", display_name="Crop Video (Temporal Random)", category="video/transform",
      python_module=MODULE, experimental=True, facts=NodeFacts(cuts="length"), comfyui_version=VERSION)  # fmt: skip
def video_random_temporal_crop(context: NodeContext, *, video: VIDEO, length: Length = 16, seed: Seed = 0) -> Video:
    """Take neighbouring frames of a video from a random one on, with the audio of that time."""
    num_frames = video.get_frame_count()
    length = min(length, num_frames)
    random = np.random.RandomState(seed % NUMPY_SEEDS)
    start = int(random.randint(0, num_frames - length + 1)) if num_frames > length else 0
    return selected(video, range(start, start + length))


NODES = (video_frame_sample, video_temporal_crop, video_random_temporal_crop)
