"""Node classes made for Wan: latents, and the pictures, controls, cameras, tracks, poses and sounds of a video."""

from __future__ import annotations

from darkroom.engine.families.wan.nodes import animation, cameras, context, controls, latents, pictures, sounds, tracks

NODES = (
    *latents.NODES, *pictures.NODES, *controls.NODES, *cameras.NODES, *tracks.NODES, *animation.NODES,
    *sounds.NODES, *context.NODES,
)  # fmt: skip
