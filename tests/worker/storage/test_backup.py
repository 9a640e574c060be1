"""The page on backups, followed to the letter: state is copied, lost, restored and served again."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from tests.fakes import FakeEngine, draw
from tests.markdown import code_blocks
from tests.worker.running_front import running_front

PAGE = (Path(__file__).parents[3] / "docs" / "upgrade.md").read_text(encoding="utf-8")


async def follow(block: str, base: Path) -> None:
    """Run a block of the page in the folder beside the base directory. Raises AssertionError with its words."""
    environment = {**os.environ, "BASE_DIRECTORY": str(base)}
    pipe = asyncio.subprocess.PIPE
    shell = await asyncio.create_subprocess_exec(
        "bash", "-euc", block, cwd=base.parent, env=environment, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await shell.communicate()
    assert shell.returncode == 0, said.decode()


async def test_a_backup_of_a_running_worker_brings_its_results_back(tmp_path: Path, engine: FakeEngine) -> None:
    _, live, restore, _ = code_blocks(PAGE, "sh")
    base = tmp_path / "base"
    async with running_front(base, engine) as front:
        result = (await front.sync(draw(), request_id="kept")).json()
        await follow(live, base)
    shutil.rmtree(base / "state")
    (base / "state").mkdir()
    (base / "state" / "darkroom.db").write_text("damaged")
    await follow(restore, base)
    assert (base / "state").stat().st_mode & 0o077 == 0
    async with running_front(base, engine) as front:
        again = (await front.http.get("/result/kept")).json()
        assert again["status"] == "completed"
        assert len((await front.http.get(again["output"][0]["url"])).content) > 0
    assert [item["filename"] for item in again["output"]] == [item["filename"] for item in result["output"]]


async def test_a_copy_of_a_stopped_worker_s_state_is_enough(tmp_path: Path, engine: FakeEngine) -> None:
    stopped = code_blocks(PAGE, "sh")[0]
    base = tmp_path / "base"
    async with running_front(base, engine) as front:
        await front.sync(draw(), request_id="kept")
    await follow(stopped, base)
    shutil.rmtree(base / "state")
    await follow("tar -C base -xzf state.tar.gz", base)
    async with running_front(base, engine) as front:
        assert (await front.http.get("/result/kept")).json()["status"] == "completed"
