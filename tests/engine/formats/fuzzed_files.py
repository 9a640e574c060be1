"""Damaged model files: each made from a whole one by a few changes, the same ones for the same number.

Bytes are changed anywhere; in a header of JSON and in the program of a pickle also whole values, since changes of bytes
seldom leave those readable.
"""

from __future__ import annotations

import io
import json
import pickletools
import random
import struct
import zipfile
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch

NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    -1,
    -2,
    255,
    256,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    1 << 64,
    10**40,
)
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    None,
    True,
    "",
    "x",
    "F32",
    1.5,
    1e300,
    [],
    [[]],
    {},
    {"a": 1},
    [1] * 70,
    [1 << 31] * 3,
)


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "conv.weight": torch.rand(2, 3, 1, 1, generator=generator),
        "norm.weight": torch.rand(4, generator=generator).half(),
        "steps": torch.arange(3),
        "empty": torch.zeros(0, 4),
        "scale": torch.tensor(2.0),
    }


def safetensors() -> bytes:
    from safetensors.torch import save

    return save(tensors(), {"format": "pt", "made": "by a test"})


def pickled(content: object, *, is_zip: bool) -> bytes:
    held = io.BytesIO()
    torch.save(content, held, _use_new_zipfile_serialization=is_zip)
    return held.getvalue()


def gguf() -> bytes:
    """Return a file with metadata of several types, a plain tensor, one of blocks and one that was reshaped."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    fields = [
        text("general.architecture") + struct.pack("<I", 8) + text("flux"),
        text("general.alignment") + struct.pack("<II", 4, 32),
        text("scores") + struct.pack("<IIQ3f", 9, 6, 3, 1, 2, 3),
        text("words") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b"),
        text("comfy.gguf.orig_shape.packed") + struct.pack("<IIQ2i", 9, 5, 2, 32, 2),
    ]
    infos = [
        text("plain") + struct.pack("<I2QIQ", 2, 2, 4, 0, 0),
        text("packed") + struct.pack("<I2QIQ", 2, 32, 2, 8, 32),
        text("number") + struct.pack("<IQIQ", 1, 1, 0, 128),
    ]
    header = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(fields)) + b"".join(fields + infos)
    return header + bytes(-len(header) % 32) + bytes(range(132))


def embedding() -> dict[str, Any]:
    return {"string_to_token": {"*": 265}, "string_to_param": {"*": torch.rand(2, 8)}, "name": "a", "step": 3}


def hypernetwork() -> dict[Any, Any]:
    layers = {"linear.0.weight": torch.rand(4, 2), "linear.0.bias": torch.rand(4),
              "linear.1.weight": torch.rand(2, 4), "linear.1.bias": torch.rand(2)}  # fmt: skip
    return {2: [layers, dict(layers)], "activation_func": "relu", "is_layer_norm": False, "name": "a"}


def lora() -> dict[str, torch.Tensor]:
    return {
        "a.lora_up.weight": torch.rand(4, 2), "a.lora_down.weight": torch.rand(2, 4), "a.alpha": torch.tensor(2.0),
        "b.hada_w1_a": torch.rand(4, 2), "b.hada_w1_b": torch.rand(2, 4), "b.hada_w2_a": torch.rand(4, 2),
        "b.hada_w2_b": torch.rand(2, 4), "b.alpha": torch.tensor(1.0), "c.diff": torch.rand(4, 4),
        "d.lokr_w1": torch.rand(2, 2), "d.lokr_w2": torch.rand(2, 2), "d.alpha": torch.tensor(1.0),
    }  # fmt: skip


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Change bytes anywhere: flipped, replaced by extreme numbers, removed, repeated, cut off."""
    made = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        place = chance.randrange(max(1, len(made)))
        match chance.randrange(6):
            case 0:
                made[place : place + 1] = bytes((chance.randrange(256),))
            case 1:
                form = chance.choice("BHIQ")
                number = chance.choice((0, 1, -1, 1 << 31, 1 << 62, 1 << 63, chance.getrandbits(64)))
                size = struct.calcsize(form)
                made[place : place + size] = (number & (1 << 8 * size) - 1).to_bytes(size, "little")
            case 2:
                del made[place : place + chance.randrange(1, 16)]
            case 3:
                made[place:place] = made[place : place + chance.randrange(1, 64)]
            case 4:
                del made[place:]
            case 5:
                made[place:place] = chance.randbytes(chance.randrange(1, 16))
    return bytes(made)


