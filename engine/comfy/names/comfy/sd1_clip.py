"""`comfy.sd1_clip`: weights of brackets in prompts, and the class of sets of one CLIP, for `isinstance` checks."""

from __future__ import annotations

from darkroom.engine.comfy.family_classes import text_classes
from darkroom.engine.text.prompt_weights import hide_escaped, parse_hidden, show_escaped

CLASSES = {"SD1ClipModel": "sd15 sd2 sdxl_refiner cascade"}
__all__ = [*CLASSES, "escape_important", "token_weights", "unescape_important"]  # noqa: PLE0604 - they are texts

globals().update(text_classes("comfy.sd1_clip", CLASSES))

escape_important = hide_escaped
unescape_important = show_escaped


def token_weights(string: str, current_weight: float) -> list[tuple[str, float]]:
    """Split a text that `escape_important` gave into parts with their weights."""
    return parse_hidden(string, current_weight)
