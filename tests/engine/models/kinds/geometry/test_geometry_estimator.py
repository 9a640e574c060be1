"""MoGe on images: what it returns and refuses, and the files it is read from. `tests/parity` has its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from darkroom.engine.errors import BadModelFile
from darkroom.engine.models.kinds.geometry.geometry_estimator import GeometryEstimator
from darkroom.engine.models.kinds.geometry.load_moge import load_moge
from darkroom.engine.models.kinds.geometry.moge import MogeV1, MogeV2
from tests.engine.nodes.small_store import small_store
from tests.parity.models import read_layouts, write_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moge")
    for layout in read_layouts():
        if layout.name in ("moge_v1", "moge_v2"):
            write_model(layout, folder)
    return folder


@pytest.fixture(scope="module", params=["moge_v1", "moge_v2"])
def estimator(request: pytest.FixtureRequest, models: Path) -> GeometryEstimator:
    return small_store(models).vision.geometry_estimator(f"{request.param}.safetensors")


def images(height: int = 40, width: int = 60) -> torch.Tensor:
    return torch.rand(1, height, width, 3, generator=torch.Generator().manual_seed(0))


def test_points_lie_on_the_rays_of_the_camera(estimator: GeometryEstimator) -> None:
    found = estimator.estimate(images(), 0, 60.0, is_masked=False)
    seen = found["points"][0] @ found["intrinsics"][0].T
    places = seen[..., :2] / seen[..., 2:]
    torch.testing.assert_close(places[10, 20], torch.tensor((20.5 / 60, 10.5 / 40)), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(found["points"][..., 2], found["depth"])
    across = 2 * torch.atan(0.5 / found["intrinsics"][0, 0, 0])
    torch.testing.assert_close(across.rad2deg(), torch.tensor(60.0), atol=1e-3, rtol=0)


def test_points_that_are_not_valid_are_infinite(models: Path) -> None:
    estimator = small_store(models).vision.geometry_estimator("moge_v2.safetensors")
    found, whole = (estimator.estimate(images(), 0, 60.0, is_masked=item) for item in (True, False))
    mask = found["mask"]
    assert 0 < int(mask.sum()) < mask.numel()
    assert torch.equal(found["depth"].isfinite(), mask) and torch.equal(found["points"].isfinite().all(dim=-1), mask)
    assert found["normal"][~mask].eq(0).all() and whole["points"].isfinite().all()
    torch.testing.assert_close(whole["depth"][mask], found["depth"][mask])


def test_a_more_detailed_level_sees_more_patches(estimator: GeometryEstimator) -> None:
    coarse, fine = (estimator.model.cells(400, 600, estimator.num_tokens_at(level)) for level in (0, 9))
    assert coarse[0] * coarse[1] == pytest.approx(1200, rel=0.05)
    assert fine[0] * fine[1] == pytest.approx(estimator.model.most_tokens, rel=0.05)


def test_images_too_narrow_for_a_patch_are_refused(estimator: GeometryEstimator) -> None:
    with pytest.raises(ValueError, match="image: too narrow; got 9000x1 px"):
        estimator.estimate(images(1, 9000), 0, None)


def test_files_in_dinov2s_and_in_our_names_are_the_same_network(models: Path, tmp_path: Path) -> None:
    first = load_moge(models / "geometry_estimation/moge_v1.safetensors", torch.float16)
    second = load_moge(models / "geometry_estimation/moge_v2.safetensors", torch.float16)
    assert isinstance(first, MogeV1) and isinstance(second, MogeV2)
    for network in (first, second):
        save_file(
            {name: weight.contiguous() for name, weight in network.state_dict().items()}, tmp_path / "ours.safetensors"
        )
        again = load_moge(tmp_path / "ours.safetensors", torch.float16)
        for name, weight in network.state_dict().items():
            assert torch.equal(weight, again.state_dict()[name])


def test_a_file_of_the_papers_authors_is_read(models: Path, tmp_path: Path) -> None:
    tensors = load_file(models / "geometry_estimation/moge_v1.safetensors")
    torch.save({"model_config": {"encoder": "dinov2"}, "model": tensors}, tmp_path / "model.pt")
    assert isinstance(load_moge(tmp_path / "model.pt", torch.float16), MogeV1)


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    save_file({"conv_first.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(BadModelFile, match=r"other\.safetensors.*expected MoGe, version 1 or 2"):
        load_moge(tmp_path / "other.safetensors", torch.float16)
    save_file({"head.upsample_blocks.0.0.0.weight": torch.zeros(4, 3, 2, 2)}, tmp_path / "a.safetensors")
    with pytest.raises(BadModelFile, match="no tensor 'embeddings.patch_embeddings.projection.weight'"):
        load_moge(tmp_path / "a.safetensors", torch.float16)
