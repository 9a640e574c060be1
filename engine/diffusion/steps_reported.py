"""Progress of a sampling run that may begin a second time."""

from __future__ import annotations

from collections.abc import Callable

import torch

ProgressCallback = Callable[[int, torch.Tensor, torch.Tensor, int], None]  # step, denoised, x, total steps


class StepsReported:
    """Steps of a sampling run that its callback has received: each of them once, however often the run begins.

    `check_cancelled` is called in place of the callback for steps that it has received already, as the callback is what
    ends a cancelled run.
    """

    def __init__(self, callback: ProgressCallback | None, check_cancelled: Callable[[], None]) -> None:
        self._callback = callback
        self._check_cancelled = check_cancelled
        self._num_reported = 0

    def of_attempt(self) -> ProgressCallback | None:
        """Return the callback of one attempt, None for a run without."""
        callback, position = self._callback, 0
        if callback is None:
            return None

        def report(step: int, denoised: torch.Tensor, x: torch.Tensor, total: int) -> None:
            nonlocal position
            position += 1
            if position <= self._num_reported:
                self._check_cancelled()
                return
            callback(step, denoised, x, total)
            self._num_reported = position

        return report
