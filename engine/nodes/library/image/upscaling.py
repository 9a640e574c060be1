"""Nodes that enlarge images with a network."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.layers.tiles import num_tiles, run_in_tiles
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import IMAGE, UPSCALE_MODEL
from darkroom.engine.nodes.widgets import ModelCombo

UPSCALE_MODULE = "comfy_extras.nodes_upscale_model"
TILE_PX, SMALLEST_TILE_PX, OVERLAP_PX = 512, 128, 32
BYTES_PER_TILE_VALUE = 384  # working memory for each value of an enlarged tile, an estimate for networks of this kind


@node(
    "UpscaleModelLoader",
    display_name="Load Upscale Model",
    category="model/loaders",
    python_module=UPSCALE_MODULE,
    facts=NodeFacts(items="alike"),
)
def upscale_model_loader(
    context: NodeContext, *, model_name: Annotated[str, ModelCombo("upscale_models")]
) -> UPSCALE_MODEL:
    model: UPSCALE_MODEL = context.models.auxiliary.upscaler(model_name)
    return model


@node(
    "ImageUpscaleWithModel",
    display_name="Upscale Image (using Model)",
    category="image/upscaling",
    python_module=UPSCALE_MODULE,
    facts=NodeFacts(items="alone", enlarges_by="upscale_model"),
)
def image_upscale_with_model(context: NodeContext, *, upscale_model: UPSCALE_MODEL, image: IMAGE) -> IMAGE:
    """Enlarge an image in tiles, smaller ones when the device has too little memory."""
    pixels = image.movedim(-1, -3)  # [B, C, H, W]
    with upscale_model.patcher.in_use(working_bytes=_working_bytes(upscale_model, pixels)):
        tile = TILE_PX
        while True:
            try:
                enlarged = _in_tiles(context, upscale_model, pixels.to(upscale_model.device), tile)
                break
            except torch.OutOfMemoryError:
                tile //= 2
                if tile < SMALLEST_TILE_PX:
                    raise
    return enlarged.movedim(-3, -1).clamp(min=0, max=1.0)


def _working_bytes(model: Any, pixels: torch.Tensor) -> int:
    return int(TILE_PX**2 * 3 * pixels.element_size() * max(model.scale, 1) * BYTES_PER_TILE_VALUE)


def _in_tiles(context: NodeContext, model: Any, pixels: torch.Tensor, tile: int) -> torch.Tensor:
    total, done = num_tiles(pixels, (tile, tile), OVERLAP_PX), 0

    def on_tile() -> None:
        nonlocal done
        done += 1
        context.cancel.check()
        context.report_progress(done, total)

    return run_in_tiles(
        pixels,
        model,
        tile=(tile, tile),
        overlap=OVERLAP_PX,
        scale=model.scale,
        out_channels=model.out_channels,
        on_tile=on_tile,
    )


NODES = (upscale_model_loader, image_upscale_with_model)
