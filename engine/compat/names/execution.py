"""`execution`: what packs take from ComfyUI's executor."""

from __future__ import annotations

from engine.compat.names.comfy_execution.graph_utils import ExecutionBlocker, is_link

__all__ = ["ExecutionBlocker", "is_link"]
