"""The node that prepares images for TripoSplat: the object on a square.

`B` images, `H W` pixels, `S` pixels a side of the square image that the networks read.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch.nn import functional

from darkroom.engine.diffusion.conditions import repeat_to_batch_size
from darkroom.engine.images.pixels import resize
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import IMAGE, MASK
from darkroom.engine.nodes.widgets import Int

UNIT_PX = 16  # patches of the image encoder, cells of the VAE
MARGIN = 1.2  # sides of the square around the object, relative to the object's
LONGEST_PX = 8192  # of a scaled image's sides

MODULE = "comfy_extras.nodes_triposplat"
ErodeRadius = Annotated[int, Int(min=0, max=16)]
Side = Annotated[int, Int(min=256, max=4096, step=UNIT_PX)]


@node(
    "TripoSplatPreprocessImage",
    display_name="TripoSplat Preprocess Image",
    category="model/conditioning/triposplat",
    description="Crop center each image to a square canvas on a black background and add padding.",
    python_module=MODULE,
)
def triposplat_preprocess_image(
    context: NodeContext, *, image: IMAGE, mask: MASK, erode_radius: ErodeRadius = 1, size: Side = 1024
) -> Annotated[IMAGE, Out("image")]:
    """Return each image's object, where its mask is not 0, on a black square [B, S, S, 3] with a margin around it."""
    side = size // UNIT_PX * UNIT_PX
    masks = repeat_to_batch_size(mask, image.shape[0])
    if masks.shape[1:] != image.shape[1:3]:
        masks = functional.interpolate(masks[:, None].float(), size=tuple(image.shape[1:3]), mode="bilinear")[:, 0]
    colours = image[..., :3].clamp(0, 1)
    with_alpha = torch.cat([colours, masks.clamp(0, 1)[..., None]], dim=-1).movedim(-1, 1)  # [B, 4, H, W]
    return torch.cat([_centred(item[None], erode_radius, side) for item in with_alpha])


def _centred(image: torch.Tensor, erode_radius: int, side: int) -> torch.Tensor:
    """Return the object of an image [1, 4, H, W] on a square [1, S, S, 3]. Raises ValueError for an empty mask."""
    scaled = _scaled(image, side)
    alpha = scaled[:, 3:]
    if erode_radius:
        alpha = -functional.max_pool2d(-alpha, 2 * erode_radius + 1, stride=1, padding=erode_radius)
        scaled = torch.cat([scaled[:, :3], alpha], dim=1)
    square = resize(_square_around(scaled, alpha[0, 0] > 0), side, side, "lanczos").clamp(0, 1)
    return (square[:, :3] * square[:, 3:]).movedim(1, -1)


def _scaled(image: torch.Tensor, side: int) -> torch.Tensor:
    """Return an image [1, 4, H, W] whose shorter side is `side`. Raises ValueError for one that is too long."""
    height, width = image.shape[-2:]
    factor = side / min(height, width)
    new_height, new_width = (max(1, round(length * factor)) for length in (height, width))
    if max(new_height, new_width) > LONGEST_PX:
        raise ValueError(
            f"image: it is too long for this size; got {width}x{height}, which becomes {new_width}x{new_height}, "
            f"expected sides of at most {LONGEST_PX}"
        )
    return resize(image, new_width, new_height, "lanczos").clamp(0, 1)


def _square_around(image: torch.Tensor, is_object: torch.Tensor) -> torch.Tensor:
    """Return the square [1, 4, S', S'] around the object of an image, with a margin; zeros outside of the image.

    Raises ValueError where no object is.
    """
    rows, columns = (is_object.any(dim=dim).nonzero().flatten().tolist() for dim in (1, 0))
    half = max(rows[-1] - rows[0], columns[-1] - columns[0]) / 2 * MARGIN if rows else 0.0
    if half < 1:
        raise ValueError(f"mask: no object is left of it; got {len(rows)} rows of pixels above 0, expected several")
    middles = [(found[0] + found[-1]) / 2 for found in (rows, columns)]
    sides = [(int(middle - half), int(middle + half)) for middle in middles]
    square = image.new_zeros(1, 4, *(last - first for first, last in sides))
    kept = [(max(first, 0), min(last, length)) for (first, last), length in zip(sides, image.shape[-2:], strict=True)]
    (top, bottom), (left, right) = kept
    if bottom > top and right > left:
        rows_of_square, columns_of_square = (
            slice(begin - first, end - first) for (begin, end), (first, _) in zip(kept, sides, strict=True)
        )
        square[:, :, rows_of_square, columns_of_square] = image[:, :, top:bottom, left:right]
    return square
