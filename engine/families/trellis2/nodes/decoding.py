"""Nodes that decode latents of TRELLIS 2 to voxels, meshes and colours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch.nn import functional

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.families.trellis2.nodes.conditioning import MODULE
from darkroom.engine.families.trellis2.nodes.latents import Z_UP, cells_of, frame_of
from darkroom.engine.families.trellis2.nodes.stages import CELL_VOXELS, voxel_vae
from darkroom.engine.families.trellis2.vae_files import unscaled_shape, unscaled_texture
from darkroom.engine.media.mesh import Mesh, batched
from darkroom.engine.models.shape_vae import Voxel
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.sockets import LATENT, MESH, VAE, VOXEL
from darkroom.engine.nodes.widgets import Combo

CATEGORY = "model/latent/trellis"
DEFAULT_RESOLUTION = 1024  # of shapes whose latents do not tell theirs
RESOLUTIONS = (256, 512, 1024, 1536, 2048)


@dataclass(frozen=True, slots=True)
class Subdivisions:
    """SHAPE_SUBDIVIDES: of each shape of a batch, by level, which of the eight children of a cell are occupied.

    Bool [N, 8] on the CPU.
    """

    items: tuple[list[torch.Tensor], ...]


SUBDIVISIONS = Annotated[Subdivisions, Socket("SHAPE_SUBDIVIDES")]


@node("VaeDecodeStructureTrellis2", display_name=None, category=CATEGORY, python_module=MODULE,
      facts=NodeFacts(decodes="samples"))  # fmt: skip
def vae_decode_structure_trellis2(
    context: NodeContext, *, samples: LATENT, vae: VAE, resolution: Annotated[str, Combo(("32", "64"))] = "32"
) -> Annotated[VOXEL, Out("voxel")]:
    """Decode structures to dense grids of voxels, 0 or 1, `resolution` a side."""
    grids = voxel_vae(vae).decode_structure(samples["samples"]).float()
    ratio = grids.shape[-1] // int(resolution)
    return Voxel(functional.max_pool3d(grids, ratio) if ratio > 1 else grids)


@node("VaeDecodeShapeTrellis", display_name=None, category=CATEGORY, python_module=MODULE,
      facts=NodeFacts(decodes="samples"))  # fmt: skip
def vae_decode_shape_trellis(
    context: NodeContext, *, samples: LATENT, vae: VAE
) -> tuple[Annotated[MESH, Out("mesh")], Annotated[SUBDIVISIONS, Out("shape_subdivides")]]:
    """Decode shapes to meshes with upright y axes, and to how their cells split, for the decoding of textures."""
    decoder, cells = voxel_vae(vae), cells_of(samples, "samples")
    resolution = DEFAULT_RESOLUTION if cells.resolution is None else cells.resolution * CELL_VOXELS
    meshes, subdivisions = [], []
    for index, (latent, item) in enumerate(zip(cells.split(samples["samples"]), cells.items(), strict=True)):
        on_level = _progress(context, index, len(cells.counts))
        corners, triangles, occupied = decoder.decode_shape(unscaled_shape(latent), item, resolution, on_level)
        corners = torch.stack([corners[:, 0], corners[:, 2], -corners[:, 1]], dim=-1) if is_z_up(samples) else corners
        meshes.append(Mesh(corners, triangles))
        subdivisions.append(occupied)
    return batched(meshes, meshes[0]), Subdivisions(tuple(subdivisions))


@node("VaeDecodeTextureTrellis", display_name=None, category=CATEGORY, python_module=MODULE,
      facts=NodeFacts(decodes="samples"))  # fmt: skip
def vae_decode_texture_trellis(
    context: NodeContext, *, samples: LATENT, vae: VAE, shape_subdivides: SUBDIVISIONS
) -> Annotated[VOXEL, Out("voxel_colors")]:
    """Decode textures to colours and materials of the voxels of a shape's surface."""
    decoder, cells = voxel_vae(vae), cells_of(samples, "samples")
    if not isinstance(shape_subdivides, Subdivisions) or len(shape_subdivides.items) != len(cells.counts):
        raise ValueError(
            f"shape_subdivides: of another batch of shapes; expected {len(cells.counts)}, those that "
            "VaeDecodeShapeTrellis returns for the same cells"
        )
    colors, voxels = [], []
    items = zip(cells.split(samples["samples"]), cells.items(), shape_subdivides.items, strict=True)
    for index, (latent, item, occupied) in enumerate(items):
        on_level = _progress(context, index, len(cells.counts))
        found, finest = decoder.decode_texture(unscaled_texture(latent), item, occupied, on_level)
        colors.append(found)
        voxels.append(functional.pad(finest, (1, 0), value=index))
    places = torch.cat(voxels)  # [M, 4]
    resolution = _resolution_of(places) if cells.resolution is None else cells.resolution * CELL_VOXELS
    if is_z_up(samples):
        number, x, y, z = places.unbind(1)
        places = torch.stack([number, x, z, resolution - 1 - y], dim=-1)
    return Voxel(places, torch.cat(colors), resolution)


def is_z_up(latent: LATENT) -> bool:
    """Return True for a latent of shapes whose z axis is upright."""
    return frame_of(latent) == Z_UP


def _resolution_of(voxels: torch.Tensor) -> int:
    """Return the smallest usual grid that holds voxels [M, 4], or the smallest one."""
    least = int(voxels[:, 1:].max()) + 1 if voxels.numel() else DEFAULT_RESOLUTION
    return next((side for side in RESOLUTIONS if side >= least), least)


def _progress(context: NodeContext, index: int, count: int) -> Callable[[int, int], None]:
    """Return a function that reports the levels done of an item of a batch. It raises where the run is cancelled."""

    def on_level(done: int, total: int) -> None:
        context.cancel.check()
        context.report_progress(index * total + done, count * total)

    return on_level


NODES = (vae_decode_structure_trellis2, vae_decode_shape_trellis, vae_decode_texture_trellis)
