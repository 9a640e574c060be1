"""LTX-Video: what a file's metadata say of its VAE and network, guides, and noise levels of single cells."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised
from darkroom.engine.families.ltx_video.denoiser import LtxVideoDenoiser
from darkroom.engine.families.ltx_video.nodes.guides import (
    first_frame_of,
    guide_weights_of,
    ltxv_add_guide,
    ltxv_crop_guides,
    with_guide,
)
from darkroom.engine.families.ltx_video.nodes.ic_lora import downscale_factor_of
from darkroom.engine.families.ltx_video.vae import LtxVideoVae, LtxVideoVaeConfig, ltx_video_vae_config
from darkroom.engine.families.ltx_video.vae_files import as_described, description
from darkroom.engine.families.ltx_video.vae_layers import Stage
from darkroom.engine.formats.unfilled import unfilled

FAMILY = registry.family_named("ltx_video")
LATER = LtxVideoVaeConfig(  # the layers of version 0.9.5, narrower
    encoder=(
        Stage("blocks", 16, num_blocks=2), Stage("folded", 32, stride=(1, 2, 2)), Stage("blocks", 32),
        Stage("folded", 64, stride=(2, 1, 1)), Stage("folded", 128), Stage("folded", 256), Stage("blocks", 256),
    ),
    decoder=(
        Stage("blocks", 64, num_blocks=2), Stage("folded", 32, is_residual=True), Stage("blocks", 32),
        Stage("folded", 16, is_residual=True), Stage("folded", 8, is_residual=True), Stage("blocks", 8),
    ),
    first_channels=16, last_channels=64, removes_noise=True,
)  # fmt: skip


def shapes_of(config: LtxVideoVaeConfig) -> dict[str, tuple[int, ...]]:
    with unfilled():
        network = LtxVideoVae(config)
    return {name: tuple(weight.shape) for name, weight in network.state_dict().items()}


def metadata_of(config: LtxVideoVaeConfig) -> dict[str, str]:
    return {name: json.dumps(fields) for name, fields in description(config).items()}


@pytest.mark.parametrize("config", [FAMILY.scales["full"].vae, FAMILY.scales["small"].vae, LATER])
def test_shapes_tell_the_stages_of_the_published_networks(config: LtxVideoVaeConfig) -> None:
    assert ltx_video_vae_config(shapes_of(config)) == config
    assert as_described(ltx_video_vae_config(shapes_of(config)), metadata_of(config)) == config
    assert config.ratio == (8, 32, 32)


def test_metadata_tell_what_shapes_do_not() -> None:
    small = FAMILY.scales["small"].vae
    strided = tuple(replace(stage, stride=(1, 2, 2)) if stage.kind == "strided" else stage for stage in small.encoder)
    other = replace(small, encoder=strided, is_causal=True, encoder_padding="replicate", decoder_padding="replicate")
    assert as_described(ltx_video_vae_config(shapes_of(other)), metadata_of(other)) == other


@pytest.mark.parametrize(
    "described", ["{", "[]", '{"vae": {"norm_layer": "group_norm"}}', '{"vae": {"blocks": [["res_x", 1]]}}']
)
def test_metadata_that_describe_other_layers_are_refused(described: str) -> None:
    with pytest.raises(NotRecognised, match="a VAE of videos"):
        as_described(FAMILY.scales["small"].vae, {"config": described})


def test_only_stages_that_enlarge_space_and_time_add_their_input() -> None:
    """The published network of LTX-2.3 says so of others, without effect."""
    up = LATER.decoder[1]
    assert up.kind == "folded"
    both = (replace(up, is_residual=True), replace(up, stride=(1, 2, 2), is_residual=True))
    described = metadata_of(replace(LATER, decoder=both))["config"]
    found = as_described(replace(LATER, decoder=both), {"config": described})
    assert [stage.is_residual for stage in found.decoder] == [True, False]


def test_the_noise_that_a_network_adds_and_expects_is_that_of_the_metadata() -> None:
    described = json.dumps({"vae": {"decode_timestep": 0.2, "decode_noise_scale": 0.5}})
    found = as_described(LATER, {"config": described})
    assert (found.decode_time, found.decode_noise) == (0.2, 0.5)
    network = LtxVideoVae(found).requires_grad_(False).eval()
    for weight in network.parameters():
        torch.nn.init.ones_(weight)
    latents = torch.full((1, 128, 1, 2, 2), 3.0)
    noise = (torch.full_like(latents, 5.0),)
    assert (
        network.restored_latents(latents, iter(noise)).flatten().tolist() == [5.0] * 512
    )  # (0.5 * 5 + 0.5 * 3) * 1 + 1


def test_a_network_that_removes_noise_decodes_videos_of_its_size() -> None:
    torch.manual_seed(0)
    network = LtxVideoVae(LATER).requires_grad_(False).eval()
    for name, weight in network.named_parameters():
        if "scale" in name or "statistics" in name:
            weight.fill_(1.0)
    assert network.decode(torch.randn(1, 128, 2, 2, 2)).shape == (1, 3, 9, 64, 64)
    assert network.encode(torch.rand(1, 3, 9, 64, 64)).shape == (1, 128, 2, 2, 2)


def test_a_video_is_encoded_in_pieces_without_frames_that_make_no_whole_latent_frame() -> None:
    torch.manual_seed(0)
    network = LtxVideoVae(LATER).requires_grad_(False).eval()
    for weight in network.parameters():
        torch.nn.init.normal_(weight, 0, 0.05)
    videos = torch.rand(1, 3, 28, 64, 64)
    encoded = network.encode(videos)
    assert encoded.shape == (1, 128, 4, 2, 2)
    network.frames_encoded_at_once = 64
    torch.testing.assert_close(encoded, network.encode(videos[:, :, :25]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(encoded[:, :, :1], network.encode(videos[:, :, :1]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_video_decoded_in_pieces_is_the_one_decoded_as_a_whole(is_causal: bool) -> None:
    torch.manual_seed(0)
    stages = tuple(replace(stage, adds_noise=stage.kind == "blocks") for stage in LATER.decoder)
    network = LtxVideoVae(replace(LATER, decoder=stages, is_causal=is_causal)).requires_grad_(False).eval()
    for weight in network.parameters():
        torch.nn.init.normal_(weight, 0, 0.05)
    latents = torch.randn(1, 128, 9, 2, 2)
    torch.manual_seed(1)
    whole = network.decode(latents)
    torch.manual_seed(1)
    noise = network.drawn_noise(latents.shape, "cpu", torch.float32)
    pieces = [*network.decoded_pieces(latents, noise)]
    assert max(piece.shape[2] for piece in pieces) <= network.frames_ratio
    torch.testing.assert_close(torch.cat(pieces, dim=2), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("frame", "guide_frames", "expected"), [(0, 1, (0, 0)), (-1, 1, (24, 3)), (11, 9, (9, 2)), (-99, 1, (0, 0))]
)
def test_guides_of_several_frames_begin_at_a_latent_frame(
    frame: int, guide_frames: int, expected: tuple[int, int]
) -> None:
    assert first_frame_of(frame, video_frames=4, guide_frames=guide_frames) == expected


def test_a_guide_weighs_its_strength_times_its_mask() -> None:
    assert guide_weights_of(None, 0.5, 1, 2, 2).tolist() == [[0.5] * 4]
    mask = torch.zeros(5, 64, 32)  # of 5 frames
    mask[0, :32], mask[1:3] = 1.0, 1.0
    assert guide_weights_of(mask, 0.5, 3, 2, 1).tolist() == [[0.5, 0.0, 0.5, 0.5, 0.0, 0.0]]
    assert guide_weights_of(mask[:1], 1.0, 2, 2, 1).tolist() == [[1.0, 0.0, 1.0, 0.0]]
    assert guide_weights_of(mask[:2], 1.0, 3, 2, 1).tolist() == [[1.0, 0.0, 1.0, 1.0, 1.0, 1.0]]
    assert guide_weights_of(mask, 2.0, 1, 2, 1).tolist() == [[2.0, 0.0]]


def test_a_guide_behind_one_without_weights_leaves_that_at_one() -> None:
    earlier = [[torch.zeros(1, 1, 8), {"keyframe_idxs": torch.zeros(1, 3, 2)}]]
    facts = {"latent_shape": [1, 1, 1]}
    ((_, options),) = with_guide(earlier, torch.ones(1, 3, 1), torch.full((1, 1), 0.5), facts)
    assert options["guide_weights"].tolist() == [[1.0, 1.0, 0.5]]
    assert options["keyframe_idxs"].shape == (1, 3, 3)
    assert options["guide_attention_entries"] == [facts]


def test_guides_of_no_weight_change_nothing_and_those_of_weight_one_all_that_tokens_do() -> None:
    torch.manual_seed(0)
    config = FAMILY.scales["small"].denoiser
    network = FAMILY.denoiser.build(config).requires_grad_(False).eval()
    for weight in network.parameters():
        torch.nn.init.normal_(weight, 0, 0.1)
    latent = torch.randn(1, config.in_channels, 3, 1, 2)
    other = latent.clone()
    other[:, :, 2] += 1.0
    text = torch.randn(1, 2, config.context_dim)

    def drawn(x: torch.Tensor, weight: float | None) -> torch.Tensor:
        given = {} if weight is None else {"guide_weights": torch.full((1, 2), weight)}
        out: torch.Tensor = network(x, torch.ones(1), text, **given)
        return out[:, :, :2]

    torch.testing.assert_close(drawn(latent, 0.0), drawn(other, 0.0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(drawn(latent, 1.0), drawn(latent, None), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(drawn(latent, 0.5), drawn(latent, None), atol=1e-3)


class SmallVae:
    """Encodes every cell of frames as its number, in all channels."""

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        size = (pixels.shape[0] - 1) // 8 + 1, pixels.shape[1] // 32, pixels.shape[2] // 32
        return torch.arange(1.0, math.prod(size) + 1).view(1, 1, *size).repeat(1, 128, 1, 1, 1)


def guided(strength: float, factor: object, rows: int = 4) -> tuple[dict[str, Any], Any]:
    """The options of a conditioning with an image as a guide, and the latent of 2 frames of 4 x 2 cells."""
    prompt: Any = [[torch.zeros(1, 1, 8), {}]]
    vae: Any = SmallVae()
    context: Any = None
    positive, _, latent = ltxv_add_guide(
        context, positive=prompt, negative=prompt, vae=vae, latent={"samples": torch.zeros(1, 128, 2, rows, 2)},
        image=torch.rand(1, 128, 64, 3), strength=strength, iclora_parameters={"reference_downscale_factor": factor},
    )  # fmt: skip
    return positive[0][1], latent


def test_a_guide_of_an_ic_lora_lies_in_every_second_row_and_column() -> None:
    options, latent = guided(0.75, "2.0")
    assert latent["samples"][0, 0, 2].tolist() == [[1.0, 0.0], [0.0, 0.0], [2.0, 0.0], [0.0, 0.0]]
    left_out = [-1.75, -1.75]
    assert latent["noise_mask"][0, 0, 2].tolist() == [[0.25, -1.75], left_out, [0.25, -1.75], left_out]
    assert latent["noise_mask"][0, 0, :2].eq(1).all() and options["keyframe_idxs"].shape == (1, 3, 8, 2)
    begin, end = options["keyframe_idxs"][0].unbind(-1)
    assert (end - begin)[:, 0].tolist() == [1, 64, 64]  # a cell of the smaller guide is two of the video's wide
    context: Any = None
    prompt: Any = [[torch.zeros(1, 1, 8), options]]
    _, _, cropped = ltxv_crop_guides(context, positive=prompt, negative=prompt, latent=latent)
    assert cropped["samples"].shape == (1, 128, 2, 4, 2)
    with pytest.raises(ValueError, match="expected multiples of 2"):
        guided(0.75, 2, rows=3)


@pytest.mark.parametrize(
    ("given", "factor"),
    [({}, 1), (None, 1), ({"reference_downscale_factor": "2.4"}, 2), ({"reference_downscale_factor": -3}, 1),
     ({"reference_downscale_factor": "inf"}, 1), ({"reference_downscale_factor": "half"}, 1)],
)  # fmt: skip
def test_the_factor_of_guides_is_a_whole_number(given: dict[str, Any] | None, factor: int) -> None:
    assert downscale_factor_of(given) == factor


@pytest.mark.parametrize("strength", [1.0, 0.5, 2.0])
def test_the_network_leaves_out_the_cells_of_a_guide_that_there_are_not(strength: float) -> None:
    torch.manual_seed(0)
    config = FAMILY.scales["small"].denoiser
    network = FAMILY.denoiser.build(config).requires_grad_(False).eval()
    for weight in network.parameters():
        torch.nn.init.normal_(weight, 0, 0.1)
    options, latent = guided(strength, 2)
    denoiser: Any = LtxVideoDenoiser(torch.nn.Identity())
    mask = latent["noise_mask"].expand(1, 128, -1, -1, -1)
    text = torch.randn(1, 2, config.context_dim)
    seen = {"noise": latent["samples"], "device": torch.device("cpu"), "cross_attn": text, "denoise_mask": mask}
    given = denoiser.extra_conds(**seen, **options)
    inputs = {name: given[name].cond for name in ("keyframe_idxs", "kept_tokens")}
    if strength == 0.5:
        inputs["guide_weights"] = given["guide_weights"].cond
        assert inputs["guide_weights"].tolist() == [[0.5, 0.5]]
    else:
        assert "guide_weights" not in given
    num_kept = 16 if strength == 2.0 else 18  # above 1 the whole guide is left out, as in ComfyUI
    assert inputs["kept_tokens"].tolist() == [[*range(16), 16, 20][:num_kept]]
    x = torch.randn_like(latent["samples"])
    other = torch.where(mask < 0, x + 1.0, x)
    levels = denoiser.process_timestep(torch.full((1,), 0.5), denoise_mask=mask)
    out = network(x, levels, text, **inputs)
    assert torch.equal(out, network(other, levels, text, **inputs))
    assert (out[mask < 0] == 0).all() and out[mask >= 0].ne(0).all()


def test_cells_that_are_kept_have_no_noise() -> None:
    denoiser: Any = LtxVideoDenoiser(torch.nn.Identity())
    mask = torch.ones(2, 128, 3, 1, 2)
    mask[:, :, 0] = 0.0
    levels = denoiser.process_timestep(torch.tensor([0.5, 0.25]), denoise_mask=mask)
    assert levels[..., 0].tolist() == [[0.0, 0.0, 0.5, 0.5, 0.5, 0.5], [0.0, 0.0, 0.25, 0.25, 0.25, 0.25]]
    assert torch.equal(denoiser.process_timestep(torch.ones(2)), torch.ones(2))
