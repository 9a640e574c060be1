"""Calls of RunPod's package for a job, beside a whole front."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from darkroom.worker.integrations.runpod.loop import Handler
from tests.engine.server.certificate import write_certificate
from tests.fakes import FakeEngine, draw
from tests.worker.running_front import running_front


@pytest.mark.parametrize("use_ssl", [False, True])
async def test_a_job_is_handed_to_the_front_on_this_machine(tmp_path: Path, use_ssl: bool) -> None:
    (tmp_path / "engine").mkdir()
    key, certificate = write_certificate(tmp_path, "203.0.113.5")
    tls: dict[str, Any] = {"use_ssl": use_ssl, "ssl_certfile": certificate, "ssl_keyfile": key}
    async with FakeEngine(tmp_path / "engine") as engine, running_front(tmp_path, engine, **tls) as front:
        handler = Handler(front.url, True, lambda job, shown: None, certificate if use_ssl else None)
        reply = await handler({"id": "job-1", "input": {"workflow": draw()}})
        assert (engine.runs, "error" in reply) == (["job-1-1"], False)
