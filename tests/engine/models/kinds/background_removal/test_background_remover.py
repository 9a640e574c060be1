"""Removal of backgrounds: what a file must have, and what a mask is. Numbers are compared in `tests/parity`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from darkroom.engine.errors import BadModelFile
from darkroom.engine.models.kinds.background_removal import background_remover
from darkroom.engine.models.kinds.background_removal.birefnet import folded
from darkroom.engine.models.kinds.background_removal.load_background_removal import load_background_removal
from darkroom.engine.nodes.library.image.background_removal import load_background_removal_model, remove_background
from tests.engine.nodes.small_store import node_context, small_store
from tests.parity.models import read_layouts, write_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("background")
    (layout,) = (item for item in read_layouts() if item.name == "birefnet_small")
    write_model(layout, folder)
    return folder


def test_each_image_of_a_batch_has_the_mask_that_it_has_alone(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_remover, "IMAGE_PX", 64)
    context = node_context(small_store(models))
    remover = load_background_removal_model(context, bg_removal_name="birefnet_small.safetensors")
    images = torch.rand(2, 30, 40, 4, generator=torch.Generator().manual_seed(0))
    mask = remove_background(context, bg_removal_model=remover, image=images)
    assert mask.shape == (2, 30, 40) and mask.dtype == torch.float32
    assert mask.min() >= 0 and mask.max() <= 1 and mask.std() > 0.01
    torch.testing.assert_close(
        mask[1:], remove_background(context, bg_removal_model=remover, image=images[1:, ..., :3])
    )


def test_tiles_of_an_image_are_channels_by_columns_then_rows_then_colours() -> None:
    image = torch.arange(3 * 4 * 6).view(1, 3, 4, 6)
    tiles = folded(image, torch.Size((2, 3)))
    assert tiles.shape == (1, 12, 2, 3)
    torch.testing.assert_close(tiles[0, 3], image[0, 0, 2:, :3])
    torch.testing.assert_close(tiles[0, 7], image[0, 1, :2, 3:])


def test_other_files_are_refused_by_name(tmp_path: Path, models: Path) -> None:
    save_file({"conv_first.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(BadModelFile, match=r"other\.safetensors.*expected a network that removes backgrounds"):
        load_background_removal(tmp_path / "other.safetensors", torch.float16)
    tensors = load_file(models / "background_removal/birefnet_small.safetensors")
    encoder = {name: tensor for name, tensor in tensors.items() if name.startswith("bb.")}
    save_file(encoder, tmp_path / "encoder.safetensors")
    with pytest.raises(BadModelFile, match=r"no tensor 'squeeze_module\.0\.conv_in\.weight'"):
        load_background_removal(tmp_path / "encoder.safetensors", torch.float16)
