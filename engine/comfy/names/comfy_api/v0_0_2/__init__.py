"""`comfy_api.v0_0_2`: the same as `comfy_api.latest`."""

from __future__ import annotations

from darkroom.engine.comfy.names.comfy_api.latest import (
    ComfyAPI,
    ComfyAPISync,
    ComfyExtension,
    Input,
    InputImpl,
    Types,
    io,
    ui,
)

__all__ = ["ComfyAPI", "ComfyAPISync", "ComfyExtension", "Input", "InputImpl", "Types", "io", "ui"]
