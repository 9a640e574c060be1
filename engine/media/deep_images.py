"""Encoding of images with more than 8 bits a channel: PNG of 16 bits, OpenEXR of 32-bit floats. By PyAV."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

PNG_FORMATS = {1: ("gray16le", "gray16be"), 3: ("rgb48le", "rgb48be"), 4: ("rgba64le", "rgba64be")}
EXR_FORMATS = {1: "grayf32le", 3: "gbrpf32le", 4: "gbrapf32le"}
PNG_HEADER_END = 33  # the signature and the IHDR chunk

# CIE 1931 xy of red, green, blue and white: ITU-R BT.709 and BT.2020.
REC_709 = (0.64, 0.33, 0.30, 0.60, 0.15, 0.06, 0.3127, 0.3290)
REC_2020 = (0.708, 0.292, 0.170, 0.797, 0.131, 0.046, 0.3127, 0.3290)
# Constants of the hybrid log-gamma curve, ITU-R BT.2100 table 5.
HLG_A, HLG_B, HLG_C = 0.17883277, 0.28466892, 0.55991072928
# Rows of pixels in a chunk, by the number of the compression (OpenEXR file layout).
EXR_ROWS = {0: 1, 1: 1, 2: 1, 3: 16, 4: 32, 5: 16, 6: 32, 7: 32, 8: 256, 9: 256}


def write_png16(path: Path, image: torch.Tensor, texts: Mapping[str, str]) -> None:
    """Write `image` [H, W, C] of 0..1 with 16 bits a channel, with each of `texts` as a text chunk.

    Raises ValueError for a number of channels other than 1, 3 and 4.
    """
    given, stored = PNG_FORMATS[_channels(image, PNG_FORMATS)]
    steps = (image * 65535).clamp(0, 65535).to(torch.int32).numpy().astype(np.uint16)
    encoded = _encode("png", steps, given, stored)
    path.write_bytes(encoded[:PNG_HEADER_END] + _png_texts(texts) + encoded[PNG_HEADER_END:])


def write_exr(path: Path, image: torch.Tensor, texts: Mapping[str, str], color_space: str) -> None:
    """Write `image` [H, W, C] as scene-linear 32-bit floats, with each of `texts` as an attribute of the header.

    `color_space` is that of the values given: sRGB (BT.709), HDR (hybrid log-gamma, BT.2020), linear (BT.709). Raises
    ValueError for a number of channels other than 1, 3 and 4.
    """
    form = EXR_FORMATS[_channels(image, EXR_FORMATS)]
    colors, alpha = (image[..., :3], image[..., 3:]) if image.shape[-1] == 4 else (image, image[..., :0])
    linear = {"sRGB": srgb_to_linear, "HDR": hlg_to_linear}.get(color_space, torch.Tensor.clone)(colors)
    values = torch.cat((linear, alpha), -1).to(torch.float32).numpy()
    encoded = _encode("exr", values, form, form)
    primaries = struct.pack("<8f", *(REC_2020 if color_space == "HDR" else REC_709))
    attributes = [_exr_attribute(name, "string", text.encode()) for name, text in texts.items()]
    attributes.append(_exr_attribute("chromaticities", "chromaticities", primaries))
    path.write_bytes(_with_exr_attributes(encoded, b"".join(attributes)))


def srgb_to_linear(colors: torch.Tensor) -> torch.Tensor:
    """Undo the transfer curve of sRGB (IEC 61966-2-1)."""
    curved = ((colors.clamp(min=0.0) + 0.055) / 1.055) ** 2.4
    return torch.where(colors <= 0.04045, colors / 12.92, curved)


def hlg_to_linear(colors: torch.Tensor) -> torch.Tensor:
    """Undo the transfer curve of hybrid log-gamma (ITU-R BT.2100), to scene light."""
    curved = (torch.exp((colors.clamp(min=0.5) - HLG_C) / HLG_A) + HLG_B) / 12.0
    return torch.where(colors <= 0.5, colors**2 / 3.0, curved)


def _channels(image: torch.Tensor, known: Mapping[int, object]) -> int:
    channels = image.shape[-1]
    if channels not in known:
        raise ValueError(f"images: {channels} channels; expected {', '.join(map(str, known))}")
    return int(channels)


def _encode(codec: str, values: NDArray[np.generic], given: str, stored: str) -> bytes:
    import av  # only here: a third of a second

    context = av.CodecContext.create(codec, "w")
    assert isinstance(context, av.VideoCodecContext)
    context.height, context.width = values.shape[:2]
    context.pix_fmt, context.time_base = stored, Fraction(1)
    values = values[..., 0] if values.shape[-1] == 1 else values
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(values), format=given)
    frame = frame if given == stored else frame.reformat(format=stored)
    frame.pts, frame.time_base = 0, context.time_base
    return b"".join(bytes(packet) for packet in [*context.encode(frame), *context.encode(None)])


def _png_texts(texts: Mapping[str, str]) -> bytes:
    """Return text chunks: tEXt, or iTXt where Latin-1 does not hold the text."""
    from PIL.PngImagePlugin import PngInfo, putchunk

    chunks = PngInfo()
    for key, text in texts.items():
        chunks.add_text(key, text)
    written = io.BytesIO()
    for kind, data, *_ in chunks.chunks:
        putchunk(written, kind, data)
    return written.getvalue()


def _exr_attribute(name: str, kind: str, value: bytes) -> bytes:
    return name.encode() + b"\0" + kind.encode() + b"\0" + struct.pack("<i", len(value)) + value


def _with_exr_attributes(content: bytes, added: bytes) -> bytes:
    """Return an OpenEXR file with further attributes at the end of its header.

    The header is a list of attributes up to a zero byte; the places of the chunks, from the start of the file, follow
    it and move by what is added.
    """
    place, rows, num_rows = 8, 1, 0
    while content[place]:
        name_end = content.index(b"\0", place)
        kind_end = content.index(b"\0", name_end + 1)
        (size,) = struct.unpack_from("<i", content, kind_end + 1)
        start = kind_end + 5
        name = content[place:name_end]
        if name == b"dataWindow":
            _, first, _, last = struct.unpack_from("<4i", content, start)
            num_rows = last - first + 1
        elif name == b"compression":
            rows = EXR_ROWS[content[start]]
        place = start + size
    count = -(-num_rows // rows)
    offsets = struct.unpack_from(f"<{count}Q", content, place + 1)
    table = struct.pack(f"<{count}Q", *(offset + len(added) for offset in offsets))
    return content[:place] + added + b"\0" + table + content[place + 1 + len(table) :]
