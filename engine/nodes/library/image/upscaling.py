"""Nodes that enlarge pictures with a network."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from contract.wire import SHARED_UPSCALE, UPSCALE_HELP
from engine.layers.tiles import num_tiles, run_in_tiles
from engine.nodes.base import ModelCombo, NodeContext, NodeOutput, Text, node
from engine.nodes.exchange import Exchange
from engine.nodes.library.image.shared_tiles import OwnersNetwork, help_with_tiles
from engine.nodes.sockets import IMAGE, UPSCALE_MODEL

UPSCALE_MODULE = "comfy_extras.nodes_upscale_model"
TILE_PX, SMALLEST_TILE_PX, OVERLAP_PX = 512, 128, 32
BYTES_PER_TILE_VALUE = 384  # working memory for each value of an enlarged tile, an estimate for networks of this kind


@node("UpscaleModelLoader", display_name="Load Upscale Model", category="loaders", python_module=UPSCALE_MODULE)
def upscale_model_loader(
    context: NodeContext, *, model_name: Annotated[str, ModelCombo("upscale_models")]
) -> UPSCALE_MODEL:
    model: UPSCALE_MODEL = context.models.upscaler(model_name)
    return model


@node(
    "ImageUpscaleWithModel",
    display_name="Upscale Image (using Model)",
    category="image/upscaling",
    python_module=UPSCALE_MODULE,
)
def image_upscale_with_model(context: NodeContext, *, upscale_model: UPSCALE_MODEL, image: IMAGE) -> IMAGE:
    """Enlarge a picture in tiles, smaller ones when the device has too little memory."""
    return _enlarged(context, upscale_model, image, None)


@node(
    SHARED_UPSCALE,
    display_name="Upscale Image (with other engines)",
    category="image/upscaling",
    python_module="darkroom",
)
def shared_upscale(
    context: NodeContext, *, upscale_model: UPSCALE_MODEL, image: IMAGE, exchange: Annotated[str, Text()]
) -> IMAGE:
    """Enlarge a picture as `ImageUpscaleWithModel` does, and take tiles from the engines that help with it."""
    tiles = Exchange(context.files.folders.of("output"), exchange)
    tiles.open()
    return _enlarged(context, upscale_model, image, tiles)


@node(
    UPSCALE_HELP,
    display_name="Help to Upscale an Image",
    category="image/upscaling",
    python_module="darkroom",
    is_output=True,
)
def upscale_help(
    context: NodeContext, *, upscale_model: UPSCALE_MODEL, image: IMAGE, exchange: Annotated[str, Text()]
) -> NodeOutput:
    """Compute tiles of a picture that another engine enlarges with `DarkroomSharedUpscale`."""
    tiles = Exchange(context.files.folders.of("output"), exchange)
    pixels = image.movedim(-1, -3)
    with upscale_model.patcher.in_use(working_bytes=_working_bytes(upscale_model, pixels)):
        pixels = pixels.to(upscale_model.device)
        help_with_tiles(pixels, upscale_model, tiles, tile_px=TILE_PX, overlap_px=OVERLAP_PX, cancel=context.cancel)
    return NodeOutput({})


def _working_bytes(model: Any, pixels: torch.Tensor) -> int:
    return int(TILE_PX**2 * 3 * pixels.element_size() * max(model.scale, 1) * BYTES_PER_TILE_VALUE)


def _enlarged(context: NodeContext, upscale_model: Any, image: torch.Tensor, exchange: Exchange | None) -> IMAGE:
    pixels = image.movedim(-1, -3)  # [B, C, H, W]
    with upscale_model.patcher.in_use(working_bytes=_working_bytes(upscale_model, pixels)):
        tile = TILE_PX
        while True:
            network = upscale_model
            if exchange is not None and tile == TILE_PX:  # helpers compute tiles of this size
                network = OwnersNetwork(upscale_model, exchange, context.cancel)
            try:
                enlarged = _in_tiles(context, upscale_model, network, pixels.to(upscale_model.device), tile)
                break
            except torch.OutOfMemoryError:
                tile //= 2
                if tile < SMALLEST_TILE_PX:
                    raise
    return enlarged.movedim(-3, -1).clamp(min=0, max=1.0)


def _in_tiles(context: NodeContext, model: Any, network: Any, pixels: torch.Tensor, tile: int) -> torch.Tensor:
    total, done = num_tiles(pixels, (tile, tile), OVERLAP_PX), 0

    def on_tile() -> None:
        nonlocal done
        done += 1
        context.cancel.check()
        context.report_progress(done, total)

    return run_in_tiles(
        pixels,
        network,
        tile=(tile, tile),
        overlap=OVERLAP_PX,
        scale=model.scale,
        out_channels=model.out_channels,
        on_tile=on_tile,
    )


NODES = (upscale_model_loader, image_upscale_with_model, shared_upscale, upscale_help)
