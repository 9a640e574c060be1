"""Encodings of videos: container, codec, quality, bit depth and colours, as ComfyUI 0.33.0 offers them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

AUTO, MP4, MKV, WEBM = "auto", "mp4", "mkv", "webm"
H264, AV1 = "h264", "av1"
SRGB, HLG, PQ = "sRGB", "HDR", "HDR PQ"
FFMPEG_CONTAINERS = {MP4: "mp4", MKV: "matroska", WEBM: "webm"}
ENCODERS = {H264: "h264", AV1: "libsvtav1"}
COLOR_SPACES = (SRGB, HLG, PQ)
OPUS_RATE_HZ = 48_000  # of the audio in WebM

# Numbers of ITU-T H.273: primaries, transfer and matrix.
BT709, BT2020, BT2020_NCL, SRGB_TRANSFER, PQ_TRANSFER, HLG_TRANSFER = 1, 9, 9, 13, 16, 18
TRANSFERS = {SRGB: SRGB_TRANSFER, HLG: HLG_TRANSFER, PQ: PQ_TRANSFER}
NAMES_OF_TRANSFERS = {BT709: SRGB, SRGB_TRANSFER: SRGB, HLG_TRANSFER: HLG, PQ_TRANSFER: PQ}
LIMITED_RANGE = 1  # FFmpeg's number of levels 16 to 235


@dataclass(frozen=True, slots=True)
class VideoEncoding:
    """Encoding of a file. `crf` is the encoder's constant quality, lower is better; None is its default."""

    container: str = MP4
    codec: str = H264
    crf: float | None = None
    bit_depth: int = 8
    color_space: str = SRGB

    @property
    def pixel_format(self) -> str:
        return "yuv420p10le" if self.bit_depth >= 10 else "yuv420p"

    @property
    def is_hdr(self) -> bool:
        return self.color_space != SRGB

    def encoder_options(self) -> dict[str, str]:
        if self.crf is None:
            return {}
        if self.codec == AV1 and self.crf == 0:
            return {"svtav1-params": "lossless=1"}
        return {"crf": str(self.crf)}

    def color_properties(self) -> Mapping[str, int]:
        """Return the numbers that a stream and its frames carry, by PyAV's names."""
        return {
            "color_primaries": BT2020 if self.is_hdr else BT709,
            "color_trc": TRANSFERS[self.color_space],
            "colorspace": self.matrix,
            "color_range": LIMITED_RANGE,
        }

    @property
    def matrix(self) -> int:
        return BT2020_NCL if self.is_hdr else BT709


def encoding_of(
    container: str, codec: str, *, crf: float | None = None, bit_depth: int = 8, color_space: str | None = None
) -> VideoEncoding:
    """Return the encoding for a container and a codec, each by name or `auto`.

    MP4 and H.264 are the defaults, in WebM AV1; HDR has 10 bits. Raises ValueError for unknown names, and for WebM with
    another codec.
    """
    for name, value, allowed in (
        ("format", container, (AUTO, *FFMPEG_CONTAINERS)),
        ("codec", codec, (AUTO, *ENCODERS)),
        ("color_space", color_space or SRGB, COLOR_SPACES),
    ):
        if value not in allowed:
            raise ValueError(f"{name}: not supported; got {value}, expected one of {', '.join(allowed)}")
    container = MP4 if container == AUTO else container
    if codec == AUTO:
        codec = AV1 if container == WEBM else H264
    if container == WEBM and codec != AV1:
        raise ValueError(f"codec: WebM does not hold it; got {codec}, expected {AV1}")
    space = color_space or SRGB
    return VideoEncoding(container, codec, crf, bit_depth if space == SRGB else max(bit_depth, 10), space)


def color_space_of(stream: Any) -> str | None:
    """Return the name of a stream's colours by its transfer function, None for one without a known one."""
    return None if stream is None else NAMES_OF_TRANSFERS.get(int(stream.color_trc or 0))


def bit_depth_of(stream: Any) -> int:
    """Return the bits of a stream's channels, 8 where its format is not known."""
    components = () if stream is None or stream.format is None else stream.format.components
    return max((item.bits for item in components), default=8)
