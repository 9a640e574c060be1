"""SAM3_TrackPreview: objects that were followed through a video, drawn over it. `H W` pixels, `N` objects."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Annotated

import torch
from torch.nn import functional

from darkroom.engine.families.sam3.nodes.detection import CATEGORY, MODULE
from darkroom.engine.families.sam3.nodes.inputs import TrackInput, VideoInput, labelled
from darkroom.engine.images.object_labels import with_objects
from darkroom.engine.images.packed_masks import TrackData, unpacked
from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.media.video import VideoCodec, VideoContainer, VideoFromFrames
from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import FRAMES, ExtraPngInfo, Prompt
from darkroom.engine.nodes.widgets import Float

PREFIX, SUFFIX = "sam3_track_preview", ".mp4"
RATE_STEPS = 1000  # of a frame a second


@node("SAM3_TrackPreview", display_name="SAM3 Track Preview", category=CATEGORY, python_module=MODULE, is_output=True)
def sam3_track_preview(
    context: NodeContext,
    *,
    track_data: TrackInput,
    images: Annotated[VideoInput | None, Optional()] = None,
    opacity: Annotated[float, Float(min=0.0, max=1.0, step=0.05, extra=labelled("opacity"))] = 0.5,
    fps: Annotated[float, Float(min=1.0, max=120.0, step=1.0, extra=labelled("fps"))] = 24.0,
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> NodeOutput:
    """Show the objects in colours and with their numbers, over the images or on black."""
    height, width = track_data["orig_size"] if images is None else images.shape[1:3]
    masks = track_data["packed_masks"]
    num_frames = track_data["n_frames"] if masks is None else len(masks)
    frames = FrameStream(
        (num_frames, height, width, 3), partial(_drawn, track_data, images, (num_frames, height, width), opacity)
    )
    output = context.files.save_path(PREFIX, width, height, "temp", suffix=SUFFIX)
    video = VideoFromFrames(frames, Fraction(round(fps * RATE_STEPS), RATE_STEPS))
    context.files.write_now(output, partial(video.save_to, str(output.path), VideoContainer.MP4, VideoCodec.H264))
    return NodeOutput({"images": [output.shown()], "animated": (True,)})


def _drawn(
    tracks: TrackData, images: FRAMES | None, shape: tuple[int, int, int], opacity: float
) -> Iterator[torch.Tensor]:
    """Yield each frame [1, H, W, 3] with its objects; frames behind the last image are black."""
    num_frames, height, width = shape
    given = iter(()) if images is None else iter(images)
    masks = tracks["packed_masks"]
    for index in range(num_frames):
        image = next(given, None)
        frame = torch.zeros(height, width, 3) if image is None else image[..., :3].cpu().float()
        if masks is not None and masks.shape[1]:
            objects = (_enlarged(mask, height, width) for mask in masks[index])
            frame = with_objects(frame, objects, tracks["scores"], opacity)
        yield frame.clamp(0, 1)[None]


def _enlarged(mask: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return a packed mask [h, w / 8] in the size of the frames, bool [H, W]."""
    pixels = unpacked(mask.cpu()).float()[None, None]
    return functional.interpolate(pixels, size=(height, width), mode="nearest")[0, 0] > 0.5
