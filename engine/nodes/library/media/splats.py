"""Nodes that read, write, join, move and count splats."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Annotated

import torch

from darkroom.engine.media.file_3d import File3D
from darkroom.engine.media.rotations import euler_xyz
from darkroom.engine.media.splats.read import read_splat
from darkroom.engine.media.splats.splat import Splat, merged, transformed
from darkroom.engine.media.splats.write import WRITERS
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Hidden, Out, Socket
from darkroom.engine.nodes.parameters import Field, Growing
from darkroom.engine.nodes.sockets import INT, SPLAT
from darkroom.engine.nodes.widgets import Combo, Float

MODULE = "comfy_extras.nodes_gaussian_splat"
CATEGORY = "3d/splat"
FILES = "FILE_3D,FILE_3D_SPLAT_ANY,FILE_3D_PLY,FILE_3D_SPLAT,FILE_3D_KSPLAT,FILE_3D_SPZ"
COPIES = 8  # of a file's bytes, that reading it may take

NamedSplat = Annotated[SPLAT, Out("splat")]
Distance = Annotated[float, Float(min=-100.0, max=100.0, step=0.01)]
Degrees = Annotated[float, Float(min=-360.0, max=360.0, step=1.0)]
Factor = Annotated[float, Float(min=0.01, max=100.0, step=0.01)]


@node("File3DToSplat", display_name="Get Splat", category=CATEGORY, python_module=MODULE,
      search_aliases=["load splat", "ply to splat", "import splat", "file to splat"])  # fmt: skip
def file_3d_to_splat(context: NodeContext, *, model_3d: Annotated[File3D, Socket(FILES)]) -> NamedSplat:
    """Read the Gaussians of a file."""
    if not isinstance(model_3d, File3D):
        raise ValueError(f"model_3d: no file; got {type(model_3d).__name__}, expected the output of a node")
    limit = context.files.free_bytes() // COPIES
    if model_3d.size_bytes() > limit:
        found = model_3d.size_bytes()
        raise ValueError(f"model_3d: too large for the free memory; got {found} bytes, expected at most {limit}")
    return read_splat(model_3d.get_bytes(), model_3d.format, limit)


@node("SplatToFile3D", display_name="Create 3D File (from Splat)", category=CATEGORY, python_module=MODULE,
      search_aliases=["gaussian to ply", "splat to file", "export gaussian"])  # fmt: skip
def splat_to_file_3d(
    context: NodeContext, *, splat: SPLAT, format: Annotated[str, Combo(tuple(WRITERS))]
) -> Annotated[File3D, Socket("FILE_3D_SPLAT_ANY"), Out("model_3d")]:
    """Make a file of the first item: with all harmonics as `ply`, with the base colour alone otherwise."""
    item = splat.item(0)
    if not len(item.positions):
        raise ValueError("splat: empty; got no Gaussians, expected some")
    return File3D(io.BytesIO(WRITERS[format](item)), format)


@node("GetSplatCount", display_name="Get Splat Count", category=CATEGORY, python_module=MODULE,
      search_aliases=["splat count", "gaussian count", "number of splats", "splat info"])  # fmt: skip
def get_splat_count(
    context: NodeContext, *, splat: SPLAT, unique_id: Annotated[object, Hidden("UNIQUE_ID")] = None
) -> tuple[NamedSplat, Annotated[INT, Out("count")]]:
    """Count the Gaussians of all items."""
    count = sum(splat.numbers())
    context.report_text(f"{count:,} splats")
    return splat, count


@node("MergeSplat", display_name="Merge Splats", category=CATEGORY, python_module=MODULE,
      search_aliases=["union splat", "densify gaussian", "combine splat", "merge gaussian"])  # fmt: skip
def merge_splat(
    context: NodeContext,
    *,
    splats: Annotated[
        Mapping[str, Splat], Growing(item=Field("splat", Socket("SPLAT")), prefix="splat", min=2, max=32)
    ],
) -> NamedSplat:
    """Join splats item by item."""
    return merged(list(splats.values()))


@node("TransformSplat", display_name="Transform Splat", category=CATEGORY, python_module=MODULE,
      search_aliases=["move splat", "rotate splat", "scale splat", "gaussian transform"])  # fmt: skip
def transform_splat(
    context: NodeContext,
    *,
    splat: SPLAT,
    translate_x: Distance = 0.0,
    translate_y: Distance = 0.0,
    translate_z: Distance = 0.0,
    rotate_x: Degrees = 0.0,
    rotate_y: Degrees = 0.0,
    rotate_z: Degrees = 0.0,
    scale_x: Factor = 1.0,
    scale_y: Factor = 1.0,
    scale_z: Factor = 1.0,
) -> NamedSplat:
    """Turn a splat about the axes x, y and z in this order, scale it along them, and move it."""
    translation = torch.tensor([translate_x, translate_y, translate_z])
    scales = torch.tensor([scale_x, scale_y, scale_z])
    return transformed(splat, translation, euler_xyz(rotate_x, rotate_y, rotate_z), scales)


NODES = (file_3d_to_splat, splat_to_file_3d, get_splat_count, merge_splat, transform_splat)
