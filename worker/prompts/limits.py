"""Limits on the pixels, batch, frames, seconds and steps of one prompt, checked before it uses resources. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from darkroom.contract.graph.output_sizes import Size
from darkroom.contract.graph.work import PromptWork
from darkroom.worker.errors import Problem
from darkroom.worker.settings.jobs import PromptLimits


def find_limit_problems(work: PromptWork, limits: PromptLimits) -> Iterator[Problem]:
    """Yield a problem for every node at which a prompt exceeds a limit, naming node, input, value and limit."""
    for node_id, size in work.sizes.items():
        yield from _size_problems(work, node_id, size, limits)
    if limits.max_seconds is not None:
        yield from _video_problems(work, limits.max_seconds)
    if limits.max_steps is not None:
        yield from _step_problems(work, limits.max_steps)


def _step_problems(work: PromptWork, max_steps: int) -> Iterator[Problem]:
    """Yield a problem for the node at which the total of steps exceeds the limit, and for each that alone does."""
    total_steps = 0.0
    for sampling in work.samplings:
        steps = work.all_steps_of(sampling)
        if steps is None:
            continue
        was_within = total_steps <= max_steps
        total_steps += steps
        if total_steps > max_steps and (was_within or steps > max_steps):
            yield _over("steps", work, sampling.node_id, sampling.field, total_steps, max_steps)


def _size_problems(work: PromptWork, node_id: str, size: Size, limits: PromptLimits) -> Iterator[Problem]:
    """Yield problems of the node that makes an image too large, not of the nodes that take it."""
    pixels = size.pixels
    if limits.max_pixels is not None and size.size_field and pixels is not None and pixels > limits.max_pixels:
        yield _over("pixels", work, node_id, size.size_field, pixels, limits.max_pixels)
    if limits.max_batch is not None and size.batch_field and size.batch > limits.max_batch:
        yield _over("batch", work, node_id, size.batch_field, size.batch, limits.max_batch)
    if limits.max_frames is not None and size.frames_field and size.frames > limits.max_frames:
        yield _over("frames", work, node_id, size.frames_field, size.frames, limits.max_frames)
    video = size.video_pixels
    if limits.max_video_pixels is not None and video is not None and video > limits.max_video_pixels:
        yield _over("video_pixels", work, node_id, size.frames_field, video, limits.max_video_pixels)

    seconds = size.seconds
    if limits.max_seconds is not None and size.seconds_field and seconds > limits.max_seconds:
        yield _over("seconds", work, node_id, size.seconds_field, seconds, limits.max_seconds)


def _video_problems(work: PromptWork, max_seconds: float) -> Iterator[Problem]:
    """Yield a problem for every input that makes a video too long, once for all files of the same frames."""
    longest: dict[tuple[str, str], float] = {}
    for video in work.video_lengths():
        place = (video.node_id, video.field)
        longest[place] = max(video.seconds, longest.get(place, 0.0))
    for (node_id, field), seconds in longest.items():
        if seconds > max_seconds:
            yield _over("seconds", work, node_id, field, seconds, max_seconds)


def _over(limit: str, work: PromptWork, node_id: str, field: str, found: float, allowed: float) -> Problem:
    value = round(found, 3) if limit == "seconds" else round(found)
    return Problem(
        f"{field}: too many {limit}; got {value}, expected at most {allowed}",
        field=field,
        node_id=node_id,
        class_type=work.graph.class_of(node_id),
        type=f"max_{limit}",
        allowed={"maximum": allowed},
        extra={"received": value},
    )
