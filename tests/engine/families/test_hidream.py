"""HiDream-I1: how its text encoders read a prompt, what stands for those that are left out, the tokenizer of Llama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.hidream.text import LLAMA, NUM_TOKENS, ShortT5Tokenizer, combined
from darkroom.engine.families.registry import family_named
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.language_model import LanguageModel
from darkroom.engine.models.load import LoadedDenoiser, LoadTypes, load_text_encoders
from darkroom.engine.models.store import denoiser
from darkroom.engine.text.chunk_encoding import Encoded
from darkroom.engine.text.llama_tokens import PAD_TOKEN, START_TOKEN, byte_tokenizer
from darkroom.engine.text.t5_encoding import END_TOKEN, T5Encoding
from darkroom.engine.text.vocabulary import stored_vocabulary

FAMILY = family_named("hidream")
SMALL = FAMILY.scales["small"]


def t5_chunk(text: str) -> list[tuple[Any, float]]:
    (chunk,) = ShortT5Tokenizer(encoding=T5Encoding(min_length=NUM_TOKENS)).tokenize_with_weights(text)["t5xxl"]
    return [(token, weight) for token, weight in chunk]


def test_t5_reads_a_hundred_and_twenty_eight_tokens() -> None:
    assert len(t5_chunk("a fox")) == NUM_TOKENS
    long = t5_chunk("a fox in the snow " * 60)
    assert len(long) == NUM_TOKENS and long[-1] == (END_TOKEN, 1.0)
    part = t5_chunk("tree " * 125 + "(fox:1.2)")  # a short part is not cut
    assert len(part) <= NUM_TOKENS and part[-1] == (END_TOKEN, 1.0)
    assert all(weight == 1.0 for _, weight in part) or (part[-2][1] == 1.2)


def test_zeros_take_the_place_of_encoders_that_are_left_out() -> None:
    states = torch.ones(1, 5, 7, 16)  # the input of four layers, and their output
    encoded = combined({"llama": Encoded(states, None)})
    assert encoded.cond.shape == (1, NUM_TOKENS, 4096) and not encoded.cond.any()
    assert encoded.pooled is not None and encoded.pooled.shape == (1, 768 + 1280)
    assert encoded.options["conditioning_llama3"].shape == (1, 4, 7, 16)
    without = combined({"t5xxl": Encoded(torch.ones(1, 9, 24), None)})
    assert without.options["conditioning_llama3"].shape == (1, 32, 1, 4096)


def test_llamas_weights_move_the_layer_of_the_tokens_number() -> None:
    torch.manual_seed(0)
    model = LanguageModel(SMALL.text["llama"]).requires_grad_(False)
    for weight in model.parameters():
        weight.normal_(0.0, 0.1)
    encoder = LLAMA.encoder_type(model, LLAMA.encoding)
    tokens = [START_TOKEN, 70, 80, PAD_TOKEN]
    plain, weighted = (
        encoder.encode_weighted(
            [[(token, factor if place == 1 else 1.0) for place, token in enumerate(tokens)]],
            layer_idx=None, project_pooled=True,
        ).cond
        for factor in (1.0, 1.5)
    )  # fmt: skip
    assert plain.shape == (1, 3, 4, 16)
    moved = (plain - weighted).abs().amax(dim=(0, 2, 3)) > 1e-6
    assert moved.tolist() == [False, True, False]


def test_the_tokenizer_of_llama_is_in_the_file_or_beside_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = tmp_path / "llama.safetensors"
    write_safetensors(
        path, {name: item.half() for name, item in LanguageModel(SMALL.text["llama"]).state_dict().items()}
    )
    with pytest.raises(BadModelFile, match=r"tokenizer_json.*or the file 'llama_tokenizer\.json' in its folder"):
        load_text_encoders([path], LoadTypes(), "hidream")
    (tmp_path / "llama_tokenizer.json").write_bytes(byte_tokenizer())
    loaded = load_text_encoders([path], LoadTypes(), "hidream")
    assert loaded.encoders()["llama"].vocabulary == byte_tokenizer()
    assert stored_vocabulary(byte_tokenizer()).encode("<|eot_id|>") == [PAD_TOKEN]
    with pytest.raises(ValueError, match=r"invalid tokenizer\.json; got 4 bytes"):
        stored_vocabulary(b"none")


def test_a_conditioning_without_a_language_models_layers_is_refused() -> None:
    with unfilled():
        network = FAMILY.denoiser.build(SMALL.denoiser)
    made = denoiser(LoadedDenoiser(FAMILY, "", FAMILY.parameterisation, network))
    given = {
        "noise": torch.zeros(1, 16, 4, 4), "device": torch.device("cpu"), "pooled_output": torch.zeros(1, 128),
        "cross_attn": torch.zeros(1, 5, 128),
    }  # fmt: skip
    with pytest.raises(ValueError, match="gave no layers of a language model"):
        made.extra_conds(**given)
    inputs = made.extra_conds(**given, conditioning_llama3=torch.zeros(1, 2, 5, 16))
    assert sorted(inputs) == ["c_crossattn", "encoder_hidden_states_llama3", "y"]
