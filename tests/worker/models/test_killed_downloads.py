"""Processes killed with SIGKILL in the middle of a download: nothing they had is downloaded again, no job is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from darkroom.contract.downloads import DOWNLOADS
from darkroom.worker.models.download.part_file import BLOCK_BYTES, PartFile
from tests.worker.app.test_recovery import body, front_process
from tests.worker.models.engine_with_models import EngineWithModels, drawing
from tests.worker.models.model_server import checkpoint, model_server
from tests.worker.running_front import until

pytestmark = pytest.mark.slow

LARGE = checkpoint(8 * BLOCK_BYTES)
PATH = "/someone/small/resolve/main/mine.safetensors"
MANIFEST = '[mine]\nkind = "checkpoints"\nsources = ["hf://someone/small/mine.safetensors"]\n'


async def test_a_download_killed_three_times_repeats_less_than_a_block_each_time(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(MANIFEST)
    with model_server(files={PATH: LARGE}) as server:
        server.stall_after = dict.fromkeys((1, 2, 3), 2 * BLOCK_BYTES + BLOCK_BYTES // 2)
        environment = {**os.environ, "HF_ENDPOINT": server.url, "HF_TOKEN": ""}
        command = [sys.executable, "-m", "darkroom.worker", "models", "fetch", "--base-directory", str(tmp_path)]
        for number in range(1, 4):
            process = await asyncio.create_subprocess_exec(*command, env=environment)
            part = tmp_path / "models" / DOWNLOADS / "checkpoints" / "mine.safetensors.part"
            await until_has(part, number * 2 * BLOCK_BYTES)
            process.send_signal(signal.SIGKILL)
            await process.wait()
            assert not (tmp_path / "models" / "checkpoints").exists()
        process = await asyncio.create_subprocess_exec(*command, env=environment)
        assert await process.wait() == 0
        assert (tmp_path / "models" / "checkpoints" / "mine.safetensors").read_bytes() == LARGE
        starts = [start for _, start in server.asked]
        assert starts == [0, 2 * BLOCK_BYTES, 4 * BLOCK_BYTES, 6 * BLOCK_BYTES]
        assert server.sent_bytes(PATH) - len(LARGE) < 3 * BLOCK_BYTES


async def until_has(part: Path, num_bytes: int) -> None:
    """Wait until a part has so many bytes."""

    async def has_them() -> bool:
        found = PartFile.peek(part)
        return found is not None and found[0] >= num_bytes

    await until(has_them)


async def test_a_job_that_waits_for_its_model_survives_the_fronts_death(tmp_path: Path) -> None:
    base, outputs = tmp_path / "base", tmp_path / "outputs"
    base.mkdir()
    outputs.mkdir()
    (base / "models.toml").write_text(MANIFEST)
    with model_server(files={PATH: LARGE}) as server:
        server.hold = threading.Event()
        async with EngineWithModels(outputs, base / "models") as engine:
            names = {"BASE_DIRECTORY": str(base), "FETCH_MISSING": "manifest", "HF_ENDPOINT": server.url}
            async with front_process(tmp_path, engine, **names) as front:
                await front.http.post("/generate", json=body(drawing("mine.safetensors"), "job"))
                await asyncio.to_thread(server.was_asked.wait, 60)
                await front.send(signal.SIGKILL)
            server.hold.set()
            async with front_process(tmp_path, engine, **names) as front:
                await front.until_status("job", "completed")


@pytest.mark.timeout(600)  # the front starts four times
async def test_a_fresh_worker_killed_three_times_serves_its_first_job_and_repeats_less_than_a_block_each_time(
    tmp_path: Path,
) -> None:
    base, outputs = tmp_path / "base", tmp_path / "outputs"
    base.mkdir()
    outputs.mkdir()
    (base / "models.toml").write_text(MANIFEST)
    part = base / "models" / DOWNLOADS / "checkpoints" / "mine.safetensors.part"
    with model_server(files={PATH: LARGE}) as server:
        server.stall_after = dict.fromkeys((1, 2, 3), 2 * BLOCK_BYTES + BLOCK_BYTES // 2)
        async with EngineWithModels(outputs, base / "models") as engine:
            names = {"BASE_DIRECTORY": str(base), "FETCH_MISSING": "manifest", "HF_ENDPOINT": server.url}
            for number in range(1, 4):
                async with front_process(tmp_path, engine, **names) as front:
                    if number == 1:
                        await front.http.post("/generate", json=body(drawing("mine.safetensors"), "first"))
                    await until_has(part, number * 2 * BLOCK_BYTES)
                    await front.send(signal.SIGKILL)
                assert not (base / "models" / "checkpoints").exists()
            async with front_process(tmp_path, engine, **names) as front:
                await front.until_status("first", "completed")
        assert (base / "models" / "checkpoints" / "mine.safetensors").read_bytes() == LARGE
        times = Counter(start for start, _ in server.sent[PATH])  # of pieces, which begin at the same places each time
        assert max(times.values()) == 2
        assert server.sent_bytes(PATH) - len(LARGE) < 3 * BLOCK_BYTES
