"""`execution`: parts of ComfyUI's executor that packs import."""

from __future__ import annotations

from darkroom.engine.comfy.names.comfy_execution.graph_utils import ExecutionBlocker, is_link

__all__ = ["ExecutionBlocker", "full_type_name", "is_link"]


def full_type_name(klass: type) -> str:
    """Return the name of a class with its module, that of a built-in one alone."""
    return klass.__qualname__ if klass.__module__ == "builtins" else f"{klass.__module__}.{klass.__qualname__}"
