"""MOGE_MODEL and MOGE_GEOMETRY: MoGe on images of any size. `B` images, `H W` pixels."""

from __future__ import annotations

from typing import NotRequired, TypedDict

import torch

from darkroom.engine.models.kinds.geometry.camera_decoder import intrinsics_of
from darkroom.engine.models.kinds.geometry.focal_shift import focal_and_shift
from darkroom.engine.models.kinds.geometry.moge import PATCH_PX, Geometry
from darkroom.engine.models.network_value import NetworkAsModel

LEAST_TOKENS, FINEST = 1200, 9  # patches at level 0, and the last level
VALID = 0.5  # of the mask
TOKEN_VALUES = 24  # in memory for each patch and channel of the encoder
FINEST_PX = 16  # a side of a patch in the finest level of the heads
PIXEL_VALUES = 40  # in memory for each pixel of an image
VALUE_BYTES = 4


class MogeGeometry(TypedDict):
    """Geometry of images, on the CPU: float32, right, down and ahead; of panoramas the world's, with up as third."""

    image: torch.Tensor  # [B, H, W, 3]
    points: torch.Tensor  # [B, H, W, 3], inf where they are not valid
    depth: torch.Tensor  # [B, H, W], likewise; of panoramas the distance
    mask: torch.Tensor  # [B, H, W], bool: True where points are valid
    intrinsics: NotRequired[torch.Tensor]  # [B, 3, 3], for an image of sides 1; not of panoramas
    normal: NotRequired[torch.Tensor]  # [B, H, W, 3], 0 where points are not valid; of version 2


class GeometryEstimator(NetworkAsModel):
    """MoGe, `MogeV1` or `MogeV2`."""

    @torch.no_grad()
    def estimate(
        self,
        images: torch.Tensor,
        level: int,
        fov_degrees: float | None,
        *,
        is_projected: bool = True,
        is_masked: bool = True,
        in_metres: bool = True,
    ) -> MogeGeometry:
        """Estimate images [B, H, W, 3] together, at a level of detail of 0 to 9.

        `fov_degrees` is the angle of their width, None where it is to be estimated. Points lie on the rays of a pinhole
        camera where `is_projected`; those that are not valid are infinite where `is_masked`; version 2 gives metres
        where `in_metres`. Raises ValueError for images too narrow to be seen.
        """
        height, width = images.shape[1:3]
        num_tokens = self.num_tokens_at(level)
        self._check_sides(height, width, num_tokens)
        with self.patcher.in_use(working_bytes=self._working_bytes(images.shape, num_tokens)) as network:
            pixels = images.movedim(-1, 1).to(self.load_device, torch.float32)
            made: Geometry = network(pixels, num_tokens)
        points, mask = made.points.float().cpu(), made.mask.cpu() > VALID
        focal, shift = focal_and_shift(points, mask, fov_degrees)
        diagonal = (1 + (width / height) ** 2) ** 0.5
        across = torch.stack((focal * diagonal / 2 * height / width, focal * diagonal / 2), dim=-1)
        intrinsics = intrinsics_of(across, torch.full_like(across, 0.5))
        depth = points[..., 2] + shift[:, None, None]
        mask = mask & (depth > 0) if network.has_scale else mask
        points = _on_rays(depth, intrinsics) if is_projected else torch.cat((points[..., :2], depth[..., None]), dim=-1)
        if in_metres and made.scale is not None:
            scale = made.scale.float().cpu()[:, None, None]
            points, depth = points * scale[..., None], depth * scale
        normal = None if made.normal is None else made.normal.float().cpu()
        if is_masked:
            points, depth = torch.where(mask[..., None], points, torch.inf), torch.where(mask, depth, torch.inf)
            normal = None if normal is None else torch.where(mask[..., None], normal, 0.0)
        geometry: MogeGeometry = {
            "image": images.cpu(), "points": points, "depth": depth, "mask": mask, "intrinsics": intrinsics
        }  # fmt: skip
        if normal is not None:
            geometry["normal"] = normal
        return geometry

    def num_tokens_at(self, level: int) -> int:
        """Return the number of patches, about, that images are seen in at a level of detail of 0 to 9."""
        most: int = self.model.most_tokens
        return int(LEAST_TOKENS + level / FINEST * (most - LEAST_TOKENS))

    def _check_sides(self, height: int, width: int, num_tokens: int) -> None:
        if min(self.model.cells(height, width, num_tokens)) < 1:
            raise ValueError(
                f"image: too narrow; got {width}x{height} px, whose short side has no patch of {PATCH_PX} px"
            )

    def _working_bytes(self, shape: torch.Size, num_tokens: int) -> int:
        config = self.model.config
        per_token: int = TOKEN_VALUES * config.image.width + FINEST_PX**2 * config.projected
        return shape[0] * (num_tokens * per_token + shape[1] * shape[2] * PIXEL_VALUES) * VALUE_BYTES


def _on_rays(depth: torch.Tensor, intrinsics: torch.Tensor) -> torch.Tensor:
    """Return the points [B, H, W, 3] at depth [B, H, W] on the rays of cameras [B, 3, 3] whose images have sides 1."""
    height, width = depth.shape[1:]
    columns, rows = ((torch.arange(size, dtype=torch.float32) + 0.5) / size for size in (width, height))
    places = torch.stack(
        (columns.expand(height, width), rows[:, None].expand(height, width), torch.ones(height, width)), dim=-1
    )
    rays: torch.Tensor = places.view(1, -1, 3) @ torch.linalg.inv(intrinsics).mT
    return rays.view(*depth.shape, 3) * depth[..., None]
