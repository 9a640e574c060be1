"""VastTiming: durations of Vast's protocol in one place, so that tests can shorten them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VastTiming:
    """Durations in seconds. `tick` is the reports' interval, `key_waits` the pauses between tries for the key."""

    tick: float = 1.0
    at_least_every: float = 10.0
    request: float = 10.0
    between_tries: float = 2.0
    num_tries: int = 3
    collect_sessions: float = 5.0
    key_request: float = 10.0
    key_waits: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    key_pause: float = 30.0
