"""Files of models and LoRAs that change on the disk while the engine holds what was in them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.models.preloaded_models import PreloadedModels
from darkroom.engine.models.random_weights import write_random_checkpoint
from tests.engine.nodes.small_store import small_store

KEY = "diffusion_model.out.2.weight"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("models") / "a.safetensors"
    write_random_checkpoint(path, "small")
    return path.read_bytes()


def test_a_file_that_others_took_the_place_of_is_reported_once_and_read_anew(tmp_path: Path, checkpoint: bytes) -> None:
    path = tmp_path / "checkpoints" / "a.safetensors"
    path.parent.mkdir()
    path.write_bytes(checkpoint)
    store = small_store(tmp_path)
    first, _, _ = store.checkpoint("a.safetensors")
    preloaded = PreloadedModels(store)
    preloaded.load("checkpoints", "a.safetensors", keep=True)
    assert store.files.forget_changed() == []
    write_random_checkpoint(path, "small", seed=1)
    assert store.files.forget_changed() == [str(path)]
    assert store.files.forget_changed() == []
    preloaded.forget([str(path)])
    second, _, _ = store.checkpoint("a.safetensors")
    assert not torch.equal(first.weights.original_weight(KEY), second.weights.original_weight(KEY))
    path.unlink()
    assert store.files.forget_changed() == [], "what was read is still good"


def test_a_lora_that_is_still_held_is_known_to_have_changed(tmp_path: Path) -> None:
    path = tmp_path / "loras" / "l.safetensors"
    write_safetensors(path, {"weight": torch.ones(4)})
    store = small_store(tmp_path)
    held = store.files.tensors("loras", "l.safetensors")["weight"]
    path.write_bytes(path.read_bytes() + b" ")
    assert store.files.forget_changed() == [str(path)]
    del held
    store.files.tensors("loras", "l.safetensors")
    path.write_bytes(path.read_bytes() + b" ")
    assert store.files.forget_changed() == [], "nobody has anything of it"
