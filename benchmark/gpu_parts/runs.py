"""Prompts through the whole engine, for the parts that ask for results and not for times."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image

from benchmark.gpu_parts.bench import Bench
from darkroom.engine import Engine, EngineSettings, RunRequest
from darkroom.engine.events import Event, RunFailed
from darkroom.engine.formats.safetensors_file import SafetensorsFile
from darkroom.engine.settings import DtypeSettings, MemorySettings

LATENT, IMAGE = "20", "21"  # the nodes that save, in all prompts of these parts


@contextmanager
def prompt_engine(
    bench: Bench, folder: Path, *, on_cpu: bool = False, dtypes: DtypeSettings | None = None,
    memory: MemorySettings | None = None, runs_at_once: int = 1, tuning: tuple[str, ...] | None = (),
) -> Iterator[Engine]:  # fmt: skip
    """Yield an engine without tuning, unless it is named, for prompts over a folder."""
    settings = EngineSettings(
        base_directory=folder, cpu=on_cpu or (not bench.is_gpu and memory is None), dtypes=dtypes or DtypeSettings(),
        memory=memory or MemorySettings(), disable_all_custom_nodes=True, tuning=tuning,
        max_concurrent_runs=runs_at_once,
    )  # fmt: skip
    with Engine(settings) as engine:
        yield engine


def run_prompt(engine: Engine, prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs of a prompt. Raises RuntimeError when it failed."""
    shown: dict[str, Any] = begin_prompt(engine, prompt)()
    return shown


def begin_prompt(engine: Engine, prompt: Mapping[str, Any], quality: str | None = None) -> Any:
    """Submit a prompt; the function waits for its end and returns what it showed, or raises RuntimeError.

    Without a quality it is the usual one.
    """
    events: list[Event] = []
    checked = engine.check(dict(prompt))
    request = RunRequest(
        f"{time.monotonic_ns()}", checked.prompt, checked.outputs, {} if quality is None else {"quality": quality}
    )
    future = engine.submit(request, events.append)

    def finish() -> dict[str, Any]:
        result = future.result()
        if result.status != "success":
            reasons = [event.exception_message for event in events if isinstance(event, RunFailed)]
            raise RuntimeError(f"the run ended as {result.status}: {'; '.join(reasons)}")
        return dict(result.outputs)

    return finish


def latent_of(engine: Engine, outputs: Mapping[str, Any]) -> torch.Tensor:
    """Return the latent that a run saved, float32."""
    (item,) = outputs[LATENT]["latents"]
    file = SafetensorsFile(engine.files.output / item["subfolder"] / item["filename"])
    return file.tensor("latent_tensor").clone()


def image_of(engine: Engine, outputs: Mapping[str, Any]) -> numpy.ndarray[Any, Any] | None:
    """Return the first image that a run saved `[H, W, C]`, 0 to 255; None where it saved none."""
    images = outputs.get(IMAGE, {}).get("images")
    if not images:
        return None
    path = engine.files.output / images[0]["subfolder"] / images[0]["filename"]
    with Image.open(path) as opened:
        return numpy.asarray(opened.convert("RGB"), dtype=numpy.float64)
