"""Numbers of the file formats of splats, which readers and writers share.

- `.ply`: binary little-endian, as 3D Gaussian splatting stores it: logarithms of scales, logits of opacities.
- `.ksplat`: mkkellogg's SplatBuffer, version 0.1: a header, a header for each section, records.
- `.spz`: Niantic's, gzip around a header and an array for each attribute.
- `.splat`: antimatter15's records of 32 bytes.
"""

from __future__ import annotations

from darkroom.engine.media.splats.splat import BASE_COLOR

PLY_END = b"end_header"

KSPLAT_HEADER_BYTES, KSPLAT_SECTION_BYTES = 4096, 1024
KSPLAT_VERSION = (0, 1)
KSPLAT_RECORD_BYTES = 44  # of level 0 without harmonics

SPZ_MAGIC = 0x5053474E
SPZ_HEADER = "<IIIBBBB"  # magic, version, number, degree, bits behind the point, flags, reserved
SPZ_VERSION, SPZ_FRACTION_BITS = 2, 12
SPZ_COLOR_SCALE = BASE_COLOR / 0.15
SPZ_SCALE_STEPS, SPZ_LEAST_LOG_SCALE = 16.0, -10.0
