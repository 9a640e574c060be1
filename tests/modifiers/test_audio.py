"""Text2Audio: the nodes that each family's prompts and latents need, and checkpoints that make no audio."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.modifiers.modifier import ModificationsRejected
from darkroom.modifiers.registry import ModifierRegistry, build_registry

ACE: dict[str, Any] = {"audio_latent": "EmptyAceStepLatentAudio", "seconds": 120.0, "shift": 5.0}
ACE |= {"shift_by": "ModelSamplingSD3"}
STABLE: dict[str, Any] = {"audio_latent": "EmptyLatentAudio", "seconds": 47.0, "text_type": "stable_audio"}
ACE15: dict[str, Any] = {"audio_latent": "EmptyAceStep1.5LatentAudio", "seconds": 120.0, "shift": 3.0}
ACE15 |= {"shift_by": "ModelSamplingAuraFlow", "text_type": "ace"}
MUSIC3: dict[str, Any] = {"audio_latent": "EmptyMiniMaxMusic3LatentAudio", "seconds": 120.0, "max_seconds": 300.0}
MUSIC3 |= {"text_type": "minimax"}
STABLE |= {"sampler_name": "dpmpp_3m_sde", "scheduler": "exponential"}


@pytest.fixture(scope="module")
def registry() -> ModifierRegistry:
    return build_registry()


def test_a_song_has_tags_and_lyrics(registry: ModifierRegistry) -> None:
    prompt = registry.build("Text2Audio", {"prompt": "funk", "lyrics": "[verse]\nla", "seconds": 30}, {}, ACE)
    assert prompt["6"]["inputs"] == {"tags": "funk", "lyrics": "[verse]\nla", "lyrics_strength": 1.0, "clip": ["4", 1]}
    assert prompt["5"]["inputs"]["seconds"] == 30 and prompt["shift"]["inputs"]["shift"] == 5.0
    assert prompt["9"]["class_type"] == "SaveAudio"


def test_networks_that_read_seconds_are_given_them(registry: ModifierRegistry) -> None:
    given = {"prompt": "rain", "clip_names": "t5_base.safetensors", "audio_format": "mp3"}
    prompt = registry.build("Text2Audio", given, {}, STABLE)
    assert prompt["5"] == {**prompt["5"], "class_type": "EmptyLatentAudio"}
    assert prompt["6"]["inputs"] == {"text": "rain", "clip": ["text_encoders", 0]}
    assert prompt["10"]["inputs"]["seconds_total"] == prompt["5"]["inputs"]["seconds"] == 47.0
    assert prompt["3"]["inputs"]["positive"] == ["10", 0] and prompt["3"]["inputs"]["negative"] == ["10", 1]
    assert prompt["9"]["class_type"] == "SaveAudioMP3" and prompt["9"]["inputs"]["quality"] == "320k"


def test_a_language_model_writes_codes_for_the_song_alone(registry: ModifierRegistry) -> None:
    given = {"prompt": "funk", "lyrics": "[verse]\nla", "negative_prompt": "noise", "seconds": 30, "seed": 7}
    prompt = registry.build("Text2Audio", given, {}, ACE15)
    song, other = (prompt[name]["inputs"] for name in ("6", "7"))
    assert {prompt[name]["class_type"] for name in ("6", "7")} == {"TextEncodeAceStepAudio1.5"}
    assert song["tags"] == "funk" and song["lyrics"] == "[verse]\nla" and song["generate_audio_codes"]
    assert song["duration"] == prompt["5"]["inputs"]["seconds"] == 30 and song["seed"] == 7
    assert other["tags"] == "noise" and other["lyrics"] == "" and not other["generate_audio_codes"]
    assert prompt["5"]["class_type"] == "EmptyAceStep1.5LatentAudio" and "lyrics_strength" not in song
    assert prompt["shift"]["class_type"] == "ModelSamplingAuraFlow"


def test_a_language_model_writes_a_song_whose_length_the_latent_has(registry: ModifierRegistry) -> None:
    prompt = registry.build("Text2Audio", {"prompt": "funk", "lyrics": "[verse]\nla", "seed": 7}, {}, MUSIC3)
    song = prompt["6"]
    assert song["class_type"] == "MiniMaxMusic3TextEncode" and song["inputs"]["caption"] == "funk"
    assert song["inputs"]["max_duration"] == 120.0 and song["inputs"]["seed"] == 7
    assert prompt["7"] == {**prompt["7"], "class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["6", 0]}}
    assert prompt["5"] == {**prompt["5"], "class_type": "EmptyMiniMaxMusic3LatentAudio"}
    assert prompt["5"]["inputs"]["seconds"] == ["6", 1]


@pytest.mark.parametrize(
    ("given", "family"),
    [
        ({}, {}),
        ({"lyrics": "la", "lyrics_strength": 2.0}, MUSIC3),
        ({"negative_prompt": "noise"}, MUSIC3),
        ({"seconds": 301}, MUSIC3),
        ({"lyrics": "la", "lyrics_strength": 2.0}, ACE15),
        ({"lyrics": "la"}, STABLE),
        ({"seconds": 0.5}, ACE),
        ({"audio_format": "wav"}, ACE),
    ],
)
def test_what_no_network_can_do_is_refused(
    registry: ModifierRegistry, given: dict[str, Any], family: dict[str, Any]
) -> None:
    with pytest.raises(ModificationsRejected):
        registry.build("Text2Audio", {"prompt": "rain", **given}, {}, family)


def test_audio_longer_than_the_networks_make_is_refused_with_the_limit(registry: ModifierRegistry) -> None:
    with pytest.raises(ModificationsRejected) as refused:
        registry.build("Text2Audio", {"prompt": "rain", "seconds": 60}, {}, STABLE | {"max_seconds": 47.6})
    (problem,) = refused.value.problems
    assert problem["field"] == "seconds" and problem["allowed"]["maximum"] == 47.6
    assert problem["message"] == "too long for networks of this family; got 60, expected at most 47.6"
