"""Guides: images or videos that a video passes through at a frame, appended to its latent as further cells.

`keyframe_idxs` of a conditioning are the places [1, 3, K, 2] of the appended cells: the frame, row and column in pixels
that each begins at, and those that it ends at.
`guide_weights` [1, K] are the weights of these cells in self-attention with those of the video. Cells of a guide where
the noise mask is negative are left out by the network: a guide for an IC-LoRA that was trained with smaller ones lies
in every n-th row and column.
`B` batch, `C` channels, `f` latent frames, `h w` latent cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from torch.nn import functional

from darkroom.engine.families.ltx_video.nodes.ic_lora import downscale_factor_of
from darkroom.engine.families.ltx_video.nodes.noise_masks import noise_mask_of
from darkroom.engine.families.ltx_video.nodes.videos import MODULE
from darkroom.engine.families.ltx_video.transformer import CELL, cell_places
from darkroom.engine.images.pixels import resize_image
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_options
from darkroom.engine.nodes.library.conditioning.image_conditioning import Negative, Positive, Start
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import (
    CONDITIONING,
    IC_LORA_PARAMETERS,
    IMAGE,
    LATENT,
    MASK,
    VAE,
    Conditioning,
    Latent,
)
from darkroom.engine.nodes.widgets import Float, Int

PLACES = "keyframe_idxs"
WEIGHTS = "guide_weights"
ENTRIES = "guide_attention_entries"  # by ComfyUI's name: one a guide, for packs that count and weigh them


def guide_places(conditioning: Conditioning) -> torch.Tensor | None:
    """Return the places [1, 3, K, 2] of the guides so far, None without any."""
    return next((options[PLACES] for _, options in conditioning if options.get(PLACES) is not None), None)


def num_guide_frames(conditioning: Conditioning, samples: torch.Tensor) -> int:
    """Return the number of frames of a latent [B, C, f, h, w] that belong to guides."""
    places = guide_places(conditioning)
    return 0 if places is None else places.shape[2] // (samples.shape[3] * samples.shape[4])


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


def guide_weights_of(mask: torch.Tensor | None, strength: float, frames: int, rows: int, columns: int) -> torch.Tensor:
    """Return the weights [1, K] of a guide's cells: its strength, times a mask [N, H, W] of its frames.

    The mask's first frame is that of the first latent frame; further ones are averaged in groups.
    """
    if mask is None:
        return torch.full((1, frames * rows * columns), strength)
    cells = functional.interpolate(mask[:, None].float(), size=(rows, columns), mode="area")[:, 0]  # [N, h, w]
    first, rest = cells[:1], cells[1:]
    if frames == 1:
        return first.reshape(1, -1) * strength
    if rest.shape[0] == 0:
        rest = first.expand(frames - 1, -1, -1)
    elif rest.shape[0] < frames - 1:
        repeated = functional.interpolate(rest.flatten(1).T[None], size=frames - 1, mode="nearest")[0].T
        rest = repeated.reshape(frames - 1, rows, columns)
    else:
        group = rest.shape[0] // (frames - 1)
        rest = rest[: group * (frames - 1)].reshape(frames - 1, group, rows, columns).mean(dim=1)
    return torch.cat([first, rest]).reshape(1, -1) * strength


def with_guide(
    conditioning: Conditioning, places: torch.Tensor, weights: torch.Tensor, entry: Mapping[str, object]
) -> Conditioning:
    """Return the same entries with one more guide's places [1, 3, K, 2], weights [1, K] and facts."""
    earlier = guide_places(conditioning)
    entries = next((options[ENTRIES] for _, options in conditioning if options.get(ENTRIES) is not None), ())
    if earlier is not None:
        found = next((options[WEIGHTS] for _, options in conditioning if options.get(WEIGHTS) is not None), None)
        before = torch.ones(1, earlier.shape[2]) if found is None else found
        places, weights = torch.cat([earlier, places], dim=2), torch.cat([before, weights], dim=1)
    return with_options(conditioning, **{PLACES: places, WEIGHTS: weights, ENTRIES: [*entries, entry]})


def guide_cells(shape: torch.Size, frame: int, factor: int, *, starts_with_one_frame: bool) -> torch.Tensor:
    """Return the places [B, 3, K, 2] of a guide's cells [B, C, f, h, w] that begins at a frame.

    Cells of a guide in every `factor`-th row and column are as many times larger.
    """
    begin = cell_places(*shape[2:], starts_with_one_frame=starts_with_one_frame)  # [3, K]
    end = cell_places(*shape[2:], starts_with_one_frame=starts_with_one_frame, at_end=True)
    end[1:] += (factor - 1) * torch.tensor(CELL[1:])[:, None]
    places = torch.stack([begin, end], dim=-1).repeat(shape[0], 1, 1, 1)
    places[:, 0] += frame
    return places


def spread(cells: torch.Tensor, factor: int) -> torch.Tensor:
    """Return cells [B, C, f, h, w] in every `factor`-th row and column, with zeros between."""
    if factor == 1:
        return cells
    rows, columns = (side * factor for side in cells.shape[3:])
    wide = cells.new_zeros(*cells.shape[:3], rows, columns)
    wide[..., ::factor, ::factor] = cells
    return wide


