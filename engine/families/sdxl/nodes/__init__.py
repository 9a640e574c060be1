"""Node classes made for Stable Diffusion XL."""

from __future__ import annotations

from darkroom.engine.families.sdxl.nodes import prompts, restoration

NODES = (*prompts.NODES, *restoration.NODES)
