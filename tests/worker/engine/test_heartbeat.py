"""When an engine counts as hung or deaf: decided from times alone."""

from __future__ import annotations

import pytest

from worker.engine.heartbeat import Heartbeat, HeartbeatLimits, find_loss
from worker.engine.loss import LossReason

LIMITS = HeartbeatLimits(stall_seconds=600, silence_seconds=60, cancel_seconds=30)


def beat(quiet_seconds: float | None) -> Heartbeat:
    return Heartbeat(running=None if quiet_seconds is None else "job-1", quiet_seconds=quiet_seconds)


@pytest.mark.parametrize(
    ("quiet_seconds", "is_withdrawn", "expected"),
    [
        (None, False, None),
        (599, False, None),
        (601, False, LossReason.HUNG),
        (31, True, LossReason.HUNG),
        (29, True, None),
    ],
)
def test_a_node_without_progress_hangs_and_one_that_was_told_to_stop_sooner(
    quiet_seconds: float | None, is_withdrawn: bool, expected: LossReason | None
) -> None:
    found = find_loss(beat(quiet_seconds), LIMITS, silent_seconds=0, num_missed=0, is_withdrawn=is_withdrawn)
    assert found is expected


@pytest.mark.parametrize(
    ("silent_seconds", "num_missed", "expected"),
    [(59, 5, None), (61, 1, None), (61, 2, LossReason.UNRESPONSIVE)],
)
def test_a_server_is_given_up_only_when_it_was_asked_more_than_once_over_the_whole_time(
    silent_seconds: float, num_missed: int, expected: LossReason | None
) -> None:
    found = find_loss(beat(10), LIMITS, silent_seconds=silent_seconds, num_missed=num_missed, is_withdrawn=False)
    assert found is expected


def test_an_old_heartbeat_that_was_quiet_says_nothing_about_now() -> None:
    assert find_loss(beat(601), LIMITS, silent_seconds=5, num_missed=1, is_withdrawn=False) is None


def test_the_answer_of_the_engine_is_read() -> None:
    answer = {"engine_ready": False, "running": "a", "node": "3", "events": 9, "seconds_since_event": 1.5, "waiting": 2}
    assert Heartbeat.of(answer) == Heartbeat("a", "3", 9, 1.5, 2, False)
