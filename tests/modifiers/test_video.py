"""Text2Video and Image2Video: the nodes that each family's latent needs, and checkpoints that draw no videos."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.engine.families.registry import families
from darkroom.modifiers.modifier import ModificationsRejected
from darkroom.modifiers.registry import ModifierRegistry, build_registry

LTX = {"video_latent": "EmptyLTXVLatentVideo", "video_start": "LTXVImgToVideo", "frames": 97, "frame_rate": 25.0}
WAN = {"video_latent": "EmptyHunyuanLatentVideo", "width": 832, "height": 480, "frames": 81, "frame_rate": 16.0}
WAN_IMAGE = {"video_start": "WanImageToVideo", "width": 832, "height": 480, "frames": 81, "frame_rate": 16.0}
WAN22 = {"video_latent": "Wan22ImageToVideoLatent", "video_start": "Wan22ImageToVideoLatent", "frame_rate": 24.0}
IMAGE = {"prompt": "waves", "input_image": "a.png"}


@pytest.fixture(scope="module")
def registry() -> ModifierRegistry:
    return build_registry()


def sampled_from(prompt: dict[str, Any]) -> tuple[Any, Any, Any]:
    inputs = prompt["3"]["inputs"]
    return inputs["positive"], inputs["negative"], inputs["latent_image"]


def test_the_empty_latent_is_that_of_the_family(registry: ModifierRegistry) -> None:
    prompt = registry.build("Text2Video", {"prompt": "a boat", "frames": 33}, {}, WAN)
    assert prompt["5"]["class_type"] == "EmptyHunyuanLatentVideo"
    assert prompt["5"]["inputs"] == {"width": 832, "height": 480, "length": 33, "batch_size": 1}
    assert prompt["12"]["inputs"]["fps"] == 16.0
    assert sampled_from(prompt) == (["6", 0], ["7", 0], ["5", 0])


def test_networks_that_read_the_frame_rate_are_given_it(registry: ModifierRegistry) -> None:
    prompt = registry.build("Text2Video", {"prompt": "a boat", "fps": 30}, {}, LTX)
    assert prompt["11"]["inputs"] == {"positive": ["6", 0], "negative": ["7", 0], "frame_rate": 30.0}
    assert sampled_from(prompt) == (["11", 0], ["11", 1], ["5", 0])
    begun = registry.build("Image2Video", IMAGE, {}, LTX)
    assert begun["5"]["inputs"]["image"] == ["10", 0] and begun["11"]["inputs"]["positive"] == ["5", 0]
    assert sampled_from(begun) == (["11", 0], ["11", 1], ["5", 2])


def test_a_video_begins_with_an_image_as_its_family_does(registry: ModifierRegistry) -> None:
    prompt = registry.build("Image2Video", IMAGE, {}, WAN_IMAGE)
    assert prompt["5"]["class_type"] == "WanImageToVideo" and prompt["5"]["inputs"]["start_image"] == ["10", 0]
    assert sampled_from(prompt) == (["5", 0], ["5", 1], ["5", 2])
    second = registry.build("Image2Video", IMAGE, {}, WAN22)
    assert second["5"]["inputs"]["vae"] == ["4", 2] and sampled_from(second) == (["6", 0], ["7", 0], ["5", 0])


@pytest.mark.parametrize("kind", ["EmptyMochiLatentVideo", "EmptyCosmosLatentVideo"])
def test_other_families_have_empty_latents_of_their_own(registry: ModifierRegistry, kind: str) -> None:
    prompt = registry.build("Text2Video", {"prompt": "a boat"}, {}, {"video_latent": kind, "frames": 37})
    assert prompt["5"]["class_type"] == kind and prompt["5"]["inputs"]["length"] == 37


@pytest.mark.parametrize("kind", ["CosmosImageToVideoLatent", "CosmosPredict2ImageToVideoLatent"])
def test_latents_that_begin_with_an_image_leave_the_prompts_as_they_are(registry: ModifierRegistry, kind: str) -> None:
    prompt = registry.build("Image2Video", IMAGE, {}, {"video_start": kind})
    assert prompt["5"]["inputs"]["start_image"] == ["10", 0] and prompt["5"]["inputs"]["vae"] == ["4", 2]
    assert sampled_from(prompt) == (["6", 0], ["7", 0], ["5", 0])


def test_an_image_beside_the_prompt_leaves_the_negative_one_as_it_is(registry: ModifierRegistry) -> None:
    prompt = registry.build("Image2Video", IMAGE, {}, {"video_start": "HunyuanImageToVideo"})
    assert prompt["5"]["inputs"]["positive"] == ["6", 0]
    assert sampled_from(prompt) == (["5", 0], ["7", 0], ["5", 1])


def test_a_node_that_encodes_the_prompt_itself_is_given_it(registry: ModifierRegistry) -> None:
    prompt = registry.build("Image2Video", IMAGE, {}, {"video_start": "MiniMaxH3ImageToVideo"})
    inputs = prompt["5"]["inputs"]
    assert (inputs["prompt"], inputs["clip"], inputs["first_frame"]) == ("waves", ["4", 1], ["10", 0])
    assert "6" not in prompt and "batch_size" not in inputs
    assert sampled_from(prompt) == (["5", 0], ["7", 0], ["5", 1])


def test_a_network_that_is_given_no_guidance_refuses_it(registry: ModifierRegistry) -> None:
    with pytest.raises(ModificationsRejected, match="guidance: must be left out"):
        registry.build("Image2Video", {**IMAGE, "guidance": 3.5}, {}, {"video_start": "MiniMaxH3ImageToVideo"})


def test_the_files_of_a_model_take_the_place_of_a_checkpoint_at_the_latent_too(registry: ModifierRegistry) -> None:
    files = {"unet_name": "u.safetensors", "clip_names": "t.safetensors", "vae_name": "v.safetensors"}
    prompt = registry.build("Text2Video", {"prompt": "a boat", **files}, {}, {**WAN22, "text_type": "wan"})
    assert prompt["5"]["inputs"]["vae"] == prompt["8"]["inputs"]["vae"] == ["vae", 0]


@pytest.mark.parametrize(("name", "family"), [("Text2Video", WAN_IMAGE), ("Image2Video", WAN), ("Text2Video", {})])
def test_a_model_that_draws_no_such_videos_is_refused(
    registry: ModifierRegistry, name: str, family: dict[str, Any]
) -> None:
    given = IMAGE if name == "Image2Video" else {"prompt": "a boat"}
    with pytest.raises(ModificationsRejected) as caught:
        registry.build(name, given, {}, family)
    assert [problem["field"] for problem in caught.value.problems] == ["ckpt_name"]


def test_every_node_of_a_familys_videos_is_taken(registry: ModifierRegistry) -> None:
    every = [item for family in families() for item in (family.default, *family.variant_defaults.values())]
    latents = {item.video_latent for item in every} - {None}
    starts = {item.video_start for item in every} - {None}
    assert len(latents) >= 5 and len(starts) >= 6
    for kind in latents:
        assert registry.build("Text2Video", {"prompt": "a", "video_latent": kind}, {}, {})["5"]["class_type"] == kind
    for kind in starts:
        assert registry.build("Image2Video", {**IMAGE, "video_start": kind}, {}, {})["5"]["class_type"] == kind
