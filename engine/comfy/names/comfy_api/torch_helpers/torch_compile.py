"""`comfy_api.torch_helpers.torch_compile`: compilation of a MODEL's networks, and its names in a model's options."""

from __future__ import annotations

from darkroom.engine.comfy.names.comfy_api.torch_helpers import set_torch_compile_wrapper
from darkroom.engine.diffusion.compilation import KEY as COMPILE_KEY
from darkroom.engine.diffusion.compilation import OPTIONS_KEY as TORCH_COMPILE_KWARGS

__all__ = ["COMPILE_KEY", "TORCH_COMPILE_KWARGS", "set_torch_compile_wrapper"]
