"""`execution`: parts of ComfyUI's executor that packs import."""

from __future__ import annotations

from darkroom.engine.comfy.names.comfy_execution.graph_utils import ExecutionBlocker, is_link

__all__ = ["ExecutionBlocker", "is_link"]
