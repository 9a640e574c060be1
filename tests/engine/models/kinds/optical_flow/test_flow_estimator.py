"""RAFT's large network: its flow beside torchvision's, what its file must have, and which images it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from darkroom.engine.errors import BadModelFile
from darkroom.engine.models.kinds.optical_flow.flow_estimator import FlowEstimator
from darkroom.engine.models.kinds.optical_flow.load_optical_flow import load_optical_flow
from darkroom.engine.nodes.library.media.optical_flow import optical_flow_loader
from tests.engine.nodes.small_store import node_context, small_store
from tests.parity.models import read_layouts, write_model

TORCHVISION_FLOW = (
    ((-4.754, -9.075, -10.605, -3.700), (-4.683, -36.388, -28.802, -13.297), (-1.798, -35.349, -24.756, -19.854)),
    ((-12.946, -24.541, -18.096, -2.846), (-22.712, -31.112, -30.299, 3.001), (-18.002, 3.929, -0.768, 20.450)),
)
"""Flow of `images`, every 43rd row and 53rd column, by torchvision's raft_large with these weights."""


@pytest.fixture(scope="module")
def estimator(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("flow")
    (layout,) = (item for item in read_layouts() if item.name == "raft_large")
    write_model(layout, folder)
    return optical_flow_loader(node_context(small_store(folder)), model_name="raft_large.safetensors")


def images() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = torch.linspace(0, 1, 160).expand(128, 160), torch.linspace(0, 1, 128)[:, None].expand(128, 160)
    first = torch.stack((torch.sin(9 * x + 4 * y), torch.cos(7 * y * x), torch.sin(11 * y)))[None] / 2 + 0.5
    return first, torch.roll(first, (3, 5), (2, 3))


def test_the_flow_is_torchvisions(estimator: FlowEstimator) -> None:
    flow = estimator.flow(*images())
    assert flow.shape == (1, 2, 128, 160)
    torch.testing.assert_close(flow[0, :, ::43, ::53], torch.tensor(TORCHVISION_FLOW), rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize(("height", "width"), [(128, 161), (120, 160)])
def test_images_of_other_sizes_are_refused(estimator: FlowEstimator, height: int, width: int) -> None:
    image = torch.zeros(1, 3, height, width)
    with pytest.raises(ValueError, match=f"got {width}x{height} px, expected multiples of 8 px, at least 128 px"):
        estimator.flow(image, image)


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    save_file({"feature_encoder.conv.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(BadModelFile, match=r"other\.safetensors.*expected RAFT's large network"):
        load_optical_flow(tmp_path / "other.safetensors")


def test_a_file_of_the_small_network_is_refused(tmp_path: Path) -> None:
    names = ("feature_encoder.conv.weight", "context_encoder.conv.weight", "update_block.flow_head.conv1.weight")
    save_file({name: torch.zeros(1) for name in names}, tmp_path / "small.safetensors")
    with pytest.raises(BadModelFile, match=r"small\.safetensors.*is missing"):
        load_optical_flow(tmp_path / "small.safetensors")
