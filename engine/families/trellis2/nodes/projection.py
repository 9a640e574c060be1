"""Features of an image at cells of a grid in front of its camera, as Pixal3D's networks read them.

The camera looks along the depth axis at a cube, whose side just fills the field of view at the cube's middle. `B`
images, `N` cells, `C` channels of the encoder, `h w` patches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from darkroom.engine.families.trellis2.cells import CellLists
from darkroom.engine.families.trellis2.transformer import GRID_SIDE, grid_cells
from darkroom.engine.images.pixels import resize
from darkroom.engine.models.kinds.clip_vision_value import ClipVision

EPSILON = 1e-8
BYTES_PER_PIXEL = 4 * 6 * 256  # of working memory of the upsampler: six copies of its channels
SMALL_PX, LARGE_PX = 512, 1024  # sides at which images are encoded


@dataclass(frozen=True, slots=True)
class Reading:
    """Features that a stage reads: those of the image at `image_px` pixels a side, and upsampled ones.

    `upsampled_px` is the side of the latter's grid, None for a stage without them.
    """

    image_px: int
    upsampled_px: int | None


STRUCTURE, SHAPE_512 = Reading(SMALL_PX, None), Reading(SMALL_PX, 512)
SHAPE, TEXTURE = Reading(LARGE_PX, 512), Reading(LARGE_PX, 1024)


@dataclass(frozen=True, slots=True)
class ImageFeatures:
    """Features of images and what is needed to sample them at cells.

    `images` [B, 3, H, W] are in 0..1, `small` and `large` [B, C, h, w] features of their patches at 512 and 1024
    pixels, `fov` is the camera's field of view in radians. `encoder` has the network that upsamples features, if any.
    """

    encoder: ClipVision
    images: torch.Tensor
    small: torch.Tensor
    large: torch.Tensor
    fov: float

    @property
    def is_upsampled(self) -> bool:
        """True where the encoder's file has a network that upsamples features."""
        return self.encoder.patcher.model.naf is not None

    def of_structure(self) -> torch.Tensor:
        """Return the features [B, N, C] of the cells of a structure's grid."""
        points = projected(grid_cells(self.images.device)[0], GRID_SIDE, self.fov)
        return torch.stack([self._at(index, points, STRUCTURE) for index in range(len(self.images))])

    def of_cells(self, cells: CellLists, reading: Reading) -> torch.Tensor:
        """Return the features [M, C or 2 C] of all cells; zeros for items behind the last image, as in ComfyUI."""
        if cells.resolution is None:
            raise ValueError(
                "shape_latent: the resolution of its cells is unknown; expected the latent of a stage node"
            )
        parts = []
        for index, item in enumerate(cells.items()):
            points = projected(item.cpu(), cells.resolution, self.fov)
            parts.append(self._at(min(index, len(self.images) - 1), points, reading) * (index < len(self.images)))
        return torch.cat(parts)

    def _at(self, index: int, points: torch.Tensor, reading: Reading) -> torch.Tensor:
        """Return the features [N, C or 2 C] of an image at points [N, 2], shares of its sides."""
        points = points + 0.5 / reading.image_px  # to the middle of a pixel
        features = (self.small if reading.image_px == SMALL_PX else self.large)[index : index + 1]
        grid = (points * 2.0 - 1.0)[None, :, None]
        plain = functional.grid_sample(features, grid, padding_mode="border", align_corners=False)[0, :, :, 0].T
        if reading.upsampled_px is None or not self.is_upsampled:
            return plain
        return torch.cat([plain, self._upsampled(index, features, points, reading)], dim=-1)

    @torch.no_grad()
    def _upsampled(self, index: int, features: torch.Tensor, points: torch.Tensor, reading: Reading) -> torch.Tensor:
        side = reading.upsampled_px or reading.image_px
        image = resize(self.images[index : index + 1], reading.image_px, reading.image_px, "lanczos")
        patcher = self.encoder.patcher
        working_bytes = max(reading.image_px, side) ** 2 * BYTES_PER_PIXEL
        with patcher.in_use(working_bytes=working_bytes) as network:
            device = patcher.load_device
            found: torch.Tensor = network.naf(
                image.to(device), features.to(device), side, (points * side - 0.5).to(device)
            )
            return found.cpu()


def projected(cells: torch.Tensor, resolution: int, fov: float) -> torch.Tensor:
    """Return the positions [N, 2] in an image of cells [N, 3] of a grid: shares of its sides from left and top."""
    x, y, z = (cells.float() / max(resolution - 1, 1) * 2.0 - 1.0).unbind(1)
    if resolution == 1:  # its one cell lies in the middle
        x, y, z = x * 0.0, y * 0.0, z * 0.0
    focal = 0.5 / math.tan(fov / 2)  # in sides of the image; also the distance of the camera in sides of the cube
    depth = focal - z / 2 + EPSILON
    return torch.stack([focal * x / 2 / depth + 0.5, 0.5 - focal * y / 2 / depth], dim=-1)
