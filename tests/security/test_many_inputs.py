"""One job with many addresses holds few connections, and a name server that hangs holds up nothing else."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from darkroom.worker.guard.safe_address import resolve_host
from darkroom.worker.jobs.fetched_inputs import FETCHED_AT_ONCE
from tests.fakes import FakeEngine, paint
from tests.security.lying_server import LyingServer, Wire, answer
from tests.worker.inputs.test_fetch import image
from tests.worker.running_front import running_front

NUM_INPUTS = 3 * FETCHED_AT_ONCE


async def test_a_job_fetches_a_few_inputs_at_a_time(liar: LyingServer, tmp_path: Path, engine: FakeEngine) -> None:
    most, content = 0, image()

    def slow(wire: Wire) -> None:
        nonlocal most
        most = max(most, wire.server.num_open)
        wire.pause(0.1)
        answer(200, content)(wire)

    liar.scripts["GET /"] = slow
    workflow: dict[str, Any] = {
        str(index): paint("x", f"{liar.url}/{index}.png")["1"] for index in range(1, NUM_INPUTS + 1)
    }
    async with running_front(tmp_path, engine, allowed_private_hosts=("127.0.0.1",)) as front:
        assert (await front.sync(workflow)).status_code == 200
    assert len(liar.heads) == NUM_INPUTS and most <= FETCHED_AT_ONCE


async def test_names_that_hang_leave_the_other_threads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: release.wait(60) and [])
    lookups = [asyncio.create_task(resolve_host(f"{index}.example", 80)) for index in range(64)]
    await asyncio.sleep(0)
    async with asyncio.timeout(50):
        assert await asyncio.to_thread(lambda: "done") == "done"
    release.set()
    assert await asyncio.gather(*lookups) == [[]] * 64
