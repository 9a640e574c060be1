"""Four-bit weights of the bitsandbytes library (NF4: Dettmers et al. 2023, arXiv 2305.14314; FP4).

Beside a layer's `weight` (two codes in a byte, the first above) the file has `weight.quant_map`, the 16 numbers that
codes stand for, `weight.absmax`, the largest magnitude of each block, and `weight.quant_state.bitsandbytes__nf4`, JSON
with the shape. Magnitudes may be quantised themselves: codes of eight bits in `absmax`, their numbers in
`weight.nested_quant_map`, the largest of each block in `weight.nested_absmax`, and an offset in the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.quantised.packing import VALUES_AT_ONCE, PackedTensor, Packing
from darkroom.engine.formats.quantised.quantised_file import QuantisedFile
from darkroom.engine.formats.weight_file import WeightFile

STATE = ".quant_state.bitsandbytes__"
KINDS = ("nf4", "fp4")
NUMBERS, LARGEST = "quant_map", "absmax"
NESTED_NUMBERS, NESTED_LARGEST = "nested_quant_map", "nested_absmax"
TYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
}  # fmt: skip


@dataclass(frozen=True)
class FourBitPacking(Packing):
    """Codes of four bits, in blocks of `block` values in the order of memory.

    `dtype` is the type of the weight before it was quantised, to which values are rounded, as the library does.
    Magnitudes that are quantised themselves lie in blocks of `nested_block`, 0 for those that are not.
    """

    block: int = 64
    dtype: torch.dtype = torch.float16
    nested_block: int = 0
    nested_offset: float = 0.0

    def unpack(self, codes: torch.Tensor, scales: Mapping[str, torch.Tensor], values: torch.Tensor) -> None:
        numbers, largest = scales[f"weight_{NUMBERS}"].float(), self._largest(scales)
        flat = codes.view(torch.uint8).reshape(-1)
        out = torch.empty(values.shape, dtype=values.dtype, device=values.device).view(-1)
        step = VALUES_AT_ONCE // self.block * self.block
        for start in range(0, out.numel(), step):
            part = flat[start // 2 : (start + step) // 2]
            found = numbers[torch.stack([part >> 4, part & 15], dim=-1).view(-1).int()]
            blocks = largest[start // self.block : (start + step) // self.block]
            factors = blocks.repeat_interleave(self.block)[: len(found)]
            out[start : start + step] = (found * factors).to(self.dtype)[: out.numel() - start]
        values.copy_(out.view(values.shape))

    def _largest(self, scales: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the largest magnitude of each block, float32."""
        stored = scales[f"weight_{LARGEST}"]
        if not self.nested_block:
            return stored.float()
        numbers = scales[f"weight_{NESTED_NUMBERS}"].float()[stored.int()]
        factors = scales[f"weight_{NESTED_LARGEST}"].float().repeat_interleave(self.nested_block)[: len(numbers)]
        return numbers * factors + self.nested_offset


def bitsandbytes(file: WeightFile) -> QuantisedFile | None:
    """Return a file with the values of its four-bit weights as tensors; None without such weights.

    Raises `BadModelFile` for a kind that is not known, and a weight without its parts.
    """
    states = [name for name in file.tensors if STATE in name]
    if not states:
        return None
    packed, hidden = {}, set(states)
    for name in states:
        weight, _, kind = name.partition(STATE)
        if kind not in KINDS:
            raise BadModelFile(file.path.name, f"{weight!r} of the bitsandbytes type {kind!r}", " or ".join(KINDS))
        packed[weight] = _packed(file, weight, name)
        hidden |= {part for part in file.tensors if part.startswith(f"{weight}.")}
    return QuantisedFile(file, packed, hidden=frozenset(hidden))


def _packed(file: WeightFile, weight: str, state_name: str) -> PackedTensor:
    try:
        state = json.loads(file.tensor(state_name).numpy().tobytes())
        shape, dtype = torch.Size(state["shape"]), TYPES[state["dtype"]]
        block, offset = int(state["blocksize"]), float(state.get("nested_offset", 0.0))
        nested_block = int(state.get("nested_blocksize", 0))
    except (ValueError, KeyError, TypeError) as error:
        found = f"a state of {weight!r} that cannot be read ({error})"
        raise BadModelFile(file.path.name, found, "JSON with shape, dtype and blocksize") from error
    parts = (NUMBERS, LARGEST, *((NESTED_NUMBERS, NESTED_LARGEST) if nested_block else ()))
    missing = [part for part in ("", *parts) if f"{weight}.{part}".rstrip(".") not in file.tensors]
    if missing:
        raise BadModelFile(file.path.name, f"{weight!r} without {missing[0]!r}", f"codes and {', '.join(parts)}")
    num_blocks = -(-shape.numel() // max(1, block))
    place, largest = file.tensors[weight], file.tensors[f"{weight}.{LARGEST}"]
    if block < 2 or place.num_bytes != -(-shape.numel() // 2) or largest.shape != (num_blocks,):
        found = f"{weight!r} of shape {list(shape)} in {place.num_bytes} bytes and {list(largest.shape)} blocks"
        raise BadModelFile(file.path.name, found, f"half as many bytes, and blocks of {block}")
    scales = {f"weight_{part}": f"{weight}.{part}" for part in parts}
    packing = FourBitPacking(shape, tuple(scales), block, dtype, nested_block, offset)
    return PackedTensor(packing, weight, scales)
