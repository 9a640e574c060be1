"""Wan: which network a file holds, the channels beside the latent, cameras, and latents of 48 channels."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.base import TensorIndex
from darkroom.engine.families.wan.nodes.cameras import PATHS, camera_poses, camera_rays
from darkroom.engine.families.wan.nodes.tracks import moved_along, points_at, tracks_of
from darkroom.engine.families.wan.video_denoiser import VideoDenoiser
from darkroom.engine.formats.unfilled import unfilled
from tests.parity.models import LAYOUTS


class Network(torch.nn.Module):
    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.in_channels = in_channels


@pytest.mark.parametrize(
    ("layout", "family", "variant"),
    [
        ("wan/wan_t2v", "wan", ""), ("wan/wan_i2v", "wan", "image"), ("wan/wan22_i2v_low", "wan", "image"),
        ("wan/wan_fun_control", "wan", "control"), ("wan/wan22_fun_control", "wan", "control"),
        ("wan/wan_vace", "wan", "vace"), ("wan/wan22_camera", "wan", "camera"), ("wan/wan22_animate", "wan", "animate"),
        ("wan/wan_animate2", "wan", "animate2"), ("wan/wan_scail", "wan", "scail"), ("wan/wan_scail2", "wan", "scail2"),
        ("wan/wan_causal", "wan", "causal"), ("wan/wan_flow_rvs", "wan", "flow_rvs"),
        ("wan/wan22_s2v", "wan", "sound"), ("wan/wan_humo", "wan", "speech"), ("wan22/wan22_5b", "wan22", ""),
        ("wan22/wan22_5b_fun_control", "wan22", "control"),
    ],
)  # fmt: skip
def test_a_network_is_known_by_its_layers_and_built_with_them(layout: str, family: str, variant: str) -> None:
    stored = json.loads((LAYOUTS / f"{layout}.json").read_text("utf-8"))
    shapes = {name: tuple(shape) for name, shape in stored["tensors"].items()}
    metadata = {name: json.dumps(text) for name, text in stored.get("metadata", {}).items()}
    found = registry.recognise(TensorIndex(shapes, metadata))
    assert (found.family.name, found.match.variant) == (family, variant)
    denoiser = found.family.denoiser
    with unfilled():
        network = denoiser.build(denoiser.as_described(denoiser.configure(shapes), metadata))
    described = {name: json.dumps(text) for name, text in denoiser.description(network.config).items()}
    assert described == metadata
    assert {name: tuple(weight.shape) for name, weight in network.state_dict().items()} == shapes


def test_music_in_one_tensor_is_read_as_queries_keys_and_values() -> None:
    tensors = json.loads((LAYOUTS / "wan/wan_dancer.json").read_text("utf-8"))["tensors"]
    index = TensorIndex({name: tuple(shape) for name, shape in tensors.items()})
    assert "music_encoder.1.self_attn.in_proj_weight" in index.shapes
    found = registry.recognise(index)
    assert (found.family.name, found.match.variant) == ("wan", "dancer")
    own = registry.shapes_under(found.match.names, index.shapes)
    with unfilled():
        network = found.family.denoiser.build(found.family.denoiser.configure(own))
    assert {name: tuple(weight.shape) for name, weight in network.state_dict().items()} == own


def test_a_network_from_images_is_not_taken_for_one_that_draws_frame_after_frame() -> None:
    tensors = json.loads((LAYOUTS / "wan/wan_i2v.json").read_text("utf-8"))["tensors"]
    metadata = {"config": json.dumps({"transformer": {"causal_ar": True}})}
    found = registry.recognise(TensorIndex({name: tuple(shape) for name, shape in tensors.items()}, metadata))
    assert found.match.variant == "image"


def concat(in_channels: int, **given: Any) -> torch.Tensor | None:
    denoiser: Any = VideoDenoiser(Network(in_channels))
    denoiser.latent_format = registry.family_named("wan").latent_format()
    noise = torch.zeros(1, 16, 3, 4, 6)
    return denoiser.concat_cond(noise=noise, device=noise.device, **given)  # type: ignore[no-any-return]


def test_a_network_reads_the_mask_of_what_is_given_before_the_images() -> None:
    mask = torch.ones(1, 1, 3, 8, 12)
    mask[:, :, 0] = 0.0
    seen = concat(36, concat_latent_image=torch.zeros(1, 16, 3, 8, 12), concat_mask=mask)
    assert seen is not None and seen.shape == (1, 20, 3, 4, 6)
    assert (seen[:, :4, 0] == 1).all() and (seen[:, :4, 1:] == 0).all()
    behind = concat(
        52, concat_latent_image=torch.ones(1, 32, 3, 4, 6), concat_mask=mask[..., :4, :6], concat_mask_index=16
    )
    assert behind is not None and behind.shape[1] == 36 and (behind[:, 16:20, 0] == 1).all()


def test_channels_without_images_are_empty() -> None:
    assert concat(16) is None
    for channels in (36, 48):
        empty = concat(channels)
        assert empty is not None and empty.shape[1] == channels - 16 and not empty.any()


@pytest.mark.parametrize("name", PATHS)
def test_a_camera_begins_where_it_stands(name: str) -> None:
    poses = camera_poses(name, 1.0, 5)
    torch.testing.assert_close(poses[0], torch.eye(4))
    rays = camera_rays(poses, 32, 16, (0.5, 0.5), (0.5, 0.5))
    assert rays.shape == (5, 6, 16, 32)
    torch.testing.assert_close(rays[:, 3:].norm(dim=1), torch.ones(5, 16, 32))  # directions
    assert not rays[0, :3].any()  # no moment at the origin


def test_points_of_tracks_move_the_cells_under_them() -> None:
    (video,) = tracks_of(json.dumps([[{"x": 8, "y": 24}] * 121]))
    points = points_at(video, 64, 48, 8)
    assert points.shape == (9, 1, 3) and points[0, 0].tolist() == [-1.0, 0.0, 1.0]
    latent = torch.zeros(16, 3, 6, 8)
    latent[:, 0, 2:4, 0:2] = 1.0
    mask, moved = moved_along(latent, points, 220.0, 2)
    assert mask.shape == (3, 6, 8) and (mask[0] == 1).all() and torch.equal(mask[1], mask[2])
    row, column = divmod(int(mask[2].argmax()), 8)
    assert row in (2, 3) and column in (0, 1) and mask[2].max() > 0
    assert torch.equal(moved[:, 0], latent[:, 0])


@pytest.mark.parametrize("text", ["[[", "[1]", '[[{"x": 1}]]', '{"x": 1}'])
def test_tracks_that_are_none_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="tracks: they are no JSON of points"):
        tracks_of(text)
