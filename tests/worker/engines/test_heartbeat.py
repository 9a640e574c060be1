"""Engines that count as hung or silent, decided from times alone."""

from __future__ import annotations

import pytest

from darkroom.worker.engines.heartbeat import Heartbeat, HeartbeatLimits, find_loss
from darkroom.worker.engines.loss import LossReason
from darkroom.worker.engines.stopping import stop_limit_seconds

LIMITS = HeartbeatLimits(stall_seconds=600, silence_seconds=60)


def beat(quiet_seconds: float | None) -> Heartbeat:
    return Heartbeat(running=None if quiet_seconds is None else "job-1", quiet_seconds=quiet_seconds)


@pytest.mark.parametrize(("quiet_seconds", "expected"), [(None, None), (599, None), (601, LossReason.HUNG)])
def test_a_node_without_progress_hangs(quiet_seconds: float | None, expected: LossReason | None) -> None:
    assert find_loss(beat(quiet_seconds), LIMITS, silent_seconds=0, num_missed=0) is expected


@pytest.mark.parametrize(("longest_gap_seconds", "expected"), [(0.0, 15.0), (4.9, 15.0), (60.0, 180.0)])
def test_a_prompt_that_reports_seldom_has_longer_to_stop(longest_gap_seconds: float, expected: float) -> None:
    assert stop_limit_seconds(15.0, longest_gap_seconds) == expected


@pytest.mark.parametrize(
    ("silent_seconds", "num_missed", "expected"),
    [(59, 5, None), (61, 1, None), (61, 2, LossReason.UNRESPONSIVE)],
)
def test_a_server_is_given_up_only_when_it_was_asked_more_than_once_over_the_whole_time(
    silent_seconds: float, num_missed: int, expected: LossReason | None
) -> None:
    found = find_loss(beat(10), LIMITS, silent_seconds=silent_seconds, num_missed=num_missed)
    assert found is expected


def test_an_old_heartbeat_that_was_quiet_says_nothing_about_now() -> None:
    assert find_loss(beat(601), LIMITS, silent_seconds=5, num_missed=1) is None


def test_the_answer_of_the_engine_is_read() -> None:
    answer = {"engine_ready": False, "running": "a", "node": "3", "events": 9, "seconds_since_event": 1.5, "waiting": 2}
    assert Heartbeat.of(answer) == Heartbeat("a", "3", 9, 1.5, 2, False)
