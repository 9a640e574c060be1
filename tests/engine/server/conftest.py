"""A server over a real engine of trivial nodes, in this process."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from darkroom.engine.engine import Engine
from darkroom.engine.nodes.base import NodeClass, NodeContext, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.image import image_batches, images
from darkroom.engine.nodes.library.model.loaders import NODES as LOADERS
from darkroom.engine.nodes.markers import Socket
from darkroom.engine.nodes.widgets import Int
from darkroom.engine.server.app import create_app
from darkroom.engine.server.engine_start import EngineStart
from darkroom.engine.settings import EngineSettings

NUMBER = Annotated[int, Socket("NUMBER")]
VALUE = Annotated[int, Int(min=0, max=100)]


@dataclass
class Gate:
    """Lets a test hold a node while it looks at the server."""

    opened: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)


@dataclass
class Server:
    client: Any
    settings: EngineSettings
    gate: Gate

    async def post(self, path: str, **body: Any) -> Any:
        response = await self.client.post(path, json=body)
        assert response.status == 200, await response.text()
        return await response.json() if response.content_type == "application/json" else None

    async def get(self, path: str) -> Any:
        response = await self.client.get(path)
        assert response.status == 200, await response.text()
        return await response.json()


def held(value: int = 1) -> dict[str, Any]:
    """A prompt that runs until the gate opens."""
    return {
        "1": {"class_type": "Held", "inputs": {"value": value}},
        "2": {"class_type": "Show", "inputs": {"number": ["1", 0]}},
    }


def shown(value: int = 1) -> dict[str, Any]:
    return {
        "1": {"class_type": "Number", "inputs": {"value": value}},
        "2": {"class_type": "Show", "inputs": {"number": ["1", 0]}},
    }


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path) as made:
        yield made


@asynccontextmanager
async def serving(tmp_path: Path, *more: NodeClass, **flags: Any) -> AsyncIterator[Server]:
    """A server over trivial nodes, images, loaders and `more`; `flags` are engine settings."""
    gate = Gate()

    @node("Number", category="test")
    def number(context: NodeContext, *, value: VALUE = 0) -> NUMBER:
        return value

    @node("Held", category="test")
    def held_number(context: NodeContext, *, value: VALUE = 0) -> NUMBER:
        gate.entered.set()
        step = 0
        while not gate.opened.wait(0.01):
            step += 1
            context.report_progress(min(step, 999), 1000)
            context.cancel.check()
        return value

    @node("Show", category="test", is_output=True)
    def show(context: NodeContext, *, number: NUMBER) -> NodeOutput:
        return NodeOutput({"number": [number]})

    classes = (number, held_number, show, *images.NODES, *image_batches.NODES, *LOADERS, *more)
    settings = EngineSettings(base_directory=tmp_path, cpu=True, max_upload_mb=0.5, **flags)
    for folder in (settings.input_path, settings.output_path, settings.temp_path):
        folder.mkdir(parents=True)
    failures: list[BaseException] = []
    start = EngineStart(settings, failures.append, lambda asked: Engine(asked, classes))
    async with TestClient(TestServer(create_app(settings, start))) as client:
        yield Server(client, settings, gate)
        gate.opened.set()
    assert failures == []
