"""Figures that move as drawn poses, or the figures of a video, do: SCAIL and SCAIL-2.

`F` frames, `f` latent frames, `h w` latent cells.
"""

from __future__ import annotations

import logging
from typing import Annotated

import torch

from darkroom.engine.families.wan.nodes.figure_colours import colour_channels
from darkroom.engine.families.wan.nodes.guide import VideoGuide
from darkroom.engine.families.wan.nodes.latents import GivenImage, Length, Seen, fitted, frames_from
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX, with_options
from darkroom.engine.nodes.library.conditioning.image_conditioning import Count, Negative, Positive, Start
from darkroom.engine.nodes.markers import Optional, Out
from darkroom.engine.nodes.sockets import CONDITIONING, INT, VAE, Conditioning
from darkroom.engine.nodes.widgets import Flag, Float, Int

MODULE = "comfy_extras.nodes_scail"
CATEGORY = "model/conditioning/wan/scail"
FIGURE = 0.1  # of a colour, above which a reference's mask is of a figure
GAP = 1e-5  # between shares of the sampling, so that one of them alone is in use at a time

Side = Annotated[int, Int(min=32, max=MAX_SIDE_PX, step=32)]
Share = Annotated[float, Float(min=0.0, max=1.0, step=0.01)]

log = logging.getLogger(__name__)


def within_share(conditioning: Conditioning, options: dict[str, object], start: float, end: float) -> Conditioning:
    """Return conditioning with options in a share of the sampling, and as it is before and behind it."""
    if start > end:
        log.warning("share of the sampling that ends before it begins", extra={"start": start, "end": end})
        return conditioning
    found: Conditioning = []
    for entry in conditioning:
        first, last = entry[1].get("start_percent", 0.0), entry[1].get("end_percent", 1.0)
        begin, finish = max(start, first), min(end, last)
        if begin >= finish:
            found.append(entry)
            continue
        if begin > first:
            found += with_options([entry], start_percent=first, end_percent=begin - GAP)
        found += with_options([entry], **options, start_percent=begin, end_percent=finish)
        if finish < last:
            found += with_options([entry], start_percent=finish + GAP, end_percent=last)
    return found


def _set_references(guide: VideoGuide, images: torch.Tensor, masks: torch.Tensor | None, *, replaces: bool) -> None:
    """Add the latents of reference images to a video's conditioning, and the colours of their figures."""
    size = (guide.width, guide.height)
    references = fitted(images, *size, "bicubic")
    fitted_masks = None if masks is None else fitted(masks, *size, "nearest-exact")
    numbers = range(references.shape[0])
    if fitted_masks is not None:
        fitted_masks = fitted_masks[[min(number, fitted_masks.shape[0] - 1) for number in numbers]]
        if replaces:
            references = references * (fitted_masks[..., :3].amax(dim=-1, keepdim=True) > FIGURE).to(references)
    for number in numbers:
        guide.append("reference_latents", guide.vae.encode(references[number : number + 1, :, :, :3]))
    if fitted_masks is None:
        return
    colours = [colour_channels(mask[None]) for mask in (*fitted_masks[1:], fitted_masks[0])]
    nothing = colours[0].new_zeros(1, guide.latent.shape[2], *colours[0].shape[2:])
    guide.set(ref_mask_28ch=torch.cat([*colours, nothing], dim=1))


def _set_poses(
    guide: VideoGuide, poses: torch.Tensor | None, colours: torch.Tensor | None, strength: float,
    share: tuple[float, float],
) -> None:  # fmt: skip
    """Set a video of poses at half the size, and the colours of its figures; both as long as the shorter one."""
    given = [item for item in (poses, colours) if item is not None]
    if not given:
        return
    shortest = min(guide.length, *(item.shape[0] for item in given))
    kept = (shortest - 1) // 4 * 4 + 1
    half = (guide.width // 2, guide.height // 2, "area")
    if poses is not None:
        latent = guide.vae.encode(fitted(poses[:kept], *half)[..., :3]) * strength
        options: dict[str, object] = {"pose_video_latent": latent}
        guide.positive, guide.negative = (
            within_share(side, options, *share) for side in (guide.positive, guide.negative)
        )
    if colours is not None:
        guide.set(driving_mask_28ch=colour_channels(fitted(colours[:kept], *half)))


@node("WanSCAILToVideo", display_name=None, category=CATEGORY, python_module=MODULE, experimental=True)
def wan_scail_to_video(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    width: Side = 512,
    height: Side = 896,
    length: Length = 81,
    batch_size: Count = 1,
    pose_video: GivenImage = None,
    pose_video_mask: GivenImage = None,
    replacement_mode: Annotated[bool, Flag(), Optional()] = False,
    pose_strength: Annotated[float, Float(min=0.0, max=10.0, step=0.01)] = 1.0,
    pose_start: Share = 0.0,
    pose_end: Share = 1.0,
    reference_image: GivenImage = None,
    reference_image_mask: GivenImage = None,
    clip_vision_output: Seen = None,
    video_frame_offset: Annotated[int, Int(min=0, max=MAX_SIDE_PX, step=1)] = 0,
    previous_frame_count: Annotated[int, Int(min=1, max=MAX_SIDE_PX, step=4)] = 5,
    previous_frames: GivenImage = None,
) -> tuple[Positive, Negative, Start, Annotated[INT, Out("video_frame_offset")]]:
    """Let the figures of reference images move as poses do, from a frame of them on, behind the frames before.

    Colours of figures and frames before are those of SCAIL-2. With `replacement_mode` the figures of a video are
    replaced. `video_frame_offset` is where the next part begins.
    """
    guide = VideoGuide(positive, negative, vae, width, height, length, batch_size)
    guide.set(ref_mask_flag=not replacement_mode)
    earlier = None
    if previous_frames is not None and previous_frames.shape[0] > 0:
        earlier = previous_frames[-previous_frame_count:]
        video_frame_offset = max(0, video_frame_offset - earlier.shape[0])
    if reference_image is not None:
        _set_references(guide, reference_image, reference_image_mask, replaces=replacement_mode)
    guide.set_clip_vision(clip_vision_output)
    poses, colours = (frames_from(item, video_frame_offset) for item in (pose_video, pose_video_mask))
    _set_poses(guide, poses, colours, pose_strength, (pose_start, pose_end))
    with_all, without, latent = guide.outputs
    if earlier is not None:
        given = guide.encode(earlier, "bicubic")[:, :, : guide.latent.shape[2]]
        latent["samples"][:, :, : given.shape[2]] = given
        mask = torch.ones(1, 1, *guide.latent.shape[2:])
        mask[:, :, : given.shape[2]] = 0.0
        latent["noise_mask"] = mask
    return with_all, without, latent, video_frame_offset + length


NODES = (wan_scail_to_video,)
