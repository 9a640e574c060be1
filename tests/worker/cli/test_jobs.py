"""`darkroom jobs ls` against a worker."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from typer.testing import CliRunner

from darkroom.worker.cli import jobs as jobs_command
from darkroom.worker.cli.jobs import commands
from tests.fakes import draw, fail
from tests.worker.running_front import RunningFront

TIMES = {"queued_at_ms": 1763708400000, "total_ms": 1500}


class ToldJobs:
    """A client whose worker tells what was asked."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.asked: list[bool] = []

    def __enter__(self) -> ToldJobs:
        return self

    def __exit__(self, *_: object) -> None: ...

    def jobs(self, _states: object, _limit: int, *, has_details: bool) -> list[dict[str, Any]]:
        told = (
            {"modifier": "Text2Image", "title": "a lighthouse\nat dawn\x1b[2J, " + "very " * 30} if has_details else {}
        )
        ended = {"id": "one", "status": "completed", "message": "Processing complete.", "timings": TIMES, **told}
        broken = {**ended, "id": "two", "status": "failed", "title": "", "error": {"message": "out of memory"}}
        return [ended, broken, {**ended, "id": "three", "status": "generating", "timings": {"queued_at_ms": 0}}]

    def queue(self) -> dict[str, Any]:
        return {"jobs": [{"id": "three", "percent": 12.5, "estimated_wait_time": 3.0}]}


def test_a_job_has_its_seconds_workflow_and_prompt_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_command, "Client", ToldJobs)
    ended, broken, running = CliRunner().invoke(commands, ["ls"]).stdout.splitlines()
    assert re.search(r"^one  completed .* 1\.5 s  Text2Image    a lighthouse at dawn�\[2J, very .*…$", ended)
    assert broken.endswith("1.5 s  Text2Image    out of memory")
    assert "12.5 %, 3 s to wait  a lighthouse at dawn" in running
    many = CliRunner().invoke(commands, ["ls", "-n", "500"]).stdout.splitlines()
    assert "Text2Image" not in many[0] and many[0].endswith("Processing complete.")


async def test_jobs_of_a_worker_are_listed(front: RunningFront) -> None:
    assert (await front.sync(draw(), request_id="good")).status_code == 200
    assert (await front.sync(fail(), request_id="bad")).status_code == 500
    done = await asyncio.to_thread(CliRunner().invoke, commands, ["ls", "--url", front.url])
    bad, good = done.stdout.splitlines()
    assert good.startswith("good  completed ") and bad.startswith("bad  failed ")
