"""The transformers of SCAIL and SCAIL-2: a figure of an image that moves as drawn poses of a video do.

Latents of reference images are frames before the video, the poses are tokens of half its size behind it. SCAIL-2 also
reads colours that say which figure is where. `B` batch, `C` channels, `F` latent frames, `R` reference images, `h w`
latent cells, `T` tokens, `D` hidden size.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from darkroom.engine.families.wan.blocks import Float32Conv3d
from darkroom.engine.families.wan.config import WanConfig, wan_config
from darkroom.engine.families.wan.transformer import (
    CELLS,
    Inputs,
    VideoTokens,
    WanTransformer,
    rotations_at,
    video_places,
)
from darkroom.engine.layers.patches import PATCH, pad_to_patches, tokens_of
from darkroom.engine.layers.rope_options import ROPE_OPTIONS
from darkroom.engine.layers.shapes import Shapes

POSES = "patch_embedding_pose.weight"
COLOURS = "patch_embedding_mask.weight"
APART = 120.0  # places between the video and its poses, or reference images where they are taken the place of


@dataclass(frozen=True, slots=True)
class ScailConfig(WanConfig):
    """Configuration of SCAIL. `mask_channels` are those of the colours of figures, 0 for the first SCAIL."""

    mask_channels: int = 0


def scail_config(shapes: Shapes) -> ScailConfig:
    """Return the configuration of SCAIL or SCAIL-2 with these tensors (names without prefix)."""
    masks = shapes.get(COLOURS, (0, 0))[1]
    return ScailConfig(**asdict(wan_config(shapes)), mask_channels=masks)


class ScailTransformer(WanTransformer):
    """SCAIL and SCAIL-2. All further inputs may be missing.

    `reference_latent` [B, C, R, h, w] are reference images, the most important one last, `pose_latents`
    [B, C, F, h / 2, w / 2] poses. Of SCAIL-2 `ref_mask_latents` [B, 28, R + F, h, w] are the colours of the references
    and nothing, `sam_latents` [B, 28, F, h / 2, w / 2] those of the poses; with `ref_mask_flag` False the figures of a
    video are replaced.
    """

    def __init__(self, config: ScailConfig) -> None:
        super().__init__(config)
        width, patch = config.width, self.patch_size
        self.patch_embedding_pose = Float32Conv3d(config.in_channels, width, patch, stride=patch)
        if config.mask_channels:
            self.patch_embedding_mask = Float32Conv3d(config.mask_channels, width, patch, stride=patch)

    def tokens_of(self, x: torch.Tensor, timesteps: torch.Tensor, inputs: Inputs) -> VideoTokens:
        reference: torch.Tensor | None = inputs.get("reference_latent")
        before = 0 if reference is None else reference.shape[2]
        whole = x if reference is None else torch.cat([pad_to_patches(reference, PATCH), x], dim=2)
        cells = self._coloured(self.patch_embedding(whole), inputs.get("ref_mask_latents"))
        frames, rows, columns = cells.shape[2:]
        img, places = [tokens_of(cells)], self._places((frames, rows, columns), before, x.device, inputs)
        poses: torch.Tensor | None = inputs.get("pose_latents")
        if poses is not None:
            small = pad_to_patches(poses, PATCH)
            img.append(tokens_of(self._coloured(self.patch_embedding_pose(small), inputs.get("sam_latents"))))
            places.append(_pose_places(small, self._first(before, inputs), inputs))
        pe = rotations_at(torch.cat(places, dim=1))
        first = before * rows * columns
        grid = (frames - before, rows, columns)
        return VideoTokens(torch.cat(img, dim=1), timesteps.view(x.shape[0], -1), pe, grid, first=first, x=x)

    def _coloured(self, cells: torch.Tensor, colours: torch.Tensor | None) -> torch.Tensor:
        """Return patches [B, D, F, rows, columns] with the colours of figures added."""
        return cells if colours is None else cells + self.patch_embedding_mask(pad_to_patches(colours, PATCH))

    def _places(
        self, grid: tuple[int, int, int], before: int, device: torch.device, inputs: Inputs
    ) -> list[torch.Tensor]:
        """Return the places of reference images and video, [1, T, 3] each."""
        frames, rows, columns = grid
        if not _replaces(inputs):
            return [video_places(frames, rows, columns, device=device, options=inputs)]
        below = {ROPE_OPTIONS: {"shift_y": APART}}
        first = max(before - 1, 0)
        return [
            video_places(before, rows, columns, device=device, options=below),
            video_places(frames - before, rows, columns, device=device, first_frame=first, options=inputs),
        ]

    def _first(self, before: int, inputs: Inputs) -> int:
        """Return the place of the first frame of poses."""
        return max(before - 1, 0) if _replaces(inputs) else before


def _replaces(inputs: Inputs) -> bool:
    """Return True where the figures of a video are replaced by those of the references."""
    return inputs.get("ref_mask_flag") is False


def _pose_places(poses: torch.Tensor, first: int, inputs: Inputs) -> torch.Tensor:
    """Return the places [1, T, 3] of poses of whole patches: in the middle of those of the video's patches, aside."""
    height, width = poses.shape[-2:]
    down, across = inputs[CELLS][0] / height, inputs[CELLS][1] / width
    options: dict[str, Any] = {
        "scale_y": down, "shift_y": (down - 1) / 2, "scale_x": across, "shift_x": APART + (across - 1) / 2,
    }  # fmt: skip
    frames, rows, columns = poses.shape[2], height // 2, width // 2
    return video_places(frames, rows, columns, device=poses.device, first_frame=first, options={ROPE_OPTIONS: options})
