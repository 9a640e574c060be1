"""DA3_MODEL and DA3_GEOMETRY: Depth Anything 3 on images of any size.

`B` images or views, `H W` pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NotRequired, TypedDict

import torch
from torch.nn import functional

from darkroom.engine.images.pixels import colours_of, resize
from darkroom.engine.models.kinds.geometry.dense_head import Dense
from darkroom.engine.models.kinds.geometry.depth_anything_3 import PATCH_PX
from darkroom.engine.models.network_value import NetworkAsModel

MAX_CELLS = 2 * (2520 // PATCH_PX) ** 2
"""Patches of one image at most: twice those of the largest square that the node's resolution allows."""

MAX_SHARED_CELLS = 1 << 17
"""Patches at most of all views that are seen together, since attention among them grows with their square."""

CELL_VALUES = 60  # in memory for each patch and channel of the encoder: its feed-forward layers, and the head
VALUE_BYTES = 4


class DepthGeometry(TypedDict):
    """Geometry of images, float32 on the CPU."""

    depth: torch.Tensor  # [B, H, W], as the network gives it; of Metric models in metres
    image: torch.Tensor  # [B, H, W, 3]
    mode: str  # "mono" or "multiview"
    sky: NotRequired[torch.Tensor]  # [B, H, W]: 1 where the sky is
    confidence: NotRequired[torch.Tensor]  # [B, H, W], at least 1
    extrinsics: NotRequired[torch.Tensor]  # [1, B, 3, 4], from the world to the camera
    intrinsics: NotRequired[torch.Tensor]  # [1, B, 3, 3], in pixels of what the network saw


