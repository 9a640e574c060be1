"""`--unload-when-idle` in a real server on a simulated card."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.engine.server.running_engine import RunningEngine, running_engine
from tests.engine.simulated_card import workflow
from tests.tiny_checkpoint import make_tiny_checkpoint

PATIENCE_SECONDS = 120.0


def ask(engine: RunningEngine, path: str, body: Any = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"{engine.url}{path}", data, timeout=PATIENCE_SECONDS) as answer:
        content: bytes = answer.read()
        return content


def latent_bytes(engine: RunningEngine, checkpoint: str, seed: int) -> bytes:
    """Return the file that a prompt of that seed saves."""
    prompt = workflow(first=checkpoint, second=None, lora=None, control=False, steps=1)
    prompt["9"]["inputs"]["seed"] = seed
    prompt_id = json.loads(ask(engine, "/prompt", {"prompt": prompt}))["prompt_id"]
    until = time.monotonic() + PATIENCE_SECONDS
    while not (entry := json.loads(ask(engine, f"/history/{prompt_id}")).get(prompt_id)):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert entry["status"]["status_str"] == "success", entry["status"]
    (item,) = entry["outputs"]["20"]["latents"]
    return ask(engine, "/view?" + urllib.parse.urlencode(item))


def loaded_bytes(engine: RunningEngine) -> int:
    memory = json.loads(ask(engine, "/api/v1/memory"))
    return sum(model["loaded_bytes"] for model in memory["models"] if model["on_device"])


def test_models_leave_an_idle_card_and_the_next_prompt_gives_what_it_gave_before(tmp_path: Path) -> None:
    path = make_tiny_checkpoint(tmp_path / "models" / "checkpoints")
    idle_seconds = 1.0
    with running_engine(tmp_path, "--simulate-vram", "1", "--unload-when-idle", str(idle_seconds)) as engine:
        first = latent_bytes(engine, path.stem, seed=1)
        other = latent_bytes(engine, path.stem, seed=2)
        until = time.monotonic() + PATIENCE_SECONDS
        while loaded_bytes(engine):
            assert time.monotonic() < until, "models stay though nothing runs"
            time.sleep(0.1)
        assert json.loads(ask(engine, "/api/v1/memory"))["device"]["allocated_bytes"] == 0
        assert latent_bytes(engine, path.stem, seed=1)[-64:] == first[-64:] != other[-64:]
        assert engine.stop() == 0
