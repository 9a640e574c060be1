"""Nodes that paste one latent into another.

LATENT `samples` is `[B, C, h, w]`; a cell stands for 8 x 8 pixels, and widgets give pixels.
"""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F

from darkroom.engine.images.compositing import paste
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.latent.latent_geometry import CELL_PX, Position, with_samples
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import LATENT, MASK
from darkroom.engine.nodes.widgets import Flag


@node("LatentComposite", display_name="Latent Composite", category="model/latent")
def latent_composite(
    context: NodeContext,
    *,
    samples_to: LATENT,
    samples_from: LATENT,
    x: Position = 0,
    y: Position = 0,
    feather: Position = 0,
) -> LATENT:
    """Paste `samples_from` with its corner at (x, y), faded in over `feather` pixels where it does not meet the border.

    Raises RuntimeError (torch's) when batches differ and `samples_from` is no single item.
    """
    result = samples_to["samples"].clone()
    left, top = x // CELL_PX, y // CELL_PX
    under = result[:, :, top:, left:]
    above = samples_from["samples"][:, :, : under.shape[2], : under.shape[3]]
    under = under[:, :, : above.shape[2], : above.shape[3]]
    share = _faded(above, (left, top), result.shape[-2:], feather // CELL_PX)
    under.copy_(above * share + under * (1.0 - share))
    return with_samples(samples_to, result)


def _faded(above: torch.Tensor, corner: tuple[int, int], ground: torch.Size, feather: int) -> torch.Tensor:
    """Return the opacity of `above`, [h, w], rising from the sides that are inside the ground."""
    (left, top), (height, width) = corner, above.shape[-2:]
    share = torch.ones(height, width, dtype=above.dtype, device=above.device)
    for step in range(feather):
        rate = (1.0 / feather) * (step + 1)
        if top != 0:
            share[step : step + 1] *= rate
        if top + height < ground[0]:
            share[height - 1 - step : height - step] *= rate
        if left != 0:
            share[:, step : step + 1] *= rate
        if left + width < ground[1]:
            share[:, width - 1 - step : width - step] *= rate
    return share


@node(
    "LatentCompositeMasked",
    display_name="Latent Composite Masked",
    category="model/latent",
    python_module="comfy_extras.nodes_mask",
)
def latent_composite_masked(
    context: NodeContext,
    *,
    destination: LATENT,
    source: LATENT,
    x: Position = 0,
    y: Position = 0,
    resize_source: Annotated[bool, Flag()] = False,
    mask: Annotated[MASK | None, Optional()] = None,
) -> LATENT:
    """Paste the source with its corner at (x, y), where the mask is 1."""
    ground, above = destination["samples"], source["samples"]
    if resize_source:
        above = F.interpolate(above, size=ground.shape[-2:], mode="bilinear")
    return with_samples(destination, paste(ground, above, x // CELL_PX, y // CELL_PX, mask))


NODES = (latent_composite, latent_composite_masked)
