"""Nodes between two samplings: the cells of the next stage, its empty latent, and what its network reads of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.families.trellis2.cells import CellLists, joined, occupied_cells
from darkroom.engine.families.trellis2.denoiser import COORDS, MODE, PROJECTED, SHAPE_LATENT
from darkroom.engine.families.trellis2.nodes import projection
from darkroom.engine.families.trellis2.nodes.conditioning import CATEGORY, MODULE, features_of
from darkroom.engine.families.trellis2.nodes.latents import Y_UP, Z_UP, cells_of, frame_of, latent_of
from darkroom.engine.families.trellis2.nodes.projection import Reading
from darkroom.engine.families.trellis2.vae_files import unscaled_shape
from darkroom.engine.models.voxel_vae import VoxelVae
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import with_options
from darkroom.engine.nodes.library.conditioning.image_conditioning import Negative, Positive
from darkroom.engine.nodes.sockets import CONDITIONING, LATENT, VAE, VOXEL, Conditioning
from darkroom.engine.nodes.widgets import Int

LARGEST_COARSE_SIDE = 32  # of structures whose shape is sampled at 512
COARSE_RESOLUTION = 512  # of shapes that are decoded to be upsampled
CELL_VOXELS = 16  # of the decoded grid, in one cell of a latent

Staged = tuple[Positive, Negative, LATENT]


def stage_of(
    positive: Conditioning, negative: Conditioning, mode: str, cells: CellLists, reading: Reading, **options: object
) -> tuple[Conditioning, Conditioning]:
    """Return both conditionings for a stage, with projected features where the positive one has some."""
    given: dict[str, Any] = {
        MODE: mode, COORDS: cells.coords, "trellis2_coord_counts": torch.tensor(cells.counts), **options,
    }  # fmt: skip
    features = features_of(positive)
    if features is not None:
        given[PROJECTED] = features.of_cells(cells, reading)
    return with_options(positive, **given), with_options(negative, **given)


@node("Trellis2ShapeStage", display_name=None, category=CATEGORY, python_module=MODULE)
def trellis2_shape_stage(
    context: NodeContext, *, positive: CONDITIONING, negative: CONDITIONING, voxel: VOXEL
) -> Staged:
    """Let a shape be sampled in the occupied voxels of a structure, at 512 for one of 32 voxels a side."""
    cells = occupied_cells(voxel.data)
    is_coarse = voxel.data.shape[-1] <= LARGEST_COARSE_SIDE
    mode, reading = (
        ("shape_generation_512", projection.SHAPE_512) if is_coarse else ("shape_generation", projection.SHAPE)
    )
    staged = stage_of(positive, negative, mode, cells, reading)
    return *staged, latent_of(cells, default_frame(positive))


@node("Trellis2UpsampleStage", display_name="Trellis2 Upsample Stage", category=CATEGORY, python_module=MODULE,
      facts=NodeFacts(decodes="shape_latent"))  # fmt: skip
def trellis2_upsample_stage(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    shape_latent: LATENT,
    vae: VAE,
    target_resolution: Annotated[int, Int(min=1024, max=2048, step=128)] = 1024,
) -> Staged:
    """Let a shape that was sampled at 512 be sampled again in the cells of a finer grid that it passes."""
    decoder = voxel_vae(vae)
    coarse = cells_of(shape_latent, "shape_latent")
    side = target_resolution // CELL_VOXELS
    rounds = features_of(positive) is not None
    finer = []
    for latent, cells in zip(coarse.split(shape_latent["samples"]), coarse.items(), strict=True):
        context.cancel.check()
        finer.append(cells_in(side, decoder.finest_cells(unscaled_shape(latent), cells), rounds=rounds))
    found = joined(finer, side)
    staged = stage_of(positive, negative, "shape_generation", found, projection.SHAPE)
    return *staged, latent_of(found, frame_of(shape_latent, default_frame(positive)))


def cells_in(side: int, voxels: torch.Tensor, *, rounds: bool) -> torch.Tensor:
    """Return the cells [N, 3] of a grid of `side` cells that voxels [M, 3] of a grid of 512 lie in, in order.

    Pixal3D's, with `rounds`, are those whose corners are nearest.
    """
    middles = voxels.float() + 0.5
    scale = (side - 1 if rounds else side) / COARSE_RESOLUTION
    moved = middles * scale
    cells: torch.Tensor = torch.unique((moved.round() if rounds else moved).int(), dim=0)
    return cells


@node("Trellis2TextureStage", display_name=None, category=CATEGORY, python_module=MODULE)
def trellis2_texture_stage(
    context: NodeContext, *, positive: CONDITIONING, negative: CONDITIONING, shape_latent: LATENT
) -> Staged:
    """Let the texture of a sampled shape be sampled, in the shape's cells."""
    cells = cells_of(shape_latent, "shape_latent")
    rows: Sequence[torch.Tensor] = cells.split(shape_latent["samples"])
    frame = frame_of(shape_latent, default_frame(positive))
    staged = stage_of(
        positive, negative, "texture_generation", cells, projection.TEXTURE,
        **{SHAPE_LATENT: torch.cat(tuple(rows)), "trellis2_model_frame": frame},
    )  # fmt: skip
    return *staged, latent_of(cells, frame)


def default_frame(positive: Conditioning) -> str:
    """Return the axes of shapes by a conditioning: Pixal3D's are those of glTF."""
    return Z_UP if features_of(positive) is None else Y_UP


def voxel_vae(vae: object) -> VoxelVae:
    """Return a VAE of voxels. Raises ValueError for another one."""
    if not isinstance(vae, VoxelVae):
        raise ValueError("vae: none of voxels; got one of images or of other shapes, expected that of TRELLIS 2")
    return vae


NODES = (trellis2_shape_stage, trellis2_upsample_stage, trellis2_texture_stage)
