"""Files of splats: written, read again, and refused where they are damaged or would take too much memory."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
import torch

from darkroom.engine.media.rotations import matrices_of, normalized
from darkroom.engine.media.splats.layouts import KSPLAT_HEADER_BYTES, KSPLAT_SECTION_BYTES
from darkroom.engine.media.splats.read import read_splat
from darkroom.engine.media.splats.splat import Splat
from darkroom.engine.media.splats.write import WRITERS

ROOM = 1 << 20


def cloud(count: int = 40, num_harmonics: int = 4) -> Splat:
    generator = torch.Generator().manual_seed(3)
    return Splat(
        torch.rand(1, count, 3, generator=generator) * 4 - 2,
        torch.rand(1, count, 3, generator=generator) * 0.3 + 0.01,
        normalized(torch.randn(1, count, 4, generator=generator)),
        torch.rand(1, count, 1, generator=generator) * 0.9 + 0.05,
        torch.rand(1, count, num_harmonics, 3, generator=generator) - 0.5,
    )


@pytest.mark.parametrize(("kind", "tolerance"), [("ply", 1e-5), ("ksplat", 0.01), ("spz", 0.05)])
@pytest.mark.parametrize("named", [True, False])
def test_a_file_holds_what_was_written(kind: str, tolerance: float, named: bool) -> None:
    made = cloud()
    found = read_splat(WRITERS[kind](made.item(0)), kind if named else "", ROOM)
    assert (found.positions - made.positions).abs().max() < tolerance
    assert (found.scales / made.scales - 1).abs().max() < tolerance
    assert (matrices_of(found.rotations) - matrices_of(made.rotations)).abs().max() < tolerance * 4
    assert (found.opacities - made.opacities).abs().max() < tolerance
    assert (found.colors() - made.colors()).abs().max() < tolerance
    assert found.sh.shape[2] == (4 if kind == "ply" else 1)


def test_records_of_32_bytes_are_read() -> None:
    record = struct.pack("<6f4B4B", 1.0, 2.0, 3.0, 0.1, 0.2, 0.3, 255, 0, 128, 51, 255, 128, 128, 128)
    found = read_splat(record * 2, "splat", ROOM)
    assert found.positions[0, 1].tolist() == [1.0, 2.0, 3.0] and found.opacities[0, 0, 0] == pytest.approx(0.2)
    assert found.colors()[0, 0].tolist() == pytest.approx([1.0, 0.0, 128 / 255])
    assert found.rotations[0, 0].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_a_ply_of_coloured_points_is_read() -> None:
    header = "ply\nformat binary_little_endian 1.0\nelement vertex 1\n"
    header += "".join(f"property float {axis}\n" for axis in "xyz")
    header += "".join(f"property uchar {color}\n" for color in ("red", "green", "blue")) + "end_header\n"
    found = read_splat(header.encode() + struct.pack("<3f3B", 1, 2, 3, 255, 0, 51), "", ROOM)
    assert found.colors()[0, 0].tolist() == pytest.approx([1.0, 0.0, 0.2]) and found.opacities[0, 0, 0] == 1.0


def test_places_in_buckets_are_read() -> None:
    """Level 1: halves, places as 16 bits around the middle of a bucket of two."""
    header = struct.pack("<BBxxIIIIH", 0, 1, 1, 1, 3, 3, 1).ljust(KSPLAT_HEADER_BYTES, b"\0")
    section = struct.pack("<IIIIfHxxIIIIH", 3, 3, 2, 2, 5.0, 12, 32767, 0, 1, 1, 0).ljust(KSPLAT_SECTION_BYTES, b"\0")
    buckets = struct.pack("<I", 1) + struct.pack("<6f", 1, 1, 1, 9, 9, 9)
    record = struct.pack("<3H", 32767, 32767 * 2, 0) + np.array([1, 1, 1, 1, 0, 0, 0], "<f2").tobytes() + b"\xff" * 4
    found = read_splat(header + section + buckets + record * 3, "ksplat", ROOM)
    assert found.positions[0].tolist() == [[1.0, 3.5, -1.5], [1.0, 3.5, -1.5], [9.0, 11.5, 6.5]]


@pytest.mark.parametrize("kind", ["ply", "ksplat", "spz", "splat"])
def test_a_file_cut_anywhere_is_refused_with_a_reason(kind: str) -> None:
    whole = bytes(320) if kind == "splat" else WRITERS[kind](cloud(10).item(0))
    for length in range(0, len(whole) - 1, max(1, len(whole) // 60)):
        if kind == "splat" and length and length % 32 == 0:
            continue
        with pytest.raises(ValueError):  # noqa: PT011 - numpy's own for buffers that are too small
            read_splat(whole[:length], kind, ROOM)


def test_declared_numbers_take_no_memory() -> None:
    huge = WRITERS["ply"](cloud(2).item(0)).replace(b"vertex 2", b"vertex 99999999999")
    with pytest.raises(ValueError, match="model_3d: a damaged .ply; got .* expected .* of 99999999999 Gaussians"):
        read_splat(huge, "ply", ROOM)
    header = struct.pack("<BBxxIIIIH", 0, 1, 2**32 - 1, 1, 1, 1, 0).ljust(KSPLAT_HEADER_BYTES, b"\0")
    with pytest.raises(ValueError, match="no .ksplat; got level 0 and 4294967295 sections"):
        read_splat(header, "ksplat", ROOM)
    bomb = gzip.compress(struct.pack("<IIIBBBB", 0x5053474E, 2, 5, 0, 12, 0, 0) + bytes(ROOM * 4))
    with pytest.raises(ValueError, match="too large for the free memory"):
        read_splat(bomb, "spz", ROOM)


def test_bytes_that_are_too_many_as_floats_are_refused() -> None:
    """Three bytes of a Gaussian become 14 floats."""
    count = ROOM // 50
    header = f"ply\nformat binary_little_endian 1.0\nelement vertex {count}\n"
    header += "".join(f"property uchar {axis}\n" for axis in "xyz") + "end_header\n"
    with pytest.raises(ValueError, match="model_3d: too large for the free memory"):
        read_splat(header.encode() + bytes(count * 3), "ply", ROOM)


def test_sections_that_overlap_are_refused() -> None:
    whole = bytearray(WRITERS["ksplat"](cloud(100).item(0)))
    struct.pack_into("<I", whole, 4, 4)
    start = KSPLAT_HEADER_BYTES
    section = struct.pack("<II", 100, 0) + bytes(whole[start + 8 : start + KSPLAT_SECTION_BYTES])
    crafted = bytes(whole[:start]) + section * 4 + bytes(whole[start + KSPLAT_SECTION_BYTES :])
    with pytest.raises(ValueError, match="damaged .ksplat"):
        read_splat(crafted, "ksplat", ROOM)


@pytest.mark.parametrize("data", [b"", b"abc", b"\x01" * 33])
def test_another_kind_of_file_is_named(data: bytes) -> None:
    with pytest.raises(ValueError, match="model_3d: no file of splats"):
        read_splat(data, "", ROOM)
