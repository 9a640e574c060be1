"""Answers to a thousand clients counted as service, refusal or loss, from made-up answers."""

from __future__ import annotations

from typing import Any

import pytest

from benchmark.many_clients import is_met

ALL_SERVED = {
    "clients": 1000,
    "max_queue_size": 2000,
    "refused": 0,
    "refused_without_retry_after": 0,
    "lost": 0,
    "completed": 1000,
    "failed": 0,
    "front_peak_mb": 120.0,
}


def test_everybody_served_is_what_is_wanted() -> None:
    assert is_met(ALL_SERVED)


def test_a_refusal_that_says_when_to_come_back_is_an_answer_where_there_is_no_room() -> None:
    assert is_met({**ALL_SERVED, "max_queue_size": 100, "refused": 900, "completed": 100})


@pytest.mark.parametrize(
    "changed",
    [
        {"refused": 1, "completed": 999},
        {"max_queue_size": 100, "refused": 900, "completed": 100, "refused_without_retry_after": 1},
        {"lost": 1, "completed": 999},
        {"failed": 1, "completed": 999},
        {"completed": 999},
        {"front_peak_mb": 201.0},
    ],
)
def test_anything_else_is_not(changed: dict[str, Any]) -> None:
    assert not is_met(ALL_SERVED | changed)
