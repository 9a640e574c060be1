"""The official `comfy-cli`, unchanged, against the engine: run a workflow, its state, cancelling, files in and out."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.server.conftest import Server, held
from tests.engine.server.test_jobs import IMAGE, ended

pytest.importorskip("comfy_cli", reason="comfy-cli is not installed")

HELD = "0f8fad5b-d9cb-469f-a165-70867728950e"


class Cli:
    """The command `comfy`, with a home of its own, against one server."""

    def __init__(self, server: Server, home: Path) -> None:
        self._address = ("--host", str(server.client.host), "--port", str(server.client.port))
        self._environment = {**os.environ, "HOME": str(home), "DO_NOT_TRACK": "1", "XDG_CONFIG_HOME": str(home)}

    async def __call__(self, *words: str, is_local: bool = True) -> dict[str, Any]:
        """Run a command and return the data that it reports."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "comfy_cli", "--skip-prompt", "--json", *words),
            *(self._address if is_local else ()),
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        stdout, stderr = await process.communicate()
        assert process.returncode == 0, (stdout + stderr).decode()
        data: dict[str, Any] = json.loads(stdout.splitlines()[-1])["data"]
        return data


async def test_a_workflow_is_run_and_its_image_downloaded(server: Server, tmp_path: Path) -> None:
    comfy, workflow = Cli(server, tmp_path / "home"), tmp_path / "workflow.json"
    workflow.write_text(json.dumps(IMAGE))
    run = await comfy("run", "--workflow", str(workflow), "--wait")
    assert run["status"] == "completed" and len(run["outputs"]) == 2 and run["executed_node_ids"] == ["1", "2"]
    folder = tmp_path / "downloaded"
    await comfy("download", run["prompt_id"], "--out-dir", str(folder), is_local=False)
    saved = sorted(path.read_bytes() for path in server.settings.output_path.glob("*.png"))
    assert sorted(path.read_bytes() for path in folder.iterdir()) == saved and len(saved) == 2


@pytest.mark.slow
async def test_a_running_prompt_is_listed_and_cancelled_and_files_are_uploaded(server: Server, tmp_path: Path) -> None:
    comfy, file = Cli(server, tmp_path / "home"), tmp_path / "own.png"
    file.write_bytes(b"an image")
    await server.post("/prompt", prompt=held(), prompt_id=HELD)
    assert await asyncio.to_thread(server.gate.entered.wait, 60)
    listed = (await comfy("jobs", "ls"))["jobs"]
    assert [(job["prompt_id"], job["status"]) for job in listed] == [(HELD, "running")]
    await comfy("jobs", "cancel", HELD)
    assert (await ended(server, HELD))["status"] == "cancelled"
    assert (await comfy("jobs", "status", HELD))["prompt_id"] == HELD
    (uploaded,) = (await comfy("upload", str(file)))["uploads"]
    assert (server.settings.input_path / uploaded["cloud_name"]).read_bytes() == b"an image"
