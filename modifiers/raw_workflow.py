"""RawWorkflow: the Text2Image parameters with every one optional, for older clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from darkroom.modifiers.text_to_image import TextToImageFields


class RawWorkflow(TextToImageFields):
    """Draw an image from a text, with every parameter optional (the name that older clients use)."""

    example: ClassVar[Mapping[str, Any]] = {"prompt": "a lighthouse", "width": 256, "height": 256, "steps": 8}
