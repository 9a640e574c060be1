"""The surface of a splat as a mesh with colors. `x y z` voxels, `V` vertices, `F` triangles."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.mesh import Mesh
from darkroom.engine.media.splats.density import Density, density_of
from darkroom.engine.media.splats.splat import ATTRIBUTES, Splat
from darkroom.engine.media.surfaces.iso_surface import iso_surface
from darkroom.engine.media.surfaces.neighbours import connected

HISTOGRAM_BINS = 256
LEAST_OCCUPIED = 1e-3  # of the densest voxel
SAME_BOX = 1e-4  # of the largest part's size
SHRINK, GROW = 0.5, -0.53  # factors of smoothing

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SurfaceOptions:
    """Options for making a mesh of a splat."""

    resolution: int
    """Voxels along the longest side."""
    window: int
    """Voxels from the middle of a Gaussian that it may reach."""
    smoothing_passes: int
    level: float
    """Density at the surface: a factor of the one that divides voxels best."""
    least_vertices: int
    """Smaller separate parts are left out; 0 keeps all."""
    least_opacity: float
    sharpness: float
    """Above 1 colors are those of the densest Gaussian."""


def surface_of(splat: Splat, options: SurfaceOptions, cancel: CancelToken) -> Mesh:
    """Return the surface of one splat, without a batch, upright in the world of meshes; empty where there is none."""
    kept = splat.opacities.float().reshape(-1) >= options.least_opacity
    bright = Splat(*(getattr(splat, name)[kept].cpu() for name in ATTRIBUTES))
    empty = Mesh(torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.long), vertex_colors=torch.zeros(0, 3), unlit=True)
    if not len(bright.positions):
        return empty
    density = density_of(bright, options.resolution, options.window, options.sharpness, cancel)
    level = _level(density.values, options.level)
    if level is None:
        return empty
    cells, faces = iso_surface(density.values, level)
    vertices = (density.origin + cells * density.step).numpy()
    corners = faces.numpy()
    if options.least_vertices and len(corners):
        vertices, corners = _large_parts(vertices, corners, options.least_vertices)
    if not len(corners):
        return empty
    vertices = smoothed(vertices, corners, options.smoothing_passes)
    colors = _linear(_colors(density, vertices))
    upright = vertices * np.array([1, -1, -1], np.float32)
    return replace(
        empty,
        vertices=torch.from_numpy(upright),
        faces=torch.from_numpy(corners),
        vertex_colors=torch.from_numpy(colors),
    )


def smoothed(vertices: Floats, faces: Indices, passes: int) -> Floats:
    """Return vertices [V, 3] between their neighbours, without shrinking.

    G. Taubin, "A signal processing approach to fair surface design", 1995.
    """
    from scipy.sparse import coo_matrix  # type: ignore[import-untyped]  # only here: it takes a while

    edges = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [0, 2]]])
    edges = np.concatenate([edges, edges[:, ::-1]])
    graph = coo_matrix((np.ones(len(edges), np.float32), (edges[:, 0], edges[:, 1])), shape=(len(vertices),) * 2)
    neighbours = graph.tocsr()
    neighbours.data[:] = 1
    degrees = np.maximum(np.asarray(neighbours.sum(1)), 1).astype(np.float32)
    for _ in range(passes):
        for factor in (SHRINK, GROW):
            vertices = vertices + np.float32(factor) * ((neighbours @ vertices) / degrees - vertices)
    return vertices.astype(np.float32)


def _level(values: torch.Tensor, factor: float) -> float | None:
    """Return the density at the surface, strictly between the extremes; None for a grid that is empty.

    N. Otsu, "A threshold selection method from gray-level histograms", 1979.
    """
    least, largest = float(values.min()), float(values.max())
    occupied = values[values > largest * LEAST_OCCUPIED]
    if not len(occupied):
        return None
    counts, edges = np.histogram(occupied.numpy(), bins=HISTOGRAM_BINS)
    middles = (edges[:-1] + edges[1:]) / 2
    below, moment = np.cumsum(counts.astype(np.float64)), np.cumsum(counts * middles)
    above = below[-1] - below
    spread = below * above * (moment / np.maximum(below, 1) - (moment[-1] - moment) / np.maximum(above, 1)) ** 2
    spread[(below == 0) | (above == 0)] = -1
    best = float(middles[int(spread.argmax())]) * factor
    room = 1e-6 * (largest - least)
    return min(max(best, least + room), largest - room)


def _large_parts(vertices: Floats, faces: Indices, least_vertices: int) -> tuple[Floats, Indices]:
    """Leave out small separate parts, and inner walls: those within the largest part's box that face the other way."""
    edges = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]]])
    part = connected(len(vertices), edges[:, 0], edges[:, 1])
    count = int(part.max()) + 1
    owner = part[faces[:, 0]]
    kept = np.bincount(part, minlength=count) >= least_vertices
    if kept.sum() > 1:
        kept &= ~_inner_walls(vertices, faces, part, np.where(kept, np.bincount(owner, minlength=count), -1))
    faces = faces[kept[owner]]
    used, renumbered = np.unique(faces, return_inverse=True)
    return vertices[used], renumbered.reshape(-1, 3).astype(np.int64)


def _inner_walls(vertices: Floats, faces: Indices, part: Indices, num_faces: Indices) -> NDArray[np.bool_]:
    largest, count = int(num_faces.argmax()), len(num_faces)
    a, b, c = (vertices[faces[:, corner]] for corner in range(3))
    volumes = np.bincount(part[faces[:, 0]], weights=(a * np.cross(b, c)).sum(1), minlength=count)
    low, high = np.full((count, 3), np.inf, np.float32), np.full((count, 3), -np.inf, np.float32)
    np.minimum.at(low, part, vertices)
    np.maximum.at(high, part, vertices)
    slack = SAME_BOX * (high[largest] - low[largest]).max()
    is_inside = (low >= low[largest] - slack).all(1) & (high <= high[largest] + slack).all(1)
    looks_away: NDArray[np.bool_] = is_inside & (np.sign(volumes) != np.sign(volumes[largest]))
    return looks_away


def _colors(density: Density, vertices: Floats) -> Floats:
    """Return colors [V, 3] between those of voxels, each by its weight."""
    from scipy.ndimage import map_coordinates  # type: ignore[import-untyped]  # only here: it takes a while

    places = ((vertices - density.origin.numpy()) / density.step).T
    sums = [
        map_coordinates(density.colors[..., axis].float().numpy(), places, order=1, mode="nearest") for axis in range(3)
    ]
    weights = map_coordinates(density.weights.float().numpy(), places, order=1, mode="nearest")
    colors: Floats = (np.stack(sums, axis=1) / np.maximum(weights, 1e-8)[:, None]).clip(0, 1)
    return colors


def _linear(colors: Floats) -> Floats:
    """Return display values as linear ones (IEC 61966-2-1)."""
    return np.where(colors <= 0.04045, colors / 12.92, ((colors + 0.055) / 1.055) ** 2.4).astype(np.float32)
