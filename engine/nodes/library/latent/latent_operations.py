"""LATENT_OPERATION values, and the node that applies one to a latent.

An operation is called as `operation(latent=samples)` with `[B, C, (F,) h, w]` and returns a tensor of that shape. It
sees a cell as a vector over channels: its length is taken for brightness, its direction for colour.
"""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.images.filters import sharpen
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.latent.latent_geometry import LATENT_MODULE, with_samples
from darkroom.engine.nodes.sockets import LATENT, LATENT_OPERATION
from darkroom.engine.nodes.widgets import Float, Int

CATEGORY = "model/latent/advanced/operations"


def tonemap_reinhard(latent: torch.Tensor, multiplier: float) -> torch.Tensor:
    """Compress lengths to below `multiplier` times (mean + 5 standard deviations) of each item's lengths.

    E. Reinhard et al., "Photographic Tone Reproduction for Digital Images", SIGGRAPH 2002, equation 3: L / (1 + L).
    """
    length: torch.Tensor = torch.linalg.vector_norm(latent, dim=1, keepdim=True) + 1e-10  # [B, 1, (F,) h, w]
    of_item = tuple(range(1, length.ndim))
    mean, std = length.mean(dim=of_item, keepdim=True), length.std(dim=of_item, keepdim=True)
    top = (std * 5 + mean) * multiplier
    relative = length * (1.0 / top)
    return latent / length * (relative / (relative + 1.0) * top)


def sharpen_directions(latent: torch.Tensor, radius: int, sigma: float, alpha: float) -> torch.Tensor:
    """Apply unsharp masking to the directions; lengths are kept. The radius is in cells."""
    length: torch.Tensor = torch.linalg.vector_norm(latent, dim=1, keepdim=True) + 1e-6
    return length * sharpen(latent / length, radius, sigma, alpha)


@node("LatentApplyOperation", display_name=None, category=CATEGORY, python_module=LATENT_MODULE, experimental=True)
def latent_apply_operation(context: NodeContext, *, samples: LATENT, operation: LATENT_OPERATION) -> LATENT:
    return with_samples(samples, operation(latent=samples["samples"]))


@node(
    "LatentOperationTonemapReinhard",
    display_name=None,
    category=CATEGORY,
    python_module=LATENT_MODULE,
    experimental=True,
)
def latent_operation_tonemap_reinhard(
    context: NodeContext, *, multiplier: Annotated[float, Float(min=0.0, max=100.0, step=0.01)] = 1.0
) -> LATENT_OPERATION:
    def operation(latent: torch.Tensor, **kwargs: object) -> torch.Tensor:
        return tonemap_reinhard(latent, multiplier)

    return operation


@node(
    "LatentOperationSharpen",
    display_name=None,
    category=CATEGORY,
    python_module=LATENT_MODULE,
    experimental=True,
    advanced=("sharpen_radius", "sigma", "alpha"),
)
def latent_operation_sharpen(
    context: NodeContext,
    *,
    sharpen_radius: Annotated[int, Int(min=1, max=31, step=1)] = 9,
    sigma: Annotated[float, Float(min=0.1, max=10.0, step=0.1)] = 1.0,
    alpha: Annotated[float, Float(min=0.0, max=5.0, step=0.01)] = 0.1,
) -> LATENT_OPERATION:
    def operation(latent: torch.Tensor, **kwargs: object) -> torch.Tensor:
        return sharpen_directions(latent, sharpen_radius, sigma, alpha)

    return operation


NODES = (latent_apply_operation, latent_operation_tonemap_reinhard, latent_operation_sharpen)
