"""Wan-Animate 2: what poses change, what is kept of them between steps, and how it is rounded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.families import registry
from darkroom.engine.families.wan.animate2 import WanAnimate2Config, WanAnimate2Transformer
from darkroom.engine.families.wan.animate2_denoiser import FollowingVideoDenoiser
from darkroom.engine.families.wan.pose_cache import LEAST, Placement
from darkroom.engine.families.wan.pose_states import OPTION, PoseStates, Storage, packed

CONFIG = WanAnimate2Config(
    width=256, num_blocks=2, inner_width=96, context_dim=24, in_channels=12, out_channels=4, image_dim=16
)
CPU = torch.device("cpu")
Given = dict[str, Any]


@pytest.fixture(scope="module")
def network() -> WanAnimate2Transformer:
    torch.manual_seed(0)
    made = WanAnimate2Transformer(CONFIG).requires_grad_(False)
    for name, weight in made.named_parameters():
        if ".norm_" in name:
            weight.fill_(1.0)
        elif name.endswith("modulation"):
            weight.normal_(0.0, 0.5)
    return made


def inputs(**more: Any) -> Given:
    generator = torch.Generator().manual_seed(1)
    poses = torch.randn(1, 4, 2, 4, 6, generator=generator).expand(2, -1, -1, -1, -1)
    text = torch.randn(2, 5, 24, generator=generator)
    return {
        "x": torch.randn(2, 12, 3, 4, 6, generator=generator),
        "timesteps": torch.tensor([500.0, 500.0]),
        "context": text,
        "context_pose": text[:1].expand(2, -1, -1),
        "pose_latents": poses,
        **more,
    }


def anywhere(num_bytes: int, device: torch.device) -> torch.device:
    return CPU


def test_a_frame_follows_its_own_pose_alone_but_for_what_frames_see_of_each_other(
    network: WanAnimate2Transformer,
) -> None:
    one_block = WanAnimate2Transformer(CONFIG).requires_grad_(False)
    one_block.load_state_dict(network.state_dict())
    one_block.blocks = one_block.blocks[:1]
    given = inputs()
    plain = one_block(**given)
    others = given["pose_latents"].clone()
    others[:, :, 1] = 0.0
    # Poses see each other in their own video, so that of the second frame has to be the last to be read.
    moved = one_block(**{**given, "pose_latents": others})
    torch.testing.assert_close(moved[:, :, 0], plain[:, :, 0])
    assert not torch.allclose(moved[:, :, 2], plain[:, :, 2], atol=1e-5)


def test_without_poses_a_video_goes_through_the_plain_blocks(network: WanAnimate2Transformer) -> None:
    given = inputs()
    del given["pose_latents"]
    assert network(**given).shape == (2, 4, 3, 4, 6)
    assert not torch.allclose(network(**given), network(**inputs()), atol=1e-4)


@pytest.mark.parametrize("name", ["pose_strength", "reference_strength"])
def test_strengths_weigh_what_is_read(network: WanAnimate2Transformer, name: str) -> None:
    plain = network(**inputs())
    torch.testing.assert_close(network(**inputs(**{name: 1.0})), plain)
    assert not torch.allclose(network(**inputs(**{name: 0.5})), plain, atol=1e-4)


def test_poses_have_their_own_text(network: WanAnimate2Transformer) -> None:
    given = inputs()
    own = given.pop("context_pose")
    same = network(**given, context_pose=given["context"])
    torch.testing.assert_close(same, network(**given))
    assert not torch.allclose(network(**given, context_pose=own * 2), same, atol=1e-4)


def test_what_is_kept_gives_the_same_video_in_later_steps(network: WanAnimate2Transformer) -> None:
    states, later = PoseStates(anywhere), {"timesteps": torch.tensor([300.0, 300.0])}
    expected = [network(**inputs()), network(**inputs(**later))]
    calls = []
    handle = network.text_embedding.register_forward_hook(lambda *given: calls.append(1))
    found = [network(**inputs(**step), transformer_options={OPTION: states}) for step in ({}, later)]
    handle.remove()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert len(calls) == 3  # the text of the poses was read in the first step alone


def test_other_poses_are_not_taken_for_those_that_are_kept(network: WanAnimate2Transformer) -> None:
    states = PoseStates(anywhere)
    network(**inputs(), transformer_options={OPTION: states})
    others = inputs()
    others["pose_latents"] = others["pose_latents"] + 1.0
    torch.testing.assert_close(network(**others, transformer_options={OPTION: states}), network(**others))


def test_nothing_is_kept_where_there_is_no_room(network: WanAnimate2Transformer) -> None:
    states = PoseStates(lambda num_bytes, device: None)
    assert states.of(inputs()["pose_latents"], 10) is None
    torch.testing.assert_close(network(**inputs(), transformer_options={OPTION: states}), network(**inputs()))


def test_what_was_not_used_for_the_longest_time_makes_room() -> None:
    room = [CPU, CPU, None, CPU]
    states = PoseStates(lambda num_bytes, device: room.pop(0))
    first, second, third = (torch.full((1, 4, 1, 2, 2), float(number)) for number in range(3))
    kept = states.of(first, 1), states.of(second, 1)
    assert states.of(first, 1) is kept[0]
    states.of(third, 1)
    room.append(CPU)
    assert states.of(first, 1) is kept[0] and states.of(second, 1) is not kept[1]


@pytest.mark.parametrize(("place", "device"), [("cpu", CPU), ("gpu", torch.device("meta"))])
def test_a_place_has_room_for_more_than_it_keeps(place: Any, device: torch.device) -> None:
    found = Placement(place, lambda: 100.0, lambda: 100.0)
    assert found(int(100 / LEAST) - 1, torch.device("meta")) == device
    assert found(int(100 / LEAST) + 1, torch.device("meta")) is None


@pytest.mark.parametrize(("storage", "largest"), [("default", 0.0), ("int8", 0.01), ("int4", 0.2)])
@pytest.mark.parametrize("width", [256, 128, 12])
def test_tokens_come_back_as_they_were_stored(storage: Storage, largest: float, width: int) -> None:
    tokens = torch.randn(1, 7, width, generator=torch.Generator().manual_seed(2))
    back = packed(tokens, storage, CPU).unpacked(CPU, torch.float32)
    assert float((back - tokens).norm() / tokens.norm()) <= largest


def test_poses_of_another_size_are_refused_with_both_sizes() -> None:
    denoiser: Any = FollowingVideoDenoiser(WanAnimate2Transformer(CONFIG))
    denoiser.latent_format = registry.family_named("wan").latent_format()
    noise = torch.zeros(1, 4, 3, 4, 6)
    with pytest.raises(ValueError, match=r"pose_video: .* got 3 latent frames of 6x4 cells, expected 2 of 6x4"):
        denoiser.extra_conds(noise=noise, device=CPU, pose_video_latent=torch.zeros(1, 16, 3, 4, 6))
