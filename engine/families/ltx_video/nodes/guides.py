"""Guides: images or videos that a video passes through at a frame, appended to its latent as further cells.

`keyframe_idxs` of a conditioning are the places [1, 3, K] of the appended cells: first frame, row and column in pixels.
`B` batch, `C` channels, `f` latent frames, `h w` latent cells.
"""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.families.ltx_video.nodes.videos import MODULE
from darkroom.engine.families.ltx_video.transformer import CELL, cell_places
from darkroom.engine.images.pixels import resize_image
from darkroom.engine.nodes.base import Float, Int, NodeContext, node
from darkroom.engine.nodes.library.conditioning.conditioning import with_options
from darkroom.engine.nodes.library.conditioning.image_conditioning import Negative, Positive, Start
from darkroom.engine.nodes.sockets import CONDITIONING, IMAGE, LATENT, VAE, Conditioning, Latent

APPENDED_FRAMES = 2  # latent frames of a guide that are appended; further ones replace frames of the video
PLACES = "keyframe_idxs"


def guide_places(conditioning: Conditioning) -> torch.Tensor | None:
    """Return the places [1, 3, K] of the guides so far, None without any."""
    return next((options[PLACES] for _, options in conditioning if PLACES in options), None)


def num_guide_frames(conditioning: Conditioning) -> int:
    """Return the number of latent frames that belong to guides."""
    places = guide_places(conditioning)
    return 0 if places is None else torch.unique(places[:, 0]).shape[0]


def noise_mask_of(latent: Latent) -> torch.Tensor:
    """Return the mask of a latent, of its own [B, 1, f, 1, 1] where it has none."""
    mask = latent.get("noise_mask")
    if mask is not None:
        return mask.clone()
    samples = latent["samples"]
    return torch.ones(samples.shape[0], 1, samples.shape[2], 1, 1)


def first_frame_of(frame_idx: int, *, video_frames: int, guide_frames: int) -> tuple[int, int]:
    """Return the frame that a guide begins at, and its latent frame.

    Negative ones count from the end of a video of so many latent frames. Guides of several frames begin at the first
    frame or at the first of a latent frame.
    """
    ratio = CELL[0]
    if frame_idx < 0:
        frame_idx = max((video_frames - 1) * ratio + 1 + frame_idx, 0)
    if guide_frames > 1 and frame_idx != 0:
        frame_idx = (frame_idx - 1) // ratio * ratio + 1
    return frame_idx, (frame_idx + ratio - 1) // ratio


def with_guide(conditioning: Conditioning, frame_idx: int, guide: torch.Tensor) -> Conditioning:
    """Return the same entries with the places of one more guide [1, C, f, h, w] at a frame."""
    places = cell_places(*guide.shape[2:], starts_with_one_frame=frame_idx == 0)[None].repeat(guide.shape[0], 1, 1)
    places[:, 0] += frame_idx
    earlier = guide_places(conditioning)
    return with_options(conditioning, **{PLACES: places if earlier is None else torch.cat([earlier, places], dim=2)})


@node("LTXVAddGuide", display_name=None, category="model/conditioning/ltxv", python_module=MODULE)
def ltxv_add_guide(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    latent: LATENT,
    image: IMAGE,
    frame_idx: Annotated[int, Int(min=-9999, max=9999)] = 0,
    strength: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 1.0,
) -> tuple[Positive, Negative, Start]:
    """Let a video pass through an image or the 1 + 8n frames of a video at `frame_idx`.

    Further frames of the guide are left out. Raises ValueError for one that ends behind the video.
    """
    samples, mask = latent["samples"], noise_mask_of(latent)
    ratio, cell_rows, cell_columns = CELL
    frames = image[: (image.shape[0] - 1) // ratio * ratio + 1, :, :, :3]
    height, width = samples.shape[3] * cell_rows, samples.shape[4] * cell_columns
    guide: torch.Tensor = vae.encode(resize_image(frames, width, height, "bilinear"))
    video_frames = samples.shape[2] - num_guide_frames(positive)
    frame, first = first_frame_of(frame_idx, video_frames=video_frames, guide_frames=frames.shape[0])
    end = first + guide.shape[2]
    if end > samples.shape[2]:
        raise ValueError(
            f"image: the guide ends behind the video; got latent frames {first} to {end}, expected an end of at most "
            f"{samples.shape[2]}"
        )
    appended, replacing = guide[:, :, :APPENDED_FRAMES], guide[:, :, APPENDED_FRAMES:]
    mask[:, :, first : first + appended.shape[2]] = 1.0
    kept = torch.full((mask.shape[0], 1, appended.shape[2], *mask.shape[3:]), 1.0 - strength, dtype=mask.dtype)
    samples, mask = torch.cat([samples, appended], dim=2), torch.cat([mask, kept], dim=2)
    if replacing.shape[2]:
        places = slice(first + appended.shape[2], end)
        samples[:, :, places] = replacing
        mask[:, :, places] = 1.0 - strength
    return (
        with_guide(positive, frame, appended),
        with_guide(negative, frame, appended),
        {"samples": samples, "noise_mask": mask},
    )


@node("LTXVCropGuides", display_name=None, category="model/conditioning/ltxv", python_module=MODULE)
def ltxv_crop_guides(
    context: NodeContext, *, positive: CONDITIONING, negative: CONDITIONING, latent: LATENT
) -> tuple[Positive, Negative, Start]:
    """Return a latent and conditionings without the frames of guides."""
    samples, mask = latent["samples"].clone(), noise_mask_of(latent)
    count = num_guide_frames(positive)
    if count == 0:
        return positive, negative, {"samples": samples, "noise_mask": mask}
    cut: Latent = {"samples": samples[:, :, :-count], "noise_mask": mask[:, :, :-count]}
    return with_options(positive, **{PLACES: None}), with_options(negative, **{PLACES: None}), cut


NODES = (ltxv_add_guide, ltxv_crop_guides)
