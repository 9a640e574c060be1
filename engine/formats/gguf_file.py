"""Reader of GGUF (`.gguf`), the container of quantised weights of the ggml project: metadata, then mapped tensors.

The format is public (github.com/ggml-org/ggml, docs/gguf.md). Numbers are little-endian. Quantised tensors are given as
they are stored, uint8 `[rows, bytes of a row]`; `blocks` has their kind and the shape of their values.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.mapped_file import MappedFile, TensorPlace
from darkroom.engine.formats.overlaps import check_overlaps
from darkroom.engine.formats.refusals import find_shape_problem, refusing

EXPECTED = "a complete .gguf file"
MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 8
MAX_TEXT_BYTES = 64 << 20
MAX_ARRAY_LENGTH = 1 << 24
MAX_METADATA_BYTES = 512 << 20  # the numbers of an array take eight times their bytes
SHAPE_PREFIX = "comfy.gguf.orig_shape."  # the shape of a tensor that was reshaped to be quantised

# Types of numbers in the metadata, by the format's numbers. 8 is a text, 9 an array.
NUMBERS: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
TEXT, ARRAY = 8, 9

# Types of tensors, by the format's numbers, that torch has itself.
PLAIN_TYPES: Mapping[int, torch.dtype] = {
    0: torch.float32, 1: torch.float16, 24: torch.int8, 25: torch.int16, 26: torch.int32, 27: torch.int64,
    28: torch.float64, 30: torch.bfloat16,
}  # fmt: skip
# Types in blocks: name, values and bytes of a block.
BLOCK_TYPES: Mapping[int, tuple[str, int, int]] = {
    2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 20: ("IQ4_NL", 32, 18), 23: ("IQ4_XS", 256, 136),
}  # fmt: skip
# Types that the format has and that cannot be unpacked here.
OTHER_TYPES: Mapping[int, str] = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip
KNOWN = ", ".join([*(str(dtype).removeprefix("torch.") for dtype in PLAIN_TYPES.values()),
                   *(name for name, _, _ in BLOCK_TYPES.values())])  # fmt: skip

Value = int | float | bool | str | list["Value"]


@dataclass(frozen=True, slots=True)
class BlockedTensor:
    """A quantised tensor: the name of its type, and the shape of its values."""

    kind: str
    shape: tuple[int, ...]


class GgufFile(MappedFile):
    """An open file. `fields` is its metadata, `architecture` the kind of model it says it holds (None: it does not).

    Raises `BadModelFile` for a file that is not whole and well-formed, and for a type of tensor that is not known.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise BadModelFile(path.name, "a file that does not start with GGUF", EXPECTED)
            super().__init__(path, file, EXPECTED)
        self.metadata = {}
        self.tensors = {}
        self.blocks: dict[str, BlockedTensor] = {}
        with refusing(path.name, EXPECTED):
            try:
                self._parse()
            except struct.error as error:
                raise BadModelFile(path.name, f"a damaged or cut-off header ({error})", EXPECTED) from error
        check_overlaps(path.name, self.tensors)

    @property
    def architecture(self) -> str | None:
        found = self.fields.get("general.architecture")
        return found if isinstance(found, str) else None

    def renamed(self, names: Mapping[str, str]) -> Self:
        other = super().renamed(names)
        other.blocks = {names[name]: item for name, item in self.blocks.items() if name in names}
        return other

    def _parse(self) -> None:
        header = _Header(self.mapping, len(MAGIC), self.path.name)
        version = header.number("I")
        if version not in VERSIONS:
            raise BadModelFile(self.path.name, f"GGUF of version {version}", f"version {VERSIONS[0]} or {VERSIONS[1]}")
        num_tensors, num_fields = header.count(), header.count()
        self.fields: dict[str, Value] = {}
        for _ in range(num_fields):
            key = header.text()
            self.fields[key] = header.value()
        entries = [header.tensor() for _ in range(num_tensors)]
        alignment = self.fields.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 8 or alignment % 8:
            raise BadModelFile(self.path.name, f"an alignment of {alignment!r}", "a multiple of 8 bytes")
        start = -(-header.position // alignment) * alignment
        for name, shape, kind, offset in entries:
            if name in self.tensors:
                raise BadModelFile(self.path.name, f"two tensors of the name {name[:200]!r}", EXPECTED)
            self._add(name, shape, kind, start + offset)

    def _add(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> None:
        stored = self.fields.get(SHAPE_PREFIX + name)
        values: tuple[Any, ...] = tuple(stored) if isinstance(stored, list) else shape
        for sizes in (shape, values):
            if problem := find_shape_problem(sizes):
                raise BadModelFile(self.path.name, f"tensor {name[:200]!r} with {problem}", EXPECTED)
        if math.prod(values) != math.prod(shape):
            found = f"tensor {name!r} of shape {list(shape)}, which is said to have been {list(values)}"
            raise BadModelFile(self.path.name, found, "as many values in both")
        if kind in PLAIN_TYPES:
            dtype = PLAIN_TYPES[kind]
            place = TensorPlace(dtype, values, start, math.prod(values) * dtype.itemsize)
        else:
            block_values, block_bytes = self._block(name, kind)
            row = shape[-1] if shape else 1
            if row % block_values:
                found = f"tensor {name!r} with rows of {row} values"
                raise BadModelFile(self.path.name, found, f"a multiple of {block_values}")
            packed = (math.prod(shape[:-1]), row // block_values * block_bytes)
            place = TensorPlace(torch.uint8, packed, start, math.prod(packed))
            self.blocks[name] = BlockedTensor(BLOCK_TYPES[kind][0], values)
        if place.start + place.num_bytes > len(self.mapping):
            found = f"a file cut off at {len(self.mapping):,} bytes, within tensor {name!r}"
            raise BadModelFile(self.path.name, found, EXPECTED)
        self.tensors[name] = place

    def _block(self, name: str, kind: int) -> tuple[int, int]:
        """Return the values and bytes of a block. Raises `BadModelFile` for a type that is not known."""
        if kind not in BLOCK_TYPES:
            label = OTHER_TYPES.get(kind, f"number {kind}")
            raise BadModelFile(self.path.name, f"tensor {name!r} of the quantisation type {label}", f"one of {KNOWN}")
        _, block_values, block_bytes = BLOCK_TYPES[kind]
        return block_values, block_bytes


class _Header:
    """Reader of the numbers and texts of a header, one after the other."""

    def __init__(self, content: object, position: int, file_name: str) -> None:
        self._content = memoryview(content)  # type: ignore[arg-type]
        self.position = position
        self._file_name = file_name

    def number(self, form: str) -> int:
        found: int = struct.unpack_from("<" + form, self._content, self.position)[0]
        self.position += struct.calcsize("<" + form)
        return found

    def count(self) -> int:
        """Return a number of things, each of which takes a byte at least. Raises `BadModelFile`."""
        found = self.number("Q")
        if found > len(self._content) - self.position:
            raise BadModelFile(self._file_name, f"a header that counts {found:,} things", EXPECTED)
        return found

    def text(self) -> str:
        length = self.count()
        if length > MAX_TEXT_BYTES:
            raise BadModelFile(self._file_name, f"a text of {length:,} bytes", f"at most {MAX_TEXT_BYTES:,}")
        found = bytes(self._content[self.position : self.position + length]).decode("utf-8", errors="replace")
        self.position += length
        return found

    def value(self) -> Value:
        if self.position > MAX_METADATA_BYTES:
            raise BadModelFile(self._file_name, f"metadata of more than {MAX_METADATA_BYTES:,} bytes", EXPECTED)
        return self._of_type(self.number("I"))

    def _of_type(self, kind: int) -> Value:
        if kind == TEXT:
            return self.text()
        if kind in NUMBERS:
            return self.number(NUMBERS[kind])
        if kind != ARRAY:
            raise BadModelFile(self._file_name, f"metadata of the unknown type {kind}", EXPECTED)
        inner, length = self.number("I"), self.count()
        if length > MAX_ARRAY_LENGTH:
            raise BadModelFile(self._file_name, f"an array of {length:,} values", f"at most {MAX_ARRAY_LENGTH:,}")
        if inner in NUMBERS:
            form = f"<{length}{NUMBERS[inner]}"
            found = list(struct.unpack_from(form, self._content, self.position))
            self.position += struct.calcsize(form)
            return found
        if inner != TEXT:
            raise BadModelFile(self._file_name, f"metadata of arrays of type {inner}", EXPECTED)
        return [self.text() for _ in range(length)]

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Return name, shape (torch's order), type and offset of a tensor."""
        name, num_dimensions = self.text(), self.number("I")
        if num_dimensions > MAX_DIMENSIONS:
            raise BadModelFile(self._file_name, f"tensor {name!r} of {num_dimensions} dimensions", EXPECTED)
        shape = tuple(self.number("Q") for _ in range(num_dimensions))
        return name, shape[::-1], self.number("I"), self.number("Q")


def is_gguf(path: Path) -> bool:
    """Return True if the content starts as GGUF does, or the file's name ends so."""
    if path.suffix.lower() == ".gguf":
        return True
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
