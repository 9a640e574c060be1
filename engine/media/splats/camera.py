"""Cameras of ComfyUI's 3D pages as splats are shown by them: in a world with y downwards and z forwards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from darkroom.engine.media.cameras import Lens, looking_at
from darkroom.engine.media.rotations import matrices_of, multiplied

DEFAULT_YAW, DEFAULT_PITCH, DEFAULT_FOV, FRAMED = 35.0, 30.0, 35.0, 0.9
WITHIN = 0.99  # share of Gaussians that the default view is framed on
MOST_VALUES = 1 << 24  # of which torch finds a quantile
LEAST = 1e-8
TO_SPLATS = torch.tensor([1.0, -1.0, -1.0])  # half a turn about x, which is its own inverse


@dataclass(frozen=True, slots=True)
class Camera:
    """A position and a target [3], unit directions right, down and forwards [3, 3], and pixels at distance 1."""

    eye: torch.Tensor
    target: torch.Tensor
    axes: torch.Tensor
    focal_px: float
    is_orthographic: bool


def camera_of(info: Mapping[str, Any], width: int, height: int) -> Camera:
    """Return the camera of an image of width x height pixels. The field of view is that of the shorter side."""
    eye, target = (_vector(info.get(name) or {}) * TO_SPLATS for name in ("position", "target"))
    fov, zoom = float(info.get("fov") or 0) or DEFAULT_FOV, float(info.get("zoom") or 0) or 1.0
    focal_px = min(width, height) / 2 / math.tan(math.radians(fov) / 2) * zoom
    rotation = info.get("quaternion")
    axes = _upright(eye, target) if not rotation else _turned(rotation)
    kind = str(info.get("cameraType", "")).lower()
    return Camera(eye, target, axes, focal_px, kind.startswith("ortho"))


def framed(positions: torch.Tensor) -> dict[str, Any]:
    """Return a camera that looks at Gaussians [N, 3] from above and aside, far enough away for nearly all."""
    center, extent = torch.zeros(3), 1.0
    if len(positions):
        center = positions.mean(0)
        extent = max(float(quantile((positions - center).norm(dim=1), WITHIN)), 1e-4)
    distance = extent / (math.tan(math.radians(DEFAULT_FOV) / 2) * FRAMED)
    yaw, pitch = math.radians(DEFAULT_YAW), math.radians(DEFAULT_PITCH)
    position = (center - distance * _rows(yaw, pitch)[2]) * TO_SPLATS
    return looking_at(position.tolist(), (center * TO_SPLATS).tolist(), Lens(DEFAULT_FOV))


def around(info: Mapping[str, Any], degrees: float) -> dict[str, Any]:
    """Return a camera turned about the vertical axis through its target."""
    half = math.radians(degrees) / 2
    turn = torch.tensor([math.cos(half), 0.0, math.sin(half), 0.0])
    position, target = _vector(info.get("position") or {}), _vector(info.get("target") or {})
    moved = target + matrices_of(turn) @ (position - target)
    quaternion = multiplied(turn, _quaternion(info.get("quaternion") or {}))
    return {
        **info,
        "position": dict(zip("xyz", moved.tolist(), strict=True)),
        "quaternion": dict(zip("wxyz", quaternion.tolist(), strict=True)),
    }


def quantile(values: torch.Tensor, share: float) -> torch.Tensor:
    """Return a quantile of values [N], of a part of them where there are many."""
    if len(values) > MOST_VALUES:
        values = values[:: len(values) // MOST_VALUES + 1]
    return values.quantile(share)


def _turned(rotation: Mapping[str, Any]) -> torch.Tensor:
    columns = matrices_of(_quaternion(rotation)) * TO_SPLATS[:, None]
    return torch.stack((columns[:, 0], -columns[:, 1], -columns[:, 2]))


def _upright(eye: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    forward = target - eye
    x, y, z = (forward / forward.norm().clamp(min=LEAST)).tolist()
    return _rows(math.atan2(-x, z), math.asin(max(-1.0, min(1.0, y))))


def _rows(yaw: float, pitch: float) -> torch.Tensor:
    """Return the directions right, down and forwards [3, 3] of a view without roll, by angles in radians."""
    across, ahead, rise, level = math.sin(yaw), math.cos(yaw), math.sin(pitch), math.cos(pitch)
    return torch.tensor(
        [
            [ahead, 0.0, across],
            [rise * across, level, -rise * ahead],
            [-level * across, rise, level * ahead],
        ]
    )


def _vector(values: Mapping[str, Any]) -> torch.Tensor:
    return torch.tensor([float(values.get(name, 0.0)) for name in "xyz"])


def _quaternion(values: Mapping[str, Any]) -> torch.Tensor:
    return torch.tensor([float(values.get(name, float(name == "w"))) for name in "wxyz"])
