"""The node that makes images of what Marigold V2's networks predict of an image: depth, normals or albedo.

Marigold (Ke et al. 2023, arXiv 2312.02145) fine-tunes networks of images to predict these as images.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch.nn import functional

from darkroom.engine.images.transfer_curves import linear_to_srgb
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import IMAGE
from darkroom.engine.nodes.widgets import Combo

LEAST_RANGE = 1e-6
PREDICTIONS = ("depth", "disparity", "normals", "albedo")


@node("MarigoldV2PostProcess", display_name="Marigold V2 Post-Process", category="image/geometry estimation",
      python_module="comfy_extras.nodes_marigold")  # fmt: skip
def marigold_v2_post_process(
    context: NodeContext, *, image: IMAGE, prediction: Annotated[str, Combo(PREDICTIONS)]
) -> IMAGE:
    """Return a decoded prediction as an image: near as bright, unit normals, or albedo in sRGB.

    `depth` is for networks that predict it itself, `disparity` for those that predict its inverse.
    """
    if prediction == "normals":
        return (functional.normalize(image * 2.0 - 1.0, dim=-1) + 1.0) * 0.5
    if prediction == "albedo":
        return linear_to_srgb(image)
    nearness = _from_nought_to_one(image.mean(dim=-1, keepdim=True))
    if prediction == "depth":
        nearness = 1.0 - nearness
    return nearness.repeat(1, 1, 1, 3)


def _from_nought_to_one(values: torch.Tensor) -> torch.Tensor:
    """Return values [B, H, W, 1] so stretched that each image reaches from 0 to 1."""
    least, most = values.amin(dim=(1, 2, 3), keepdim=True), values.amax(dim=(1, 2, 3), keepdim=True)
    return (values - least) / (most - least).clamp(min=LEAST_RANGE)


NODES = (marigold_v2_post_process,)
