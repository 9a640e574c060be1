"""Hunyuan3D 2: scales of latents, sides, the grid of a decoder, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.base import Match, TensorIndex
from darkroom.engine.families.hunyuan3d.nodes import (
    hunyuan3d_v2_conditioning_multi_view,
    side_waves,
    vae_decode_hunyuan3d,
)
from darkroom.engine.families.hunyuan3d.vae import Hunyuan3dVae, Hunyuan3dVaeConfig, grid_points
from darkroom.engine.families.hunyuan3d.vae_files import SmallShapeLatentFormat
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.models.kinds.clip_vision_value import ClipVisionOutput
from darkroom.engine.models.vae import Vae
from darkroom.engine.models.vae_of import vae_of
from darkroom.engine.settings import EngineSettings

FAMILY = registry.family_named("hunyuan3d")


def parameterisation_of(num_double: int) -> Any:
    names = {f"double_blocks.{index}.img_attn.qkv.weight": "a" for index in range(num_double)}
    return FAMILY.parameterise(Match(2, names), None)  # type: ignore[arg-type]


def test_latents_of_the_mini_network_are_scaled_otherwise() -> None:
    assert parameterisation_of(8).latent_format is SmallShapeLatentFormat
    assert parameterisation_of(16).latent_format is None


def test_the_younger_network_is_not_taken_for_it() -> None:
    shapes = {"t_embedder.mlp.2.weight": (2048, 8192), "x_embedder.weight": (2048, 64)}
    assert FAMILY.detect(TensorIndex(shapes)) is None


def small_vae() -> Vae:
    torch.manual_seed(0)
    network = Hunyuan3dVae(Hunyuan3dVaeConfig(width=32, num_layers=1, latent_channels=64, head_width=8)).eval()
    return vae_of(ModelMemory(EngineSettings(cpu=True)).keep("shapes", network, role="vae"))


def test_points_are_the_same_however_many_are_computed_at_once() -> None:
    vae, latents, told = small_vae(), torch.randn(2, 64, 12), []
    options = {"octree_resolution": 6, "on_chunk": lambda done, total: told.append((done, total))}
    few = vae.decode(latents, vae_options={**options, "num_chunks": 100})
    assert told[:4] == [(100, 343), (200, 343), (300, 343), (343, 343)]
    many = vae.decode(latents, vae_options={**options, "num_chunks": 1000})
    assert few.shape == (2, 7, 7, 7) and few.min() >= 0 and few.max() <= 1
    torch.testing.assert_close(few, many)


def test_the_grid_reaches_over_the_cube() -> None:
    points = grid_points(4, "cpu")
    assert points.shape == (125, 3)
    torch.testing.assert_close(points[[0, 1, -1]], torch.tensor([[-1.01] * 3, [-1.01, -1.01, -0.505], [1.01] * 3]))


def test_what_is_no_shape_is_refused() -> None:
    vae = small_vae()
    with pytest.raises(ValueError, match="of another VAE"):
        vae.decode(torch.zeros(1, 4, 8, 8))
    with pytest.raises(ValueError, match="one of shapes; got images"):
        vae.encode(torch.zeros(1, 8, 8, 3))
    with pytest.raises(ValueError, match="expected one of shapes"):
        vae_decode_hunyuan3d.function(None, samples={"samples": torch.zeros(1, 64, 8)}, vae=object(),
                                      num_chunks=1000, octree_resolution=16)  # fmt: skip


def test_sides_are_told_apart_and_one_is_needed() -> None:
    seen = ClipVisionOutput()
    seen.last_hidden_state = torch.zeros(1, 3, 8)
    ((tokens, _),), ((nothing, _),) = hunyuan3d_v2_conditioning_multi_view.function(None, front=seen, back=seen)
    assert tokens.shape == nothing.shape == (1, 6, 8) and not nothing.any()
    torch.testing.assert_close(tokens[0, 0], side_waves(0, 8))
    torch.testing.assert_close(tokens[0, 3], side_waves(2, 8))
    with pytest.raises(ValueError, match="no image; got none, expected at least one"):
        hunyuan3d_v2_conditioning_multi_view.function(None)
