"""Node classes made for Wan: latents, and the pictures, controls, cameras, tracks and poses of a video."""

from __future__ import annotations

from engine.families.wan.nodes import animation, cameras, controls, latents, pictures, tracks

NODES = (
    *latents.NODES, *pictures.NODES, *controls.NODES, *cameras.NODES, *tracks.NODES, *animation.NODES,
)  # fmt: skip