class DepthEstimator(NetworkAsModel):
    """Depth Anything 3."""

    @torch.no_grad()
    def mono(
        self,
        images: torch.Tensor,
        resolution: int,
        method: str,
        on_image: Callable[[int], None] = lambda done: None,
    ) -> DepthGeometry:
        """Estimate each of the images [B, H, W, 3] alone. Raises ValueError for sides that do not fit the network."""
        sides = seen_sides(images.shape[1], images.shape[2], resolution, method)
        found: list[Dense] = []
        with self.patcher.in_use(working_bytes=self._working_bytes(1, sides)) as network:
            for index in range(len(images)):
                dense, _ = network(self._views(images[index : index + 1], sides))
                found.append(_resized(dense, images.shape[1:3]))
                on_image(index + 1)
        depth = torch.cat([dense.depth for dense in found])
        confidence, sky = (_joined([getattr(dense, name) for dense in found]) for name in ("confidence", "sky"))
        return _geometry(images, "mono", Dense(depth, confidence, sky))

    @torch.no_grad()
    def multi_view(
        self, images: torch.Tensor, resolution: int, method: str, strategy: str, pose_method: str
    ) -> DepthGeometry:
        """Estimate images [B, H, W, 3] as views of one scene, and where their cameras were.

        Raises ValueError for networks that see images alone, and for more or larger views than fit.
        """
        self._check_pose_method(pose_method)
        sides = seen_sides(images.shape[1], images.shape[2], resolution, method)
        cells = len(images) * (sides[0] // PATCH_PX) * (sides[1] // PATCH_PX)
        if cells > MAX_SHARED_CELLS:
            raise ValueError(
                f"image, resolution: too many views for one scene; got {len(images)} views of {sides[1]}x{sides[0]} px,"
                f" {cells} patches, expected at most {MAX_SHARED_CELLS}"
            )
        with self.patcher.in_use(working_bytes=self._working_bytes(len(images), sides)) as network:
            views = self._views(images, sides)
            if pose_method == "ray_pose":
                dense, cameras = network.with_ray_cameras(views, strategy)
            else:
                dense, cameras = network(views, strategy)
        geometry = _geometry(images, "multiview", _resized(dense, images.shape[1:3]))
        if cameras is None:  # of one view
            geometry["extrinsics"], geometry["intrinsics"] = (
                torch.eye(size).repeat(1, len(images), 1, 1) for size in (4, 3)
            )
        else:
            geometry["extrinsics"], geometry["intrinsics"] = cameras.poses.cpu(), cameras.intrinsics.cpu()
        return geometry

    def _check_pose_method(self, pose_method: str) -> None:
        config = self.model.config
        has_decoder, has_rays = config.camera_size is not None, config.head.is_dual
        if not has_decoder and not has_rays:
            raise ValueError("mode: got multiview, which the loaded model does not have; expected mono")
        if not (has_rays if pose_method == "ray_pose" else has_decoder):
            other = "cam_dec" if pose_method == "ray_pose" else "ray_pose"
            raise ValueError(f"pose_method: got {pose_method}, which the loaded model does not have; expected {other}")

    def _views(self, images: torch.Tensor, sides: tuple[int, int]) -> torch.Tensor:
        """Return images [B, H, W, 3] as the network sees them, [1, B, 3, *sides], on its device."""
        pixels = colours_of(images, "image").movedim(-1, 1).float()
        if tuple(pixels.shape[2:]) != sides:
            pixels = resize(pixels, sides[1], sides[0], "lanczos")
        encoder = self.model.config.encoder.image
        mean, deviation = (torch.tensor(values).view(-1, 1, 1) for values in (encoder.mean, encoder.deviation))
        return ((pixels.clamp(0, 1) - mean) / deviation)[None].to(self.load_device)

    def _working_bytes(self, num_views: int, sides: tuple[int, int]) -> int:
        config = self.model.config
        cells = num_views * (sides[0] // PATCH_PX) * (sides[1] // PATCH_PX)
        per_cell: int = CELL_VALUES * config.encoder.image.width + PATCH_PX**2 * config.head.channels
        return cells * per_cell * VALUE_BYTES


def seen_sides(height: int, width: int, resolution: int, method: str) -> tuple[int, int]:
    """Return height and width that the network sees, multiples of 14: the longer (or shorter) one is `resolution`.

    Raises ValueError where a side would have no patch, or both too many.
    """
    scale = resolution / (max if method == "upper_bound_resize" else min)(height, width)
    sides = (_rounded(round(height * scale)), _rounded(round(width * scale)))
    cells = (sides[0] // PATCH_PX) * (sides[1] // PATCH_PX)
    if not 0 < cells <= MAX_CELLS:
        raise ValueError(
            f"image, resolution, resize_method: got {sides[1]}x{sides[0]} px of images of {width}x{height} px, {cells} "
            f"patches of {PATCH_PX} px; expected 1 to {MAX_CELLS}"
        )
    return sides


def _rounded(side: int) -> int:
    """Return the nearest multiple of 14, of two the larger."""
    return (side + PATCH_PX // 2) // PATCH_PX * PATCH_PX


def _resized(dense: Dense, sides: torch.Size) -> Dense:
    """Return the values of pixels at these sides, on the CPU, without rays."""

    def each(values: torch.Tensor | None) -> torch.Tensor | None:
        if values is None:
            return None
        return functional.interpolate(values[:, None].float(), size=tuple(sides), mode="bilinear")[:, 0].cpu()

    depth = each(dense.depth)
    assert depth is not None
    return Dense(depth, each(dense.confidence), each(dense.sky))


def _joined(values: list[torch.Tensor | None]) -> torch.Tensor | None:
    found = [value for value in values if value is not None]
    return torch.cat(found) if found else None


def _geometry(images: torch.Tensor, mode: str, dense: Dense) -> DepthGeometry:
    geometry: DepthGeometry = {"depth": dense.depth, "image": images[..., :3].cpu(), "mode": mode}
    if dense.sky is not None:
        geometry["sky"] = dense.sky
    if dense.confidence is not None:
        geometry["confidence"] = dense.confidence
    return geometry
