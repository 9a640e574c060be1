"""A fallback that is started when it is needed, watched, replaced, and ended when nothing needs it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from darkroom.worker.engines.client.files import LocalFolders
from darkroom.worker.engines.client.lost import EngineLost
from darkroom.worker.engines.fallback.checks import FallbackChecks
from darkroom.worker.engines.fallback.command import FallbackLaunch
from darkroom.worker.engines.fallback.fallback_engine import FallbackEngine
from darkroom.worker.engines.fallback.target import read_target
from darkroom.worker.engines.loss import LossReason
from darkroom.worker.errors import EngineUnreachable, RequestRejected
from darkroom.worker.settings.engines import SupervisionConfig
from darkroom.worker.settings.environment import child_environment
from tests.fakes import draw, steps, wait
from tests.worker.engines.fallback.stand_in import install
from tests.worker.running_front import until


@dataclass
class Beside:
    engine: FallbackEngine
    folder: Path

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    def is_running(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except OSError:
            return False
        return "Z" not in Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2]

    async def until(self, is_so: Callable[[], bool]) -> None:
        async def asked() -> bool:
            return is_so()

        await until(asked)


async def find_folders() -> Mapping[str, list[str]]:
    return {"checkpoints": ["/models/checkpoints"], "vae": []}


@asynccontextmanager
async def beside(tmp_path: Path, idle_seconds: float = 300.0, flags: str = "", **config: Any) -> AsyncIterator[Beside]:
    comfy = tmp_path / "ComfyUI"
    folder = comfy if comfy.exists() else install(comfy)
    launch = FallbackLaunch(
        target=read_target(f"{folder} {flags}".strip()),
        folders=LocalFolders(tmp_path / "input", tmp_path / "output", tmp_path / "temp" / "temp"),
        private_directory=tmp_path / "private",
        environment=child_environment(),
        idle_seconds=idle_seconds,
    )
    engine = FallbackEngine(launch, SupervisionConfig(**config), find_folders)
    try:
        yield Beside(engine, folder)
    finally:
        await engine.stop()


async def run(engine: FallbackEngine, name: str, prompt: dict[str, Any]) -> object:
    async with engine.slot((0, 0)) as client:
        outcome = await client.runner.run(prompt, name, lambda kind, data: None, timeout_seconds=60)
        return outcome.error


async def test_it_is_started_by_its_first_job_and_ended_when_idle(tmp_path: Path) -> None:
    async with beside(tmp_path, idle_seconds=0.2, flags="--lowvram") as other:
        assert other.engine.report() is None and not (other.folder / "pid").exists()
        assert await run(other.engine, "first", draw()) is None
        given = json.loads((other.folder / "given.json").read_text())
        assert given["listen"] == "127.0.0.1" and given["lowvram"]
        assert (given["input_directory"], given["output_directory"]) == (f"{tmp_path}/input", f"{tmp_path}/output")
        paths = json.loads((tmp_path / "temp" / "model_paths.yaml").read_text())
        assert paths["darkroom"] == {"is_default": True, "checkpoints": "/models/checkpoints"}
        await other.until(lambda: other.engine.report() is None)
        await other.until(lambda: not other.is_running())
        assert await run(other.engine, "second", draw()) is None
        assert other.engine.num_starts == 2


async def test_its_nodes_are_known_while_it_is_down_and_to_the_next_worker(tmp_path: Path) -> None:
    async with beside(tmp_path) as other:
        await FallbackChecks(other.engine, ()).check(draw())
    async with beside(tmp_path) as other:
        await FallbackChecks(other.engine, ()).check(steps())
        assert other.engine.num_starts == 0


async def test_an_old_list_of_nodes_refuses_nothing(tmp_path: Path) -> None:
    async with beside(tmp_path) as other:
        await FallbackChecks(other.engine, ()).check(draw())
    listed = tmp_path / "private" / "fallback_nodes.json"
    listed.write_text(json.dumps({"Draw": json.loads(listed.read_text())["Draw"]}))
    async with beside(tmp_path) as other:
        await FallbackChecks(other.engine, ()).check(steps())  # a pack that was installed meanwhile
        assert other.engine.num_starts == 1
        await other.engine.stop_if_idle()
        with pytest.raises(RequestRejected):
            await FallbackChecks(other.engine, ()).check({"1": {"class_type": "Nowhere", "inputs": {}}})
        assert other.engine.num_starts == 1  # it was asked a moment ago


async def test_one_that_dies_under_a_job_is_started_again(tmp_path: Path) -> None:
    async with beside(tmp_path) as other:
        job = asyncio.create_task(run(other.engine, "long", wait(60)))
        await other.until(lambda: (report := other.engine.report()) is not None and report.running is not None)
        first = other.pid
        os.kill(first, signal.SIGKILL)
        with pytest.raises(EngineLost) as lost:
            await job
        assert lost.value.was_running
        assert await run(other.engine, "again", draw()) is None
        report = other.engine.report()
        assert other.pid != first and report is not None and sum(report.restarts.values()) == 1


async def test_one_that_makes_no_progress_is_replaced(tmp_path: Path) -> None:
    async with beside(tmp_path, stall_seconds=0.5) as other:
        with pytest.raises(EngineLost) as lost:
            await run(other.engine, "hangs", wait(60))
        assert lost.value.loss.reason is LossReason.HUNG and lost.value.is_culprit


async def test_one_that_does_not_start_says_why_and_is_tried_again(tmp_path: Path) -> None:
    async with beside(tmp_path) as other:
        (other.folder / "broken").touch()
        with pytest.raises(EngineUnreachable, match="No module named 'torch'"):
            await run(other.engine, "none", draw())
        (other.folder / "broken").unlink()
        assert await run(other.engine, "then", draw()) is None


async def test_jobs_that_come_during_its_start_wait_for_the_same_one(tmp_path: Path) -> None:
    async with beside(tmp_path) as other:
        jobs = [asyncio.create_task(run(other.engine, f"job-{number}", draw())) for number in range(3)]
        await asyncio.sleep(0.05)
        jobs[0].cancel()  # whose caller has left
        assert (await asyncio.gather(*jobs, return_exceptions=True))[1:] == [None, None]
        assert other.engine.num_starts == 1


async def test_stopping_ends_one_that_is_only_starting(tmp_path: Path) -> None:
    async with beside(tmp_path) as other:
        job = asyncio.create_task(run(other.engine, "job", draw()))
        await asyncio.sleep(0.3)
        async with asyncio.timeout(10):
            await other.engine.stop()
        await asyncio.gather(job, return_exceptions=True)
        await other.until(lambda: not (other.folder / "pid").exists() or not other.is_running())


async def test_a_command_of_any_kind_dies_with_the_worker(tmp_path: Path) -> None:
    folder = install(tmp_path / "ComfyUI")
    script = tmp_path / "comfy.sh"
    script.write_text(f'#!/bin/sh\n"{folder}/.venv/bin/python" "{folder}/main.py" "$@"\n')
    script.chmod(0o755)
    async with beside(tmp_path) as other:
        launch = FallbackLaunch(
            read_target(str(script)), other.engine.launch.folders, tmp_path / "p", child_environment(), 300.0
        )
        engine = FallbackEngine(launch, SupervisionConfig(), find_folders)
        assert await run(engine, "job", draw()) is None
        await engine.stop()
        await other.until(lambda: not other.is_running())
