"""Images of Marigold V2's predictions; expected values are computed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from darkroom.engine.nodes.library.image.marigold import marigold_v2_post_process
from tests.engine.nodes.small_store import node_context, small_store

# Two images of two pixels: means 0.2 and 0.6, and twice 0.5.
IMAGES = torch.tensor([[[[0.1, 0.2, 0.3], [0.5, 0.6, 0.7]]], [[[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]]])


def processed(folder: Path, image: torch.Tensor, prediction: str) -> torch.Tensor:
    made: torch.Tensor = marigold_v2_post_process(node_context(small_store(folder)), image=image, prediction=prediction)
    return made


@pytest.mark.parametrize(("prediction", "first"), [("depth", [1.0, 0.0]), ("disparity", [0.0, 1.0])])
def test_near_is_bright_in_each_image_by_itself(tmp_path: Path, prediction: str, first: list[float]) -> None:
    made = processed(tmp_path, IMAGES, prediction)
    assert made.shape == IMAGES.shape
    flat = 1.0 if prediction == "depth" else 0.0  # an image of one value
    expected = torch.tensor([[first], [[flat, flat]]])[..., None].expand(2, 1, 2, 3)
    assert torch.allclose(made, expected, atol=1e-6)


def test_normals_have_length_one(tmp_path: Path) -> None:
    made = processed(tmp_path, torch.tensor([[[[0.8, 0.5, 0.9]]]]), "normals")  # 0.6, 0, 0.8
    assert torch.allclose(made, torch.tensor([[[[0.8, 0.5, 0.9]]]]), atol=1e-6)
    longer = processed(tmp_path, torch.tensor([[[[0.65, 0.5, 0.7]]]]), "normals")  # 0.3, 0, 0.4
    assert torch.allclose(longer, made, atol=1e-6)


def test_albedo_is_encoded_as_srgb(tmp_path: Path) -> None:
    made = processed(tmp_path, torch.tensor([[[[0.0, 0.0031308, 0.5]]]]), "albedo")
    assert torch.allclose(made, torch.tensor([[[[0.0, 0.040449936, 0.7353569]]]]), atol=1e-6)
