"""Cameras of views, as Depth Anything 3 decodes them from the views' first tokens.

`B` scenes, `S` views. Poses are from the world to the camera, [B, S, 3, 4]; intrinsics [B, S, 3, 3] are in pixels.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Linear

LEAST_TANGENT = 1e-6


class CameraDecoder(nn.Module):
    """Position, rotation as a quaternion (x, y, z, w), and the angles of height and width, of tokens [B, S, D]."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            Linear(hidden_size, hidden_size), nn.ReLU(), Linear(hidden_size, hidden_size), nn.ReLU()
        )
        self.fc_t, self.fc_qvec = Linear(hidden_size, 3), Linear(hidden_size, 4)
        self.fc_fov = nn.Sequential(Linear(hidden_size, 2), nn.ReLU())

    def forward(self, tokens: torch.Tensor, sides: torch.Size) -> tuple[torch.Tensor, torch.Tensor]:
        """Return pose and intrinsics of views with these sides in pixels."""
        hidden = self.backbone(tokens)
        rotations = rotation_of(functional.normalize(self.fc_qvec(hidden), dim=-1, eps=1e-6))
        pose = inverted(rotations, self.fc_t(hidden))
        halves = torch.tensor(tuple(sides), device=tokens.device, dtype=tokens.dtype) / 2
        focal = halves / torch.tan(self.fc_fov(hidden) / 2).clamp(min=LEAST_TANGENT)
        return pose, intrinsics_of(focal.flip(-1), halves.flip(-1).expand_as(focal))


def rotation_of(quaternion: torch.Tensor) -> torch.Tensor:
    """Return the matrices [..., 3, 3] of unit quaternions [..., 4] (x, y, z, w)."""
    x, y, z, w = quaternion.unbind(-1)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)),
        (2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)),
        (2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)),
    )
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def inverted(rotation: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Return the pose [..., 3, 4] that undoes a rotation [..., 3, 3] followed by a move [..., 3]."""
    return torch.cat((rotation.mT, -rotation.mT @ position[..., None]), dim=-1)


def intrinsics_of(focal: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
    """Return matrices [..., 3, 3] of focal lengths and centres [..., 2] (right, down)."""
    made = torch.diag_embed(functional.pad(focal, (0, 1), value=1.0))
    made[..., :2, 2] = centre
    return made
