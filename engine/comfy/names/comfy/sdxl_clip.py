"""`comfy.sdxl_clip`: classes of text encoders of SDXL and Stable Cascade, for `isinstance` checks."""

from __future__ import annotations

from darkroom.engine.comfy.family_classes import text_classes

CLASSES = {
    "SDXLClipModel": "sdxl",
    "SDXLRefinerClipModel": "sdxl_refiner",
    "StableCascadeClipModel": "cascade",
}
__all__ = [*CLASSES]  # noqa: PLE0604 - they are texts

globals().update(text_classes("comfy.sdxl_clip", CLASSES))
