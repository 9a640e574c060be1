"""Each client that works with a worker, unchanged, draws one image with a real worker and its engine."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
from comfy_sdk import Comfy
from mcp.client.client import Client as McpClient
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import ImageContent

from darkroom.client import AsyncClient, Client, Request
from tests.flow.bodies import workflow as workflow_body
from tests.flow.running_worker import ROOT, RunningWorker

PNG = b"\x89PNG"
SMALL = {"width": 64, "height": 64, "steps": 1}
LONGEST_SECONDS = 100


def ran(*words: str, **environment: str) -> str:
    """Run a command and return its standard output."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def workflow(tmp_path: Path) -> Path:
    file = tmp_path / "workflow_api.json"
    file.write_text(json.dumps(workflow_body()))
    return file


def test_the_python_library(worker: RunningWorker, tmp_path: Path) -> None:
    with Client(worker.url) as client:
        result = client.generate(Request.of_modifier("Text2Image", prompt="an apple", **SMALL))
        saved = client.save(result.files[0], tmp_path / "apple.png")
    assert saved.read_bytes().startswith(PNG)


async def test_the_python_library_with_coroutines(worker: RunningWorker, workflow: Path) -> None:
    async with AsyncClient(worker.url) as client:
        result = await client.generate(Request.of_workflow(workflow))
        assert (await client.fetch(result.files[0])).startswith(PNG)


def test_the_command(worker: RunningWorker, workflow: Path, tmp_path: Path) -> None:
    words = ("generate", str(workflow), "--url", worker.url, "--output", str(tmp_path / "drawn.png"), "--json")
    assert '"completed"' in ran("-c", "from darkroom.worker.cli.main import main; main()", *words)
    assert (tmp_path / "drawn.png").read_bytes().startswith(PNG)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_the_javascript_module(worker: RunningWorker) -> None:
    request = {"modifier": "Text2Image", "modifications": {"prompt": "an apple", **SMALL}}
    program = f"""
    import {{ Darkroom }} from {json.dumps(str(ROOT / "clients" / "js" / "darkroom.mjs"))};
    const worker = new Darkroom({json.dumps(worker.url)});
    const result = await worker.generate({json.dumps(request)});
    const bytes = new Uint8Array(await (await worker.fetchOutput(result.output[0])).arrayBuffer());
    console.log(JSON.stringify(Array.from(bytes.slice(0, 4))));
    """
    command = ["node", "--input-type=module", "-e", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    assert done.returncode == 0, done.stderr
    assert bytes(json.loads(done.stdout)) == PNG


def test_openai(worker: RunningWorker) -> None:
    with openai.OpenAI(base_url=f"{worker.url}/v1", api_key="none") as client:
        reply = client.images.generate(prompt="an apple", size="64x64", extra_body={"steps": 1})
    assert [base64.b64decode(image.b64_json or "")[:4] for image in reply.data or []] == [PNG]


def test_comfy_sdk(worker: RunningWorker, workflow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFY_BASE_URL", worker.url)
    with Comfy() as client:
        job = client.run(client.workflows.from_file(str(workflow)))
        assert job.get_outputs("7")[0].to_bytes().startswith(PNG)


def test_comfy_cli(worker: RunningWorker, workflow: Path, tmp_path: Path) -> None:
    own = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "DO_NOT_TRACK": "1"}
    target = {"COMFY_CLOUD_BASE_URL": worker.url, "COMFY_CLOUD_API_KEY": "none"}
    words = ("-m", "comfy_cli", "--skip-prompt", "--json", "--where", "cloud")
    said = ran(*words, "run", "--workflow", str(workflow), "--wait", **own, **target)
    shown = json.loads(said.splitlines()[-1])["data"]
    assert shown["status"] == "completed"
    folder = tmp_path / "downloaded"
    ran(*words, "download", shown["prompt_id"], "--out-dir", str(folder), **own, **target)
    files = list(folder.iterdir())
    assert len(files) == 2 and all(file.read_bytes().startswith(PNG) for file in files)


async def test_an_assistant(worker: RunningWorker) -> None:
    arguments = ["-c", "from darkroom.worker.cli.main import main; main()", "mcp", "--url", worker.url]
    server = StdioServerParameters(command=sys.executable, args=arguments, cwd=str(ROOT))
    values: dict[str, Any] = {"prompt": "an apple", **SMALL}
    async with asyncio.timeout(LONGEST_SECONDS), McpClient(stdio_client(server, errlog=sys.stderr)) as assistant:
        drawn = await assistant.call_tool("Text2Image", values)
    assert not drawn.is_error and isinstance(drawn.content[0], ImageContent)
    assert base64.b64decode(drawn.content[0].data).startswith(b"RIFF")
