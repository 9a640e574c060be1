"""Prompts of ACE-Step 1.5: templates, facts, encoders told apart, conditioning and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.denoiser import ModelConfig
from darkroom.engine.families.ace_step15.denoiser import AceStep15Denoiser
from darkroom.engine.families.ace_step15.lora import lora_keys
from darkroom.engine.families.ace_step15.nodes import (
    empty_ace_step15_latent_audio,
    reference_timbre_audio,
    text_encode_ace_step_audio15,
)
from darkroom.engine.families.ace_step15.silence import silent_latent
from darkroom.engine.families.ace_step15.song_prompts import Song, prompts_of, whole_seconds
from darkroom.engine.families.ace_step15.text import CODES_2B, CODES_4B, QWEN_06B, seen_rows, song_of, writes_codes
from darkroom.engine.families.ace_step15.vae_files import AceStep15LatentFormat
from darkroom.engine.families.base import NotRecognised, TokenizerParts
from darkroom.engine.families.registry import family_named, recognise_text_encoders, recognise_vae
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.models.load import LoadTypes
from darkroom.engine.models.random_weights import random_networks
from darkroom.engine.text.chunk_encoding import Encoded
from darkroom.engine.text.clip_encoding import TextEncoderSet
from darkroom.engine.text.clip_tokens import BytePairs, TokenizerSet
from tests.engine.layers.small_transformers import small_transformer

FAMILY = family_named("ace_step15")
FACTS: dict[str, Any] = {"bpm": 96, "duration": 12, "keyscale": "F# minor", "timesignature": 4}


def shapes_of(encoder: Any, size: str) -> dict[str, tuple[int, ...]]:
    with unfilled():
        built = encoder.network.build(encoder.network.sizes[size])
    return {name: tuple(weight.shape) for name, weight in built.state_dict().items()}


def test_facts_are_the_first_thought_and_a_list() -> None:
    found = prompts_of(Song("jazz", " la\n", "en", FACTS, "noise", "hm"))
    thought = "<think>\nbpm: 96\nduration: 12\nkeyscale: F# minor\ntimesignature: 4\n</think>"
    turn = "<|im_end|>\n<|im_start|>assistant\n{}\n\n<|im_end|>\n"
    assert found["lm_prompt"].endswith("# Caption\njazz\n\n# Lyric\nla\n" + turn.format(thought))
    assert found["lm_prompt_negative"].endswith("# Lyric\nhm\n" + turn.format("<think>\n\n</think>"))
    listed = "- bpm: 96\n- timesignature: 4\n- keyscale: F# minor\n- duration: 12 seconds\n"
    assert found["qwen3_06b"].endswith(f"# Metas\n{listed}<|endoftext|>\n<|endoftext|>")
    assert found["lyrics"] == "# Languages\nen\n\n# Lyric\n la\n<|endoftext|><|endoftext|>"


def test_unknown_facts_are_left_out_or_named_so() -> None:
    found = prompts_of(Song("x", facts={"duration": 3, "bpm": "unspecified", "timesignature": "6/4"}))
    assert "<think>\nduration: 3\ntimesignature: 6\n</think>" in found["lm_prompt"]
    assert "- bpm: unspecified\n- timesignature: 6\n- keyscale: N/A\n- duration: 3 seconds" in found["qwen3_06b"]
    odd = prompts_of(Song("x", facts={"duration": 3, "keyscale": "it's: odd", "bpm": "007"}))
    assert "bpm: 7\nduration: 3\nkeyscale: 'it''s: odd'" in odd["lm_prompt"]


@pytest.mark.parametrize(("given", "seconds"), [(2.1, 3), ("30 seconds", 30), (0, 0)])
def test_lengths_are_whole_seconds(given: Any, seconds: int) -> None:
    assert whole_seconds(given) == seconds


@pytest.mark.parametrize("given", ["", "long", None, -1.0, float("nan"), float("inf")])
def test_lengths_that_are_none_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="duration: no number of seconds"):
        whole_seconds(given)


def test_a_song_of_hours_is_refused_before_any_code_is_written() -> None:
    with pytest.raises(ValueError, match="too long; got 7200 s, expected at most 2000 s"):
        song_of("x", {"duration": 7200})


def test_negative_facts_come_by_their_names() -> None:
    song = song_of("x", {"bpm_negative": 60, "caption_negative": " hum ", "lyrics": "la", "duration": 4})
    assert song.negative_caption == "hum" and song.negative_facts == {"bpm": 60} and song.negative_lyrics == "la"


def test_tokens_between_padding_areseen_rows() -> None:
    pad = 151643
    assert seen_rows([pad, pad, 1, 2, pad, 3], [1] * 6, 6) == [0, 0, 1, 1, 0, 0]
    assert seen_rows([1, torch.zeros(2, 4), pad, torch.zeros(1, 4)], [1, 2, 1, 1], 6) == [1, 1, 1, 0, 1, 0]


@pytest.mark.parametrize(("codes", "size"), [(CODES_2B, "full"), (CODES_4B, "small")], ids=["2b", "4b"])
def test_two_files_are_the_encoders_whatever_their_order(codes: Any, size: str) -> None:
    files = [shapes_of(codes, size), shapes_of(QWEN_06B, "full")]
    for order in (files, files[::-1]):
        family, found = recognise_text_encoders(order, "ace")
        assert family.name == "ace_step15" and {encoder.encoding.slot for encoder, _ in found} == {
            "qwen3_06b", codes.encoding.slot,
        }  # fmt: skip
    with pytest.raises(NotRecognised):
        recognise_text_encoders([files[0], files[0]], "ace")


def test_its_vae_is_told_from_stable_audios() -> None:
    for name in ("ace_step15", "stable_audio"):
        family = family_named(name)
        with unfilled():
            built = family.vae.build(family.vae.sizes["full"])
        shapes = {key: tuple(weight.shape) for key, weight in built.state_dict().items()}
        found, names = recognise_vae(shapes)
        assert found is family
        config = found.vae.configure({ours: shapes[str(theirs)] for ours, theirs in names.items()})
        assert config == built.config
    assert (config.samples_per_cell, config.sample_rate_hz) == (2048, 44100)
    assert built.downscale_ratio == 2048 and built.sample_rate_hz == 44100


class NoEmbeddings:
    """Textual inversions: there are none."""

    def __call__(self, encoding: Any) -> Any:
        return lambda name: (None, name)


@pytest.fixture(scope="module")
def encoders() -> Any:
    _, text, _ = random_networks("small", 0, LoadTypes(), family=FAMILY)
    return text


@pytest.fixture(scope="module")
def tokenizers(encoders: Any) -> TokenizerSet:
    parts = TokenizerParts(BytePairs(), NoEmbeddings())
    described = ((item, encoders.encoders().get(item.encoding.slot)) for item in FAMILY.text)
    return TokenizerSet([item.tokenizer(encoder, parts) for item, encoder in described if encoder is not None])


def encoded(encoders: Any, tokenizers: TokenizerSet, text: str, **given: Any) -> Encoded:
    tokens = tokenizers.tokenize_with_weights(text, duration=0.5, **given)
    found: Encoded = encoders.encode_weighted(tokens, layer_idx=-2, project_pooled=True)
    return found


def test_a_conditioning_has_lyrics_and_as_many_codes_as_the_song_is_long(encoders: Any, tokenizers: Any) -> None:
    found = encoded(encoders, tokenizers, "jazz, (loud:1.3)", lyrics="la la", seed=1)
    tokens = tokenizers.tokenize_with_weights("jazz, (loud:1.3)", lyrics="la la", duration=0.5)
    assert found.cond.shape == (1, len(tokens["qwen3_06b"][0]), 32)
    assert found.options["conditioning_lyrics"].shape == (1, len(tokens["lyrics"][0]), 32)
    (codes,) = found.options["audio_codes"]
    assert len(codes) == 5 and all(0 <= code < 64000 for code in codes)
    assert "attention_mask" not in found.options
    assert {weight for _, weight in tokens["qwen3_06b"][0]} == {1.0}  # brackets are text


def test_the_same_seed_writes_the_same_codes(encoders: Any, tokenizers: Any) -> None:
    first, again, other = (
        encoded(encoders, tokenizers, "jazz", seed=seed).options["audio_codes"] for seed in (5, 5, 6)
    )
    assert first == again != other


def test_without_codes_none_are_written(encoders: Any, tokenizers: Any) -> None:
    found = encoded(encoders, tokenizers, "jazz", generate_audio_codes=False)
    assert set(found.options) == {"conditioning_lyrics"}


def test_the_layer_that_nodes_ask_for_changes_nothing(encoders: Any, tokenizers: Any) -> None:
    tokens = tokenizers.tokenize_with_weights("jazz", generate_audio_codes=False)
    last, early = (encoders.encode_weighted(tokens, layer_idx=index, project_pooled=True) for index in (None, -2))
    assert torch.equal(last.cond, early.cond)


class OneEncoder:
    """A CLIP of Qwen3 0.6B alone."""

    def __init__(self, encoders: Any) -> None:
        slot = "qwen3_06b"
        self.cond_stage_model = TextEncoderSet([encoders.encoders()[slot]])

    def tokenize(self, text: str, **given: Any) -> dict[str, Any]:
        return {"lm_metadata": given}


def test_codes_without_a_model_that_writes_them_are_refused(encoders: Any) -> None:
    assert writes_codes(encoders)
    clip = OneEncoder(encoders)
    assert not writes_codes(clip.cond_stage_model)
    with pytest.raises(ValueError, match="no language model for codes; got Qwen3 0.6B alone"):
        text_encode_ace_step_audio15.function(
            None, clip=clip, tags="x", lyrics="", timesignature="4", keyscale="C major"
        )


# --- what the network is given ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def denoiser() -> AceStep15Denoiser:
    network, _ = small_transformer("ace_step15")
    return AceStep15Denoiser(network, config=ModelConfig(latent_format=AceStep15LatentFormat()))


def inputs_of(denoiser: AceStep15Denoiser, **given: Any) -> dict[str, Any]:
    known = {"cross_attn": torch.ones(1, 3, 24), "conditioning_lyrics": torch.ones(1, 2, 24)}
    found = denoiser.extra_conds(noise=torch.zeros(2, 64, 9), device=torch.device("cpu"), **known | given)
    return {name: item.cond for name, item in found.items()}


def test_a_song_of_text_alone_follows_silence(denoiser: AceStep15Denoiser) -> None:
    found = inputs_of(denoiser)
    assert found["is_covers"] is False and "audio_codes" not in found and "replace_with_null_embeds" not in found
    assert torch.equal(found["refer_audio"], silent_latent(9, torch.device("cpu")))


def test_codes_are_given_unless_there_is_reference_audio(denoiser: AceStep15Denoiser) -> None:
    found = inputs_of(denoiser, audio_codes=[[1, 2]])
    assert found["audio_codes"].tolist() == [[1, 2]] and "is_covers" not in found
    timbres = [torch.zeros(1, 64, 3), torch.ones(2, 64, 4), torch.ones(2, 64, 20) * 2]
    found = inputs_of(denoiser, audio_codes=[[1, 2]], reference_audio_timbre_latents=timbres)
    assert found["is_covers"] is True and "audio_codes" not in found
    assert torch.equal(found["refer_audio"], torch.full((2, 64, 9), 2.0))  # the last one, cut
    found = inputs_of(denoiser, reference_audio_timbre_latents=timbres[:2])
    assert torch.equal(found["refer_audio"][1, :, 4:], silent_latent(9, torch.device("cpu"))[0, :, 4:])


def test_a_zeroed_text_is_the_networks_empty_condition(denoiser: AceStep15Denoiser) -> None:
    assert inputs_of(denoiser, cross_attn=torch.zeros(1, 3, 24))["replace_with_null_embeds"] is True


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"conditioning_lyrics": None}, "conditioning: it has no lyrics"),
        ({"audio_codes": [[64000]]}, "no codes of ACE-Step 1.5"),
        ({"audio_codes": [[-1]]}, "no codes of ACE-Step 1.5"),
        ({"audio_codes": [[0.5]]}, "no codes of ACE-Step 1.5"),
        ({"reference_audio_timbre_latents": [torch.zeros(1, 8, 16, 4)]}, "reference audio of another VAE"),
        ({"reference_audio_timbre_latents": [torch.zeros(1, 32, 4)]}, "reference audio of another VAE"),
    ],
)
def test_what_the_network_cannot_read_is_refused(denoiser: AceStep15Denoiser, given: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        inputs_of(denoiser, **given)


def test_lora_files_name_the_decoders_layers_without_its_name() -> None:
    weight = "diffusion_model.decoder.layers.0.self_attn.q_proj.weight"
    found = lora_keys([weight, "diffusion_model.encoder.text_projector.weight"], None)
    for name in ("base_model.model.layers.0.self_attn.q_proj", "lycoris_layers_0_self_attn_q_proj",
                 "diffusion_model.decoder.layers.0.self_attn.q_proj"):  # fmt: skip
        assert found[name] == weight
    assert found["diffusion_model.encoder.text_projector"] == "diffusion_model.encoder.text_projector.weight"


def test_empty_latents_have_25_frames_a_second() -> None:
    made = empty_ace_step15_latent_audio.function(None, seconds=2.02, batch_size=3)
    assert made["samples"].shape == (3, 64, 50) and made["type"] == "audio"


def test_reference_audio_is_set_behind_earlier_ones() -> None:
    conditioning = [[torch.zeros(1, 2, 4), {}]]
    first, second = ({"samples": torch.full((1, 64, 2), float(number))} for number in (1, 2))
    once = reference_timbre_audio.function(None, conditioning=conditioning, latent=first)
    twice = reference_timbre_audio.function(None, conditioning=once, latent=second)
    assert [float(item.mean()) for item in twice[0][1]["reference_audio_timbre_latents"]] == [1.0, 2.0]
    assert reference_timbre_audio.function(None, conditioning=conditioning, latent=None) is conditioning
