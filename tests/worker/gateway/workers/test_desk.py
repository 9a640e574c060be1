"""Jobs that a gateway gives a worker in one reply."""

from __future__ import annotations

import pytest

from darkroom.worker.gateway.workers import desk
from darkroom.worker.gateway.workers.desk import within_bytes
from darkroom.worker.sources.broker import Delivery


def test_a_reply_has_the_first_jobs_that_fit_and_at_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "MAX_REPLY_BYTES", 100)
    jobs = [Delivery(str(size), b"x" * size, "") for size in (60, 40, 1)]
    assert within_bytes(jobs) == (jobs[:2], jobs[2:])
    assert within_bytes(jobs[:2]) == (jobs[:2], [])
    large = Delivery("large", b"x" * 500, "")
    assert within_bytes([large, *jobs]) == ([large], jobs) and within_bytes([]) == ([], [])
