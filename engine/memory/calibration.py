"""Correction of working memory estimates by measurement: pure.

The estimate of a kind of model is multiplied by the median ratio of its last measurements, so that an outlier is
forgotten. An estimate that was too high is kept: the margin costs a few weights on the device, and the next computation
may be larger.
"""

from __future__ import annotations

import statistics
from collections import deque

MAX_RATIO = 4.0  # what is beyond it was not the node's working memory
NUM_REMEMBERED = 5
MIN_ESTIMATE_BYTES = 128 << 20  # below it the workspaces of libraries outweigh the estimated memory


class Calibration:
    """Ratios of measured to estimated working memory, by kind of model."""

    def __init__(self) -> None:
        self._ratios: dict[str, deque[float]] = {}

    def corrected(self, kind: str, estimated_bytes: int) -> int:
        ratios = self._ratios.get(kind)
        # The higher of two: too much costs a few weights on the device, too little a failed attempt.
        return int(estimated_bytes * statistics.median_high(ratios)) if ratios else estimated_bytes

    def measured(self, kind: str, estimated_bytes: int, used_bytes: int) -> None:
        """Record the bytes used beside the weights, for the uncorrected estimate of a use's largest computation."""
        if estimated_bytes >= MIN_ESTIMATE_BYTES:
            ratio = max(1.0, min(MAX_RATIO, used_bytes / estimated_bytes))
            self._ratios.setdefault(kind, deque(maxlen=NUM_REMEMBERED)).append(ratio)
