"""The layout of Qwen3-VL's files as Alibaba publishes them."""

from __future__ import annotations

from engine.families.base import Shapes
from engine.families.layouts import names_behind
from engine.formats.weight_file import Names
from engine.layers.vision_language_model import VISION_PREFIX

PUBLISHED = {"model.language_model.": "model.", "model.visual.": VISION_PREFIX}  # prefixes of published files -> ours


def published_layout(shapes: Shapes) -> Names | None:
    """Return the names of a file in the layout in which Alibaba publishes the model, else None."""
    if not all(any(name.startswith(prefix) for name in shapes) for prefix in PUBLISHED):
        return None
    found = {(theirs, ours): names_behind(shapes, theirs) for theirs, ours in PUBLISHED.items()}
    return {ours + name: theirs for (_, ours), names in found.items() for name, theirs in names.items()}
