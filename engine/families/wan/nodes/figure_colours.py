"""Colours that tell the figures of a video apart, as SCAIL-2 was trained with them.

Tracks are those of SAM 3: masks of each figure in each frame, eight pixels of a row in a byte. `F` frames, `N` figures,
`H W` pixels, `f` latent frames, `h w` latent cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch.nn import functional

from darkroom.contract.graph.spec import ValueDict
from darkroom.engine.families.wan.nodes.latents import FRAMES_RATIO
from darkroom.engine.images.packed_masks import numbers_in, unpacked
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Optional, Out, Socket
from darkroom.engine.nodes.sockets import IMAGE
from darkroom.engine.nodes.widgets import Combo, Flag, Text

MODULE = "comfy_extras.nodes_scail"
COLOURS = ((0.0, 0.0, 1.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (1.0, 0.0, 1.0), (0.0, 1.0, 1.0), (1.0, 1.0, 0.0))
BLACK, WHITE = 0.0, 1.0
FULL = 225.0 / 255.0  # of a channel that is on
HALVINGS = 3
# Channels of masks by which of red, green and blue are on: white, red, green, blue, yellow, magenta, cyan.
KINDS = ((1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1))


class References(Socket):
    """Tracks or a mask of reference images."""

    def options(self) -> ValueDict:
        return {"display_name": "reference_masks"}


SortBy = Combo(("none", "left_to_right", "area"))


def colour_channels(frames: torch.Tensor) -> torch.Tensor:
    """Return the channels [1, f, 28, h, w] of colours in frames [F, H, W, 3]: seven for each of four frames.

    The first frame stands for four. Values are the shares of a cell.
    """
    on = frames[..., :3].movedim(-1, 1).float() > FULL  # [F, 3, H, W]
    kinds = torch.tensor(KINDS, dtype=torch.bool, device=frames.device)
    masks = (on[:, None] == kinds[None, :, :, None, None]).all(dim=2).float()  # [F, 7, H, W]
    height, width = masks.shape[-2:]
    for _ in range(HALVINGS):
        height, width = (height + 1) // 2, (width + 1) // 2
    cells = functional.interpolate(masks, size=(height, width), mode="area")
    filled = torch.cat([cells[:1].expand(FRAMES_RATIO, -1, -1, -1), cells[1:]])
    return filled.reshape(1, -1, FRAMES_RATIO * len(KINDS), height, width)


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a video: masks [F, N, H, W / 8], None for no figures, and the height and width of its frames."""

    masks: torch.Tensor | None
    num_frames: int
    size: tuple[int, int]

    @property
    def count(self) -> int:
        return 0 if self.masks is None else self.masks.shape[1]

    def chosen(self, numbers: list[int]) -> Figures:
        """Return the figures of these numbers, in their order."""
        if self.masks is None:
            return self
        return replace(self, masks=self.masks[:, numbers] if numbers else None)


def figures_of(tracks: Mapping[str, Any]) -> Figures:
    """Return the figures of tracks."""
    masks: torch.Tensor | None = tracks["packed_masks"]
    num_frames = tracks.get("n_frames", 1) if masks is None else masks.shape[0]
    height, width = tracks["orig_size"]
    return Figures(None if masks is None or masks.shape[1] == 0 else masks, num_frames, (height, width))


def ordered(figures: Figures, sort_by: str) -> Figures:
    """Return figures by their first frame, and in it from left to right or the largest first."""
    if sort_by == "none" or figures.masks is None:
        return figures
    packed = figures.masks.cpu()
    num_frames, num_figures = packed.shape[:2]
    is_there = packed.bool().flatten(2).any(dim=2)  # [F, N]
    firsts = torch.where(is_there, torch.arange(num_frames)[:, None], num_frames).amin(dim=0)
    masks = unpacked(packed[firsts.clamp(max=num_frames - 1), torch.arange(num_figures)]).float()  # [N, H, W]
    areas = masks.sum(dim=(-1, -2))
    centres = (masks * torch.arange(masks.shape[-1], dtype=masks.dtype)).sum(dim=(-1, -2)) / areas.clamp(min=1)
    places = (centres if sort_by == "left_to_right" else -areas).tolist()
    return figures.chosen(sorted(range(figures.count), key=lambda number: (int(firsts[number]), places[number])))


def coloured(figures: Figures, background: float) -> torch.Tensor:
    """Return frames [F, H, W, 3] with each figure in its colour; of figures over each other the first is there."""
    height, width = figures.size
    frames = torch.full((figures.num_frames, height, width, 3), background)
    if figures.masks is None:
        return frames
    colours = torch.tensor([COLOURS[number % len(COLOURS)] for number in range(figures.count)])
    for frame, packed in zip(frames, figures.masks, strict=True):  # masks of all frames at once would not fit
        masks = (
            functional.interpolate(unpacked(packed.cpu()).float()[None], size=(height, width), mode="nearest")[0] > 0.5
        )
        over = colours[masks.to(torch.uint8).argmax(dim=0)]  # [H, W, 3]
        frame.copy_(torch.where(masks.any(dim=0)[..., None], over, frame))
    return frames


def coloured_mask(mask: torch.Tensor, background: float) -> torch.Tensor:
    """Return images [B, H, W, 3] with the subject of a mask [B, H, W] or [H, W] in the first colour."""
    subject = (mask if mask.ndim > 2 else mask[None]) > 0.5
    return torch.where(subject[..., None], torch.tensor(COLOURS[0]), torch.full((3,), background))


@node(
    "SCAIL2ColoredMask",
    display_name="Create SCAIL-2 Colored Mask",
    category="model/conditioning/wan/scail",
    python_module=MODULE,
    experimental=True,
)
def scail2_colored_mask(
    context: NodeContext,
    *,
    driving_track_data: Annotated[Any, Socket("SAM3_TRACK_DATA")],
    ref_track_data: Annotated[Any, References("SAM3_TRACK_DATA,MASK"), Optional()] = None,
    object_indices: Annotated[str, Text(multiline=False)] = "",
    sort_by: Annotated[str, SortBy] = "left_to_right",
    replacement_mode: Annotated[bool, Flag()] = False,
) -> tuple[Annotated[IMAGE, Out("pose_video_mask")], Annotated[IMAGE, Out("reference_image_mask")]]:
    """Draw the figures of a video, and of reference images, each in the same colour."""

    def drawn(tracks: Mapping[str, Any], background: float) -> torch.Tensor:
        figures = ordered(figures_of(tracks), sort_by)
        if object_indices.strip():
            figures = figures.chosen(numbers_in(object_indices, figures.count))
        return coloured(figures, background)

    of_video, of_references = (WHITE, BLACK) if replacement_mode else (BLACK, WHITE)
    video = drawn(driving_track_data, of_video)
    if ref_track_data is None:
        return video, torch.full((1, *video.shape[1:3], 3), of_references)
    if isinstance(ref_track_data, torch.Tensor):
        return video, coloured_mask(ref_track_data, of_references)
    return video, drawn(ref_track_data, of_references)


NODES = (scail2_colored_mask,)
