"""Nodes of TRELLIS 2 and Pixal3D: stages, decoding, projections, and inputs that are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.diffusion.denoiser import ModelConfig
from darkroom.engine.families import registry
from darkroom.engine.families.trellis2.cells import joined
from darkroom.engine.families.trellis2.denoiser import Trellis2Denoiser
from darkroom.engine.families.trellis2.nodes import NODES
from darkroom.engine.families.trellis2.nodes.decoding import Subdivisions
from darkroom.engine.families.trellis2.nodes.latents import latent_of
from darkroom.engine.families.trellis2.nodes.projection import projected
from darkroom.engine.families.trellis2.nodes.stages import cells_in
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.dinov2 import Dinov2, Dinov2Config
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.models.kinds.clip_vision_value import ClipVision
from darkroom.engine.models.load import LoadTypes
from darkroom.engine.models.random_weights import random_networks
from darkroom.engine.models.shape_vae import Voxel
from darkroom.engine.models.vae_of import vae_of
from darkroom.engine.models.voxel_vae import VoxelVae
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.settings import EngineSettings

FAMILY = registry.family_named("trellis2")
CALLS = {item.class_type: item.function for item in NODES}
POSITIVE: list[list[Any]] = [[torch.ones(1, 3, 64), {"embeds": torch.ones(1, 5, 64)}]]
NEGATIVE: list[list[Any]] = [[torch.zeros(1, 3, 64), {"embeds": torch.zeros(1, 5, 64)}]]


def call(class_type: str, **inputs: Any) -> Any:
    context = NodeContext("1", "p", CancelToken(), lambda value, total: None, None, None, None)
    return CALLS[class_type](context, **inputs)


def value_of(network: torch.nn.Module, name: str) -> Any:
    return ModelMemory(EngineSettings(cpu=True)).keep(name, network, role="vae")


@pytest.fixture(scope="module")
def shape_vae() -> Any:
    _, _, network = random_networks("small", 3, LoadTypes(), family=FAMILY)
    return vae_of(value_of(network, "shape"))


@pytest.fixture(scope="module")
def texture_vae() -> Any:
    described = FAMILY.further_vaes[0]
    network = described.build(described.sizes["small"]).requires_grad_(False)
    for weight in network.parameters():
        weight.data.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(weight.numel()))
    return vae_of(value_of(network, "texture"))


@pytest.fixture
def voxel() -> Voxel:
    data = torch.zeros(2, 32, 32, 32)
    data[0, 1, 2, 3] = data[0, 4, 5, 6] = data[1, 7, 8, 9] = 1.0
    return Voxel(data)


def test_a_shape_is_sampled_in_the_occupied_voxels(voxel: Voxel) -> None:
    positive, negative, latent = call("Trellis2ShapeStage", positive=POSITIVE, negative=NEGATIVE, voxel=voxel)
    assert latent["coords"].tolist() == [[0, 1, 2, 3], [0, 4, 5, 6], [1, 7, 8, 9]]
    assert latent["samples"].shape == (2, 32, 2, 1) and latent["coord_resolution"] == 32
    assert latent["coord_counts"].tolist() == [2, 1] and latent["model_frame"] == "z_up"
    for (_, options), (_, given) in zip(positive + negative, POSITIVE + NEGATIVE, strict=True):
        assert options["trellis2_generation_mode"] == "shape_generation_512"
        assert options["embeds"] is given["embeds"] and "trellis2_coords" not in given
    fine = Voxel(torch.ones(1, 40, 40, 40))
    staged, _, _ = call("Trellis2ShapeStage", positive=POSITIVE, negative=NEGATIVE, voxel=fine)
    assert staged[0][1]["trellis2_generation_mode"] == "shape_generation"


@pytest.mark.parametrize(
    ("voxel", "said"),
    [
        (Voxel(torch.zeros(1, 4, 4, 4)), "structure is empty"),
        (Voxel(torch.zeros(5, 3), torch.zeros(5, 3), 8), r"no dense grid of a structure; got \[5, 3\]"),
        (Voxel(torch.zeros(1, 4, 4, 8)), r"got \[1, 4, 4, 8\], expected a cube"),
        (Voxel(torch.zeros(1, 129, 129, 129)), "at most 128 voxels a side"),
        (Voxel(torch.ones(1, 65, 65, 65)), "too many cells to attend to; got 274625 of an item"),
    ],
)
def test_voxels_without_a_structure_are_refused(voxel: Voxel, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call("Trellis2ShapeStage", positive=POSITIVE, negative=NEGATIVE, voxel=voxel)


def test_a_structure_is_decoded_to_grids_of_both_sizes(shape_vae: VoxelVae) -> None:
    samples = {"samples": torch.randn(2, 32, 16, 16, 16, generator=torch.Generator().manual_seed(0))}
    fine = call("VaeDecodeStructureTrellis2", samples=samples, vae=shape_vae, resolution="64").data
    coarse = call("VaeDecodeStructureTrellis2", samples=samples, vae=shape_vae, resolution="32").data
    assert fine.shape == (2, 64, 64, 64) and 0 < fine.mean() < 1
    assert torch.equal(coarse, torch.nn.functional.max_pool3d(fine, 2))


def shape_latent(seed: int = 0, **more: Any) -> Any:
    cells = joined([torch.tensor([[1, 2, 3], [1, 2, 4], [1, 3, 3]]), torch.tensor([[9, 9, 9]])], 32)
    samples = torch.randn(2, 32, 3, 1, generator=torch.Generator().manual_seed(seed))
    return {**latent_of(cells, "z_up"), "samples": samples, **more}


def test_shapes_and_their_textures_are_decoded_item_by_item(shape_vae: VoxelVae, texture_vae: VoxelVae) -> None:
    latent = shape_latent()
    mesh, subdivisions = call("VaeDecodeShapeTrellis", samples=latent, vae=shape_vae)
    assert len(mesh) == len(subdivisions.items) == 2 and [len(item) for item in subdivisions.items] == [4, 4]
    upright, _ = call("VaeDecodeShapeTrellis", samples={**latent, "model_frame": "y_up"}, vae=shape_vae)
    x, y, z = upright.item(0).vertices.unbind(-1)
    torch.testing.assert_close(mesh.item(0).vertices, torch.stack([x, z, -y], dim=-1))
    assert mesh.item(0).vertices.abs().max() <= 0.5 + 1 / 512
    voxels = call("VaeDecodeTextureTrellis", samples=latent, vae=texture_vae, shape_subdivides=subdivisions)
    assert voxels.resolution == 512 and voxels.voxel_colors.shape == (len(voxels.data), 6)
    assert [int((voxels.data[:, 0] == index).sum()) for index in (0, 1)] == [size for size, _ in mesh.sizes()]
    for item in (0, 1):
        inside = ((voxels.data[voxels.data[:, 0] == item, 1:] + 0.5) / 512 - 0.5 - mesh.item(item).vertices).abs()
        assert inside.max() <= 1 / 512  # each voxel has the corner of its cell


def test_upsampled_shapes_have_the_cells_that_the_decoded_ones_pass(shape_vae: VoxelVae) -> None:
    inputs = {"positive": POSITIVE, "negative": NEGATIVE, "shape_latent": shape_latent(), "vae": shape_vae}
    positive, _, latent = call("Trellis2UpsampleStage", **inputs, target_resolution=1536)
    assert latent["coord_resolution"] == 96 and latent["model_frame"] == "z_up"
    assert positive[0][1]["trellis2_generation_mode"] == "shape_generation"
    coarse = {tuple(cell) for cell in shape_latent()["coords"].tolist()}
    assert {(item, *(side // 3 for side in cell)) for item, *cell in latent["coords"].tolist()} <= coarse
    with pytest.raises(ValueError, match="as many voxels is not decoded; got 0"):
        shape_vae.finest_cells(torch.zeros(1, 32), torch.zeros(1, 3).int())


def test_cells_of_a_finer_grid_are_rounded_for_pixal3d() -> None:
    voxels = torch.tensor([[0, 7, 8], [511, 0, 0], [1, 7, 8]])
    assert cells_in(64, voxels, rounds=False).tolist() == [[0, 0, 1], [63, 0, 0]]
    assert cells_in(64, voxels, rounds=True).tolist() == [[0, 1, 1], [63, 0, 0]]


def test_a_texture_is_sampled_in_the_cells_of_its_shape() -> None:
    latent = shape_latent(model_frame="y_up")
    positive, _, empty = call("Trellis2TextureStage", positive=POSITIVE, negative=NEGATIVE, shape_latent=latent)
    options = positive[0][1]
    assert options["trellis2_generation_mode"] == "texture_generation"
    samples = latent["samples"][..., 0]
    assert torch.equal(options["trellis2_shape_slat"], torch.cat([samples[0].T, samples[1, :, :1].T]))
    assert not empty["samples"].any() and empty["model_frame"] == "y_up" and empty["coord_resolution"] == 32


# --- what is refused -------------------------------------------------------------------------------------------------


def test_latents_and_vaes_of_other_kinds_are_refused(shape_vae: VoxelVae, texture_vae: VoxelVae) -> None:
    latent, image = shape_latent(), {"samples": torch.zeros(1, 4, 8, 8)}
    with pytest.raises(ValueError, match="samples: no latent of cells"):
        call("VaeDecodeShapeTrellis", samples=image, vae=shape_vae)
    with pytest.raises(ValueError, match=r"samples are not those of its cells; got \[1, 32, 3, 1\], expected \[2"):
        call("VaeDecodeShapeTrellis", samples={**latent, "samples": latent["samples"][:1]}, vae=shape_vae)
    with pytest.raises(ValueError, match="vae: none of voxels"):
        call("VaeDecodeShapeTrellis", samples=latent, vae=object())
    with pytest.raises(ValueError, match="no decoder of shapes; expected the other VAE"):
        call("VaeDecodeShapeTrellis", samples=latent, vae=texture_vae)
    with pytest.raises(ValueError, match="shape_subdivides: of another batch"):
        call("VaeDecodeTextureTrellis", samples=latent, vae=texture_vae, shape_subdivides=Subdivisions(()))
    with pytest.raises(ValueError, match="got 4 channels, expected 32"):
        call("VaeDecodeStructureTrellis2", samples={"samples": torch.zeros(1, 4, 1, 8, 8)}, vae=shape_vae,
             resolution="32")  # fmt: skip
    for refused in (shape_vae.decode, shape_vae.decode_tiled, shape_vae.encode, shape_vae.encode_tiled):
        with pytest.raises(ValueError, match="vae: one of voxels"):
            refused(torch.zeros(1, 32, 16, 16))


def test_encoders_of_other_kinds_and_images_of_greys_are_refused() -> None:
    config = Dinov2Config(num_layers=1, width=64, inner_width=64, is_gated=False)
    other = ClipVision(value_of(Dinov2(config), "vision"))
    with pytest.raises(ValueError, match="clip_vision_model: no DINOv3"):
        call("Trellis2Conditioning", clip_vision_model=other, image=torch.zeros(1, 8, 8, 3))


def conditions(noise: torch.Tensor, stages: tuple[Any, ...] | None = None, **options: Any) -> dict[str, Any]:
    config = FAMILY.scales["small"].denoiser
    with unfilled():
        network = FAMILY.denoiser.build(config if stages is None else replace(config, stages=stages))
    model = Trellis2Denoiser(network, config=ModelConfig(family=FAMILY, latent_format=FAMILY.latent_format()))
    return model.extra_conds(noise=noise, device=torch.device("cpu"), **options)


def test_a_condition_is_for_the_stage_of_the_latent(voxel: Voxel) -> None:
    structure = conditions(torch.zeros(1, 32, 16, 16, 16), cross_attn=POSITIVE[0][0])
    assert structure["stage"].cond == "structure_model" and structure["turns"].cond.shape == (1, 4096, 2, 4)
    positive, _, latent = call("Trellis2ShapeStage", positive=POSITIVE, negative=NEGATIVE, voxel=voxel)
    tokens, options = positive[0]
    coarse = conditions(latent["samples"], cross_attn=tokens, **options)
    assert coarse["stage"].cond == "img2shape_512" and coarse["c_crossattn"].cond is tokens
    assert coarse["occupied"].cond.tolist() == [[True, True], [True, False]]
    fine = conditions(
        latent["samples"], cross_attn=tokens, **{**options, "trellis2_generation_mode": "shape_generation"}
    )
    assert fine["c_crossattn"].cond is options["embeds"]


@pytest.mark.parametrize(
    ("shape", "options", "said"),
    [
        ((1, 32, 8, 8, 8), {}, r"no structure of this family; got \[32, 8, 8, 8\]"),
        ((1, 32, 5, 1), {}, "positive: it is not of a stage of cells"),
        ((1, 32, 5, 1), {"trellis2_generation_mode": "shape_generation"}, "no image tokens at 1024"),
        (
            (1, 32, 5, 1),
            {"trellis2_generation_mode": "shape_generation_512", "trellis2_coords": torch.zeros(4, 4).int()},
            r"other cells than positive and negative; got \[1, 32, 5, 1\], expected \[1, 32, 4, 1\]",
        ),
    ],
)
def test_latents_of_another_stage_are_refused(shape: tuple[int, ...], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        conditions(torch.zeros(shape), **options)


def test_a_file_without_the_network_of_a_stage_is_refused() -> None:
    stages = FAMILY.scales["small"].denoiser.stages[-1:]
    with pytest.raises(ValueError, match="model: its file has no network of structures; .* got one with shape2txt"):
        conditions(torch.zeros(1, 32, 16, 16, 16), stages)


# --- projections -----------------------------------------------------------------------------------------------------


def test_the_cube_fills_the_image_where_it_is_as_far_as_the_camera_sees_it() -> None:
    fov = math.radians(90.0)  # the camera is half a side away from the middle of the cube
    middle = projected(torch.tensor([[1, 1, 1], [2, 1, 1], [1, 2, 1], [0, 0, 1]]), 3, fov)
    torch.testing.assert_close(middle, torch.tensor([[0.5, 0.5], [1.0, 0.5], [0.5, 0.0], [0.0, 1.0]]))
    nearer = projected(torch.tensor([[2, 1, 0]]), 3, fov)
    torch.testing.assert_close(nearer, torch.tensor([[0.75, 0.5]]))
    torch.testing.assert_close(projected(torch.zeros(1, 3), 1, fov), torch.tensor([[0.5, 0.5]]))
