"""The log of requests."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from darkroom.worker.api.access_log import level_of
from tests.fakes import FakeEngine, draw
from tests.worker.running_front import running_front

KEYS: dict[str, Any] = {"api_keys": "shop:shops-own-secret", "trust_loopback": False, "access_log": True}


def requests_in(records: Sequence[MutableMapping[str, Any]], path: str) -> list[MutableMapping[str, Any]]:
    return [record for record in records if record["event"] == "request" and record["path"] == path]


@pytest.mark.parametrize(
    ("path", "status", "level"),
    [("/generate", 202, 20), ("/live", 200, 10), ("/generate", 401, 30), ("/generate", 503, 20), ("/ready", 500, 30)],
)
def test_probes_are_quiet_and_refusals_are_not(path: str, status: int, level: int) -> None:
    assert level_of(path, status) == level


async def test_every_request_is_logged_with_its_caller_job_and_code_and_without_its_query(
    tmp_path: Path, engine: FakeEngine
) -> None:
    bearer = {"Authorization": "Bearer shops-own-secret"}
    async with running_front(tmp_path, engine, **KEYS) as front:
        with capture_logs(processors=[merge_contextvars]) as records:
            body = {"input": {"request_id": "mine", "workflow_json": draw()}}
            assert (await front.http.post("/generate/sync", json=body, headers=bearer)).status_code == 200
            assert (await front.http.post("/generate/sync", json=body)).status_code == 401
            await front.http.get("/outputs/mine/x.png?signature=abcdef")
        good, refused = requests_in(records, "/generate/sync")
        assert (good["status"], good["request_id"], good["caller"]) == (200, "mine", "shop")
        assert (good["category"], good["log_level"], good["method"]) == ("request", "info", "POST")
        assert (refused["category"], refused["log_level"]) == ("security", "warning")
        assert refused["code"] == "unauthorized" and "request_id" not in refused
        assert len(requests_in(records, "/outputs/mine/x.png")) == 1 and "abcdef" not in str(records)
        assert {record.get("request_id") for record in records if record["event"] == "job ended"} == {"mine"}


async def test_the_access_log_can_be_switched_off(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, access_log=False) as front:
        with capture_logs() as records:
            await front.http.get("/queue-info")
        assert requests_in(records, "/queue-info") == []
