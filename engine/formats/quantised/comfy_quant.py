"""ComfyUI's later quantised files: each layer says its format, in a tensor `comfy_quant` or in the file's metadata.

The formats are those of `QUANT_ALGOS` in ComfyUI 0.30.0 (docs: QUANTIZATION.md there) and of comfy_kitchen: float8 with
one scale, MXFP8 and NVFP4 (OCP Microscaling Formats 1.0, NVIDIA's blocks of 16 with two scales), int8 with a scale for
all or for each row, and weights rotated by Hadamard matrices (ConvRot) in int8 or four bits. They are unpacked, not
multiplied as they are: `input_scale` has no use here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.quantised.packing import PackedTensor, Packing, row_parts
from darkroom.engine.formats.quantised.quantised_file import QuantisedFile
from darkroom.engine.formats.quantised.scaled_float8 import SCALE as NUMBER
from darkroom.engine.formats.quantised.scaled_float8 import ScaledFloat8Packing
from darkroom.engine.formats.weight_file import WeightFile

MARK = "comfy_quant"
METADATA = "_quantization_metadata"
SCALE, SECOND_SCALE, INPUT_SCALE, SMOOTHING = "weight_scale", "weight_scale_2", "input_scale", "pre_quant_scale"
PARTS = (MARK, SCALE, SECOND_SCALE, INPUT_SCALE, SMOOTHING)
DEFAULT_ROTATION = 256
STACKED = 3  # dimensions of a weight with a matrix for each of a layer's experts
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
CPU = torch.device("cpu")
TILE_ROWS, TILE_COLUMNS = 128, 4  # of block scales, which lie as matrix units of NVIDIA's take them
FLOAT32_FRACTION_BITS = 23
FLOAT4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # E2M1 without the sign, which is the highest of four bits


@dataclass(frozen=True)
class Float8Packing(ScaledFloat8Packing):
    """float8 numbers with one scale, whose patched values are not rounded again."""

    @property
    def can_pack(self) -> bool:
        return False


@dataclass(frozen=True)
class Mxfp8Packing(Packing):
    """float8 numbers in blocks of 32 columns, each with a power of two as its scale."""

    def unpack(self, codes: torch.Tensor, scales: Mapping[str, torch.Tensor], values: torch.Tensor) -> None:
        rows, columns = values.shape
        exponents = untiled(scales[SCALE].view(torch.uint8), len(codes), codes.shape[1] // 32).to(torch.int32)
        factors = (exponents << FLOAT32_FRACTION_BITS).view(torch.float32).unsqueeze(2)  # biased alike
        for part in row_parts(values):
            blocks = codes[part].float().view(-1, codes.shape[1] // 32, 32) * factors[part]
            values[part] = blocks.flatten(1)[:, :columns]


@dataclass(frozen=True)
class Nvfp4Packing(Packing):
    """Numbers of four bits (E2M1), two in a byte with the first above, in blocks of 16 columns.

    A value is the number times the block's scale (float8) times the tensor's. `is_smoothed`: a factor for each column
    is for the layer's input, which is the same as for the weight's columns.
    """

    is_smoothed: bool = False

    def unpack(self, codes: torch.Tensor, scales: Mapping[str, torch.Tensor], values: torch.Tensor) -> None:
        rows, columns = values.shape
        numbers = _float4_numbers(values.dtype, codes.device)
        of_blocks = untiled(scales[SCALE].view(torch.float8_e4m3fn), len(codes), codes.shape[1] // 8)
        factors = (scales[SECOND_SCALE].to(values.dtype) * of_blocks.to(values.dtype)).unsqueeze(2)
        for part in row_parts(values):
            packed = codes[part]
            pairs = torch.stack([packed >> 4, packed & 15], dim=-1).flatten(1)
            blocks = numbers[pairs.int()].view(len(packed), -1, 16) * factors[part]
            values[part] = blocks.flatten(1)[:, :columns]
        if self.is_smoothed:
            values.mul_(scales[SMOOTHING].to(values.dtype).reshape(1, -1))


@dataclass(frozen=True, kw_only=True)
class StackedPacking(Packing):
    """A stack of matrices [E, rows, columns], one for each expert of a layer, which are packed alike (`each`)."""

    each: Packing

    @property
    def working_bytes(self) -> int:
        return self.each.working_bytes

    def unpack(self, codes: torch.Tensor, scales: Mapping[str, torch.Tensor], values: torch.Tensor) -> None:
        for index, matrix in enumerate(values):
            own = {
                name: scale[index] if scale.ndim and len(scale) == len(values) else scale
                for name, scale in scales.items()
            }
            self.each.unpack(codes[index], own, matrix)


@dataclass(frozen=True)
class IntegerPacking(Packing):
    """Integers of eight or four bits with one scale or one for each row, perhaps of a rotated weight.

    `rotation` is the size of the Hadamard matrix that groups of columns were multiplied with, 0 for none.
    """

    bits: int = 8
    rotation: int = 0

    def unpack(self, codes: torch.Tensor, scales: Mapping[str, torch.Tensor], values: torch.Tensor) -> None:
        scale = scales[SCALE].float().reshape(-1, 1)  # [1 or rows, 1]
        back = hadamard(self.rotation, codes.device).T if self.rotation else None
        for part in row_parts(values):
            numbers = codes[part].float() if self.bits == 8 else _signed_halves(codes[part]).float()
            rows = numbers * (scale if len(scale) == 1 else scale[part])
            if back is not None:
                rows = torch.matmul(rows.view(len(rows), -1, self.rotation), back).flatten(1)
            values[part] = rows


def _signed_halves(packed: torch.Tensor) -> torch.Tensor:
    """Return the integers from -8 to 7 in the halves of bytes [R, C], the lower first, as int8 [R, 2 C]."""
    halves = torch.stack([packed.view(torch.uint8) & 15, packed.view(torch.uint8) >> 4], dim=-1).flatten(1)
    return (halves ^ 8).to(torch.int8) - 8


# Tables are kept where they are read: a copy to the device in each call of a layer would wait for it, and what does so
# cannot be recorded as a CUDA graph.


@cache
def _float4_numbers(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the numbers that the sixteen codes of four bits stand for."""
    return torch.tensor([*FLOAT4, *(-number for number in FLOAT4)], dtype=dtype, device=device)


