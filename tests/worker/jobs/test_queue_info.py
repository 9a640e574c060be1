"""The line as it is shown: order, priorities, waits, over one engine or two."""

from __future__ import annotations

from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.jobs.queue_info import QueueInfo
from darkroom.worker.jobs.wait_estimate import RunClock
from darkroom.worker.settings.api_keys import ALL_SCOPES
from darkroom.worker.settings.priority import turn_ms_of
from darkroom.worker.storage.job import Job, JobRequest, JobState, JobTimes, Stage

STEP_MS, NOW_MS = 1000, 100


def a_job(number: int, priority: int = 0, state: JobState = JobState.GENERATING, stage: Stage = Stage.WAITING) -> Job:
    request, turn_ms = JobRequest(priority=priority), turn_ms_of(number, priority, STEP_MS)
    times = JobTimes(queued_at_ms=number)
    return Job(f"j{number}", number, "hash", request, {}, times, state=state, stage=stage, turn_ms=turn_ms)


def info_of(jobs: list[Job], num_engines: int = 1, now: float = 100.0) -> QueueInfo:
    clock = RunClock()
    clock.add(seconds=10.0, cost=100.0)
    return QueueInfo(
        lambda: jobs, lambda: num_engines, clock, lambda priority: turn_ms_of(NOW_MS, priority, STEP_MS), lambda: now
    )


def running(number: int, since: float) -> Job:
    job = a_job(number, stage=Stage.RUNNING)
    job.began_at, job.is_at_engine = since, True
    return job


def test_the_line_is_what_runs_then_what_the_engine_has_then_priority_then_arrival() -> None:
    handed_over = a_job(2, priority=-10)
    handed_over.is_at_engine = True
    jobs = [a_job(5), a_job(4), a_job(6, priority=3), handed_over, running(1, since=96.0)]
    listed = info_of(jobs).listed(Identity("", "", ALL_SCOPES))
    assert [entry["id"] for entry in listed] == ["j1", "j2", "j6", "j4", "j5"]
    assert [entry["position"] for entry in listed] == [1, 2, 3, 4, 5]
    assert [entry["estimated_wait_time"] for entry in listed] == [0, 6, 16, 26, 36]
    assert listed[0]["queue_size"] == 5


def test_a_higher_priority_waits_less_and_equals_wait_for_their_elders() -> None:
    info = info_of([running(1, since=95.0), a_job(2), a_job(3, priority=5)])
    assert info.waits_by_priority() == {"-10": 25.0, "0": 25.0, "10": 5.0}
    assert (info.wait_of_a_new_job(5), info.wait_of_a_new_job(6)) == (15.0, 5.0)


def test_who_has_waited_long_is_not_overtaken_by_a_higher_priority_that_comes_now() -> None:
    low = a_job(NOW_MS - 5 * STEP_MS, priority=-2)
    info = info_of([running(1, since=95.0), low])
    assert (info.wait_of_a_new_job(2), info.wait_of_a_new_job(3), info.wait_of_a_new_job(4)) == (15.0, 15.0, 5.0)


def test_two_engines_halve_the_line() -> None:
    jobs = [running(1, since=95.0), running(2, since=98.0), *(a_job(number) for number in range(3, 7))]
    info = info_of(jobs, num_engines=2)
    assert [info.position_of(job)["estimated_wait_time"] for job in jobs] == [0, 0, 5, 8, 15, 18]


def test_jobs_that_are_made_stand_in_a_line_of_their_own() -> None:
    made = a_job(1, state=JobState.GENERATED, stage=Stage.DELIVERING)
    info = info_of([made, a_job(2)])
    assert info.position_of(made) == {
        "current_queue": "postprocessing",
        "position": 1,
        "queue_size": 1,
        "estimated_wait_time": 0.0,
    }
    assert info.position_of(a_job(2))["position"] == 1
    assert info.sizes() == {"preprocess_queue_size": 0, "generation_queue_size": 1, "postprocess_queue_size": 1}


def test_an_ended_job_stands_nowhere() -> None:
    ended = a_job(1, state=JobState.COMPLETED, stage=Stage.DONE)
    assert info_of([]).position_of(ended)["current_queue"] == "unknown"


def test_a_job_that_costs_twice_as_much_makes_those_behind_it_wait_twice_as_long() -> None:
    large, small = a_job(2), a_job(3)
    large.cost = 200.0
    info = info_of([running(1, since=95.0), large, small])
    assert [info.position_of(job)["estimated_wait_time"] for job in (large, small)] == [5, 25]
    assert info.wait_of_a_new_job() == 35.0
