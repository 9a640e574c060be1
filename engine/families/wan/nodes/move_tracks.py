"""Tracks of points for Wan-Move: from coordinates, along a line or a curve, joined, drawn on a video.

TRACKS has `track_path` [F, N, 2], x and y in pixels, float32, and `track_visibility` [F, N] or [F, 1], booleans. `F`
frames, `N` points.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch

from darkroom.engine.families.wan.nodes.track_drawing import drawn_on, num_points
from darkroom.engine.families.wan.nodes.tracks import tracks_of, visibility_of
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.free_memory import check_fits
from darkroom.engine.nodes.markers import Optional, Out, Socket
from darkroom.engine.nodes.sockets import IMAGE, INT, MASK
from darkroom.engine.nodes.widgets import Combo, Flag, Float, Int, Text

MODULE = "comfy_extras.nodes_wanmove"
CATEGORY = "model/conditioning/wan/move"
MOST_DRAWN = 50_000_000  # points of all lines of a video
COPIES = 3  # of a video's frames while tracks are drawn on them

Tracks = Annotated[Mapping[str, Any], Socket("TRACKS")]
GivenTracks = Annotated[Mapping[str, Any] | None, Socket("TRACKS"), Optional()]
GivenMask = Annotated[MASK | None, Optional()]
Share = Annotated[float, Float(min=0.0, max=1.0, step=0.01)]
Side = Annotated[int, Int(min=16, max=4096, step=16)]
Timing = Combo(("linear", "ease_in", "ease_out", "ease_in_out", "constant"))


def _tracks(path: torch.Tensor, mask: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Return tracks that are visible where a mask [F, H, W] of each frame has anything; everywhere without one."""
    visible = torch.ones(path.shape[:2], dtype=torch.bool) if mask is None else (mask > 0).any(dim=(1, 2))[:, None]
    return {"track_path": path, "track_visibility": visible}


@node("WanMoveTracksFromCoords", display_name=None, category=CATEGORY, python_module=MODULE)
def wan_move_tracks_from_coords(
    context: NodeContext,
    *,
    track_coords: Annotated[str, Text(multiline=False, extra={"forceInput": True}), Optional()] = "[]",
    track_mask: GivenMask = None,
) -> tuple[Tracks, Annotated[INT, Out("track_length")]]:
    """Return tracks of points in JSON, as many frames as the first has. Raises ValueError for tracks that are none."""
    found = tracks_of(track_coords)
    if len(found) != 1 or not found[0]:
        raise ValueError(f"track_coords: tracks of one video; got those of {len(found)}, expected at least one track")
    length = len(found[0][0])
    short = next((len(track) for track in found[0] if len(track) < length), None)
    if short is not None or not length:
        raise ValueError(f"track_coords: a track ends early; got {short or 0} points, expected {max(length, 1)}")
    points = [[[track[frame]["x"], track[frame]["y"]] for track in found[0]] for frame in range(length)]
    return _tracks(torch.tensor(points, dtype=torch.float32), track_mask), length


def timed(num_frames: int, interpolation: str) -> torch.Tensor:
    """Return how far along a path each of the frames is, [F] of 0..1."""
    times = torch.linspace(0, 1, num_frames)
    curves = {
        "constant": torch.zeros_like(times),
        "linear": times,
        "ease_in": times**2,
        "ease_out": 1 - (1 - times) ** 2,
        "ease_in_out": times * times * (3 - 2 * times),
    }
    return curves[interpolation]


