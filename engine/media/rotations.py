"""Rotations as unit quaternions `[..., 4]`, w first, and as matrices `[..., 3, 3]` of column vectors."""

from __future__ import annotations

import math

import torch

LEAST = 1e-12


def matrices_of(quaternions: torch.Tensor) -> torch.Tensor:
    """Return the matrices of quaternions of any length."""
    w, x, y, z = normalized(quaternions).unbind(-1)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def quaternions_of(matrices: torch.Tensor) -> torch.Tensor:
    """Return the quaternions of rotations, from the largest of their four components (Shepperd 1978)."""
    xx, yy, zz = (matrices[..., axis, axis] for axis in range(3))
    squares = torch.stack((1 + xx + yy + zz, 1 + xx - yy - zz, 1 - xx + yy - zz, 1 - xx - yy + zz), dim=-1)  # of 2q
    x, y, z = (matrices[..., row, column] - matrices[..., column, row] for row, column in ((2, 1), (0, 2), (1, 0)))
    xy, xz, yz = (matrices[..., row, column] + matrices[..., column, row] for row, column in ((1, 0), (0, 2), (2, 1)))
    candidates = torch.stack(
        (
            torch.stack((squares[..., 0], x, y, z), dim=-1),
            torch.stack((x, squares[..., 1], xy, xz), dim=-1),
            torch.stack((y, xy, squares[..., 2], yz), dim=-1),
            torch.stack((z, xz, yz, squares[..., 3]), dim=-1),
        ),
        dim=-2,
    )
    largest = squares.argmax(dim=-1)[..., None, None].expand(*squares.shape[:-1], 1, 4)
    return normalized(candidates.gather(-2, largest).squeeze(-2))


def multiplied(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return Hamilton's product: the rotation that applies `second`, then `first`."""
    w, x, y, z = first.unbind(-1)
    v, a, b, c = second.unbind(-1)
    product = (
        w * v - x * a - y * b - z * c,
        w * a + x * v + y * c - z * b,
        w * b - x * c + y * v + z * a,
        w * c + x * b - y * a + z * v,
    )
    return torch.stack(product, dim=-1)


def euler_xyz(x_degrees: float, y_degrees: float, z_degrees: float) -> torch.Tensor:
    """Return the quaternion of rotations about the axes x, y and z of the world, in this order."""
    result = torch.tensor([1.0, 0.0, 0.0, 0.0])
    for axis, degrees in enumerate((x_degrees, y_degrees, z_degrees), start=1):
        half = math.radians(degrees) / 2
        turn = torch.zeros(4)
        turn[0], turn[axis] = math.cos(half), math.sin(half)
        result = multiplied(turn, result)
    return result


def normalized(vectors: torch.Tensor) -> torch.Tensor:
    """Return vectors of length 1."""
    unit: torch.Tensor = vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=LEAST)
    return unit
