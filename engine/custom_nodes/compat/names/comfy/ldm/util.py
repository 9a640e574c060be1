"""`comfy.ldm.util`: helper functions."""

from __future__ import annotations

from engine.custom_nodes.compat.names.comfy.ldm.modules.attention import default, exists

__all__ = ["default", "exists"]
