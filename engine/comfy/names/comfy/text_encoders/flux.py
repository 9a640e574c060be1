"""`comfy.text_encoders.flux`: the class of text encoders of Flux, for `isinstance` checks."""

from __future__ import annotations

from darkroom.engine.comfy.family_classes import text_classes

CLASSES = {"FluxClipModel": "flux"}
__all__ = [*CLASSES]  # noqa: PLE0604 - they are texts

globals().update(text_classes("comfy.text_encoders.flux", CLASSES))
