"""The latent upsampler of LTX-2: what metadata tell, sizes of enlarged latents, its nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.base import NotRecognised
from darkroom.engine.families.ltx2.nodes.upsampler import latent_upscale_model_loader, ltxv_latent_upsampler
from darkroom.engine.families.ltx2.upsampler import LatentUpsampler, LatentUpsamplerConfig
from darkroom.engine.families.ltx2.upsampler_files import LATENT_UPSAMPLER, as_described, configure, description
from darkroom.engine.families.registry import family_named
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.layers.pixel_space import PixelSpace
from darkroom.engine.models.vae_of import vae_of
from tests.engine.nodes.small_store import node_context, small_store

SMALL = LatentUpsamplerConfig(hidden_channels=32, num_blocks=1)
TIME = LatentUpsamplerConfig(hidden_channels=32, num_blocks=1, enlarges_space=False, enlarges_time=True)
BOTH = LatentUpsamplerConfig(hidden_channels=32, num_blocks=1, enlarges_time=True)
FLAT = LatentUpsamplerConfig(hidden_channels=32, num_blocks=1, is_flat=True)
MORE = LatentUpsamplerConfig(hidden_channels=32, num_blocks=1, share=1.5)
LESS = LatentUpsamplerConfig(hidden_channels=32, num_blocks=1, share=0.75)
CONFIGS = [SMALL, TIME, BOTH, FLAT, MORE, LESS, LatentUpsamplerConfig()]


def network_of(config: LatentUpsamplerConfig) -> LatentUpsampler:
    torch.manual_seed(0)
    return LatentUpsampler(config).requires_grad_(False).eval()


def metadata_of(config: LatentUpsamplerConfig) -> dict[str, str]:
    return {name: json.dumps(fields) for name, fields in description(config).items()}


@pytest.mark.parametrize("config", CONFIGS)
def test_shapes_and_metadata_tell_the_network(config: LatentUpsamplerConfig) -> None:
    with torch.device("meta"):
        shapes = {name: tuple(weight.shape) for name, weight in LatentUpsampler(config).state_dict().items()}
    assert as_described(configure(shapes), metadata_of(config)) == config


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (SMALL, (3, 8, 10)),
        (TIME, (5, 4, 5)),
        (BOTH, (5, 8, 10)),
        (FLAT, (3, 8, 10)),
        (MORE, (3, 6, 8)),
        (LESS, (3, 3, 4)),
    ],
)
@torch.no_grad()
def test_latents_are_enlarged(config: LatentUpsamplerConfig, expected: tuple[int, int, int]) -> None:
    network = network_of(config)
    if config.share is not None:
        network.get_parameter("upsampler.blur_down.kernel").fill_(1 / 25)
    latents = torch.randn(2, 128, 3, 4, 5)
    assert network(latents).shape == (2, 128, *expected)
    torch.testing.assert_close(network(latents)[1:], network(latents[1:]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("config", "described", "message"),
    [
        (SMALL, {"spatial_upsample": False}, "enlarges nothing"),
        (FLAT, {"temporal_upsample": True}, "single images"),
        (SMALL, {"rational_resampler": True, "spatial_scale": 3.0}, "expected 0.75, 1.5, 2.0, 4.0"),
        (SMALL, [], "do not describe it"),
    ],
)
def test_metadata_of_other_networks_are_refused(config: LatentUpsamplerConfig, described: Any, message: str) -> None:
    with pytest.raises(NotRecognised, match=message):
        as_described(config, {"config": json.dumps(described)})
    with pytest.raises(NotRecognised, match="do not describe it"):
        as_described(config, {})


def _written(folder: Path) -> None:
    weights = network_of(SMALL).state_dict()
    write_safetensors(folder / "latent_upscale_models" / "up.safetensors", weights, metadata_of(SMALL))
    write_safetensors(folder / "latent_upscale_models" / "none.safetensors", {"a": torch.zeros(2)}, {})


@torch.no_grad()
def test_the_node_enlarges_a_latent_as_the_vae_has_it(tmp_path: Path) -> None:
    _written(tmp_path)
    store = small_store(tmp_path)
    context = node_context(store)
    model = latent_upscale_model_loader(context, model_name="up.safetensors")
    of_videos = family_named("ltx2").vae
    network = of_videos.build(of_videos.sizes["small"]).requires_grad_(False).eval()
    for name, weight in network.get_submodule("per_channel_statistics").named_parameters():
        weight.fill_(2.0 if name.startswith("std") else 0.5)
    vae = vae_of(store.files.keep("vae", "videos", network))
    samples = torch.randn(1, 128, 2, 3, 4)
    given: Any = {"samples": samples, "noise_mask": torch.ones(1), "type": "video"}

    found = ltxv_latent_upsampler(context, samples=given, upscale_model=model, vae=vae)

    assert set(found) == {"samples", "type"} and "noise_mask" in given
    expected = (network_of(SMALL)(samples * 2.0 + 0.5) - 0.5) / 2.0
    torch.testing.assert_close(found["samples"], expected, rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="samples: a latent of another kind"):
        ltxv_latent_upsampler(context, samples={"samples": samples[:, :8]}, upscale_model=model, vae=vae)
    with pytest.raises(ValueError, match="vae: one without statistics"):
        of_pixels = vae_of(store.files.keep("vae", "pixels", PixelSpace().eval()))
        ltxv_latent_upsampler(context, samples=given, upscale_model=model, vae=of_pixels)


def test_files_of_other_networks_are_refused(tmp_path: Path) -> None:
    _written(tmp_path)
    context = node_context(small_store(tmp_path))
    with pytest.raises(BadModelFile, match="a latent upscale model"):
        latent_upscale_model_loader(context, model_name="none.safetensors")


def test_the_published_network_has_half_a_billion_weights() -> None:
    with torch.device("meta"):
        network = LatentUpsampler(LATENT_UPSAMPLER.sizes["full"])
    assert 0.2e9 < sum(weight.numel() for weight in network.parameters()) < 0.6e9
