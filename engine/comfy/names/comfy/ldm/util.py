"""`comfy.ldm.util`: helper functions."""

from __future__ import annotations

from darkroom.engine.comfy.names.comfy.ldm.modules.attention import default, exists

__all__ = ["default", "exists"]