def damaged_safetensors(content: bytes, chance: random.Random) -> bytes:
    """Change values of the header, or bytes anywhere."""
    if chance.random() < 0.3:
        return damaged(content, chance)
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    for _ in range(chance.choice((1, 1, 2, 4))):
        _change(header, chance)
    text = json.dumps(header).encode()
    if chance.random() < 0.1:  # a name twice
        text = text[:-1] + b"," + text[1:]
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def _change(value: Any, chance: random.Random) -> None:
    """Replace, remove or copy something below a value of JSON."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not keys:
        return
    key = chance.choice(keys)
    if isinstance(value[key], dict | list) and chance.random() < 0.85:
        _change(value[key], chance)
    elif chance.random() < 0.15:
        del value[key]
    else:
        value[key] = deepcopy(value[chance.choice(keys)] if chance.random() < 0.3 else chance.choice(VALUES))


def damaged_zip(content: bytes, chance: random.Random) -> bytes:
    """Change the program of a pickle in its archive, or bytes anywhere."""
    if chance.random() < 0.3:
        return damaged(content, chance)
    held = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(held, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.endswith("data.pkl"):
                data = damaged_program(data, chance)
            elif chance.random() < 0.1:
                data = damaged(data, chance)
            new.writestr(entry.filename, data)
    return held.getvalue()


def damaged_program(program: bytes, chance: random.Random) -> bytes:
    """Change operations of a pickle: numbers become others, operations are removed, swapped or copied."""
    operations = list(pickletools.genops(program))
    starts = [place for _, _, place in operations] + [len(program)]
    pieces = [program[start:end] for start, end in zip(starts, starts[1:], strict=False) if start is not None]
    for _ in range(chance.choice((1, 1, 2, 4))):
        index = chance.randrange(1, len(pieces))
        match chance.randrange(5):
            case 0:
                pieces[index] = _number(chance.choice(NUMBERS))
            case 1:
                pieces[index] = b""
            case 2:
                pieces[index] = pieces[chance.randrange(1, len(pieces))]
            case 3:
                pieces[index] += pieces[chance.randrange(1, len(pieces))]
            case 4:
                numbers = [
                    i for i, (code, _, _) in enumerate(operations) if code.name in ("BININT", "BININT1", "BININT2")
                ]
                pieces[chance.choice(numbers or [index])] = _number(chance.choice(NUMBERS))
    return b"".join(pieces)


def _number(value: int) -> bytes:
    """Return the operation that pushes a number."""
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes((len(data),)) + data


def damaged_legacy(content: bytes, chance: random.Random) -> bytes:
    """Change the program of an old pickle, which lies behind three small ones, or bytes anywhere."""
    if chance.random() < 0.3:
        return damaged(content, chance)
    held = io.BytesIO(content)
    for _ in range(3):  # magic number, version, sizes of the system's types
        list(pickletools.genops(held))
    start = held.tell()
    list(pickletools.genops(held))
    end = held.tell()
    return content[:start] + damaged_program(content[start:end], chance) + content[end:]


Damage = Callable[[bytes, random.Random], bytes]

KINDS: Mapping[str, tuple[str, Callable[[], bytes], Damage]] = {
    "safetensors": ("a.safetensors", safetensors, damaged_safetensors),
    "gguf": ("a.gguf", gguf, damaged),
    "pickle": ("a.pt", lambda: pickled(tensors(), is_zip=True), damaged_zip),
    "old pickle": ("a.ckpt", lambda: pickled({"state_dict": tensors()}, is_zip=False), damaged_legacy),
    "embedding": ("a.pt", lambda: pickled(embedding(), is_zip=True), damaged_zip),
    "old embedding": ("a.bin", lambda: pickled(embedding(), is_zip=False), damaged_legacy),
    "hypernetwork": ("a.pt", lambda: pickled(hypernetwork(), is_zip=True), damaged_zip),
    "lora": ("a.safetensors", lambda: _saved(lora()), damaged_safetensors),
}
"""File name, whole content and damage by kind."""


def _saved(content: dict[str, torch.Tensor]) -> bytes:
    from safetensors.torch import save

    return save(content)
