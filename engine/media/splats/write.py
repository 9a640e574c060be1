"""Files of splats: `.ply` with all harmonics, `.ksplat` and `.spz` with the base colour alone.

Each function takes an item without a batch: `N` Gaussians.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from darkroom.engine.media.splats.layouts import (
    KSPLAT_HEADER_BYTES,
    KSPLAT_RECORD_BYTES,
    KSPLAT_SECTION_BYTES,
    KSPLAT_VERSION,
    PLY_END,
    SPZ_COLOR_SCALE,
    SPZ_FRACTION_BITS,
    SPZ_HEADER,
    SPZ_LEAST_LOG_SCALE,
    SPZ_MAGIC,
    SPZ_SCALE_STEPS,
    SPZ_VERSION,
)
from darkroom.engine.media.splats.splat import BASE_COLOR, Splat

Floats = NDArray[np.float32]
OPACITY_MARGIN, LEAST_SCALE, LEAST_SPZ_SCALE = 1e-6, 1e-8, 1e-9


def write_ply(item: Splat) -> bytes:
    """Return a file of 3D Gaussian splatting."""
    positions, harmonics = _floats(item.positions), _floats(item.sh)
    opacity = _floats(item.opacities).reshape(-1, 1).clip(OPACITY_MARGIN, 1 - OPACITY_MARGIN)
    rest = harmonics[:, 1:].transpose(0, 2, 1).reshape(len(positions), -1)  # by channel
    columns = {
        **dict.fromkeys(("x", "y", "z", "nx", "ny", "nz")),
        **{f"f_dc_{index}": None for index in range(3)},
        **{f"f_rest_{index}": None for index in range(rest.shape[1])},
        "opacity": None,
        **{f"scale_{index}": None for index in range(3)},
        **{f"rot_{index}": None for index in range(4)},
    }
    scales = np.log(_floats(item.scales).clip(min=LEAST_SCALE))
    values = (positions, np.zeros_like(positions), harmonics[:, 0], rest, np.log(opacity / (1 - opacity)), scales)
    records = np.concatenate((*values, _floats(item.rotations)), axis=1).astype("<f4")
    header = ["ply", "format binary_little_endian 1.0", f"element vertex {len(positions)}"]
    header += [f"property float {name}" for name in columns]
    return "\n".join(header).encode() + b"\n" + PLY_END + b"\n" + records.tobytes()


def write_ksplat(item: Splat) -> bytes:
    """Return a SplatBuffer of level 0, one section, without harmonics."""
    positions = _floats(item.positions)
    count = len(positions)
    colors = np.concatenate((_colors(item).clip(0, 1), _floats(item.opacities).reshape(-1, 1).clip(0, 1)), axis=1)
    records = np.empty(count, dtype=[("numbers", "<f4", 10), ("color", "u1", 4)])
    records["numbers"] = np.concatenate((positions, _floats(item.scales), _unit(item.rotations)), axis=1)
    records["color"] = np.round(colors * 255.0)
    header = struct.pack("<BBxxIIII", *KSPLAT_VERSION, 1, 1, count, count).ljust(KSPLAT_HEADER_BYTES, b"\0")
    storage = struct.pack("<II20xI", count, count, count * KSPLAT_RECORD_BYTES)
    return header + storage.ljust(KSPLAT_SECTION_BYTES, b"\0") + records.tobytes()


def write_spz(item: Splat) -> bytes:
    """Return a compressed file of version 2, without harmonics."""
    positions = _floats(item.positions)
    fixed = np.round(positions * (1 << SPZ_FRACTION_BITS)).clip(-(1 << 23), (1 << 23) - 1).astype("<i4")
    places = fixed.view(np.uint8).reshape(len(positions), 3, 4)[..., :3]  # 24 bits
    logarithms = np.log(_floats(item.scales).clip(min=LEAST_SPZ_SCALE))
    rotations = _unit(item.rotations)
    rotations[rotations[:, 0] < 0] *= -1.0  # w is not stored
    header = struct.pack(SPZ_HEADER, SPZ_MAGIC, SPZ_VERSION, len(positions), 0, SPZ_FRACTION_BITS, 0, 0)
    parts = (
        places,
        _bytes(_floats(item.opacities).reshape(-1) * 255.0),
        _bytes(((_colors(item) - 0.5) / SPZ_COLOR_SCALE + 0.5) * 255.0),
        _bytes((logarithms - SPZ_LEAST_LOG_SCALE) * SPZ_SCALE_STEPS),
        _bytes((rotations[:, 1:] + 1.0) * 127.5),
    )
    return gzip.compress(header + b"".join(np.ascontiguousarray(part).tobytes() for part in parts), mtime=0)


WRITERS: Mapping[str, Callable[[Splat], bytes]] = {"ply": write_ply, "ksplat": write_ksplat, "spz": write_spz}


def _floats(values: torch.Tensor) -> Floats:
    array: Floats = values.detach().cpu().float().numpy()
    return array


def _colors(item: Splat) -> Floats:
    return _floats(item.sh)[:, 0] * np.float32(BASE_COLOR) + np.float32(0.5)


def _unit(rotations: torch.Tensor) -> Floats:
    values = _floats(rotations)
    unit: Floats = values / np.linalg.norm(values, axis=1, keepdims=True).clip(1e-12)
    return unit


def _bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    return np.round(values).clip(0, 255).astype(np.uint8)
