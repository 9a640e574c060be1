"""Latents of cells as they flow between nodes: ComfyUI's keys beside `samples`, and what is refused."""

from __future__ import annotations

from typing import Any, cast

import torch

from darkroom.engine.families.trellis2.cells import CHANNELS, CellLists, cell_lists
from darkroom.engine.nodes.sockets import Latent

Y_UP, Z_UP = "y_up", "z_up"  # axes of shapes: of glTF, as Pixal3D has them, and of TRELLIS 2


def latent_of(cells: CellLists, frame: str) -> Latent:
    """Return an empty latent of cells, of a shape whose axes are those of `frame`."""
    found: dict[str, Any] = {
        "samples": cells.empty_latent(),
        "coords": cells.coords,
        "coord_counts": torch.tensor(cells.counts),
        "type": "trellis2",
        "model_frame": frame,
    }
    if cells.resolution is not None:
        found["coord_resolution"] = cells.resolution
    return cast(Latent, found)


def cells_of(latent: Latent, name: str) -> CellLists:
    """Return the cells of a latent, the input `name`. Raises ValueError for one without, or with those of others."""
    coords = cast(torch.Tensor | None, latent.get("coords"))
    if coords is None:
        raise ValueError(
            f"{name}: no latent of cells; expected one of Trellis2ShapeStage, Trellis2UpsampleStage or "
            "Trellis2TextureStage, sampled"
        )
    resolution = cast(int | None, latent.get("coord_resolution"))
    cells = cell_lists(coords.cpu(), resolution)
    expected = [len(cells.counts), CHANNELS, cells.longest, 1]
    if list(latent["samples"].shape) != expected:
        raise ValueError(
            f"{name}: its samples are not those of its cells; got {list(latent['samples'].shape)}, expected {expected}"
        )
    return cells


def frame_of(latent: Latent, default: str = Y_UP) -> str:
    """Return the axes of a shape's latent."""
    frame: str = latent.get("model_frame", default)  # type: ignore[assignment]  # a key of this family alone
    return frame
