"""Node classes made for Wan: latents, and the images, controls, cameras, tracks, poses and audio of a video."""

from __future__ import annotations

from darkroom.engine.families.wan.nodes import (
    animate2,
    animation,
    audio,
    autoregressive,
    bernini,
    block_swap,
    camera_control,
    cameras,
    context,
    controls,
    dancer,
    figure_colours,
    images,
    infinite_talk,
    latents,
    move_tracks,
    scail,
    tracks,
)

NODES = (
    *latents.NODES, *images.NODES, *controls.NODES, *cameras.NODES, *tracks.NODES, *animation.NODES,
    *animate2.NODES, *scail.NODES, *figure_colours.NODES, *infinite_talk.NODES, *move_tracks.NODES,
    *camera_control.NODES, *dancer.NODES, *autoregressive.NODES, *bernini.NODES, *block_swap.NODES,
    *audio.NODES, *context.NODES,
)  # fmt: skip
