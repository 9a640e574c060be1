"""Depth Anything 3 on images: sizes it sees, what it refuses, files it is read from. `tests/parity` has its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from darkroom.engine.errors import BadModelFile
from darkroom.engine.models.kinds.geometry.depth_estimator import DepthEstimator, seen_sides
from darkroom.engine.models.kinds.geometry.load_depth_anything import load_depth_anything
from darkroom.engine.models.store import ModelStore
from tests.engine.nodes.small_store import small_store
from tests.parity.models import read_layouts, write_model


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ModelStore:
    folder = tmp_path_factory.mktemp("depth")
    for layout in read_layouts():
        if layout.name in ("da3_small", "da3_mono"):
            write_model(layout, folder)
    return small_store(folder)


@pytest.fixture(scope="module")
def small(store: ModelStore) -> DepthEstimator:
    return store.vision.depth_estimator("da3_small.safetensors", None)


@pytest.fixture(scope="module")
def mono(store: ModelStore) -> DepthEstimator:
    return store.vision.depth_estimator("da3_mono.safetensors", torch.bfloat16)


def images(count: int, height: int = 40, width: int = 60) -> torch.Tensor:
    return torch.rand(count, height, width, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("size", "method", "sides"),
    [
        ((480, 640), "upper_bound_resize", (378, 504)),
        ((480, 640), "lower_bound_resize", (504, 672)),
        ((100, 50), "upper_bound_resize", (504, 252)),
    ],
)
def test_sides_are_multiples_of_a_patch(size: tuple[int, int], method: str, sides: tuple[int, int]) -> None:
    assert seen_sides(*size, 504, method) == sides


@pytest.mark.parametrize(
    ("size", "method", "problem"),
    [
        ((4, 1000), "upper_bound_resize", "got 504x0 px of images of 1000x4 px, 0 patches"),
        ((4, 100_000), "lower_bound_resize", "expected 1 to 64800"),
    ],
)
def test_sides_without_a_patch_or_with_too_many_are_refused(size: tuple[int, int], method: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        seen_sides(*size, 504, method)


def test_images_alone_have_confidence_or_a_sky_by_the_model(small: DepthEstimator, mono: DepthEstimator) -> None:
    ours, other = (item.mono(images(2), 70, "upper_bound_resize") for item in (small, mono))
    assert ours["depth"].shape == (2, 40, 60) and ours["mode"] == "mono"
    assert "sky" not in ours and ours["confidence"].min() >= 1
    assert "confidence" not in other and other["sky"].min() >= 0
    assert "extrinsics" not in ours


def test_views_have_cameras(small: DepthEstimator) -> None:
    for pose_method in ("cam_dec", "ray_pose"):
        seen = small.multi_view(images(3), 70, "upper_bound_resize", "first", pose_method)
        assert seen["mode"] == "multiview" and seen["depth"].shape == (3, 40, 60)
        assert seen["extrinsics"].shape == (1, 3, 3, 4) and seen["intrinsics"].shape == (1, 3, 3, 3)
        turns = seen["extrinsics"][0, :, :, :3]
        torch.testing.assert_close(turns @ turns.mT, torch.eye(3).expand(3, 3, 3), atol=1e-3, rtol=0)


def test_models_of_single_images_refuse_views(mono: DepthEstimator) -> None:
    with pytest.raises(ValueError, match="mode: got multiview, which the loaded model does not have; expected mono"):
        mono.multi_view(images(2), 70, "upper_bound_resize", "first", "cam_dec")


def test_more_views_than_fit_are_refused_before_any_is_resized(small: DepthEstimator) -> None:
    many = torch.zeros(1, 40, 40, 3).expand(20_000, 40, 40, 3)
    with pytest.raises(
        ValueError, match="too many views for one scene; got 20000 views of 140x140 px, 2000000 patches"
    ):
        small.multi_view(many, 140, "upper_bound_resize", "first", "cam_dec")


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    save_file({"conv_first.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(BadModelFile, match=r"other\.safetensors.*expected Depth Anything 3"):
        load_depth_anything(tmp_path / "other.safetensors")
    save_file(
        {"backbone.embeddings.patch_embeddings.projection.weight": torch.zeros(64, 3, 14, 14)}, tmp_path / "a.sft"
    )
    with pytest.raises(BadModelFile, match="no tensor 'embeddings.position_embeddings'"):
        load_depth_anything(tmp_path / "a.sft")
