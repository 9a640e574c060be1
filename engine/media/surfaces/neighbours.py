"""Connected and nearest vertices, as SciPy finds them; it is imported in the calls, since it takes a while."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def connected(count: int, left: Indices, right: Indices) -> Indices:
    """Return the number [count] of each item's part, of items joined by pairs, in the order of the first items."""
    from scipy.sparse import coo_matrix  # type: ignore[import-untyped]
    from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

    graph = coo_matrix((np.ones(len(left), np.int8), (left, right)), shape=(count, count))
    labels: Indices = connected_components(graph, directed=False)[1].astype(np.int64)
    return labels


def nearest_index(points: NDArray[np.float32], queries: NDArray[np.float32]) -> Indices:
    """Return the index [K] of the point [N, 3] that is nearest to each query [K, 3]."""
    from scipy.spatial import cKDTree  # type: ignore[import-untyped]

    found: Indices = cKDTree(points).query(queries)[1].astype(np.int64)
    return found
