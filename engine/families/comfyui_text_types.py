"""Types of text encoders in ComfyUI's loader nodes, in its order, whether a family here answers to them or not.

They are data (`comfyui_text_types.json`): type -> its number in `comfy.sd.CLIPType`, null for a type that is none
there, and the loaders that offer it, by their number of files. The types of a family are in its description
(`ComfyUiNames.text_types`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TextType:
    """A type of ComfyUI: its number in `CLIPType`, and the numbers of files for which a loader offers it."""

    number: int | None
    files: tuple[int, ...]


@cache
def comfyui_text_types() -> Mapping[str, TextType]:
    """Return ComfyUI's types by name, in the order in which its loaders offer them."""
    data = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
    return {name: TextType(entry["number"], tuple(entry["files"])) for name, entry in data.items()}
