"""Defaults of a modifier while the engine, which knows the families of the files, is away."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.modifiers.registry import build_registry
from darkroom.worker.engines.address import EngineAddress
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.errors import EngineUnreachable
from darkroom.worker.prompts.modifier_defaults import find_defaults

NAME = "Text2Image"


@pytest.fixture
async def away(tmp_path: Path) -> EngineClient:
    """An engine that is away and has not described a file yet."""
    client = EngineClient(EngineAddress("http://127.0.0.1:9"), is_supervised=True)
    client.presence.mark_away(True)
    return client


async def test_a_checkpoint_that_the_engine_does_not_have_has_no_family_to_wait_for(away: EngineClient) -> None:
    asked = {"ckpt_name": "to-be-fetched.safetensors"}
    defaults = await find_defaults(away, build_registry(), ["here.safetensors"], NAME, asked)
    assert defaults.family is None


async def test_the_family_of_a_checkpoint_that_is_there_is_never_guessed(away: EngineClient) -> None:
    with pytest.raises(EngineUnreachable):
        await find_defaults(away, build_registry(), ["here.safetensors"], NAME, {"ckpt_name": "here.safetensors"})
