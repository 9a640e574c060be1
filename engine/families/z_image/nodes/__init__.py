"""Node classes made for Z-Image: its controls, and prompts with the images that they are about."""

from __future__ import annotations

from darkroom.engine.families.z_image.nodes import control, omni

NODES = (*control.NODES, *omni.NODES)
