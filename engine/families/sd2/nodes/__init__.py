"""Node classes made for Stable Diffusion 2's networks: Lotus and the fourfold upscaler."""

from __future__ import annotations

from darkroom.engine.families.sd2.nodes import lotus, upscaling

NODES = (*lotus.NODES, *upscaling.NODES)
