"""An engine of the media nodes alone, and its folders."""

from __future__ import annotations

import math
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from darkroom.engine.engine import Engine, RunRequest, RunResult
from darkroom.engine.events import Event
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.image import client_images, image_batches, images, svg
from darkroom.engine.nodes.library.media import audio, audio_editing, video
from darkroom.engine.nodes.sockets import AUDIO
from darkroom.engine.settings import EngineSettings


@node("Tone", category="test")
def tone(context: NodeContext) -> AUDIO:
    """Make a second of 440 Hz in two channels, at half of full scale."""
    time = torch.arange(44100) / 44100 * 2 * math.pi
    return {"waveform": torch.sin(time * 440)[None, None].repeat(1, 2, 1) * 0.5, "sample_rate": 44100}


class Studio:
    def __init__(self, base: Path, **settings: Any) -> None:
        self.settings = EngineSettings(base_directory=base, cpu=True, **settings)
        self.settings.input_path.mkdir()
        classes = (video, audio, audio_editing, client_images, svg, images, image_batches)
        self.engine = Engine(self.settings, (tone, *(item for topic in classes for item in topic.NODES)))
        self.events: list[Event] = []

    def run(self, prompt: dict[str, Any], *, wants_previews: bool = False, **extra_data: Any) -> RunResult:
        self.events.clear()
        checked = self.engine.check(prompt)
        request = RunRequest("p", checked.prompt, checked.outputs, extra_data, wants_previews)
        future: Future[RunResult] = self.engine.submit(request, self.events.append)
        return future.result(timeout=60)

    def files(self, result: RunResult, node_id: str) -> list[Path]:
        """Return the files that a node shows, whatever the name of its list."""
        folders = {"output": self.settings.output_path, "temp": self.settings.temp_path}
        return [
            folders[item["type"]] / item["subfolder"] / item["filename"]
            for items in result.outputs[node_id].values()
            for item in items
            if isinstance(item, dict)
        ]


def of_class(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}
