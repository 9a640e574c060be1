"""Patches change the weights of layers, and no tensor that a module has beside its layers: as in ComfyUI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.families.registry import family_named
from darkroom.engine.models.random_weights import write_random_checkpoint
from tests.engine.nodes.small_store import small_store

PLACES = "diffusion_model.pos_embed"
LAYER = "diffusion_model.x_embedder.proj.weight"


@pytest.fixture
def model(tmp_path: Path) -> Any:
    family = family_named("sd3")
    write_random_checkpoint(tmp_path / "checkpoints" / "sd3.safetensors", family=family)
    return small_store(tmp_path).checkpoint("sd3.safetensors")[0]


def test_a_table_of_places_stays_as_it_is(model: Any) -> None:
    weights = {name: model.weights.original_weight(name).clone() for name in (PLACES, LAYER)}
    changed = model.clone()
    taken = changed.add_patches({name: ("diff", (torch.ones_like(weight),)) for name, weight in weights.items()})
    assert set(taken) == set(weights)  # both are weights of the network
    assert set(changed.patches_of_layers()) == {LAYER}
    with changed.in_use():
        assert torch.equal(changed.weights.current_weight(PLACES), weights[PLACES])
        torch.testing.assert_close(changed.weights.current_weight(LAYER), weights[LAYER] + 1)


def test_a_model_without_patches_has_none_of_layers(model: Any) -> None:
    assert model.patches_of_layers() == {}
