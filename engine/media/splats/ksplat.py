"""SplatBuffers (`.ksplat`) of levels 0 (floats), 1 and 2 (halves, places in buckets). Harmonics are left out."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from darkroom.engine.media.splats.layouts import KSPLAT_HEADER_BYTES, KSPLAT_SECTION_BYTES
from darkroom.engine.media.splats.splat import harmonics_of

LEVELS = {0: ("<f4", "<f4", "<f4", 1), 1: ("<u2", "<f2", "<f2", 32767), 2: ("<u2", "<f2", "u1", 32767)}
"""Types of places, of scales and rotations, of harmonics, and the usual range of places, by level."""

HARMONICS = {0: 0, 1: 9, 2: 24, 3: 45}
SECTION = "<IIIIfHxxIIIIH"

Parts = tuple[NDArray[np.float32], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Header of a section."""

    count: int
    most: int
    bucket_size: int
    num_buckets: int
    block_size: float
    bucket_bytes: int
    scale_range: int
    storage_bytes: int
    num_full: int
    num_partial: int
    degree: int


def read_ksplat(data: bytes, max_bytes: int) -> Parts:
    """Return places, scales, rotations, opacities and colours. Raises ValueError for another kind of file."""
    if data[0] != 0:
        raise ValueError(f"model_3d: another version of .ksplat; got {data[0]}.{data[1]}, expected 0")
    (num_sections,) = struct.unpack_from("<I", data, 4)
    (level,) = struct.unpack_from("<H", data, 20)
    start = KSPLAT_HEADER_BYTES + num_sections * KSPLAT_SECTION_BYTES
    if level not in LEVELS or start > len(data):
        raise ValueError(f"model_3d: no .ksplat; got level {level} and {num_sections} sections in {len(data)} bytes")
    parts, num_read_bytes = [], 0
    for index in range(num_sections):
        section = Section(*struct.unpack_from(SECTION, data, KSPLAT_HEADER_BYTES + index * KSPLAT_SECTION_BYTES))
        record = _record(level, section)
        num_read_bytes += section.count * record.itemsize
        if num_read_bytes > len(data):
            raise ValueError(f"model_3d: a damaged .ksplat; its sections take more than {len(data)} bytes")
        bucket_bytes = section.bucket_bytes * section.num_buckets + section.num_partial * 4
        if section.count:
            records = np.frombuffer(data, record, count=section.count, offset=start + bucket_bytes)
            parts.append(_read(data, start, level, section, records))
        start += bucket_bytes + record.itemsize * section.most
    if not parts:
        raise ValueError("model_3d: an empty .ksplat; expected some Gaussians")
    return tuple(np.concatenate(values) for values in zip(*parts, strict=True))


def _record(level: int, section: Section) -> np.dtype[np.void]:
    place, number, harmonic, _ = LEVELS[level]
    fields: list[tuple[str, str, int]] = [("place", place, 3), ("scale", number, 3), ("rotation", number, 4)]
    fields += [("color", "u1", 4), ("harmonics", harmonic, HARMONICS.get(section.degree, 0))]
    return np.dtype(fields)


def _read(data: bytes, start: int, level: int, section: Section, records: NDArray[np.void]) -> Parts:
    rotations = records["rotation"].astype(np.float32)
    rotations /= np.linalg.norm(rotations, axis=1, keepdims=True).clip(1e-12)
    color = records["color"].astype(np.float32) / 255.0
    places = records["place"].astype(np.float32)
    if level:
        reach = section.scale_range or LEVELS[level][3]
        middles = _middles(data, start, section)
        places = (places - reach) * np.float32(section.block_size / 2.0 / reach) + middles
    harmonics = harmonics_of(torch.from_numpy(color[:, :3])).numpy()
    return places, records["scale"].astype(np.float32), rotations, color[:, 3:], harmonics


def _middles(data: bytes, start: int, section: Section) -> NDArray[np.float32]:
    """Return the middle of the bucket of each Gaussian: full ones first, then those with numbers of their own."""
    offset = start + section.num_partial * 4
    middles = np.frombuffer(data, "<f4", count=section.num_buckets * 3, offset=offset).reshape(-1, 3)
    num_full = min(section.num_full * section.bucket_size, section.count)
    buckets = np.arange(num_full) // max(section.bucket_size, 1)
    if section.count > num_full:
        sizes = np.frombuffer(data, "<u4", count=section.num_partial, offset=start).astype(np.int64)
        ends = sizes.cumsum()
        places = np.arange(section.count - num_full)
        buckets = np.concatenate((buckets, section.num_full + np.searchsorted(ends, places, side="right")))
    found: NDArray[np.float32] = middles[buckets]
    return found
