"""The server for assistants, by the protocol's official client over the command's standard input and output."""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import ImageContent, TextContent
from PIL import Image

from tests.fakes import draw, fail, paint
from tests.worker.running_front import RunningFront


async def test_an_assistant_draws_and_learns_what_is_wrong(front: RunningFront, tmp_path: Path) -> None:
    stored = {"workflow_json": paint(), "description": "Repaints", "inputs": {"text": "1.text", "photo": "1.image"}}
    assert (await front.http.put("/workflows/repaint", json=stored)).status_code == 201
    folder = tmp_path / "pictures"
    folder.mkdir()
    Image.new("RGB", (40, 40)).save(folder / "photo.png")
    arguments = [
        "-c",
        "from darkroom.worker.cli.main import main; main()",
        "mcp",
        "--url",
        front.url,
        "--folder",
        str(folder),
    ]
    seen: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    server = StdioServerParameters(command=sys.executable, args=arguments, cwd=str(Path(__file__).parents[4]))
    async with Client(stdio_client(server, errlog=sys.stderr)) as assistant:
        tools = {tool.name: tool for tool in (await assistant.list_tools()).tools}
        assert {"Text2Image", "workflow_repaint", "run_workflow"} <= tools.keys()
        assert tools["workflow_repaint"].input_schema["properties"].keys() == {"text", "photo"}
        values = {"text": "snow", "photo": "photo.png"}
        drawn = await assistant.call_tool("workflow_repaint", values, progress_callback=on_progress)
        image, saved, chosen = drawn.content
        assert isinstance(image, ImageContent) and base64.b64decode(image.data).startswith(b"RIFF")
        assert isinstance(saved, TextContent) and saved.text.removeprefix(f"Saved as {folder}/") in os.listdir(folder)
        assert isinstance(chosen, TextContent) and '"1.text": "snow"' in chosen.text
        outside = await assistant.call_tool("workflow_repaint", {"photo": "../state/darkroom.db"})
        wrong = await assistant.call_tool("run_workflow", {"workflow_json": draw(), "overrides": {"1.txt": 1}})
        failed = await assistant.call_tool("run_workflow", {"workflow_json": fail()})
    for answer in (outside, wrong, failed):
        assert answer.is_error and isinstance(answer.content[0], TextContent)
    assert isinstance(wrong.content[0], TextContent) and "1.text" in wrong.content[0].text
