"""Points of an image that move along tracks (Chu et al. 2025, arXiv 2512.08765): the latent under them moves too.

`N` points, `F` frames, `C` channels, `f` latent frames, `h w` latent cells.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch.nn import functional

from darkroom.engine.diffusion.conditions import spread_to_batch_size
from darkroom.engine.families.wan.nodes.guide import VideoGuide
from darkroom.engine.families.wan.nodes.images import begin_with, wan_image_to_video
from darkroom.engine.families.wan.nodes.latents import (
    CELL_PX,
    FRAMES_RATIO,
    GREY,
    MODULE,
    Length,
    Seen,
    Side,
    fitted,
)
from darkroom.engine.families.wan.vae_files import WanLatentFormat
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.image_conditioning import Count, Negative, Positive, Start
from darkroom.engine.nodes.markers import Optional, Socket
from darkroom.engine.nodes.sockets import CONDITIONING, IMAGE, VAE, Conditioning, Latent
from darkroom.engine.nodes.widgets import Float, Int, Text

TRACKED_FRAMES = 121  # that tracks are cut or filled up to
NOTHING = 1e-5  # beside a count that may be 0

Tracks = list[list[dict[str, float]]]


def tracks_of(text: str) -> list[Tracks]:
    """Return the tracks of each video in JSON: points `{"x", "y"}` of one track, of several, or those of each video.

    Raises ValueError for anything else.
    """
    try:
        found: Any = json.loads(text.replace("'", '"'))
        if found and isinstance(found[0], dict):
            found = [found]
        if found and isinstance(found[0][0], dict):
            found = [found]
        return [[[{"x": float(at["x"]), "y": float(at["y"])} for at in track] for track in video] for video in found]
    except (ValueError, TypeError, LookupError):
        raise ValueError(
            f"tracks: they are no JSON of points; got {text[:60]!r}, expected lists of points with x and y in pixels"
        ) from None


def points_at(tracks: Tracks, width: int, height: int, frames: int) -> torch.Tensor:
    """Return points [1 + frames, N, 3]: x and y by half the shorter side from the centre, and 1 while there is one."""
    points = torch.zeros(TRACKED_FRAMES, len(tracks), 3)
    points[..., 2] = -1.0
    points[..., :2] = -torch.tensor([width, height]) / min(width, height)  # where a track ended: the corner
    for index, track in enumerate(tracks):
        places = torch.tensor([[at["x"], at["y"]] for at in track[:TRACKED_FRAMES]]).view(-1, 2)
        points[: len(places), index, :2] = (places - torch.tensor([width, height]) / 2) / min(width, height) * 2
        points[: len(places), index, 2] = 1.0
    shared = math.gcd(TRACKED_FRAMES - 1, frames)
    step, times = (TRACKED_FRAMES - 1) // shared, frames // shared
    return torch.cat([points[:1], points[1:].repeat_interleave(times, dim=0)[1::step]])


def moved_along(
    latent: torch.Tensor, points: torch.Tensor, temperature: float, topk: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mask of points [f, h, w] and a latent [C, f, h, w] with the first frame's cells under them.

    A cell gets the weighted cells of its `topk` nearest points; `temperature` says how fast weights fall with distance.
    """
    _, frames, height, width = latent.shape
    places, visible = points[..., :2], points[..., 2:].clamp(0, 1)
    reach = torch.tensor([width, height]) / min(width, height)
    half_width, half_height = reach.tolist()
    rows, columns = torch.linspace(-half_height, half_height, height), torch.linspace(-half_width, half_width, width)
    down, across = torch.meshgrid(rows, columns, indexing="ij")
    grid = torch.stack([across, down], dim=-1)  # [h, w, 2]
    groups = (frames - 1, FRAMES_RATIO, *places.shape[1:2])
    seen = visible[1:].view(*groups, 1).sum(1)  # [f - 1, N, 1]
    centres = (places[1:] * visible[1:]).view(*groups, 2).sum(1) / (seen + NOTHING)
    distances = (centres[:, None, None] - grid[None, :, :, None]).pow(2).sum(-1)  # [f - 1, h, w, N]
    weights = torch.exp(-distances * temperature) * seen.clamp(0, 1).view(frames - 1, 1, 1, -1)
    nearest, index = torch.topk(weights, k=min(topk, weights.shape[-1]), dim=-1)
    from_places = (places[:1] / reach).clamp(-1, 1)[None]  # [1, 1, N, 2]
    under = functional.grid_sample(latent[:, 0][None], from_places, mode="bilinear", align_corners=False)
    carried = (under[0, :, 0].T[index] * nearest[..., None]).sum(dim=-2).permute(3, 0, 1, 2)  # [C, f - 1, h, w]
    total = nearest.sum(-1)
    mixed = carried + latent[:, 1:] * (1 - total.clamp(0, 1))
    return torch.cat([torch.ones_like(total[:1]), total]), torch.cat([latent[:, :1], mixed], dim=1)


