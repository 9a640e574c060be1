"""`comfyui_version`: the version whose API the engine speaks."""

from __future__ import annotations

__version__ = "0.3.64"
