"""The table of legal moves, and what a job keeps, forgets and hashes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from darkroom.worker.settings.priority import turn_ms_of
from darkroom.worker.storage.job import LEGAL_MOVES, IllegalMove, Job, JobRequest, JobState, JobTimes, body_hash

ORDER = [JobState.PENDING, JobState.PROCESSING, JobState.GENERATING, JobState.GENERATED, JobState.COMPLETED]


def a_job() -> Job:
    return Job("id", 1, "hash", JobRequest(), {}, JobTimes(queued_at_ms=0))


def test_every_state_has_a_row_and_every_live_one_can_be_cancelled() -> None:
    assert set(LEGAL_MOVES) == set(JobState)
    for state, moves in LEGAL_MOVES.items():
        assert state.is_terminal or JobState.CANCELLED in moves


@given(st.lists(st.sampled_from(JobState), max_size=30))
def test_whatever_is_asked_the_status_moves_forward_once_into_one_end(asked: list[JobState]) -> None:
    job, seen = a_job(), [JobState.PENDING]
    for state in asked:
        before = (job.state, job.seq)
        try:
            job.move_to(state, "moved")
        except IllegalMove:
            assert (job.state, job.seq) == before
            continue
        assert job.seq == before[1] + 1
        seen.append(state)
    assert sum(state.is_terminal for state in seen) <= 1
    forward = [ORDER.index(state) for state in seen if state in ORDER]
    assert forward == sorted(set(forward))


def test_a_retry_changes_the_attempt_and_not_the_status() -> None:
    job = a_job()
    job.move_to(JobState.PROCESSING, "")
    job.move_to(JobState.GENERATING, "")
    assert job.begin_retry("again") and job.prompt_id == "id-2" and job.state is JobState.GENERATING
    assert not job.begin_retry("no more")


def test_an_ended_job_has_no_credentials() -> None:
    job = a_job()
    job.end(JobState.CANCELLED, "", 1)
    with pytest.raises(IllegalMove):
        job.end(JobState.COMPLETED, "", 2)
    assert job.credentials is None


def test_the_body_hash_knows_everything_but_the_id() -> None:
    same = body_hash({"a": 1, "request_id": "x"}, False, False)
    assert same == body_hash({"request_id": "y", "a": 1}, False, False)
    assert same != body_hash({"a": 2}, False, False)
    assert same != body_hash({"a": 1}, True, False)
    text = {"a": ['\u20ac\\"', 1.5, None, {"c": 2, "b": "x" * 100_000}]}
    assert body_hash(text, True, False) == body_hash(text, True, False, is_large=True)


def test_a_low_priority_waits_for_so_many_steps_and_no_longer() -> None:
    step_ms = 60_000
    low = turn_ms_of(0, -10, step_ms)
    assert turn_ms_of(20 * step_ms - 1, 10, step_ms) < low < turn_ms_of(20 * step_ms + 1, 10, step_ms)
    assert turn_ms_of(5, 10, 0) > turn_ms_of(4, -10, 0)