def _curve(times: torch.Tensor, first: float, middle: float, last: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a coordinate [F] of a quadratic Bezier curve and its derivative."""
    rest = 1 - times
    places = rest**2 * first + 2 * rest * times * middle + times**2 * last
    return places, 2 * rest * (middle - first) + 2 * times * (last - middle)


def _line(times: torch.Tensor, first: float, last: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a coordinate [F] of a line and its derivative."""
    return first + (last - first) * times, torch.full_like(times, last - first)


@node(
    "GenerateTracks",
    display_name="Generate Video Tracks",
    category=CATEGORY,
    python_module=MODULE,
    search_aliases=["motion paths", "camera movement", "trajectory"],
)
def generate_tracks(
    context: NodeContext,
    *,
    width: Side = 832,
    height: Side = 480,
    start_x: Share = 0.0,
    start_y: Share = 0.0,
    end_x: Share = 1.0,
    end_y: Share = 1.0,
    num_frames: Annotated[int, Int(min=1, max=1024)] = 81,
    num_tracks: Annotated[int, Int(min=1, max=100)] = 5,
    track_spread: Annotated[float, Float(min=0.0, max=1.0, step=0.001)] = 0.025,
    bezier: Annotated[bool, Flag()] = False,
    mid_x: Share = 0.5,
    mid_y: Share = 0.5,
    interpolation: Annotated[str, Timing],
    track_mask: GivenMask = None,
) -> tuple[Tracks, Annotated[INT, Out("track_length")]]:
    """Return tracks beside each other along a line, or along a curve that a point in the middle pulls at."""
    times = timed(num_frames, interpolation)
    if bezier:
        x, along = _curve(times, start_x * width, mid_x * width, end_x * width)
        y, down = _curve(times, start_y * height, mid_y * height, end_y * height)
    else:
        x, along = _line(times, start_x * width, end_x * width)
        y, down = _line(times, start_y * height, end_y * height)
    x, y, along, down = (item.double() for item in (x, y, along, down))
    lengths = torch.hypot(along, down)
    stands = lengths == 0
    across = torch.stack([torch.where(stands, 1.0, -down / lengths), torch.where(stands, 0.0, along / lengths)], dim=-1)
    spread_px = track_spread * (width + height) / 2
    offsets = (torch.arange(num_tracks, dtype=torch.float64) - (num_tracks - 1) / 2) * spread_px
    path = torch.stack([x, y], dim=-1)[:, None] + across[:, None] * offsets[:, None]
    return _tracks(path.float(), track_mask), num_frames


@node("WanMoveConcatTrack", display_name=None, category=CATEGORY, python_module=MODULE)
def wan_move_concat_track(context: NodeContext, *, tracks_1: Tracks, tracks_2: GivenTracks = None) -> Tracks:
    """Return the points of both tracks. Raises ValueError for tracks of different lengths."""
    if tracks_2 is None:
        return tracks_1
    lengths = [item["track_path"].shape[0] for item in (tracks_1, tracks_2)]
    if lengths[0] != lengths[1]:
        raise ValueError(f"tracks_2: it has {lengths[1]} frames; expected as many as tracks_1, {lengths[0]}")
    return {
        "track_path": torch.cat([tracks_1["track_path"], tracks_2["track_path"]], dim=1),
        "track_visibility": torch.cat([visibility_of(tracks_1), visibility_of(tracks_2)], dim=1),
    }


@node(
    "WanMoveVisualizeTracks",
    display_name=None,
    category=CATEGORY,
    python_module=MODULE,
    advanced=("circle_size", "line_width"),
)
def wan_move_visualize_tracks(
    context: NodeContext,
    *,
    images: IMAGE,
    tracks: GivenTracks = None,
    line_resolution: Annotated[int, Int(min=1, max=1024)] = 24,
    circle_size: Annotated[int, Int(min=1, max=128)] = 12,
    opacity: Share = 0.75,
    line_width: Annotated[int, Int(min=1, max=128)] = 16,
) -> IMAGE:
    """Draw points and where they were in the frames before.

    Raises ValueError for lines of too many points in all, and for frames that would not fit the memory.
    """
    if tracks is None:
        return images
    path, visible = tracks["track_path"], visibility_of(tracks)
    check_fits(context, "tracks", path.shape[0] * images[:1].nbytes * COPIES)
    frames = images
    if images.shape[0] != path.shape[0]:
        frames = images.repeat(path.shape[0] // images.shape[0], 1, 1, 1)
    if not frames.shape[0] or frames.shape[0] > path.shape[0]:
        raise ValueError(f"images: more frames than the tracks have; got {images.shape[0]}, expected {path.shape[0]}")
    points = path.long()
    drawn = num_points(points, line_resolution)
    if drawn > MOST_DRAWN:
        raise ValueError(f"tracks: too many points to draw; got {drawn}, expected at most {MOST_DRAWN}")
    return drawn_on(frames, points, visible, line_resolution, circle_size, opacity, line_width)


NODES = (
    wan_move_tracks_from_coords, generate_tracks, wan_move_concat_track, wan_move_visualize_tracks,
)  # fmt: skip