@cache
def hadamard(size: int, device: torch.device = CPU) -> torch.Tensor:
    """Return the orthogonal regular Hadamard matrix of a power of four, float32 (ConvRot)."""
    return _hadamard(size).to(device)


@cache
def _hadamard(size: int) -> torch.Tensor:
    of_four = torch.tensor([[1.0, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]])
    matrix: torch.Tensor = of_four
    while len(matrix) < size:
        matrix = torch.kron(matrix, of_four)
    scaled: torch.Tensor = matrix / math.sqrt(size)
    return scaled


def untiled(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return block scales [rows, columns] that are stored in tiles of 128 rows and 4 columns.

    In a tile four rows lie behind each other that are 32 apart.
    """
    down, across = -(-rows // TILE_ROWS), -(-columns // TILE_COLUMNS)
    tiles = scales.reshape(down, across, 32, 4, TILE_COLUMNS).transpose(2, 3)  # [down, across, 4, 32, columns]
    whole = tiles.reshape(down, across, TILE_ROWS, TILE_COLUMNS).transpose(1, 2).reshape(down * TILE_ROWS, -1)
    return whole[:rows, :columns]


def comfy_quant(file: WeightFile) -> QuantisedFile | None:
    """Return a file with the values of its quantised layers as tensors; None where no layer says its format.

    Raises `BadModelFile` for a format that is not known, or a layer without its scales.
    """
    formats = dict(_formats(file))
    if not formats:
        return None
    packed, hidden = {}, set()
    for layer, described in formats.items():
        hidden |= {f"{layer}.{part}" for part in PARTS} & file.tensors.keys()
        weight = f"{layer}.weight"
        if weight in file.tensors:
            packed[weight] = _packed(file, layer, described)
    return QuantisedFile(file, packed, hidden=frozenset(hidden))


def _formats(file: WeightFile) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the layers that say their format, and what they say."""
    try:
        if METADATA in file.metadata:
            yield from json.loads(file.metadata[METADATA])["layers"].items()
        for name in file.tensors:
            if name.endswith(f".{MARK}"):
                yield name.removesuffix(f".{MARK}"), json.loads(file.tensor(name).numpy().tobytes())
    except (ValueError, KeyError, AttributeError) as error:
        found = f"a description of its quantised layers that cannot be read ({error})"
        raise BadModelFile(file.path.name, found, "JSON with the format of each layer") from error


def _packed(file: WeightFile, layer: str, described: Mapping[str, object]) -> PackedTensor:
    kind = described.get("format")
    if kind not in MAKERS:
        found = f"the quantisation format {kind!r} of layer {layer!r}"
        raise BadModelFile(file.path.name, found, f"one of {', '.join(MAKERS)}")
    maker, needed = MAKERS[str(kind)]
    missing = [part for part in needed if f"{layer}.{part}" not in file.tensors]
    if missing:
        found = f"layer {layer!r} of the format {kind!r} without {missing[0]!r}"
        raise BadModelFile(file.path.name, found, f"{' and '.join(needed)} beside its weight")
    if len(file.tensors[f"{layer}.weight"].shape) == STACKED and str(kind) not in FLOAT8:
        return _stacked(file, layer, maker(file, layer, described))
    return maker(file, layer, described)


def _stacked(file: WeightFile, layer: str, matrix: PackedTensor) -> PackedTensor:
    """Return the packed stack of a layer's experts, of which one is packed as `matrix`."""
    if SMOOTHING in matrix.packing.scales:
        found = f"layer {layer!r} of experts with {SMOOTHING!r}"
        raise BadModelFile(file.path.name, found, "experts without factors of their input")
    num_experts = file.tensors[f"{layer}.weight"].shape[0]
    shape = torch.Size((num_experts, *matrix.packing.shape))
    return replace(matrix, packing=StackedPacking(shape, matrix.packing.scales, each=matrix.packing))


def _float8(dtype: torch.dtype) -> Callable[[WeightFile, str, Mapping[str, object]], PackedTensor]:
    def make(file: WeightFile, layer: str, described: Mapping[str, object]) -> PackedTensor:
        weight, scale = f"{layer}.weight", f"{layer}.{SCALE}"
        if scale in file.tensors and math.prod(file.tensors[scale].shape) != 1:
            found = f"layer {layer!r} of float8 with {math.prod(file.tensors[scale].shape)} scales"
            raise BadModelFile(file.path.name, found, "one scale for the whole weight")
        packing = Float8Packing(torch.Size(file.tensors[weight].shape))
        numbers = {NUMBER: scale} if scale in file.tensors else {}
        return PackedTensor(packing, weight, numbers=numbers, stored=dtype)

    return make


def _mxfp8(file: WeightFile, layer: str, described: Mapping[str, object]) -> PackedTensor:
    weight = f"{layer}.weight"
    packing = Mxfp8Packing(torch.Size(file.tensors[weight].shape[-2:]), (SCALE,))
    return PackedTensor(packing, weight, {SCALE: f"{layer}.{SCALE}"}, stored=torch.float8_e4m3fn)


def _nvfp4(file: WeightFile, layer: str, described: Mapping[str, object]) -> PackedTensor:
    weight = f"{layer}.weight"
    rows, num_bytes = file.tensors[weight].shape[-2:]
    smoothed = f"{layer}.{SMOOTHING}" in file.tensors
    parts = (SCALE, SECOND_SCALE, *((SMOOTHING,) if smoothed else ()))
    packing = Nvfp4Packing(torch.Size((rows, 2 * num_bytes)), parts, is_smoothed=smoothed)
    return PackedTensor(packing, weight, {part: f"{layer}.{part}" for part in parts})


def _integers(bits: int) -> Callable[[WeightFile, str, Mapping[str, object]], PackedTensor]:
    def make(file: WeightFile, layer: str, described: Mapping[str, object]) -> PackedTensor:
        weight = f"{layer}.weight"
        rows, columns = file.tensors[weight].shape[-2:]
        shape = torch.Size((rows, columns * 8 // bits))
        packing = IntegerPacking(shape, (SCALE,), bits, _rotation(file, layer, described, shape, bits))
        return PackedTensor(packing, weight, {SCALE: f"{layer}.{SCALE}"})

    return make


def _rotation(file: WeightFile, layer: str, described: Mapping[str, object], shape: torch.Size, bits: int) -> int:
    """Return the size of the rotation that a layer says it has, 0 for none. Raises `BadModelFile`."""
    more = described.get("params")
    told = {**(more if isinstance(more, dict) else {}), **described}
    if bits == 8 and not told.get("convrot"):
        return 0
    size = told.get("convrot_groupsize", DEFAULT_ROTATION)
    if not isinstance(size, int) or size < 4 or size.bit_count() != 1 or size.bit_length() % 2 == 0 or shape[1] % size:
        found = f"layer {layer!r} of {shape[1]} columns, rotated in groups of {size!r}"
        raise BadModelFile(file.path.name, found, "groups of a power of four that fit the columns")
    return size


MAKERS: Mapping[str, tuple[Callable[[WeightFile, str, Mapping[str, object]], PackedTensor], tuple[str, ...]]] = {
    "float8_e4m3fn": (_float8(torch.float8_e4m3fn), ()),
    "float8_e5m2": (_float8(torch.float8_e5m2), ()),
    "mxfp8": (_mxfp8, (SCALE,)),
    "nvfp4": (_nvfp4, (SCALE, SECOND_SCALE)),
    "int8_tensorwise": (_integers(8), (SCALE,)),
    "convrot_w4a4": (_integers(4), (SCALE,)),
}
