"""Cameras of ComfyUI's 3D viewer: in a world with y upwards, looking along their own -z, turned by a quaternion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from darkroom.engine.media.rotations import matrices_of, multiplied, normalized, quaternions_of

UPRIGHT = 0.999  # cosine from which a view is taken for one straight up or down


@dataclass(frozen=True, slots=True)
class Lens:
    """Vertical field of view in degrees, enlargement, and `perspective` or `orthographic`."""

    fov: float
    zoom: float = 1.0
    kind: str = "perspective"


def looking_at(position: Sequence[float], target: Sequence[float], lens: Lens, roll: float = 0.0) -> dict[str, object]:
    """Return a camera that looks from a position to a target, turned about its view by `roll` degrees."""
    eye, aim = torch.tensor(position, dtype=torch.float32), torch.tensor(target, dtype=torch.float32)
    backwards = normalized(eye - aim)
    up = torch.tensor([0.0, 0.0, 1.0] if abs(float(backwards[1])) > UPRIGHT else [0.0, 1.0, 0.0])
    right = normalized(torch.linalg.cross(up, backwards))
    axes = torch.stack((right, torch.linalg.cross(backwards, right), backwards), dim=1)
    rotation = quaternions_of(axes)
    if roll:
        half = math.radians(roll) / 2
        rotation = multiplied(rotation, torch.tensor([math.cos(half), 0.0, 0.0, math.sin(half)]))
    return _described(eye, aim, rotation, lens)


def turned(position: Sequence[float], quaternion: Sequence[float], lens: Lens) -> dict[str, object]:
    """Return a camera at a position, turned by a quaternion, w first, of any length."""
    eye = torch.tensor(position, dtype=torch.float32)
    rotation = normalized(torch.tensor(quaternion, dtype=torch.float32))
    return _described(eye, eye - matrices_of(rotation)[:, 2], rotation, lens)


def orbiting(target: Sequence[float], yaw: float, pitch: float, distance: float) -> tuple[float, float, float]:
    """Return the position at a distance from a target, in the direction of yaw and pitch, in degrees."""
    y, p = math.radians(yaw), math.radians(pitch)
    offset = (math.cos(p) * math.sin(y), math.sin(p), math.cos(p) * math.cos(y))
    x, up, z = (start + distance * step for start, step in zip(target, offset, strict=True))
    return x, up, z


def _described(eye: torch.Tensor, aim: torch.Tensor, rotation: torch.Tensor, lens: Lens) -> dict[str, object]:
    w, x, y, z = rotation.tolist()
    return {
        "position": dict(zip("xyz", eye.tolist(), strict=True)),
        "target": dict(zip("xyz", aim.tolist(), strict=True)),
        "quaternion": {"x": x, "y": y, "z": z, "w": w},
        "fov": float(lens.fov),
        "cameraType": lens.kind,
        "zoom": float(lens.zoom),
    }
