"""`comfyui_version`: the ComfyUI version whose API the engine implements."""

from __future__ import annotations

__version__ = "0.33.0"
