"""AdmissionOrder: the numbers and turns of jobs in the order in which they were admitted."""

from __future__ import annotations

from darkroom.worker.settings.priority import turn_ms_of
from darkroom.worker.storage.job import Job


class AdmissionOrder:
    """Next number, and the latest time at which a job was admitted, which a clock that is set back does not undo."""

    def __init__(self, priority_step_seconds: float) -> None:
        self._priority_step_ms = round(priority_step_seconds * 1000)
        self._next_number = 1
        self._latest_ms = 0

    def begin_after(self, number: int) -> None:
        """Continue the numbers after the last one that was stored."""
        self._next_number = number + 1

    def take_number(self) -> int:
        """Return the next number."""
        number = self._next_number
        self._next_number += 1
        return number

    def turn_ms(self, at_ms: int, priority: int) -> int:
        """Return the turn of a job that arrives at this time.

        If the clock was set back, the job still comes after earlier ones.
        """
        return turn_ms_of(max(at_ms, self._latest_ms), priority, self._priority_step_ms)

    def give_turn(self, job: Job) -> None:
        """Set the turn of a job: that of its priority, or the one of its deadline where that is earlier."""
        usual, earlier = self.turn_ms(job.times.queued_at_ms, job.request.priority), job.request.deadline_turn_ms
        job.turn_ms = usual if earlier is None else min(usual, earlier)
        self._latest_ms = max(self._latest_ms, job.times.queued_at_ms)
