"""Reader and writer of `.safetensors`: a header of names, types and offsets, then the tensors, mapped into memory.

The format is public (github.com/huggingface/safetensors). It is implemented here because every malformed file has to
raise a `BadModelFile` that describes the fault.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.arriving_file import ArrivingFile, open_arriving
from darkroom.engine.formats.mapped_file import MappedFile, TensorPlace
from darkroom.engine.formats.overlaps import check_gaps, check_overlaps
from darkroom.engine.formats.refusals import MAX_SHOWN_LENGTH, find_shape_problem, shown
from darkroom.engine.formats.safetensors_header import LENGTH_BYTES, MAX_HEADER_BYTES, SafetensorsHeader, read_header

EXPECTED = "a complete .safetensors file"

TYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip


class SafetensorsFile(MappedFile):
    """An open file, or one that is being downloaded, as soon as its header is there.

    Raises `BadModelFile` when the file is not whole and well-formed.
    """

    def __init__(self, path: Path) -> None:
        file, arriving = open_arriving(path)
        with file:
            size = os.fstat(file.fileno()).st_size
            if arriving is not None:
                _wait_for_header(arriving, file.fileno(), size)
            start = read_header(file)
            if len(start.prefix) < LENGTH_BYTES:
                raise BadModelFile(path.name, f"a file of {size} bytes", EXPECTED)
            content = None if (start.raw or b"").lstrip().startswith(b"{") else _content(start.prefix)
            if content is not None or start.raw is None:
                raise BadModelFile(path.name, content or f"a file that starts with {start.prefix!r}", EXPECTED)
            if len(start.raw) < start.num_bytes:
                raise BadModelFile(path.name, f"a file cut off within its header, at {size} bytes", EXPECTED)
            header = _parse_header(path.name, start)
            super().__init__(path, file, EXPECTED, arriving)
        self.metadata = _metadata(path.name, header.pop("__metadata__", None))
        data_start = start.num_bytes + LENGTH_BYTES
        self.tensors = {name: _place(path.name, name, entry, data_start) for name, entry in header.items()}
        check_overlaps(path.name, self.tensors)
        check_gaps(path.name, self.tensors, data_start)
        end = max((place.start + place.num_bytes for place in self.tensors.values()), default=0)
        if end > size:
            places = self.tensors.items()
            _, first = min((place.start, name) for name, place in places if place.start + place.num_bytes > size)
            found = f"a file cut off at {size:,} of {end:,} bytes, {first!r} is the first tensor that is not whole"
            raise BadModelFile(path.name, found, EXPECTED)


def write_safetensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write CPU tensors. The file appears under its name only when it is whole."""
    names = {dtype: name for name, dtype in TYPES.items()}
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name, tensor in tensors.items():
        offsets = [position, position + tensor.nbytes]
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        position += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    with unfinished.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            if tensor.numel():
                file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    unfinished.replace(path)


def _wait_for_header(arriving: ArrivingFile, file_number: int, size_bytes: int) -> None:
    """Wait until the header of a file that is being downloaded is there."""
    arriving.wait_for(0, min(LENGTH_BYTES, size_bytes))
    num_bytes = int.from_bytes(os.pread(file_number, LENGTH_BYTES, 0), "little")
    arriving.wait_for(0, min(LENGTH_BYTES + min(num_bytes, MAX_HEADER_BYTES), size_bytes))


def _content(first_bytes: bytes) -> str | None:
    """Return the other content type that the first bytes identify, or None."""
    if first_bytes.startswith(b"PK"):
        return "a zip archive (a .ckpt or .pt file by another name?)"
    if first_bytes.startswith(b"version "):
        return "a Git LFS pointer instead of the file it points to"
    if first_bytes.lstrip().startswith((b"<!", b"<h", b"{")):
        return "a web page or JSON text (a failed download?)"
    return None


def _parse_header(file_name: str, header: SafetensorsHeader) -> dict[str, Any]:
    try:
        return header.parsed()
    except (ValueError, RecursionError) as error:
        raise BadModelFile(file_name, f"a header that is not JSON ({shown(error)})", EXPECTED) from None


def _metadata(file_name: str, found: object) -> dict[str, str]:
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise BadModelFile(file_name, f"metadata that is no texts by name: {_start_of(found)}", EXPECTED)
    return found


def _place(file_name: str, name: str, entry: Any, data_start: int) -> TensorPlace:
    label = f"tensor {name[:MAX_SHOWN_LENGTH]!r}"
    try:
        dtype, shape, (start, end) = TYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        found = f"a malformed entry for {label}: {_start_of(entry)}"
        raise BadModelFile(file_name, found, EXPECTED) from error
    if problem := find_shape_problem(shape):
        raise BadModelFile(file_name, f"{label} with {problem}", EXPECTED)
    num_bytes = math.prod(shape) * dtype.itemsize
    if type(start) is not int or type(end) is not int or start < 0 or end - start != num_bytes:
        found = f"{label} of shape {list(shape)} from {_start_of(start)} to {_start_of(end)}"
        raise BadModelFile(file_name, found, f"{num_bytes} bytes")
    return TensorPlace(dtype, shape, data_start + start, num_bytes)


def _start_of(value: object) -> str:
    """Return the start of a value as it is written; a number may have thousands of digits, a list many numbers."""
    if isinstance(value, int) and value.bit_length() > MAX_SHOWN_LENGTH:
        return f"a number of {value.bit_length():,} bits"
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{name[:MAX_SHOWN_LENGTH]!r}: {_start_of(item)}" for name, item in list(value.items())[:4])
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_start_of, value[:4])) + (", …]" if len(value) > 4 else "]")
    return repr(value[:MAX_SHOWN_LENGTH] if isinstance(value, str) else value)
