"""`comfy.memory_management`: how weights are kept."""

from __future__ import annotations

aimdo_enabled = False  # ComfyUI's allocator, which loads weights as they are needed