@node(
    "WanTrackToVideo",
    display_name=None,
    category="model/conditioning/wan/move",
    python_module=MODULE,
    advanced=("temperature", "topk"),
)
def wan_track_to_video(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    tracks: Annotated[str, Text(multiline=True)] = "[]",
    width: Side = 832,
    height: Side = 480,
    length: Length = 81,
    batch_size: Count = 1,
    temperature: Annotated[float, Float(min=1.0, max=1000.0, step=0.1)] = 220.0,
    topk: Annotated[int, Int(min=1, max=10)] = 2,
    start_image: IMAGE,
    clip_vision_output: Seen = None,
) -> tuple[Positive, Negative, Start]:
    """Let a video begin with an image whose points move along tracks. Raises ValueError for tracks that are none."""
    found = tracks_of(tracks)
    if not found:
        plain: tuple[Conditioning, Conditioning, Latent] = wan_image_to_video.function(
            context, positive=positive, negative=negative, vae=vae, width=width, height=height, length=length,
            batch_size=batch_size, clip_vision_output=clip_vision_output, start_image=start_image,
        )  # fmt: skip
        return plain
    images = spread_to_batch_size(fitted(start_image[:batch_size], width, height)[..., :3], batch_size)
    known, masks, latents = WanLatentFormat(), [], []
    numbers = spread_to_batch_size(torch.arange(len(found)), batch_size).tolist()
    for image, number in zip(images, numbers, strict=False):
        video = torch.full((length, height, width, 3), GREY)
        video[0] = image
        points = points_at(found[number], width, height, length - 1)
        mask, latent = moved_along(known.process_in(vae.encode(video))[0], points, temperature, topk)
        masks.append(mask[None].expand(FRAMES_RATIO, -1, -1, -1))
        latents.append(latent)
    guide = VideoGuide(positive, negative, vae, width, height, length, batch_size)
    guide.set(concat_mask=1.0 - torch.stack(masks), concat_latent_image=known.process_out(torch.stack(latents)))
    guide.set_clip_vision(clip_vision_output)
    return guide.outputs


def visibility_of(tracks: Mapping[str, Any]) -> torch.Tensor:
    """Return True for the points [F, N] of tracks that are visible."""
    path: torch.Tensor = tracks["track_path"]
    visible: torch.Tensor | None = tracks.get("track_visibility")
    if visible is None:
        return torch.ones(path.shape[:2], dtype=torch.bool)
    return visible.expand(-1, path.shape[1])


def carried_along(
    latent: torch.Tensor, tracks: Mapping[str, Any], width: int, height: int, strength: float
) -> torch.Tensor:
    """Return a latent [1, C, f, h, w] with the first frame's cells under tracks at the cells that they go to.

    Where several tracks meet the last one is there. `strength` is the share of the carried cell.
    """
    size = torch.tensor([width, height])
    points = tracks["track_path"][::FRAMES_RATIO][: latent.shape[2]]  # [f, N, 2]
    visible = visibility_of(tracks)[::FRAMES_RATIO][: points.shape[0]]
    inside = visible & ((points >= 0) & (points < size)).all(dim=-1)
    cells = torch.where(inside[..., None], points // CELL_PX, -1).long()
    carried = latent.clone()
    for number in range(cells.shape[1]):
        source_x, source_y = cells[0, number].tolist()  # the last row and column for a point that is not visible
        frames = inside[1:, number].nonzero()[:, 0] + 1
        columns, rows = cells[frames, number].unbind(dim=1)
        source, given = latent[:, :, 0, source_y, source_x, None], latent[:, :, frames, rows, columns]
        carried[:, :, frames, rows, columns] = given + (source - given) * strength
    return carried


@node("WanMoveTrackToVideo", display_name=None, category="model/conditioning/wan/move",
      python_module="comfy_extras.nodes_wanmove")  # fmt: skip
def wan_move_track_to_video(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    tracks: Annotated[Mapping[str, Any] | None, Socket("TRACKS"), Optional()] = None,
    strength: Annotated[float, Float(min=0.0, max=100.0, step=0.01)] = 1.0,
    width: Side = 832,
    height: Side = 480,
    length: Length = 81,
    batch_size: Count = 1,
    start_image: IMAGE,
    clip_vision_output: Seen = None,
) -> tuple[Positive, Negative, Start]:
    """Let a video begin with an image whose points move along tracks (Chu et al. 2025, arXiv 2512.08765)."""
    guide = VideoGuide(positive, negative, vae, width, height, length, batch_size)
    latent = begin_with(guide, start_image)
    if tracks is not None and strength > 0.0:
        guide.set(concat_latent_image=carried_along(latent, tracks, width, height, strength))
    guide.set_clip_vision(clip_vision_output)
    return guide.outputs


NODES = (wan_track_to_video, wan_move_track_to_video)
