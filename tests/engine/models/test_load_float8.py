"""Files of float8 weights: kept as they are where they would not fit otherwise, and always in text encoders."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from darkroom.engine.formats.weight_file import all_tensors
from darkroom.engine.formats.weight_source import source_of
from darkroom.engine.models.load import LoadTypes, load_checkpoint, load_unet
from darkroom.engine.models.random_weights import write_random_checkpoint

FLOAT8 = torch.float8_e4m3fn


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("float8")
    write_random_checkpoint(folder / "a.safetensors", "small", seed=0)
    tensors = all_tensors(SafetensorsFile(folder / "a.safetensors"))
    small = {key: tensor.to(FLOAT8) if tensor.is_floating_point() else tensor for key, tensor in tensors.items()}
    write_safetensors(folder / "b.safetensors", small)
    return folder / "b.safetensors"


def test_a_network_stays_float8_only_where_it_would_not_fit(path: Path) -> None:
    whole = load_unet(path, LoadTypes())
    size = sum(weight.nbytes for weight in whole.unet.parameters())
    fits = load_unet(path, LoadTypes(room_bytes=size))
    small = load_unet(path, LoadTypes(room_bytes=size - 1))
    assert {weight.dtype for weight in fits.unet.parameters()} == {torch.float32} and fits.computed is None
    assert {weight.dtype for weight in small.unet.parameters()} == {FLOAT8} and small.computed is torch.float32
    for name, weight in small.unet.named_parameters():
        assert torch.equal(weight.float(), whole.unet.get_parameter(name)), "no value is lost"


def test_weights_that_are_cast_are_views_of_the_file(path: Path) -> None:
    """A file that is as large as RAM is used through its map: pages that are not needed leave again."""
    network = load_unet(path, LoadTypes(room_bytes=0)).unet
    source = source_of(network)
    assert source is not None and all(source.is_view(name) for name, _ in network.named_parameters())
    before = {name: weight.data_ptr() for name, weight in network.named_parameters()}
    assert {name: tensor.data_ptr() for name, tensor in source.read(before)} == before


def test_a_text_encoder_is_kept_as_its_file_has_it(path: Path) -> None:
    loaded = load_checkpoint(path, LoadTypes())
    kept = {name: weight.dtype for name, weight in loaded.text_encoder.named_parameters()}
    others = [name for name, dtype in kept.items() if dtype != FLOAT8]
    assert all("projection" in name for name in others), others
    assert {weight.dtype for weight in loaded.vae.parameters()} == {torch.float32}
