"""MiniMax H3's transformer: which tokens see what, masks, both streams' noise levels, and its configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised
from darkroom.engine.families.minimax_h3.family import DENOISER, as_described, description
from darkroom.engine.families.minimax_h3.layers import MiniMaxH3Config
from darkroom.engine.families.minimax_h3.sampling import AudioVideoFlow, shifted_again
from darkroom.engine.families.minimax_h3.tokens import audio_of, audio_tokens, video_of, video_tokens
from darkroom.engine.families.minimax_h3.transformer import AUDIO_SHIFT, CURVE, VIDEO_SHIFT, minimax_h3_config
from tests.engine.layers.small_transformers import small_transformer

NAME, GUIDED, GATED = "minimax_h3", "minimax_h3 with guides and masks", "minimax_h3 with gates"


def shapes_of(network: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in network.state_dict().items()}


@pytest.mark.parametrize("name", [NAME, GUIDED, GATED])
def test_its_configuration_is_that_of_its_tensors(name: str) -> None:
    network: Any = small_transformer(name)[0]
    config = network.config
    given = {"time_input_dim": 256, "time_hidden_size": 5376} if config.curve_points else {}
    assert minimax_h3_config(shapes_of(network)) == replace(config, **given)


def test_a_bank_of_outputs_is_refused_by_name() -> None:
    shapes = shapes_of(small_transformer(NAME)[0])
    rows, columns = shapes["final_layer.video_out.weight"]
    banked = {**shapes, "final_layer.video_out.weight": (32 * rows, columns)}
    with pytest.raises(NotRecognised, match="a bank of 32 outputs"):
        minimax_h3_config(banked)


def test_weights_that_read_a_curve_stay_float32() -> None:
    assert DENOISER.float32_ends_of is not None
    adaln = ".blocks.0.adaln_proj.linear.weight"
    assert adaln.endswith(DENOISER.float32_ends_of(MiniMaxH3Config(curve_points=9)))
    assert not adaln.endswith(DENOISER.float32_ends_of(MiniMaxH3Config()))
    assert f".{CURVE}".endswith(DENOISER.float32_ends)


@torch.inference_mode()
def test_tokens_are_cells_and_channels_and_back() -> None:
    video, audio = torch.randn(2, 4, 3, 4, 6), torch.randn(2, 6, 2, 5)
    assert torch.equal(video_of(video_tokens(video), video.shape), video)
    assert torch.equal(audio_of(audio_tokens(audio)), audio)
    assert torch.equal(audio_tokens(audio)[:, 5], audio[:, :, 1, 0])  # the right channel follows the left one
    assert torch.equal(video_tokens(video)[:, 0, :4], video[:, 0, 0, :2, :2].flatten(1))


@torch.inference_mode()
def test_what_the_network_is_given_changes_what_it_makes() -> None:
    network, inputs = small_transformer(GUIDED)
    plain = network(**inputs)
    for name in ("given_video", "given_audio"):
        changed = network(**{**inputs, name: inputs[name] + 1.0})
        assert all(not torch.allclose(a, b) for a, b in zip(plain, changed, strict=True)), name


@torch.inference_mode()
def test_a_mask_of_ones_is_no_mask() -> None:
    network, inputs = small_transformer(GUIDED)
    names = ("video_levels", "video_level_of")
    plain = network(**{name: value for name, value in inputs.items() if name not in names})
    ones = network(**{**inputs, "video_levels": torch.ones_like(inputs["video_levels"])})
    masked = network(**inputs)
    for none, all_painted, some in zip(plain, ones, masked, strict=True):
        assert torch.allclose(none, all_painted, atol=1e-5)
        assert not torch.allclose(none, some, atol=1e-3)


@torch.inference_mode()
def test_odd_sizes_are_made_whole_by_wrapping_around() -> None:
    network, inputs = small_transformer(NAME)
    video, audio = inputs["x"]
    cut = network(**{**inputs, "x": [video[..., :3, :5], audio]})
    wrapped = torch.cat([video[..., :3, :5], video[..., :3, :1]], dim=-1)
    whole = network(**{**inputs, "x": [torch.cat([wrapped, wrapped[..., :1, :]], dim=-2), audio]})
    assert cut[0].shape == (*video.shape[:3], 3, 5)
    assert torch.allclose(cut[0], whole[0][..., :3, :5], atol=1e-5)


@torch.inference_mode()
def test_audio_that_is_carried_louder_is_seen_as_it_is() -> None:
    """The velocity of the carried audio is the slope of its clean and noisy parts along the video's noise level."""
    network, inputs = small_transformer(NAME)
    sigma, options = 0.6, {VIDEO_SHIFT: 8.0, AUDIO_SHIFT: 2.0}
    own = shifted_again(torch.tensor(sigma), 8.0, 2.0)
    timesteps = torch.full_like(inputs["timesteps"], sigma * 1000)
    video, audio = inputs["x"]
    given = {**inputs, "timesteps": timesteps, "transformer_options": options}
    plain = network(**{**given, "audio_scale": 1.0})
    carried = network(**{**given, "x": [video, audio * sigma / own], "audio_scale": 4.0})
    assert torch.allclose(carried[0], plain[0], atol=1e-4)
    assert torch.allclose(carried[1], -3.0 * audio + (1 + 3.0 * own) * plain[1], atol=1e-3)


def test_both_streams_are_at_one_time_of_their_flows() -> None:
    flow = AudioVideoFlow(12.0, 3.0)
    assert flow.audio_scale == 4.0
    times = torch.tensor([0.1, 0.5, 0.9])
    video, audio = AudioVideoFlow(12.0, 1.0), AudioVideoFlow(3.0, 1.0)
    found = shifted_again(video.sigma(times * 1000), 12.0, 3.0)
    assert torch.allclose(found, audio.sigma(times * 1000))


def test_metadata_may_have_what_shapes_do_not_show() -> None:
    config = as_described(MiniMaxH3Config(), {"config": '{"transformer": {"sigma_shift_video": 7, "hidden_size": 1}}'})
    assert config == MiniMaxH3Config(sigma_shift_video=7.0)
    assert description(config) == {"config": {"transformer": {"sigma_shift_video": 7.0}}}
    assert description(MiniMaxH3Config()) == {}
    with pytest.raises(NotRecognised, match="metadata"):
        as_described(MiniMaxH3Config(), {"config": '{"transformer": {"norm_eps": "small"}}'})


def test_the_family_names_its_networks_by_what_comfyui_calls_them() -> None:
    family = registry.family_named("minimax_h3")
    keys = family.network_lora_keys(["diffusion_model.blocks.0.attn.qkv_proj.weight"], MiniMaxH3Config())
    assert keys["diffusion_model.blocks.0.attn.qkv_proj"] == "diffusion_model.blocks.0.attn.qkv_proj.weight"
    assert family.comfyui.text_types == ("minimax",)
