"""Pauses between tries, and how long a server asks to wait."""

from __future__ import annotations

import pytest
from tenacity import AsyncRetrying, stop_after_attempt

from darkroom.worker.concurrency.backoff import Backoff, retry_after_seconds

NOW = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT


def test_pauses_grow_up_to_the_longest_and_never_overflow() -> None:
    backoff = Backoff(0.5, 5.0, factor=3.0)
    assert [backoff.seconds(number) for number in (1, 2, 3, 4, 10**6)] == [0.5, 1.5, 4.5, 5.0, 5.0]


def test_chance_spreads_a_pause_to_either_side() -> None:
    backoff = Backoff(4.0, 60.0, jitter=0.25)
    assert [backoff.seconds(1, chance) for chance in (0.0, 0.5, 1.0)] == [3.0, 4.0, 5.0]


async def test_tenacity_waits_by_it() -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def fail() -> None:
        raise OSError

    tries = AsyncRetrying(wait=Backoff(1.0, 60.0), stop=stop_after_attempt(4), sleep=sleep, reraise=True)
    with pytest.raises(OSError):
        await tries(fail)
    assert pauses == [1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("Sun, 06 Nov 1994 08:50:37 GMT", 60.0),
        ("Sunday, 06-Nov-94 08:50:37 GMT", 60.0),
        ("Sun Nov  6 08:50:37 1994", 60.0),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0.0),
        ("soon", None),
        ("", None),
        (None, None),
        ("\u00b2", None),
        ("Sun, 99 Nov 1994 08:50:37 GMT", None),
    ],
)
def test_a_server_asks_for_seconds_or_names_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(header, NOW) == seconds
