"""Charts of a mesh by xatlas, called in a process of its own: the library cannot be interrupted."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

VERTICES, FACES, OPTIONS = "vertices", "faces", "options"  # of the mesh; side, padding, and whether to be thorough
MAPPING, UVS = "mapping", "uvs"  # of the layout: the vertex that each one is a copy of, and positions of 0..1
THOROUGH_ROUNDS = 4  # of moving the seeds of charts


def charts(given: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    """Return the layout of the mesh given: `mapping` [N], `faces` [F, 3], `uvs` [N, 2]."""
    import xatlas

    side, padding, is_thorough = (int(value) for value in given[OPTIONS])
    atlas = xatlas.Atlas()
    atlas.add_mesh(given[VERTICES].astype(np.float32), given[FACES].astype(np.uint32))
    of_charts, of_packing = xatlas.ChartOptions(), xatlas.PackOptions()
    if is_thorough:
        of_charts.max_iterations = THOROUGH_ROUNDS
    of_packing.padding = padding
    of_packing.resolution = side
    of_packing.bilinear = True
    atlas.generate(of_charts, of_packing)
    mapping, faces, uvs = atlas[0]
    return {MAPPING: mapping, FACES: faces, UVS: uvs}