def with_guide_mask(mask: torch.Tensor, shape: torch.Size, strength: float, factor: int) -> torch.Tensor:
    """Return the noise mask [B, 1, f, ...] of a latent with that of a guide of cells [1, C, f, h, w] behind it.

    It has how much the guide is painted over, and is negative where a guide in every `factor`-th row and column has no
    cell. A `strength` above 1 counts in self-attention alone; with a factor it leaves the guide out, as in ComfyUI.
    """
    frames, rows, columns = shape[2:]
    if factor == 1:
        kept = torch.full((mask.shape[0], 1, frames, *mask.shape[3:]), max(0.0, 1.0 - strength), dtype=mask.dtype)
        return torch.cat([mask, kept], dim=2)
    is_cell = spread(mask.new_ones(mask.shape[0], 1, frames, rows, columns), factor)
    size = (*mask.shape[:3], rows * factor, columns * factor)
    return torch.cat([mask.expand(size), 2.0 * is_cell - 1.0 - strength], dim=2)


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
    strength: Annotated[float, Float(min=0.0, max=10.0, step=0.01)] = 1.0,
    attention_mask: Annotated[MASK | None, Optional()] = None,
    iclora_parameters: Annotated[IC_LORA_PARAMETERS | None, Optional()] = None,
) -> tuple[Positive, Negative, Start]:
    """Let a video pass through an image or the 1 + 8n frames of a video at `frame_idx`.

    The middle of the image is cut to the video's aspect ratio. `strength` is how little noise the guide's cells get,
    and their weight in self-attention, there times `attention_mask`. Several frames in the middle of a video are
    encoded behind a repeated first one, whose latent frame is dropped, since the first latent frame stands for one
    frame alone. A guide for an IC-LoRA (`iclora_parameters`) is as much smaller as those that it was trained with.
    Raises ValueError for a guide that ends behind the video, or whose smaller sides are no whole cells.
    """
    samples, mask = latent["samples"], noise_mask_of(latent)
    ratio, cell_rows, cell_columns = CELL
    video_frames = samples.shape[2] - num_guide_frames(positive, samples)
    begin, _ = first_frame_of(frame_idx, video_frames=video_frames, guide_frames=1)
    starts_with_one_frame = begin == 0 or (image.shape[0] - 1) // ratio == 0
    frames = image[..., :3] if starts_with_one_frame else torch.cat([image[:1], image])[..., :3]
    frames = frames[: (frames.shape[0] - 1) // ratio * ratio + 1]
    factor = downscale_factor_of(iclora_parameters)
    if any(side % factor for side in samples.shape[3:]):
        raise ValueError(
            f"iclora_parameters: guides of 1 / {factor} of the video's sides; got a latent of {samples.shape[4]} x "
            f"{samples.shape[3]} cells, expected multiples of {factor}"
        )
    height, width = samples.shape[3] * cell_rows // factor, samples.shape[4] * cell_columns // factor
    guide: torch.Tensor = vae.encode(resize_image(frames, width, height, "bilinear", "center"))
    num_frames = frames.shape[0]
    if not starts_with_one_frame:
        guide, num_frames = guide[:, :, 1:], num_frames - 1
    frame, first = first_frame_of(frame_idx, video_frames=video_frames, guide_frames=num_frames)
    end = first + guide.shape[2]
    if end > samples.shape[2]:
        raise ValueError(
            f"image: the guide ends behind the video; got latent frames {first} to {end}, expected an end of at most "
            f"{samples.shape[2]}"
        )
    weights = guide_weights_of(attention_mask, strength, *guide.shape[2:]).view(1, 1, *guide.shape[2:])
    weights = spread(weights, factor).view(1, -1)
    cells = spread(guide, factor)
    places = guide_cells(cells.shape, frame, factor, starts_with_one_frame=starts_with_one_frame)
    entry = {
        "pre_filter_count": cells[0, 0].numel(), "strength": strength, "latent_shape": list(guide.shape[2:]),
        "pixel_mask": None if attention_mask is None else attention_mask[None, None],
    }  # fmt: skip
    return (
        with_guide(positive, places, weights, entry),
        with_guide(negative, places, weights, entry),
        {
            "samples": torch.cat([samples, cells], dim=2),
            "noise_mask": with_guide_mask(mask, guide.shape, strength, factor),
        },
    )


@node("LTXVCropGuides", display_name=None, category="model/conditioning/ltxv", python_module=MODULE)
def ltxv_crop_guides(
    context: NodeContext, *, positive: CONDITIONING, negative: CONDITIONING, latent: LATENT
) -> tuple[Positive, Negative, Start]:
    """Return a latent and conditionings without the frames of guides."""
    samples, mask = latent["samples"].clone(), noise_mask_of(latent)
    count = num_guide_frames(positive, samples)
    if count == 0:
        return positive, negative, {"samples": samples, "noise_mask": mask}
    cut: Latent = {"samples": samples[:, :, :-count], "noise_mask": mask[:, :, :-count]}
    without = {PLACES: None, WEIGHTS: None, ENTRIES: None}
    return with_options(positive, **without), with_options(negative, **without), cut


NODES = (ltxv_add_guide, ltxv_crop_guides)
