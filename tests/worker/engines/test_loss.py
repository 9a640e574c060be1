"""Reasons for the loss of an engine, from its end and its last words, and its restarts."""

from __future__ import annotations

import signal

import pytest

from darkroom.worker.engines.loss import (
    CrashStreak,
    Loss,
    LossReason,
    RestartBudget,
    backoff_seconds,
    error_of_loss,
    is_outside,
    reason_of_exit,
)
from darkroom.worker.errors import (
    DeviceLost,
    EngineCrashed,
    EngineHung,
    EngineOutOfMemory,
    EngineUnreachable,
    http_status,
)


@pytest.mark.parametrize(
    ("code", "num_oom_kills", "expected"),
    [
        (-signal.SIGKILL, 1, LossReason.OUT_OF_MEMORY),
        (-signal.SIGKILL, 0, LossReason.CRASHED),
        (-signal.SIGSEGV, 1, LossReason.CRASHED),
        (1, 1, LossReason.CRASHED),
    ],
)
def test_only_a_kill_that_the_kernel_counts_is_one_for_memory(
    code: int, num_oom_kills: int, expected: LossReason
) -> None:
    assert reason_of_exit(code, num_oom_kills) is expected


@pytest.mark.parametrize(
    ("reason", "kind", "status"),
    [
        (LossReason.CRASHED, EngineCrashed, 502),
        (LossReason.HUNG, EngineHung, 500),
        (LossReason.UNRESPONSIVE, EngineHung, 500),
        (LossReason.STOP_IGNORED, EngineHung, 500),
        (LossReason.DEVICE_LOST, DeviceLost, 502),
        (LossReason.OUT_OF_MEMORY, EngineOutOfMemory, 500),
        (LossReason.GONE, EngineUnreachable, 502),
    ],
)
def test_each_way_to_lose_an_engine_has_an_error_that_names_the_node(
    reason: LossReason, kind: type, status: int
) -> None:
    error = error_of_loss(Loss(reason, -11), 2, "7", "KSampler")
    assert type(error) is kind and http_status(kind) == status
    assert error.fields == {"attempts": 2, "reason": reason.value, "node_id": "7", "class_type": "KSampler"}
    assert "KSampler (node 7)" in error.message


GIB = 2**30


@pytest.mark.parametrize(
    ("reason", "code", "own_gib", "expected"),
    [
        (LossReason.CRASHED, -signal.SIGKILL, 2, True),  # an operator, a platform
        (LossReason.CRASHED, -signal.SIGTERM, 2, True),
        (LossReason.CRASHED, 0, 2, True),  # it ended as it was asked to
        (LossReason.CRASHED, -signal.SIGKILL, None, True),
        (LossReason.CRASHED, -signal.SIGKILL, 9, False),  # a kill for memory that the kernel does not count here
        (LossReason.OUT_OF_MEMORY, -signal.SIGKILL, 2, True),  # others had the memory
        (LossReason.OUT_OF_MEMORY, -signal.SIGKILL, 9, False),
        (LossReason.OUT_OF_MEMORY, -signal.SIGKILL, None, False),
        (LossReason.CRASHED, -signal.SIGSEGV, 2, False),
        (LossReason.CRASHED, -signal.SIGABRT, 2, False),
        (LossReason.CRASHED, 1, 2, False),
        (LossReason.DEVICE_LOST, -signal.SIGTERM, 2, False),
        (LossReason.HUNG, -signal.SIGKILL, 2, False),
    ],
)
def test_what_others_do_to_an_engine_is_not_its_jobs_doing(
    reason: LossReason, code: int, own_gib: int | None, expected: bool
) -> None:
    own_bytes = None if own_gib is None else own_gib * GIB
    assert is_outside(reason, code, own_bytes, 16 * GIB) is expected


def test_kills_from_outside_put_no_engine_in_doubt() -> None:
    streak = CrashStreak(2)
    lost = [Loss(LossReason.CRASHED, -9, prompt_id=f"job-{number}-1", is_outside=True) for number in range(9)]
    assert not any(streak.add(loss) for loss in lost)


def test_a_crash_names_its_signal() -> None:
    assert "SIGSEGV" in Loss(LossReason.CRASHED, -signal.SIGSEGV).sentence


def test_restarts_are_limited_within_a_window_that_moves() -> None:
    budget = RestartBudget(2, 60.0)
    assert [budget.take(now) for now in (0.0, 10.0, 59.0)] == [True, True, False]
    assert budget.take(60.0) and not budget.take(61.0)


def test_jobs_that_end_the_engine_one_after_the_other_put_it_in_doubt() -> None:
    streak = CrashStreak(2)
    crash = [Loss(LossReason.CRASHED, -11, prompt_id=f"job-{number}-1") for number in range(4)]
    assert [streak.add(loss) for loss in crash] == [False, False, True, False]


def test_neither_one_job_nor_a_hang_nor_an_engine_that_completes_others_is_a_doubt() -> None:
    streak = CrashStreak(2)
    assert not any(streak.add(Loss(LossReason.CRASHED, prompt_id=f"one-{attempt}")) for attempt in range(9))
    assert not any(streak.add(Loss(LossReason.HUNG, prompt_id=f"job-{number}-1")) for number in range(9))
    assert not any(streak.add(Loss(LossReason.CRASHED)) for _ in range(9))
    for number in range(9):
        assert not streak.add(Loss(LossReason.OUT_OF_MEMORY, prompt_id=f"large-{number}-1"))
        streak.end()


def test_starts_that_come_to_nothing_are_tried_ever_less_often() -> None:
    assert [backoff_seconds(number) for number in (0, 1, 2, 10)] == [0.5, 1.0, 2.0, 30.0]
