"""The machine's own commands and RunPod's loop need no trust in an address: the front makes them a key."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner, Result

from darkroom.worker.cli.main import app
from darkroom.worker.guard.identity.own_key import read_own_key
from darkroom.worker.integrations.runpod.loop import Handler
from darkroom.worker.settings.api_keys import find_key, parse_key
from darkroom.worker.settings.settings import own_key_path
from tests.fakes import FakeEngine, draw, running_engine
from tests.worker.app.test_recovery import front_process
from tests.worker.running_front import running_front

KEYS: dict[str, Any] = {"api_keys": ("shop:planted-shop",)}


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    async with running_engine(tmp_path) as engine:
        yield engine


async def invoked(*arguments: str, **environment: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, arguments, env=environment)


async def test_the_key_is_the_users_alone_and_new_at_each_start(tmp_path: Path, engine: FakeEngine) -> None:
    path, seen = own_key_path(tmp_path / "state"), []
    for _ in range(2):
        async with running_front(tmp_path, engine, **KEYS) as front:
            assert path.stat().st_mode & 0o777 == 0o600
            seen.append(read_own_key(path))
            headers = {"Authorization": f"Bearer {seen[-1]}"}
            assert (await front.http.get("/webhooks", headers=headers)).status_code == 200
            stale = {"Authorization": f"Bearer {seen[0]}x"}
            assert (await front.http.get("/webhooks", headers=stale)).status_code == 401
        assert not path.exists()
    assert len(seen[0]) > 40 and seen[0] != seen[1]


async def test_a_second_front_on_the_same_state_leaves_the_firsts_key(tmp_path: Path, engine: FakeEngine) -> None:
    async with front_process(tmp_path, engine, API_KEYS="shop:planted-shop") as front:
        path = own_key_path(tmp_path / "state")
        before = read_own_key(path)
        second = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "darkroom.worker"),
            env={
                **os.environ,
                "STATE_DIRECTORY": str(tmp_path / "state"),
                "WORKER_PORT": "0",
                "ENGINE_URL": engine.url,
            },
            stderr=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
        )
        assert await second.wait() == 1
        assert read_own_key(path) == before != ""
        await front.http.get("/webhooks", headers={"Authorization": f"Bearer {before}"})
        assert before not in front.log.read_text() and "planted" not in front.log.read_text()


async def test_local_commands_go_on_where_keys_are_set(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, **KEYS) as front:
        local = {"WORKER_PORT": str(urlsplit(front.url).port), "STATE_DIRECTORY": str(tmp_path / "state")}
        drawn = await invoked("generate", "a fox", **local)
        assert (drawn.exit_code, "KSampler" in drawn.output) == (1, True), drawn.output  # the fake engine has none
        measured = await invoked("benchmark", **local)
        assert "unauthorized" not in measured.output and "API key" not in measured.output, measured.output
        elsewhere = await invoked("generate", "a fox", "--url", front.url)
        assert "API key" in elsewhere.output
        given = await invoked("generate", "a fox", "--url", front.url, "--api-key", "planted-shop")
        assert "KSampler" in given.output


async def test_runpods_loop_needs_no_trust_in_this_machine(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, **KEYS) as front:
        path = own_key_path(tmp_path / "state")
        for key, is_refused in (("", True), (read_own_key(path), False)):
            handler = Handler(front.url, True, lambda job, shown: None, key=key)
            reply = await handler({"id": f"job-{is_refused}", "input": {"workflow": draw()}})
            assert ("error" in reply) is is_refused, reply


async def test_a_made_key_fits_its_line() -> None:
    made = await invoked("keys", "new", "shop", "--scopes", "submit")
    lines = dict(line.split(maxsplit=1) for line in made.output.splitlines())
    key = parse_key(lines["line:"])
    assert find_key([key], lines["secret:"]) == key and key.name == "shop" and key.scopes == {"submit"}
    for wrong in (("a shop",), ("shop", "--scopes", "write")):
        refused = await invoked("keys", "new", *wrong)
        assert refused.exit_code == 2 and "secret:" not in refused.output


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_an_open_door_stops_the_start_and_says_how_to_close_it(tmp_path: Path, host: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "darkroom.worker"),
        env={**os.environ, "WORKER_HOST": host, "STATE_DIRECTORY": str(tmp_path), "WORKER_PORT": "0"},
        stderr=asyncio.subprocess.PIPE,
    )
    _, stderr = await process.communicate()
    assert process.returncode == 2
    assert all(word in stderr.decode() for word in ("WORKER_HOST", "API_KEYS", "UNSECURED=true", "127.0.0.1"))
    assert not os.listdir(tmp_path)
