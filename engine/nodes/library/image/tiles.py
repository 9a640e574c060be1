"""Nodes that split images into overlapping tiles and merge tiles to images.

`B` batch, `H W` pixels: IMAGE is float32 `[B, H, W, C]` of 0..1; a list has one tile of every image of the batch each.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch

from darkroom.engine.images.tiles import merged, tiles_of
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.sockets import IMAGE
from darkroom.engine.nodes.widgets import Int

MODULE = "comfy_extras.nodes_images"
ALIASES = ["split image", "tile image", "slice image"]

TileSide = Annotated[int, Int(min=64, max=16384)]
FinalSide = Annotated[int, Int(min=64, max=32768)]
Overlap = Annotated[int, Int(min=0, max=4096)]


@node("SplitImageToTileList", display_name="Split Image into List of Tiles", category="image/batch",
      python_module=MODULE, search_aliases=ALIASES)  # fmt: skip
def split_image_to_tile_list(
    context: NodeContext,
    *,
    image: IMAGE,
    tile_width: TileSide = 1024,
    tile_height: TileSide = 1024,
    overlap: Overlap = 128,
) -> Annotated[object, Socket("IMAGE"), Out(is_list=True)]:
    """Split images into a list of tiles of one size, row by row; those at the far sides are moved back inside."""
    height, width = image.shape[1:3]
    places = tiles_of(width, height, tile_width, tile_height, overlap)
    return [image[:, tile.top : tile.bottom, tile.left : tile.right] for tile in places]


@node("ImageMergeTileList", display_name="Merge List of Tiles to Image", category="image/batch",
      python_module=MODULE, input_is_list=True, is_input_list=True, search_aliases=ALIASES)  # fmt: skip
def image_merge_tile_list(
    context: NodeContext,
    *,
    image_list: IMAGE,
    final_width: FinalSide = 1024,
    final_height: FinalSide = 1024,
    overlap: Overlap = 128,
) -> IMAGE:
    """Merge tiles, in the order in which SplitImageToTileList gives them, faded into one another where they overlap."""
    images: Any = image_list  # all inputs come as lists
    sizes: Any = (final_width, final_height, overlap)
    width, height, shared = (values[0] for values in sizes)
    first: torch.Tensor = images[0]
    num_bytes = first.shape[0] * height * width * (first.shape[-1] + 1) * 4
    if num_bytes > context.files.free_bytes():
        raise ValueError(
            f"final_width and final_height: too large for the free memory; got {first.shape[0]} images of "
            f"{width}x{height} px, expected at most {context.files.free_bytes()} bytes in all"
        )
    return merged(images, width, height, shared)


NODES = (split_image_to_tile_list, image_merge_tile_list)
