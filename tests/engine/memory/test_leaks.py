"""A model that nobody can use any more and that something still holds is found and named."""

from __future__ import annotations

import gc
import logging
from typing import Any

import pytest

from tests.engine.memory.simulated import Card, network

SIZE = sum(weight.nbytes for weight in network(0).state_dict().values())


def test_leaked_models_are_reported_with_the_node_that_brought_them(caplog: pytest.LogCaptureFixture) -> None:
    card = Card(4 * SIZE)
    card.pool.begin_node("7", "LeakyLoader")
    handle = card.add("a.safetensors unet", network(0))
    held: Any = handle.module
    del handle
    gc.collect()
    with caplog.at_level(logging.WARNING):
        assert card.pool.find_leaks() == ["a.safetensors unet, from LeakyLoader (node 7)"]
    assert "memory leak" in caplog.text and card.pool.report().num_leaks == 1
    assert held is not None and card.pool.find_leaks() == []
