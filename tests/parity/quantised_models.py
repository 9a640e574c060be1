"""Quantised files of the parity models: the same weights as another layout's, in the forms that real files have.

Numbers of scaled forms are rounded from the weights. Blocks of GGUF are drawn at random, scaled to the weights' own
deviation: converters choose them better, which is no matter here.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from darkroom.engine.formats.gguf_file import BLOCK_TYPES
from darkroom.engine.formats.quantised.comfy_quant import FLOAT4, hadamard
from darkroom.engine.formats.quantised.gguf_blocks import UNPACK

Tensors = Mapping[str, torch.Tensor]
FLOAT8_MAX = 448.0
INT8_MAX, INT4_MAX = 127, 7
ROTATION = 64  # columns of a group that a Hadamard matrix rotates
KEPT = ("shared.weight", "relative_attention_bias.weight", "pos_embed", "_embed.weight", "embedding.weight")
"""Ends of the names of matrices that are no linear layer's."""


def is_linear(name: str, tensor: torch.Tensor) -> bool:
    return tensor.ndim == 2 and name.endswith(".weight") and not name.endswith(KEPT)


# --- scaled float8 -------------------------------------------------------------------------------------------------


def scaled_float8(tensors: Tensors, scopes: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Return tensors with the linear layers behind each of these prefixes as ComfyUI's scaled float8."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if not name.startswith(scopes) or not is_linear(name, tensor):
            found[name] = tensor
            continue
        scale = tensor.float().abs().max() / FLOAT8_MAX
        found[name] = (tensor.float() / scale).to(torch.float8_e4m3fn)
        found[name.removesuffix("weight") + "scale_weight"] = scale.reshape(1)
    return found | {f"{scope}scaled_fp8": torch.zeros(0, dtype=torch.float8_e4m3fn) for scope in scopes}


# --- ComfyUI's later formats ------------------------------------------------------------------------------------------


def comfy_quant(tensors: Tensors, kind: str, blocks: str = "blocks.") -> dict[str, torch.Tensor]:
    """Return tensors with the linear layers of blocks in a format of ComfyUI's, computed with as they are unpacked.

    `blocks` is a part of the names of these layers.
    """
    said = json.dumps(DESCRIBED.get(kind, {"format": kind}) | {"full_precision_matrix_mult": True}).encode()
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        rows, columns = tensor.shape if tensor.ndim == 2 else (1, 1)
        if blocks not in name or not is_linear(name, tensor) or rows % 32 or columns % 32:
            found[name] = tensor
            continue
        layer = name.removesuffix("weight")
        for part, value in QUANTISED[kind](tensor.float()).items():
            found[layer + part] = value
        found[layer + "comfy_quant"] = torch.frombuffer(bytearray(said), dtype=torch.uint8)
    return found


def _float8(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    scale = weight.abs().max() / FLOAT8_MAX
    return {"weight": (weight / scale).to(torch.float8_e4m3fn), "weight_scale": scale}


def _mxfp8(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    blocks = weight.view(len(weight), -1, 32)
    exponents = (blocks.abs().amax(2) / FLOAT8_MAX).log2().ceil().clamp(-127, 127)
    codes = (blocks / 2.0 ** exponents.unsqueeze(2)).to(torch.float8_e4m3fn).view(weight.shape)
    return {"weight": codes, "weight_scale": tiled((exponents + 127).to(torch.uint8))}


def _nvfp4(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    blocks = weight.view(len(weight), -1, 16)
    whole = weight.abs().max() / (FLOAT8_MAX * FLOAT4[-1])
    of_blocks = (blocks.abs().amax(2) / FLOAT4[-1] / whole).to(torch.float8_e4m3fn)
    numbers = blocks / (of_blocks.float() * whole).clamp(min=1e-12).unsqueeze(2)
    steps = torch.tensor(FLOAT4)
    codes = torch.bucketize(numbers.abs(), (steps[1:] + steps[:-1]) / 2) | (numbers < 0).long() << 3
    codes = codes.view(weight.shape).to(torch.uint8)
    packed = codes[:, ::2] << 4 | codes[:, 1::2]
    return {"weight": packed, "weight_scale": tiled(of_blocks.view(torch.uint8)).view(torch.float8_e4m3fn),
            "weight_scale_2": whole}  # fmt: skip


def tiled(scales: torch.Tensor) -> torch.Tensor:
    """Return block scales in the tiles of 128 rows and 4 columns that matrix units take."""
    rows, columns = scales.shape
    padded = torch.zeros(-(-rows // 128) * 128, -(-columns // 4) * 4, dtype=scales.dtype)
    padded[:rows, :columns] = scales
    tiles = padded.view(len(padded) // 128, 4, 32, -1, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(padded.shape)


def _int8(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / INT8_MAX
    return {"weight": (weight / scale).round().to(torch.int8), "weight_scale": scale}


def _int8_rotated(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    return _int8(_rotated(weight))


def _int4_rotated(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    rotated = _rotated(weight)
    scale = rotated.abs().amax(1, keepdim=True) / INT4_MAX
    numbers = (rotated / scale).round().to(torch.int8) & 15
    return {"weight": numbers[:, ::2] | numbers[:, 1::2] << 4, "weight_scale": scale.flatten()}


def _rotated(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight whose groups of columns are multiplied with a Hadamard matrix."""
    return torch.matmul(weight.view(len(weight), -1, ROTATION), hadamard(ROTATION)).view(weight.shape)


QUANTISED: Mapping[str, Callable[[torch.Tensor], dict[str, torch.Tensor]]] = {
    "float8_e4m3fn": _float8,
    "mxfp8": _mxfp8,
    "nvfp4": _nvfp4,
    "int8": _int8,
    "int8_rotated": _int8_rotated,
    "int4_rotated": _int4_rotated,
}
DESCRIBED: Mapping[str, dict[str, object]] = {  # what a layer says of its format; by default its name here
    "int8": {"format": "int8_tensorwise"},
    "int8_rotated": {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": ROTATION},
    "int4_rotated": {"format": "convrot_w4a4", "convrot_groupsize": ROTATION},
}

# --- GGUF ----------------------------------------------------------------------------------------------------------

KINDS = {name: (number, values, num_bytes) for number, (name, values, num_bytes) in BLOCK_TYPES.items()}
PLACES: Mapping[str, tuple[int, ...]] = {  # bytes of a block at which its scale is, and its offset
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
OFFSETS: Mapping[str, float] = {"Q4_1": -7.5, "Q5_1": -15.5, "Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}
"""Offset of a block, in scales, that makes the mean of its values zero."""

T5_NAMES = (
    ("shared.", "token_embd."), ("encoder.block.", "enc.blk."), ("encoder.final_layer_norm.", "enc.output_norm."),
    (".layer.0.SelfAttention.relative_attention_bias.", ".attn_rel_b."), (".layer.0.SelfAttention.", ".attn_"),
    (".layer.0.layer_norm.", ".attn_norm."), (".layer.1.DenseReluDense.wi_0.", ".ffn_gate."),
    (".layer.1.DenseReluDense.wi_1.", ".ffn_up."), (".layer.1.DenseReluDense.wo.", ".ffn_down."),
    (".layer.1.layer_norm.", ".ffn_norm."),
)  # fmt: skip


def llama_cpp_names(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return a T5 encoder under the names that llama.cpp's converter gives it."""
    found = {}
    for name, tensor in tensors.items():
        for ours, theirs in T5_NAMES:
            name = name.replace(ours, theirs)
        found[name] = tensor
    return found


def random_blocks(kind: str, num_blocks: int, deviation: float, name: str) -> torch.Tensor:
    """Draw blocks [N, bytes] whose values have about that deviation and no mean."""
    _, _, num_bytes = KINDS[kind]
    seed = int.from_bytes(hashlib.sha256(f"{kind}:{name}".encode()).digest()[:8], "big")
    blocks = np.random.Generator(np.random.PCG64(seed)).integers(0, 256, (num_blocks, num_bytes), dtype=np.uint8)

    def with_scale(scale: float) -> torch.Tensor:
        for place, number in zip(PLACES[kind], (scale, scale * OFFSETS.get(kind, 0.0)), strict=False):
            blocks[:, place : place + 2] = np.array([number], np.float16).view(np.uint8)
        return torch.from_numpy(blocks)

    of_one = UNPACK[kind](with_scale(1 / 64), torch.float32).std().item() * 64
    return with_scale(deviation / of_one).clone()


def write_gguf(path: Path, tensors: Tensors, architecture: str | None, kinds: Mapping[str, str]) -> None:
    """Write a GGUF file. `kinds` maps patterns of names to types; the first that fits a matrix of whole blocks is it.

    Other matrices are float16, all else is float32.
    """
    fields = {} if architecture is None else {"general.architecture": architecture}
    entries, contents, position = [], [], 0
    for name, tensor in tensors.items():
        kind, content = _content(name, tensor, kinds)
        entries.append((name, tuple(tensor.shape), kind, position))
        content += bytes(-len(content) % 32)
        contents.append(content)
        position += len(content)
    shapes = {name: shape for name, shape, _, _ in entries if len(shape) > 4}
    if shapes:
        raise ValueError(f"tensors of more than four dimensions: {', '.join(shapes)}")
    with path.open("wb") as file:
        file.write(_head(entries, fields))
        file.writelines(contents)


def write_sparse_gguf(path: Path, shapes: Mapping[str, tuple[int, ...]], architecture: str, kind: str) -> None:
    """Write a GGUF file of any size whose values take no space on disk: its matrices are of one type, all zero."""
    entries, position = [], 0
    number, num_values, num_bytes = KINDS[kind]
    for name, shape in shapes.items():
        is_blocked = len(shape) == 2 and shape[-1] % num_values == 0
        size = math.prod(shape)
        entries.append((name, shape, number if is_blocked else 0, position))
        position += -(-(size // num_values * num_bytes if is_blocked else 4 * size) // 32) * 32
    with path.open("wb") as file:
        head = _head(entries, {"general.architecture": architecture})
        file.write(head)
        file.truncate(len(head) + position)


def _head(entries: Sequence[tuple[str, tuple[int, ...], int, int]], fields: Mapping[str, str]) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(entries), len(fields))
    for key, value in fields.items():
        head += _text(key) + struct.pack("<I", 8) + _text(value)
    for name, shape, kind, offset in entries:
        head += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, offset)
    return head + bytes(-len(head) % 32)


def _content(name: str, tensor: torch.Tensor, kinds: Mapping[str, str]) -> tuple[int, bytes]:
    if tensor.ndim < 2:
        return 0, tensor.float().numpy().tobytes()
    for kind in (kind for pattern, kind in kinds.items() if re.search(pattern, name)):
        if kind == "F16":
            break
        if kind == "BF16":
            return 30, tensor.to(torch.bfloat16).view(torch.int16).numpy().tobytes()
        number, num_values, _ = KINDS[kind]
        if tensor.shape[-1] % num_values == 0:
            blocks = random_blocks(kind, tensor.numel() // num_values, tensor.float().std().item(), name)
            return number, blocks.numpy().tobytes()
    return 1, tensor.half().numpy().tobytes()


def _text(value: str) -> bytes:
    content = value.encode()
    return struct.pack("<Q", len(content)) + content


# --- forms ---------------------------------------------------------------------------------------------------------


def write_quantised(path: Path, tensors: Tensors, form: Mapping[str, object]) -> None:
    """Write tensors in the form that a layout says: `kind` names the writer, the rest is for it."""
    WRITERS[str(form["kind"])](path, tensors, form)


def _write_scaled_float8(path: Path, tensors: Tensors, form: Mapping[str, object]) -> None:
    scopes = form.get("scopes", [""])
    assert isinstance(scopes, list)
    save_file(scaled_float8(tensors, tuple(scopes)), path)


def _write_gguf(path: Path, tensors: Tensors, form: Mapping[str, object]) -> None:
    architecture, kinds = form.get("architecture"), form["types"]
    assert isinstance(kinds, dict)
    named = llama_cpp_names(tensors) if architecture in ("t5", "t5encoder") else tensors
    write_gguf(path, named, None if architecture is None else str(architecture), kinds)


def _write_comfy_quant(path: Path, tensors: Tensors, form: Mapping[str, object]) -> None:
    save_file(comfy_quant(tensors, str(form["format"]), str(form.get("blocks", "blocks."))), path)


WRITERS: Mapping[str, Callable[[Path, Tensors, Mapping[str, object]], None]] = {
    "scaled_float8": _write_scaled_float8,
    "comfy_quant": _write_comfy_quant,
    "gguf": _write_gguf,
}
