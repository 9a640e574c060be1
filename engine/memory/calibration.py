"""Estimates of working memory, corrected by what was measured: pure.

An estimate that was too low once is raised for that model's kind from then on. One that was too high is left alone: the
margin costs a few weights on the device, and what is computed then may be smaller than what was planned for.
"""

from __future__ import annotations

MOST = 4.0  # what is beyond it was not the node's working memory


class Calibration:
    """By kind of model: how many times its estimate its working memory was, at most."""

    def __init__(self) -> None:
        self._ratios: dict[str, float] = {}

    def corrected(self, kind: str, estimated_bytes: int) -> int:
        return int(estimated_bytes * self._ratios.get(kind, 1.0))

    def measured(self, kind: str, estimated_bytes: int, used_bytes: int) -> None:
        """What was used beside the weights, for an estimate that was not corrected."""
        if estimated_bytes > 0:
            ratio = min(MOST, used_bytes / estimated_bytes)
            self._ratios[kind] = max(1.0, ratio, self._ratios.get(kind, 1.0))

    @property
    def ratios(self) -> dict[str, float]:
        return dict(self._ratios)
