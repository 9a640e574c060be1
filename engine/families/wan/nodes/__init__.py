"""Node classes made for Wan: latents, and the images, controls, cameras, tracks, poses and audio of a video."""

from __future__ import annotations

from darkroom.engine.families.wan.nodes import animation, audio, cameras, context, controls, images, latents, tracks

NODES = (
    *latents.NODES, *images.NODES, *controls.NODES, *cameras.NODES, *tracks.NODES, *animation.NODES,
    *audio.NODES, *context.NODES,
)  # fmt: skip
