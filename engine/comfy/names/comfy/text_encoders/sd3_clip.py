"""`comfy.text_encoders.sd3_clip`: the class of text encoders of SD3, for `isinstance` checks."""

from __future__ import annotations

from darkroom.engine.comfy.family_classes import text_classes

CLASSES = {"SD3ClipModel": "sd3"}
__all__ = [*CLASSES]  # noqa: PLE0604 - they are texts

globals().update(text_classes("comfy.text_encoders.sd3_clip", CLASSES))
