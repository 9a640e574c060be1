"""Estimates of working memory, corrected by what was measured: pure.

The estimate of a kind of model is raised by the median of what its last works took of theirs, so that one odd work is
forgotten. One that was too high is left alone: the margin costs a few weights on the device, and what is computed next
may be larger.
"""

from __future__ import annotations

import statistics
from collections import deque

MOST = 4.0  # what is beyond it was not the node's working memory
NUM_REMEMBERED = 5
LEAST_BYTES = 128 << 20  # below it the workspaces of libraries outweigh what the estimate is about


class Calibration:
    """By kind of model: how many times their estimates its last works took."""

    def __init__(self) -> None:
        self._ratios: dict[str, deque[float]] = {}

    def corrected(self, kind: str, estimated_bytes: int) -> int:
        ratios = self._ratios.get(kind)
        # Of two the higher: too much costs a few weights on the device, too little a failed attempt.
        return int(estimated_bytes * statistics.median_high(ratios)) if ratios else estimated_bytes

    def measured(self, kind: str, estimated_bytes: int, used_bytes: int) -> None:
        """What was used beside the weights, for the uncorrected estimate of the largest work of the use."""
        if estimated_bytes >= LEAST_BYTES:
            ratio = max(1.0, min(MOST, used_bytes / estimated_bytes))
            self._ratios.setdefault(kind, deque(maxlen=NUM_REMEMBERED)).append(ratio)
