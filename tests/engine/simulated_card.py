"""An engine over a folder of small models, on the CPU or on a simulated card, and workflows for it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmark.small_models import node, workflow, write_small_models
from darkroom.engine.engine import Engine, RunRequest
from darkroom.engine.events import Event, RunFailed
from darkroom.engine.formats.safetensors_file import SafetensorsFile
from darkroom.engine.settings import EngineSettings, MemorySettings, VramChoice

__all__ = ["GIB", "MIB", "engine_of", "latent_of", "node", "run", "workflow", "write_small_models"]

MIB = 1 << 20
GIB = 1 << 30


@contextmanager
def engine_of(
    base: Path, *, card_bytes: int | None = None, cpu: bool = True, vram: VramChoice = "normalvram", **memory: Any
) -> Iterator[Engine]:
    asked = MemorySettings(vram, simulate_vram_gb=None if card_bytes is None else card_bytes / GIB, **memory)
    settings = EngineSettings(base_directory=base, cpu=cpu, memory=asked)
    with Engine(settings) as engine:
        yield engine


def run(engine: Engine, prompt: dict[str, Any]) -> tuple[dict[str, Any], list[Event]]:
    """Return the outputs that a run showed, and its events. Raises when it failed."""
    events: list[Event] = []
    checked = engine.check(prompt)
    request = RunRequest(str(random.random()), checked.prompt, checked.outputs)
    result = engine.submit(request, events.append).result()
    engine.memory.pool.check_integrity()
    assert result.status == "success", [event.exception_message for event in events if isinstance(event, RunFailed)]
    return dict(result.outputs), events


def latent_of(engine: Engine, outputs: dict[str, Any]) -> torch.Tensor:
    """The latent that a run saved."""
    (item,) = outputs["20"]["latents"]
    file = SafetensorsFile(engine.files.output / item["subfolder"] / item["filename"])
    return file.tensor("latent_tensor").clone()
