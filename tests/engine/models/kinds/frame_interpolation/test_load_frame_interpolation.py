"""Files of networks that interpolate frames: known by their tensors, refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from darkroom.engine.errors import BadModelFile
from darkroom.engine.models.kinds.frame_interpolation.film import Film
from darkroom.engine.models.kinds.frame_interpolation.load_frame_interpolation import load_frame_interpolation
from darkroom.engine.models.kinds.frame_interpolation.rife import Rife
from tests.parity.models import read_layouts, write_model


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("frames")
    return {
        item.name: write_model(item, folder) for item in read_layouts() if item.file.startswith("frame_interpolation/")
    }


def test_the_network_and_its_channels_are_read_from_the_tensors(files: dict[str, Path]) -> None:
    rife, raw, film = (load_frame_interpolation(files[name]) for name in ("rife_small", "rife_raw", "film_small"))
    assert isinstance(rife, Rife) and rife.config.stage_channels == (24, 16, 16, 8, 8)
    assert isinstance(raw, Rife) and raw.config.feature_channels == 8
    assert isinstance(film, Film) and film.config.channels == 8


def test_weights_compute_in_float32_whatever_the_file_has(files: dict[str, Path]) -> None:
    assert {weight.dtype for weight in load_frame_interpolation(files["film_small"]).parameters()} == {torch.float32}


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    save_file({"conv_first.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(BadModelFile, match=r"other\.safetensors.*expected a network that interpolates frames"):
        load_frame_interpolation(tmp_path / "other.safetensors")


def test_an_older_rife_with_four_stages_is_refused_with_what_it_lacks(files: dict[str, Path], tmp_path: Path) -> None:
    stages = {name: item for name, item in load_file(files["rife_small"]).items() if not name.startswith("blocks.4.")}
    save_file(stages, tmp_path / "rife4.safetensors")
    with pytest.raises(BadModelFile, match=r"no tensor 'blocks\.4\.conv0\.1\.0\.weight'"):
        load_frame_interpolation(tmp_path / "rife4.safetensors")
