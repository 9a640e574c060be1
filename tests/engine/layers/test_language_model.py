"""Language models return the hidden states of other libraries, for every kind; masks, places and chosen layers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from darkroom.engine.layers.language_model import (
    GEMMA2,
    GEMMA3,
    LLAMA3,
    QWEN2,
    QWEN3,
    LanguageModel,
    LanguageModelConfig,
    LanguageModelKind,
    kind_of,
    language_model_config,
)
from tests.engine.layers.language_model_cases import (
    CASES,
    INNER,
    MASK,
    PLACES,
    REFERENCE,
    VOCABULARY,
    WIDTH,
    LanguageCase,
    fill,
    make_embeds,
)

KINDS = {kind.name: kind for kind in (LLAMA3, QWEN2, QWEN3, GEMMA2, GEMMA3)}


def config_of(kind: LanguageModelKind, num_layers: int = 2) -> LanguageModelConfig:
    return LanguageModelConfig(
        kind=kind, num_layers=num_layers, width=WIDTH, heads=4, key_heads=2, inner_width=INNER,
        vocabulary_size=VOCABULARY, has_biases=kind is QWEN2, norms_queries=kind in (QWEN3, GEMMA3),
        norms_outputs=kind in (GEMMA2, GEMMA3),
    )  # fmt: skip


TOKENS = torch.tensor([0, 3])


def model(case: LanguageCase) -> LanguageModel:
    made = fill(LanguageModel(config_of(KINDS[case.name], case.num_layers)).requires_grad_(False), case)
    assert isinstance(made, LanguageModel)
    return made


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert torch.linalg.vector_norm(found - expected) <= 2e-6 * torch.linalg.vector_norm(expected)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_states_are_those_of_other_libraries(case: LanguageCase) -> None:
    expected, stack, embeds = load_file(REFERENCE), model(case).model, make_embeds(case)
    if KINDS[case.name].scales_embeddings:  # those libraries scale whatever they are given, we the rows of the table
        assert torch.equal(stack.embed_tokens(TOKENS), stack.embed_tokens.weight[TOKENS] * WIDTH**0.5)
        embeds = embeds * WIDTH**0.5
    close(stack.all_states(embeds), expected[f"{case.name}/states"])
    seen = MASK.bool()  # what padding gives is nobody's business
    close(stack(embeds, MASK)[seen], expected[f"{case.name}/masked"][seen])
    if case.has_three_axes:
        close(stack(embeds, positions=PLACES), expected[f"{case.name}/placed"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_chosen_layer_has_its_own_output(case: LanguageCase) -> None:
    stack, embeds = model(case).model, make_embeds(case)
    states = stack.all_states(embeds)  # the input of the first layer comes first
    assert torch.equal(stack(embeds, layer=-2), states[:, -2])
    assert torch.equal(stack(embeds, layer=0), states[:, 1])
    assert torch.equal(stack(embeds, layer=0, normalises_layer=True), stack.norm(states[:, 1]))
    assert torch.equal(stack(embeds), states[:, -1])
    with pytest.raises(ValueError, match="layer: 9 is not in the network"):
        stack(embeds, layer=9)


def test_tokens_see_none_behind_them() -> None:
    case = CASES[0]
    stack, embeds = model(case).model, make_embeds(case)
    other = embeds.clone()
    other[:, 4:] = 0.0
    torch.testing.assert_close(stack(embeds)[:, :4], stack(other)[:, :4])
    assert not torch.allclose(stack(embeds)[:, 4:], stack(other)[:, 4:], atol=1e-3)


def test_a_prompt_that_is_all_padding_gives_numbers() -> None:
    stack, embeds = model(CASES[0]).model, make_embeds(CASES[0])
    assert stack(embeds, torch.zeros_like(MASK)).isfinite().all()


def test_a_model_of_one_axis_refuses_three() -> None:
    case = CASES[2]
    with pytest.raises(ValueError, match="got 3 axes, expected 1"):
        model(case).model(make_embeds(case), positions=PLACES)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_kind_and_configuration_are_read_from_the_shapes(kind: LanguageModelKind) -> None:
    config = config_of(kind)
    shapes = {name: tuple(item.shape) for name, item in LanguageModel(config).state_dict().items()}
    assert kind_of(shapes) is kind
    assert language_model_config(shapes) == config
    other = replace(kind, theta=2e5)
    assert language_model_config(shapes, other) == replace(config, kind=other)


def test_other_tensors_have_no_kind() -> None:
    with pytest.raises(KeyError, match="q_proj"):
        kind_of({"shared.weight": (16, 24)})
