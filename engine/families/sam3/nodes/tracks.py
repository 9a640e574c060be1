"""SAM3_VideoTrack and SAM3_TrackToMask: objects followed through a video, and their masks.

`F` frames, `H W` pixels, `N` objects: IMAGE is float32 `[F, H, W, C]` of 0..1, MASK float32 `[F, H, W]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import torch
from torch.nn import functional

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.families.sam3.network_files import SAM_31
from darkroom.engine.families.sam3.nodes.detection import CATEGORY, FAMILY, MODULE
from darkroom.engine.families.sam3.nodes.inputs import (
    MaskInput,
    ModelInput,
    TextInput,
    TrackInput,
    VideoInput,
    labelled,
)
from darkroom.engine.families.sam3.nodes.text_prompts import check_texts, texts_of
from darkroom.engine.families.sam3.nodes.working_memory import working_bytes
from darkroom.engine.families.sam3.tracking import MAX_OBJECTS, ObjectTracker, TrackingOptions
from darkroom.engine.images.packed_masks import numbers_in, unpacked
from darkroom.engine.images.pixels import colours_of, resize
from darkroom.engine.models.vision_model import VisionModel, vision_model
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.free_memory import check_fits
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import CONDITIONING, FRAMES, MASK, SAM3_TRACK_DATA
from darkroom.engine.nodes.widgets import Float, Int, Text

VALUE_BYTES = 4
COPIES = 2  # of all masks, while they are put together
STARTS = ("initial_mask", "conditioning")
FACTS = NodeFacts(reads_images_with=FAMILY, reads_images_variant=SAM_31, needs_one_of=STARTS)


@node("SAM3_VideoTrack", display_name="Run SAM3 Video Track", category=CATEGORY, python_module=MODULE,
      facts=FACTS, search_aliases=["sam3", "video", "track", "propagate"])  # fmt: skip
def sam3_video_track(
    context: NodeContext,
    *,
    images: VideoInput,
    model: ModelInput,
    initial_mask: MaskInput = None,
    conditioning: TextInput = None,
    detection_threshold: Annotated[
        float, Float(min=0.0, max=1.0, step=0.01, extra=labelled("detection_threshold"))
    ] = 0.5,
    max_objects: Annotated[int, Int(min=0, max=MAX_OBJECTS, extra=labelled("max_objects"))] = 4,
    detect_interval: Annotated[int, Int(min=1, extra=labelled("detect_interval"))] = 1,
) -> Annotated[SAM3_TRACK_DATA, Out("track_data")]:
    """Follow objects through a video: those of masks in its first frame, and those that texts find in any.

    Raises ValueError for a model that follows none, without anything to follow, and for more masks than fit the free
    memory.
    """
    tracking = vision_model(model, FAMILY)
    network = tracking.model.diffusion_model
    if network.config.tracker is None:
        raise ValueError(f"model: got SAM 3, which follows no objects here; expected {SAM_31}")
    if conditioning:
        check_texts(network, conditioning)
    elif initial_mask is None:
        raise ValueError(f"{', '.join(STARTS)}: got neither, expected one of them")
    if initial_mask is not None and not 0 < len(initial_mask) <= MAX_OBJECTS:
        raise ValueError(f"initial_mask: got {len(initial_mask)} masks, expected 1 to {MAX_OBJECTS}")
    limit = max_objects or MAX_OBJECTS
    found: list[torch.Tensor] = []
    scores: list[float] = []
    for masks, scores in _tracked(  # noqa: B007 - the last ones are those of all
        tracking, images, initial_mask, conditioning or [], detection_threshold, limit, detect_interval
    ):
        context.cancel.check()
        if not found or len(masks) > len(found[-1]):
            check_fits(context, "images", COPIES * images.shape[0] * masks.numel())
        found.append(masks)
        context.report_progress(len(found), images.shape[0])
    return {
        "packed_masks": _joined(found, len(scores)),
        "n_frames": len(found),
        "scores": scores,
        "orig_size": (images.shape[1], images.shape[2]),
    }


def _tracked(
    model: VisionModel,
    images: FRAMES,
    initial_mask: torch.Tensor | None,
    conditioning: CONDITIONING,
    threshold: float,
    max_objects: int,
    interval: int,
) -> Iterator[tuple[torch.Tensor, list[float]]]:
    """Yield the packed masks [N, H, W / 8] of each frame, and the scores of the objects up to there."""
    tracker: ObjectTracker | None = None
    most = max(max_objects, 0 if initial_mask is None else len(initial_mask))
    num_groups = -(-most // model.model.diffusion_model.config.tracker.group_size)
    for frame in images:
        with model.in_use(working_bytes=working_bytes(model, num_groups)) as holder:
            network, device, dtype = holder.diffusion_model, model.load_device, holder.compute_dtype
            side = network.config.image.image_px
            pixels = resize(colours_of(frame, "images").movedim(-1, 0)[None].to(device, dtype), side, side, "bicubic")
            given = None
            if tracker is None:
                texts = [text.prompt for text in texts_of(network, conditioning, device, dtype)]
                options = TrackingOptions(texts, threshold, max_objects, interval)
                tracker = ObjectTracker(network, options, images.shape[0], device, dtype)
                given = None if initial_mask is None else initial_mask[:, None].to(device, dtype)
            masks = tracker.step(pixels, given)
        yield masks, tracker.scores


def _joined(masks: Sequence[torch.Tensor], num_objects: int) -> torch.Tensor | None:
    """Return the masks of all frames [F, N, H, W / 8], empty before an object is found; None without any object."""
    if num_objects == 0:
        return None
    joined = torch.zeros(len(masks), num_objects, *masks[0].shape[1:], dtype=torch.uint8)
    for frame, found in zip(joined, masks, strict=True):
        frame[: len(found)] = found
    return joined


@node("SAM3_TrackToMask", display_name="SAM3 Track to Mask", category=CATEGORY, python_module=MODULE)
def sam3_track_to_mask(
    context: NodeContext,
    *,
    track_data: TrackInput,
    object_indices: Annotated[str, Text(multiline=False, extra=labelled("object_indices"))] = "",
) -> Annotated[MASK, Out("masks")]:
    """Return the masks of all objects together, or of those of these numbers, with commas between them.

    Raises ValueError for masks that would not fit the free memory.
    """
    masks, (height, width) = track_data["packed_masks"], track_data["orig_size"]
    num_frames = track_data["n_frames"] if masks is None else len(masks)
    check_fits(context, "track_data", num_frames * height * width * VALUE_BYTES)
    out = torch.zeros(num_frames, height, width)
    if masks is None:
        return out
    count = masks.shape[1]
    chosen = numbers_in(object_indices, count) if object_indices.strip() else list(range(count))
    for index in range(num_frames if chosen else 0):
        context.cancel.check()
        union = unpacked(masks[index, chosen].cpu()).any(dim=0)
        out[index] = functional.interpolate(union[None, None].float(), size=(height, width), mode="bilinear")[0, 0]
    return out
