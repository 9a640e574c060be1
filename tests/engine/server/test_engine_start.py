"""The engine is built beside the server, without the garbage collector."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from darkroom.engine import engine
from darkroom.engine.server.engine_start import build_engine
from darkroom.engine.settings import EngineSettings


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_collected_while_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    was_enabled = []

    class Built:
        def __init__(self, settings: EngineSettings) -> None:
            was_enabled.append(gc.isenabled())
            if fails:
                raise OSError

    monkeypatch.setattr(engine, "Engine", Built)
    try:
        build_engine(EngineSettings(base_directory=tmp_path, cpu=True))
    except OSError:
        assert fails
    assert was_enabled == [False]
    assert gc.isenabled()
