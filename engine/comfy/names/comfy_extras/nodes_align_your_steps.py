"""`comfy_extras.nodes_align_your_steps`: noise levels between those of a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from darkroom.engine.diffusion.sigma_tables import log_linear


def loglinear_interp(t_steps: Sequence[float], num_steps: int) -> np.ndarray:
    """Return that many falling levels from the first to the last, interpolated log-linearly."""
    return np.array(log_linear(t_steps, num_steps))
