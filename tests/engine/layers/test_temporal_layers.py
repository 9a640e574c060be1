"""Layers along the frames of a video: what a frame learns of its neighbours, and what it does not."""

from __future__ import annotations

import torch

from darkroom.engine.families.svd.vae import SvdVae
from darkroom.engine.layers.temporal_layers import (
    TemporalMixer,
    TemporalTransformer,
    VideoResBlock,
    as_frames,
    as_videos,
)
from darkroom.engine.layers.unet_layers import ResSpec, TransformerSpec
from darkroom.engine.layers.vae_kl import VaeConfig

NUM_FRAMES = 3
ALONE, AMONG = 50.0, -50.0  # mix factors whose sigmoids are one and zero


def _set(network: torch.nn.Module, factor: float) -> None:
    torch.manual_seed(0)
    for name, weight in network.named_parameters():
        torch.nn.init.constant_(weight, factor) if name.endswith("mix_factor") else torch.nn.init.normal_(
            weight, std=0.3
        )


def test_frames_of_one_video_are_in_succession() -> None:
    frames = torch.arange(6.0).view(6, 1, 1, 1)
    videos = as_videos(frames, NUM_FRAMES)
    assert videos.shape == (2, 1, 3, 1, 1) and videos[1].flatten().tolist() == [3, 4, 5]
    assert torch.equal(as_frames(videos), frames)


def test_the_share_of_a_frame_alone_is_the_factors_sigmoid_and_all_where_it_is_an_image() -> None:
    mixer = TemporalMixer()
    torch.nn.init.zeros_(mixer.mix_factor)
    alone, among = torch.ones(2, 4, 1, 1), torch.zeros(2, 4, 1, 1)
    assert torch.equal(mixer(alone, among), torch.full((2, 4, 1, 1), 0.5))
    mixed = mixer(alone, among, torch.tensor([[1.0, 0.0]]))
    assert mixed[:, 0, 0, 0].tolist() == [1.0, 0.5]


@torch.no_grad()
def test_residual_blocks_see_other_frames_of_the_same_video_alone() -> None:
    block = VideoResBlock(ResSpec(32, 32, is_temporal=True), 16)
    _set(block, AMONG)
    x, emb = torch.randn(6, 32, 4, 4), torch.randn(6, 16)
    changed = x.clone()
    changed[1] += torch.randn(32, 4, 4)
    first, second = (block(item, emb, NUM_FRAMES) for item in (x, changed))
    assert not torch.equal(first[0], second[0]) and torch.equal(first[3:], second[3:])
    _set(block, ALONE)
    first, second = (block(item, emb, NUM_FRAMES) for item in (x, changed))
    assert torch.allclose(first[0], second[0]) and not torch.allclose(first[1], second[1])


@torch.no_grad()
def test_transformers_attend_along_the_frames_of_the_same_video_alone() -> None:
    layer = TemporalTransformer(TransformerSpec(32, 1, 8, uses_linear=True, is_temporal=True), 2)
    _set(layer, AMONG)
    x, context = torch.randn(6, 32, 2, 2), torch.randn(6, 5, 8)
    changed = x.clone()
    changed[2] += torch.randn(32, 2, 2)
    first, second = (layer(item, context, num_frames=NUM_FRAMES) for item in (x, changed))
    assert not torch.equal(first[0], second[0]) and torch.equal(first[3:], second[3:])


@torch.no_grad()
def test_along_time_the_first_frame_s_tokens_are_read() -> None:
    layer = TemporalTransformer(TransformerSpec(32, 1, 8, uses_linear=True, is_temporal=True), 2)
    _set(layer, AMONG)
    x, context = torch.randn(3, 32, 2, 2), torch.randn(3, 5, 8)
    given = layer(x, context, time_context=context)
    other = context.clone()
    other[1:] = 0
    assert torch.equal(layer(x, context), given)
    assert torch.equal(layer(x, context, time_context=other), given)
    assert not torch.equal(layer(x, context, time_context=other * 2), given)


@torch.no_grad()
def test_the_video_decoder_mixes_frames_and_its_encoder_does_not() -> None:
    network = SvdVae(VaeConfig(32, (32, 32), 1, is_temporal=True))
    _set(network, ALONE)  # here the share of a frame among its neighbours
    latents = torch.randn(2, 4, 4, 4)
    changed = latents.clone()
    changed[1] += 1
    first, second = network.decode(latents), network.decode(changed)
    assert first.shape == (2, 3, 8, 8) and not torch.equal(first[0], second[0])
    images = torch.randn(2, 3, 8, 8)
    encoded = network.encode(images)
    assert torch.allclose(encoded[:1], network.encode(images[:1]), atol=1e-4)
