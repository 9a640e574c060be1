"""QueueInfo: the number of jobs at each stage, each job's position in the queue, and its estimated wait.

The queue is in the order in which the engines run jobs: running ones, those sent to an engine, then by `Job.order`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.jobs.deadline_turns import Place, QueuedRun, place_of
from darkroom.worker.jobs.wait_estimate import RunClock, seconds_until_start
from darkroom.worker.settings.priority import MAX_PRIORITY, MIN_PRIORITY
from darkroom.worker.storage.job import Job, JobState, Stage

QUEUE_NAMES = ("preprocessing", "generation", "postprocessing")
FRESH_SECONDS = 0.25
WAITING_STAGES = frozenset({Stage.QUEUED, Stage.FETCHING, Stage.WAITING, Stage.LOW_MEMORY_RETRY})


@dataclass(frozen=True, slots=True)
class _Stand:
    queue: str
    position: int
    wait_seconds: float


@dataclass(slots=True)
class _Line:
    """A snapshot of all positions."""

    at: float = -1.0
    stands: dict[str, _Stand] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)


class QueueInfo:
    """Queue positions and wait estimates.

    `jobs` returns all jobs that have not ended, `num_engines` the number of engines that are up. `run_clock` has the
    durations of runs. `turn_ms` returns the turn of a job that arrives now with a priority.

    The queue is computed once for all open streams, and is at most FRESH_SECONDS old.
    """

    def __init__(
        self,
        jobs: Callable[[], Iterable[Job]],
        num_engines: Callable[[], int],
        run_clock: RunClock,
        turn_ms: Callable[[int], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._turn_ms = turn_ms
        self._jobs = jobs
        self._num_engines = num_engines
        self._run_clock = run_clock
        self._clock = clock
        self._line = _Line()

    @property
    def seconds_per_job(self) -> float:
        """The mean of the last runs; 0 if there was none yet."""
        return self._run_clock.mean_seconds

    def sizes(self) -> dict[str, int]:
        counts = dict.fromkeys(QUEUE_NAMES, 0)
        for job in self._jobs():
            counts[_queue_of(job)] += 1
        return {
            "preprocess_queue_size": counts["preprocessing"],
            "generation_queue_size": counts["generation"],
            "postprocess_queue_size": counts["postprocessing"],
        }

    def waiting(self) -> tuple[int, float]:
        """Return the number of jobs that no engine has begun, and the age of the oldest in seconds; 0 without one."""
        since_ms = [job.times.queued_at_ms for job in self._jobs() if job.stage in WAITING_STAGES]
        return len(since_ms), max(0.0, time.time() - min(since_ms) / 1000) if since_ms else 0.0

    def position_of(self, job: Job) -> dict[str, object]:
        """Return the position of a job; 1 is the job whose turn it is.

        `estimated_wait_time` is the seconds until the engine begins with it.
        """
        line = self._fresh_line()
        stand = line.stands.get(job.id) or _Stand(_queue_of(job), 1, 0.0)
        return {
            "current_queue": stand.queue,
            "position": stand.position,
            "queue_size": line.sizes.get(stand.queue, 0),
            "estimated_wait_time": round(stand.wait_seconds, 2),
        }

    def wait_of_a_new_job(self, priority: int = 0) -> float:
        """Return the seconds until a job that arrives now with this priority would begin."""
        running, waiting = self._running_and_waiting()
        turn_ms = self._turn_ms(priority)
        before = [job for job in waiting if job.is_at_engine or job.turn_ms <= turn_ms]
        return self._starts(before, running)[-1]

    def place_of_a_new_job(self, priority: int, seconds: float, latest_start_seconds: float) -> Place:
        """Return the place of a job that takes `seconds` and has to begin within `latest_start_seconds` from now."""
        running, waiting = self._running_and_waiting()
        new = QueuedRun(self._turn_ms(priority), seconds, priority=priority, latest_start_seconds=latest_start_seconds)
        now_ms = int(time.time() * 1000)
        queue = [self._queued_run(job, now_ms) for job in waiting]
        return place_of(new, queue, self._left(running), self._num_engines())

    def listed(self, caller: Identity) -> list[dict[str, object]]:
        """List the caller's jobs that have not ended, in order of execution, without the contents of their requests.

        An operator sees all jobs, with their owners, by the ids under which they are stored.
        """
        return [
            {
                **({"id": job.id, "owner": job.owner} if caller.is_admin else {"id": job.public_id}),
                "status": job.state.value,
                "priority": job.request.priority,
                "queued_at_ms": job.times.queued_at_ms,
                "percent": round(job.progress.percent, 2),
                **self.position_of(job),
            }
            for job in sorted(self._jobs(), key=_turn)
            if caller.may_see(job.owner)
        ]

    def waits_by_priority(self) -> dict[str, float]:
        """Return the wait in seconds of a job sent now with the lowest, the usual and the highest priority."""
        return {
            str(priority): round(self.wait_of_a_new_job(priority), 2) for priority in (MIN_PRIORITY, 0, MAX_PRIORITY)
        }

    def _fresh_line(self) -> _Line:
        now = self._clock()
        if self._line.at < 0 or now - self._line.at > FRESH_SECONDS:
            self._line = self._compute(now)
        return self._line

    def _compute(self, now: float) -> _Line:
        running, waiting = self._running_and_waiting()
        waits = dict(zip((job.id for job in waiting), self._starts(waiting, running), strict=False))
        line = _Line(now)
        for job in sorted(self._jobs(), key=_turn):
            queue = _queue_of(job)
            line.sizes[queue] = position = line.sizes.get(queue, 0) + 1
            line.stands[job.id] = _Stand(queue, position, waits.get(job.id, 0.0))
        return line

    def _running_and_waiting(self) -> tuple[list[Job], list[Job]]:
        """Return the running and the waiting jobs, each in order."""
        to_make = sorted((job for job in self._jobs() if job.state is not JobState.GENERATED), key=_turn)
        running = [job for job in to_make if job.stage is Stage.RUNNING]
        return running, [job for job in to_make if job.stage is not Stage.RUNNING]

    def _starts(self, waiting: list[Job], running: list[Job]) -> list[float]:
        seconds = [self._run_clock.seconds_of(job.cost) for job in waiting]
        return seconds_until_start(seconds, self._left(running), self._num_engines())

    def _left(self, running: list[Job]) -> list[float]:
        """Return the seconds that are left of each running job."""
        now = self._clock()
        return [self._run_clock.seconds_of(job.cost) - (now - job.began_at) for job in running]

    def _queued_run(self, job: Job, now_ms: int) -> QueuedRun:
        seconds, deadline_ms = self._run_clock.seconds_of(job.cost), job.request.deadline_ms
        latest = math.inf if deadline_ms is None else (deadline_ms - now_ms) / 1000 - seconds
        waited = (now_ms - job.times.queued_at_ms) / 1000
        return QueuedRun(job.turn_ms, seconds, waited, job.request.priority, latest, job.is_at_engine)


def _queue_of(job: Job) -> str:
    """Return the queue of a job; a job that waits for an engine is in the queue for generation."""
    if job.state is JobState.GENERATED:
        return "postprocessing"
    if job.state is JobState.GENERATING or job.stage.is_wait_for_engine:
        return "generation"
    return "unknown" if job.state.is_terminal else "preprocessing"


def _turn(job: Job) -> tuple[bool, bool, bool, tuple[int, int]]:
    """Return the sort key of the order in which the engines take jobs; running ones come first."""
    is_made = job.state is JobState.GENERATED
    return not is_made, job.stage is not Stage.RUNNING, not job.is_at_engine, job.order
