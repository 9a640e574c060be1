"""Types of text encoders in ComfyUI's loader nodes, in its order, whether a family here answers to them or not.

They are data (`comfyui_text_types.json`): the numbers of types in `comfy.sd.CLIPType`, and the types that the loader of
so many files offers. The types of a family are in its description (`ComfyUiNames.text_types`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TextTypes:
    """ComfyUI's types: `numbers` in `CLIPType` by name, and those `offered` by number of files, in order."""

    numbers: Mapping[str, int]
    offered: Mapping[int, tuple[str, ...]]


@cache
def comfyui_text_types() -> TextTypes:
    data = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
    return TextTypes(data["numbers"], {int(files): tuple(names) for files, names in data["offered"].items()})
