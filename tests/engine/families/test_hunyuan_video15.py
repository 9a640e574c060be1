"""Tests of HunyuanVideo 1.5: what its denoisers and nodes refuse, and its latent upsamplers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised, TensorIndex
from darkroom.engine.families.hunyuan_image_refiner.vae_files import VAE_CHANNELS
from darkroom.engine.families.hunyuan_video15.denoiser import HunyuanVideo15Denoiser, SuperResolutionDenoiser
from darkroom.engine.families.hunyuan_video15.nodes import (
    empty_hunyuan_video15_latent,
    hunyuan_video15_image_to_video,
    hunyuan_video15_latent_upscale_with_model,
    hunyuan_video15_super_resolution,
)
from darkroom.engine.families.hunyuan_video15.transformer import HunyuanVideo15Transformer
from darkroom.engine.families.hunyuan_video15.upsampler_files import UPSAMPLERS
from darkroom.engine.families.hunyuan_video15.upsamplers import (
    SrTo720pConfig,
    SRTo720pUpsampler,
    SrTo1080pConfig,
    SRTo1080pUpsampler,
    VideoUpsampler,
)
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.models.kinds.latent_upscaler_value import LatentUpscaler
from darkroom.engine.models.kinds.load_latent_upscaler import load_latent_upscaler
from darkroom.engine.models.load import LoadTypes
from tests.engine.nodes.small_store import small_store

FAMILY = registry.family_named("hunyuan_video15")
CONDITIONING: Any = [[torch.zeros(1, 2, 8), {}]]


def weighted(network: Any) -> Any:
    torch.manual_seed(0)
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    return network


def upsamplers() -> tuple[VideoUpsampler, VideoUpsampler]:
    large = SRTo1080pUpsampler(SrTo1080pConfig((64, 32), blocks_per_level=2))
    return weighted(SRTo720pUpsampler(SrTo720pConfig(hidden_channels=8, num_blocks=2))), weighted(large)


@pytest.mark.parametrize(("channels", "variant"), [(65, ""), (98, "super_resolution")])
def test_networks_are_known_by_their_channels(channels: int, variant: str) -> None:
    shapes = {
        "txt_in.individual_token_refiner.blocks.0.norm1.weight": (8,),
        "img_in.proj.weight": (8, channels, 1, 1, 1),
        "vision_in.proj.0.weight": (1152,),
        "cond_type_embedding.weight": (3, 8),
    }
    found = registry.recognise(TensorIndex(shapes))
    assert (found.family.name, found.match.variant) == ("hunyuan_video15", variant)
    shift = found.family.parameterise(found.match, SimpleNamespace()).settings["shift"]
    assert shift == {"": 7.0, "super_resolution": 2.0}[variant]


def test_a_network_of_other_channels_is_no_refiner_of_images() -> None:
    shapes = {
        "txt_in.individual_token_refiner.blocks.0.norm1.weight": (8,),
        "img_in.proj.weight": (8, 70, 1, 1, 1),
        "vision_in.proj.0.weight": (1152,),
        "cond_type_embedding.weight": (3, 8),
    }
    with pytest.raises(NotRecognised):
        registry.recognise(TensorIndex(shapes))


@torch.no_grad()
def test_tokens_of_image_glyphs_and_prompt_are_in_this_order_each_with_its_kind() -> None:
    network = weighted(HunyuanVideo15Transformer(FAMILY.sizes["small"]))
    config = network.config
    text, mask = torch.zeros(1, 3, config.width), torch.tensor([[0.0, 0.0, -1e30]])
    glyphs, image = torch.randn(1, 2, config.glyph_width), torch.randn(1, 4, config.image_dim)
    tokens, masks = network.joined_text(text, mask, glyphs, image)
    kinds = network.cond_type_embedding.weight
    assert tokens.shape[1] == 9 and masks is not None
    torch.testing.assert_close(tokens[:, :4], network.vision_in(image) + kinds[2])
    torch.testing.assert_close(tokens[:, 4:6], network.byt5_in(glyphs) + kinds[1])
    torch.testing.assert_close(tokens[:, 6:], text + kinds[0])
    assert masks[0].tolist() == [0.0] * 8 + mask[0, -1:].tolist()


@torch.no_grad()
def test_the_time_that_a_step_ends_at_counts_where_it_is_known() -> None:
    config = FAMILY.sizes["small"].__class__(
        width=128, num_double=1, num_single=0, context_dim=8, patch=(1, 1, 1), in_channels=4, out_channels=4,
        has_end_time=True, sums_times=True, num_refiners=1,
    )  # fmt: skip
    network = weighted(HunyuanVideo15Transformer(config))
    x, text = torch.randn(1, 4, 1, 2, 2), torch.randn(1, 3, 8)
    levels = torch.tensor([1.0, 0.6, 0.2, 0.0])

    def drawn(now: float, **kwargs: bool) -> torch.Tensor:
        options = {"sigmas": torch.tensor([now]), "sample_sigmas": levels}
        out: torch.Tensor = network(x, torch.tensor([600.0]), text, None, None, options, **kwargs)
        return out

    plain = network(x, torch.tensor([600.0]), text, None, None, {})
    assert not torch.allclose(drawn(0.6), plain)
    assert not torch.allclose(drawn(0.6), drawn(1.0))
    for unknown in (0.5, 0.0):  # between the levels, and the last of them
        torch.testing.assert_close(drawn(unknown), plain)
    torch.testing.assert_close(drawn(0.6, disable_time_r=True), plain)


def test_conditions_of_the_other_network_are_refused() -> None:
    noise = torch.zeros(1, VAE_CHANNELS, 2, 4, 4)
    for kind, channels in ((HunyuanVideo15Denoiser, 66), (SuperResolutionDenoiser, VAE_CHANNELS)):
        given = torch.zeros(1, channels, 2, 4, 4)
        with pytest.raises(ValueError, match="concat_latent_image: it is not what this network reads"):
            kind(torch.nn.Identity()).concat_cond(noise=noise, device="cpu", concat_latent_image=given)


def test_known_frames_and_masks_are_fitted_to_the_latent() -> None:
    noise = torch.zeros(2, VAE_CHANNELS, 3, 4, 4)
    mask = torch.ones(1, 1, 1, 8, 8)
    mask[..., :4] = 0
    out = HunyuanVideo15Denoiser(torch.nn.Identity()).concat_cond(
        noise=noise, device="cpu", concat_latent_image=torch.ones(1, VAE_CHANNELS, 3, 4, 4), concat_mask=mask
    )
    assert out.shape == (2, VAE_CHANNELS + 1, 3, 4, 4)
    assert out[:, -1, 0, 0].tolist() == [[1.0, 1.0, 0.0, 0.0]] * 2
    assert not out[:, -1, 1:].any()


def test_tokens_of_another_image_encoder_are_refused() -> None:
    network = HunyuanVideo15Transformer(FAMILY.sizes["small"])
    denoiser: Any = HunyuanVideo15Denoiser(network)
    seen = SimpleNamespace(last_hidden_state=torch.zeros(1, 4, 24))
    with pytest.raises(
        ValueError, match=r"clip_vision_output: tokens of another image encoder; got shape \[1, 4, 24\]"
    ):
        denoiser.extra_conds(
            noise=torch.zeros(1, VAE_CHANNELS, 1, 4, 4), device=torch.device("cpu"), clip_vision_output=seen
        )


@torch.no_grad()
@pytest.mark.parametrize("index", [0, 1])
def test_upsamplers_refine_frames_in_pieces_as_they_do_at_once(index: int) -> None:
    network = upsamplers()[index]
    latent = torch.randn(1, VAE_CHANNELS, 7, 4, 3)
    refined = network(latent)
    assert refined.shape == latent.shape
    torch.testing.assert_close(network(latent[:, :, :3]), refined[:, :, :3])
    short, long = (network.working_bytes(torch.Size((1, VAE_CHANNELS, frames, 4, 4))) for frames in (4, 8))
    assert long - short < short


@pytest.mark.parametrize("index", [0, 1])
def test_files_of_upsamplers_are_read_under_their_names(tmp_path: Path, index: int) -> None:
    network = upsamplers()[index]
    path = tmp_path / "up.safetensors"
    tensors = {name.replace("nin_shortcut.conv.", "nin_shortcut."): item for name, item in network.state_dict().items()}
    write_safetensors(path, tensors, {})
    loaded = load_latent_upscaler(path, LoadTypes())
    latent = torch.randn(1, VAE_CHANNELS, 2, 4, 4)
    with torch.no_grad():
        torch.testing.assert_close(loaded(latent), network(latent))


def test_an_upsampler_of_other_channels_is_refused(tmp_path: Path) -> None:
    network = SRTo720pUpsampler(SrTo720pConfig(latent_channels=16, hidden_channels=8, num_blocks=1))
    write_safetensors(tmp_path / "up.safetensors", dict(network.state_dict()), {})
    with pytest.raises(BadModelFile, match="a latent upsampler of 16 channels"):
        load_latent_upscaler(tmp_path / "up.safetensors", LoadTypes())
    assert all("small" in network.sizes for network in UPSAMPLERS)


def upscaler(folder: Path, network: torch.nn.Module) -> LatentUpscaler:
    kept = network.requires_grad_(False).eval()
    return LatentUpscaler(small_store(folder).files.keep("latent upscaler", "network", kept))


@pytest.mark.parametrize(
    ("width", "height", "size"), [(160, 96, (6, 10)), (0, 96, (6, 8)), (128, 0, (6, 8)), (8, 8, (4, 4))]
)
def test_a_latent_is_enlarged_to_a_size_in_pixels(
    tmp_path: Path, width: int, height: int, size: tuple[int, int]
) -> None:
    context: Any = None
    latent: Any = {"samples": torch.randn(1, VAE_CHANNELS, 2, 3, 4), "noise_mask": torch.ones(1, 1, 3, 4)}
    out = hunyuan_video15_latent_upscale_with_model(
        context, model=upscaler(tmp_path, upsamplers()[0]), samples=latent, width=width, height=height, crop="disabled"
    )
    assert out["samples"].shape == (1, VAE_CHANNELS, 2, *size)
    assert "noise_mask" not in out


def test_other_networks_and_latents_are_refused_by_the_upscaling_node(tmp_path: Path) -> None:
    latent: Any = {"samples": torch.zeros(1, VAE_CHANNELS, 1, 4, 4)}
    context: Any = None
    with pytest.raises(ValueError, match="model: a network of other latents"):
        hunyuan_video15_latent_upscale_with_model(
            context, model=upscaler(tmp_path, torch.nn.Linear(2, 2)), samples=latent, crop="disabled"
        )
    with pytest.raises(ValueError, match=r"samples: it is not a latent of HunyuanVideo 1.5; got shape \[1, 16"):
        hunyuan_video15_latent_upscale_with_model(
            context,
            model=upscaler(tmp_path, upsamplers()[0]),
            samples={"samples": torch.zeros(1, 16, 1, 4, 4)},
            crop="disabled",
        )
    unchanged = hunyuan_video15_latent_upscale_with_model(
        context, model=upscaler(tmp_path, upsamplers()[0]), samples=latent, width=0, height=0, crop="disabled"
    )
    assert unchanged is latent


def test_super_resolution_needs_a_vae_for_images_and_a_latent_of_videos() -> None:
    context: Any = None
    latent: Any = empty_hunyuan_video15_latent(context, width=64, height=48, length=9)
    assert latent["samples"].shape == (1, VAE_CHANNELS, 3, 3, 4)
    with pytest.raises(ValueError, match="vae: it is missing"):
        hunyuan_video15_super_resolution(
            context, positive=CONDITIONING, negative=CONDITIONING, latent=latent, start_image=torch.zeros(1, 8, 8, 3)
        )
    with pytest.raises(ValueError, match=r"latent: it is not a latent of HunyuanVideo 1\.5"):
        hunyuan_video15_super_resolution(
            context, positive=CONDITIONING, negative=CONDITIONING, latent={"samples": torch.zeros(1, 4, 8, 8)}
        )
    positive, _, _ = hunyuan_video15_super_resolution(
        context, positive=CONDITIONING, negative=CONDITIONING, latent=latent, noise_augmentation=0.5
    )
    parts = positive[0][1]["concat_latent_image"]
    assert parts.shape[1] == 66 and parts[:, -1].min() == 1 and not parts[:, :-1].any()


def test_a_vae_of_another_family_is_refused_where_a_video_begins_with_images() -> None:
    other: Any = SimpleNamespace(latent_channels=16, latent_dim=3)
    context: Any = None
    with pytest.raises(ValueError, match="vae: it is not HunyuanVideo 1.5's; got one of 16 channels, expected 32"):
        hunyuan_video15_image_to_video(
            context, positive=CONDITIONING, negative=CONDITIONING, vae=other, start_image=torch.zeros(1, 16, 16, 3)
        )
