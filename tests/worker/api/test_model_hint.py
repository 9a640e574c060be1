"""Levels of models that `/models/hint` reads from engines' reports."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.worker.api.model_hint import _as_json, _level_in_memory


@pytest.mark.parametrize(
    ("report", "level"),
    [
        ({"on_device": True, "loaded_bytes": 5, "ram_bytes": 5}, "vram"),
        ({"on_device": True, "loaded_bytes": 0, "ram_bytes": 5}, "ram"),
        ({"on_device": False, "loaded_bytes": 5}, "ram"),
        ({"on_device": True, "loaded_bytes": 0, "ram_bytes": 0}, "file"),
    ],
)
def test_a_model_is_where_its_weights_are(report: dict[str, Any], level: str) -> None:
    loaded = [_as_json({"name": "a.safetensors unet", "size_bytes": 5, **report})]
    assert loaded == [{"name": "a.safetensors unet", "level": level, "size_bytes": 5}]
    assert _level_in_memory("checkpoints/a.safetensors", loaded) == ("" if level == "file" else level)
    assert _level_in_memory("a.saf", loaded) == "" and _level_in_memory("b.safetensors", loaded) == ""
