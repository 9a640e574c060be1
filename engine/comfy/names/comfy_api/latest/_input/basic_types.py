"""`comfy_api.latest._input.basic_types`: types of values."""

from __future__ import annotations

from darkroom.engine.comfy.names.comfy_api.input import AudioInput, ImageInput, LatentInput, MaskInput

__all__ = ["AudioInput", "ImageInput", "LatentInput", "MaskInput"]
