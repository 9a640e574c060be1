"""`darkroom plan FILE` where no worker runs: one is started for the plan, and none for another machine's address."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from darkroom.worker.engines.supervisor import free_port

WORKFLOW = {
    "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sd_xl_base_1.0.safetensors"}},
    "2": {"class_type": "VHS_LoadVideo", "inputs": {}},
    "3": {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}},
}


async def planned(tmp_path: Path, *arguments: str, **names: str) -> tuple[int, str, str]:
    file = tmp_path / "workflow.json"
    file.write_text(json.dumps(WORKFLOW))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "darkroom.worker", "plan", str(file), *arguments),
        env={**os.environ, **names},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await process.communicate()
    return process.returncode or 0, stdout.decode(), stderr.decode()


@pytest.mark.slow
@pytest.mark.timeout(600)  # the front and the engine start
async def test_a_worker_is_started_for_the_plan_and_leaves_nothing(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    names = {"BASE_DIRECTORY": str(base), "WORKER_PORT": str(free_port()), "API_KEYS": "shop:" + "k" * 32}
    code, stdout, stderr = await planned(tmp_path, "--json", **names)
    assert code == 1, stderr
    plan = json.loads(stdout)
    assert [node["pack"]["name"] for node in plan["missing_nodes"]] == ["ComfyUI-VideoHelperSuite"]
    assert [model["name"] for model in plan["models"]] == ["sd_xl_base_1.0.safetensors"]
    assert plan["fetch"]["bytes"] > 6e9
    assert not (base / "state" / "jobs.sqlite").exists()


async def test_none_is_started_for_an_address(tmp_path: Path) -> None:
    code, _, stderr = await planned(tmp_path, "--url", f"http://127.0.0.1:{free_port()}")
    assert (code, "does not answer" in stderr) == (2, True)
    assert "starting" not in stderr
