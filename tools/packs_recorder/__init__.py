"""Pack for both engines of a comparison: a node that writes what it gets into a file, exactly.

`tools/packs_compare.py` links it to outputs of the nodes that it compares. It is put into `custom_nodes/` of both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import folder_paths
import numpy as np
import torch

FOLDER = "packs_compare"
MAX_DEPTH = 8
MAX_TEXT = 20_000  # characters of a text
PLAIN = (bool, int, float, str, type(None))


class Anything(str):
    """A type that any output's type is equal to."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


class RecordValue:
    """Writes arrays and plain values of what it gets to `packs_compare/NAME.npz` in the output folder."""

    CATEGORY = "testing"
    FUNCTION = "record"
    RETURN_TYPES = ()
    OUTPUT_NODE = True
    INPUT_IS_LIST = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802 - ComfyUI's name
        return {"required": {"value": (Anything("*"), {}), "name": ("STRING", {"default": "value"})}}

    @classmethod
    def IS_CHANGED(cls, **inputs: object) -> float:  # noqa: N802 - ComfyUI's name
        """Return NaN, as the file that an earlier run wrote is removed before each run."""
        return float("nan")

    def record(self, value: list[Any], name: list[str]) -> dict[str, Any]:
        target = Path(folder_paths.get_output_directory(), FOLDER, f"{Path(name[0]).name}.npz")
        target.parent.mkdir(exist_ok=True)
        arrays, texts = {}, {}
        for path, leaf in leaves(value, "", MAX_DEPTH):
            if isinstance(leaf, np.ndarray):
                arrays[path] = leaf
            else:
                texts[path] = leaf[:MAX_TEXT] if isinstance(leaf, str) else leaf
        text = np.frombuffer(json.dumps(texts).encode(), np.uint8)
        with target.open("wb") as file:
            named: dict[str, Any] = {f"array:{path}": found for path, found in arrays.items()}
            np.savez(file, **named, plain=text)
        return {"ui": {"text": [name[0]]}}


def leaves(value: object, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield arrays and plain values in `value` with their paths; of anything else only that it is there."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            for index, part in enumerate(value.unbind()):
                yield from leaves(part, f"{path}/{index}", depth)
            return
        plain = value.detach().cpu()
        yield path, (plain.float() if plain.dtype in (torch.bfloat16, torch.float16) else plain).contiguous().numpy()
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield path, value
    elif isinstance(value, np.generic):
        yield path, value.item()
    elif isinstance(value, PLAIN):
        yield path, value
    elif depth and isinstance(value, Mapping):
        try:
            items = {str(key): value[key] for key in value}
        except Exception as error:  # noqa: BLE001 - of packs, such as audio that is read when it is asked for
            items = {"": f"(raises {type(error).__name__})"}
        for key in sorted(items):
            yield from leaves(items[key], f"{path}/{key}", depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        yield f"{path}/length", len(value)
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}/{index}", depth - 1)
    elif depth and _is_image(value):
        yield path, np.asarray(value)
    else:
        yield path, "(an object)"


def _is_image(value: object) -> bool:
    return type(value).__module__.startswith("PIL.") and hasattr(value, "tobytes")


NODE_CLASS_MAPPINGS = {"DarkroomRecordValue": RecordValue}
