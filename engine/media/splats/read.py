"""Files of splats to Gaussians: `.ply` with all harmonics, `.splat`, `.ksplat` and `.spz` with the base colour alone.

Files come from strangers: what they declare is compared with their size before anything is made of it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from darkroom.engine.media.splats.ksplat import read_ksplat
from darkroom.engine.media.splats.layouts import (
    PLY_END,
    SPZ_COLOR_SCALE,
    SPZ_HEADER,
    SPZ_LEAST_LOG_SCALE,
    SPZ_MAGIC,
    SPZ_SCALE_STEPS,
)
from darkroom.engine.media.splats.splat import Splat, harmonics_of

PLY_TYPES = {
    "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4", "float": "f4",
    "double": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4",
    "float32": "f4", "float64": "f8",
}  # fmt: skip
LONGEST_HEADER_BYTES, MAX_PROPERTIES = 1 << 20, 1024
LEAST_FLOATS = 14  # of a Gaussian with the base colour alone
DEFAULT_SCALE = 0.01
SPLAT_RECORD = np.dtype([("place", "<f4", 3), ("scale", "<f4", 3), ("color", "u1", 4), ("rotation", "u1", 4)])
EXPECTED = "a .ply, .splat, .ksplat or .spz of Gaussians"


def read_splat(data: bytes, kind: str, max_bytes: int) -> Splat:
    """Read a file of that ending, or of the format that its first bytes show, as a batch of one.

    Raises ValueError for one that is damaged or of another kind, and for one that is unpacked to more than `max_bytes`.
    """
    reader = READERS.get(kind) or READERS[_detected(data)]
    try:
        found = reader(data, max_bytes)
    except (struct.error, KeyError, IndexError, TypeError, UnicodeDecodeError, OverflowError, zlib.error) as error:
        raise ValueError(f"model_3d: a damaged file of splats ({error}); expected {EXPECTED}") from None
    return Splat(*(torch.from_numpy(np.ascontiguousarray(values)).float()[None] for values in found))


def _detected(data: bytes) -> str:
    if data[:3] == b"ply":
        return "ply"
    if data[:2] == b"\x1f\x8b":
        return "spz"
    if len(data) >= 2 and data[0] == 0 and data[1] >= 1:
        return "ksplat"
    if data and len(data) % SPLAT_RECORD.itemsize == 0:
        return "splat"
    raise ValueError(f"model_3d: no file of splats; got {len(data)} bytes of another kind, expected {EXPECTED}")


def _read_ply(data: bytes, max_bytes: int) -> tuple[NDArray[np.float32], ...]:
    end = data.find(PLY_END, 0, LONGEST_HEADER_BYTES)
    if end < 0:
        raise ValueError("model_3d: no .ply; got a file without the end of a header")
    start = end + len(PLY_END) + (2 if data[end + len(PLY_END) :][:2] == b"\r\n" else 1)
    count, columns = _ply_columns(data[:end].decode("ascii").splitlines())
    _check_ply(count, columns, len(data) - start, max_bytes)
    records = np.frombuffer(data, np.dtype(columns), count=count, offset=start)
    names = records.dtype.names or ()

    def of(*wanted: str) -> NDArray[np.float32]:
        return np.stack([records[name].astype(np.float32) for name in wanted], axis=1)

    scales = np.full((count, 3), DEFAULT_SCALE, np.float32)
    if "scale_0" in names:
        scales = np.exp(of("scale_0", "scale_1", "scale_2"))
    rotations = np.tile(np.array([1, 0, 0, 0], np.float32), (count, 1))
    if "rot_0" in names:
        rotations = _unit(of("rot_0", "rot_1", "rot_2", "rot_3"))
    opacity: NDArray[np.float32] = np.ones((count, 1), np.float32)
    if "opacity" in names:
        opacity = (1.0 / (1.0 + np.exp(-of("opacity")))).astype(np.float32)
    return of("x", "y", "z"), scales, rotations, opacity, _ply_harmonics(names, of, count)


def _ply_columns(header: Sequence[str]) -> tuple[int, list[tuple[str, str]]]:
    """Return the number of Gaussians and the columns of each, by name with its type."""
    count, columns, is_vertex = 0, [], False
    for words in (line.split() for line in header):
        if words[:1] == ["format"] and words[1:2] != ["binary_little_endian"]:
            raise ValueError(f"model_3d: another kind of .ply; got {words[1:2]}, expected binary_little_endian")
        if words[:1] == ["element"]:
            is_vertex = words[1] == "vertex"
            count = int(words[2]) if is_vertex else count
        elif words[:1] == ["property"] and is_vertex:
            columns.append((words[2], "<" + PLY_TYPES[words[1]]))
    if not 0 < len(columns) <= MAX_PROPERTIES or count < 1:
        raise ValueError(f"model_3d: an empty .ply; got {count} Gaussians of {len(columns)} properties")
    return count, columns


def _check_ply(count: int, columns: Sequence[tuple[str, str]], num_bytes: int, max_bytes: int) -> None:
    """Raise ValueError for a file that is cut, and for columns of bytes that are too many as floats."""
    needed_bytes = count * np.dtype(list(columns)).itemsize
    if needed_bytes > num_bytes:
        raise ValueError(
            f"model_3d: a damaged .ply; got {num_bytes} bytes, expected {needed_bytes} of {count} Gaussians"
        )
    as_floats = count * max(len(columns), LEAST_FLOATS) * 4
    if as_floats > max_bytes:
        raise ValueError(
            f"model_3d: too large for the free memory; got {as_floats} bytes, expected at most {max_bytes}"
        )


def _ply_harmonics(names: Sequence[str], of: Callable[..., NDArray[np.float32]], count: int) -> NDArray[np.float32]:
    """Return the coefficients [N, K, 3]; of plain colours where there are no others."""
    if "f_dc_0" not in names:
        colors = of("red", "green", "blue") / 255.0 if "red" in names else np.full((count, 3), 0.5, np.float32)
        return harmonics_of(torch.from_numpy(colors)).numpy()
    base = of("f_dc_0", "f_dc_1", "f_dc_2")[:, None, :]
    num_rest = sum(name.startswith("f_rest_") for name in names)
    if not num_rest:
        return base
    rest = of(*(f"f_rest_{index}" for index in range(num_rest))).reshape(count, 3, num_rest // 3)  # by channel
    return np.concatenate((base, rest.transpose(0, 2, 1)), axis=1)


def _read_records(data: bytes, max_bytes: int) -> tuple[NDArray[np.float32], ...]:
    if not data or len(data) % SPLAT_RECORD.itemsize:
        raise ValueError(f"model_3d: no .splat; got {len(data)} bytes, expected a multiple of {SPLAT_RECORD.itemsize}")
    records = np.frombuffer(data, SPLAT_RECORD)
    color = records["color"].astype(np.float32) / 255.0
    rotations = _unit((records["rotation"].astype(np.float32) - 128.0) / 128.0)
    harmonics = harmonics_of(torch.from_numpy(color[:, :3])).numpy()
    return records["place"], records["scale"], rotations, color[:, 3:], harmonics


def _read_spz(data: bytes, max_bytes: int) -> tuple[NDArray[np.float32], ...]:
    unpacker = zlib.decompressobj(wbits=31)  # gzip
    raw = unpacker.decompress(data, max_bytes)
    if unpacker.unconsumed_tail:
        raise ValueError(f"model_3d: too large for the free memory; got more than {max_bytes} bytes when unpacked")
    if not unpacker.eof:
        raise ValueError("model_3d: a damaged .spz; its end is missing")
    magic, version, count, _, fraction_bits, _, _ = struct.unpack_from(SPZ_HEADER, raw)
    if magic != SPZ_MAGIC or version not in (1, 2, 3) or not count:
        raise ValueError(f"model_3d: no .spz of version 1, 2 or 3; got version {version} of {count} Gaussians")
    offset = struct.calcsize(SPZ_HEADER)

    def take(kind: str, width: int) -> NDArray[np.generic]:
        nonlocal offset
        found = np.frombuffer(raw, kind, count=count * width, offset=offset).reshape(count, width)
        offset += found.nbytes
        return found

    if version == 1:
        places = take("<f2", 3).astype(np.float32)
    else:
        parts = take("u1", 9).reshape(count, 3, 3).astype(np.int32)
        fixed = parts[..., 0] << 8 | parts[..., 1] << 16 | parts[..., 2] << 24
        places = ((fixed >> 8) / (1 << fraction_bits)).astype(np.float32)  # with their signs
    opacity = take("u1", 1).astype(np.float32) / 255.0
    colors = (take("u1", 3).astype(np.float32) / 255.0 - 0.5) * np.float32(SPZ_COLOR_SCALE) + 0.5
    scales = np.exp(take("u1", 3).astype(np.float32) / SPZ_SCALE_STEPS + SPZ_LEAST_LOG_SCALE)
    rotations = _smallest_three(take("<u4", 1)[:, 0]) if version == 3 else _without_w(take("u1", 3))
    harmonics = harmonics_of(torch.from_numpy(colors.astype(np.float32))).numpy()
    return places, scales, rotations, opacity, harmonics


def _without_w(stored: NDArray[np.generic]) -> NDArray[np.float32]:
    """Return quaternions of x, y and z in bytes."""
    axes = stored.astype(np.float32) / 127.5 - 1.0
    w = np.sqrt(np.clip(1.0 - (axes**2).sum(axis=1, keepdims=True), 0, None))
    return _unit(np.concatenate((w, axes), axis=1))


def _smallest_three(stored: NDArray[np.generic]) -> NDArray[np.float32]:
    """Return quaternions of their three smallest components, 10 bits each, and the number of the largest."""
    rest = stored.astype(np.int64)
    largest = rest >> 30
    values = np.zeros((len(rest), 4))  # x, y, z, w
    for component in (3, 2, 1, 0):
        is_stored = component != largest
        size = (rest & 0x1FF) / 0x1FF / np.sqrt(2.0)
        values[:, component] = np.where(is_stored, np.where(rest >> 9 & 1, -size, size), 0.0)
        rest = np.where(is_stored, rest >> 10, rest)
    values[np.arange(len(rest)), largest] = np.sqrt(np.clip(1.0 - (values**2).sum(axis=1), 0, None))
    return _unit(values[:, [3, 0, 1, 2]].astype(np.float32))


def _unit(values: NDArray[np.float32]) -> NDArray[np.float32]:
    unit: NDArray[np.float32] = values / np.linalg.norm(values, axis=1, keepdims=True).clip(1e-12)
    return unit


READERS: Mapping[str, Callable[[bytes, int], tuple[NDArray[np.float32], ...]]] = {
    "ply": _read_ply, "splat": _read_records, "ksplat": read_ksplat, "spz": _read_spz,
}  # fmt: skip
