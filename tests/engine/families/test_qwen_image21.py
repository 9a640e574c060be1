"""Qwen-Image 2.1: its networks beside those of the diffusers library, and prompts with pictures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.adapters.lora import lora_patches
from engine.adapters.lora_names import DENOISER_PREFIX, target_name
from engine.architectures.picture_language_model import PictureLanguageModel
from engine.architectures.spliced_stream import SplicedStreamModel
from engine.families import registry
from engine.families.base import TensorIndex
from engine.families.qwen_image21.nodes import qwen_image21_cache, text_encode_qwen_image21
from engine.families.qwen_image21.text_encoder import QWEN, SLOT, TEMPLATE, WIDTH, SplicedQwenTokenizer
from engine.memory.weight_patches import calculate_weight
from engine.text.language_tokens import qwen3
from engine.text.qwen_tokens import PICTURE_TOKEN, START_TOKEN
from tests.engine.families import qwen_image21_networks as small

FAMILY = registry.family_named("qwen_image21")
CONTEXT: Any = None  # its nodes ask for none
CLOSE = 2e-6


@pytest.fixture(scope="module")
def recorded() -> dict[str, torch.Tensor]:
    return load_file(small.FILE)


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("make", [small.separate_network, small.joined_network])
def test_draws_what_the_diffusers_library_draws(make: Any, recorded: dict[str, torch.Tensor]) -> None:
    network: SplicedStreamModel = make()
    assert distance(network(small.LATENT, small.TIMES, small.TEXT), recorded["plain"]) < CLOSE
    spliced = network(small.LATENT, small.TIMES, small.TEXT, ref_latents=[small.REFERENCE], image_slots=[small.SLOT])
    assert distance(spliced, recorded["spliced"]) < CLOSE
    assert distance(spliced, recorded["plain"]) > 0.01
    shapes = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    assert registry.recognise(TensorIndex(shapes)).family is FAMILY
    assert FAMILY.denoiser.configure(shapes) == network.config


@pytest.mark.parametrize("prefix", ["transformer.", "lora_unet_"])
def test_a_lora_of_single_layers_changes_joined_ones_alike(prefix: str) -> None:
    """The latent is that of the network with single layers under the same LoRA, the published order of rows."""
    generator = torch.Generator().manual_seed(5)
    config = small.SMALL.denoiser
    lora: dict[str, torch.Tensor] = {}
    for block, layer in ((0, "gate_layer"), (0, "proj"), (1, "proj"), (1, "out")):
        rows, columns = (config.inner_width, config.width)[:: -1 if layer == "out" else 1]
        name = f"transformer_blocks.{block}.img_mlp.{layer}"
        key = prefix + (name.replace(".", "_") if prefix.endswith("_") else name)
        lora[f"{key}.lora_up.weight"] = torch.randn(rows, 4, generator=generator) * 0.1
        lora[f"{key}.lora_down.weight"] = torch.randn(4, columns, generator=generator) * 0.1
    drawn = []
    for network in (small.separate_network(), small.joined_network()):
        plain = network(small.LATENT, small.TIMES, small.TEXT)
        names = [DENOISER_PREFIX + name for name in network.state_dict()]
        for target, adapter in lora_patches(lora, FAMILY.denoiser_lora_keys(names, network.config)).items():
            weight = network.get_parameter(target_name(target).removeprefix(DENOISER_PREFIX))
            rows = None if isinstance(target, str) else target[1]
            calculate_weight([(1.0, adapter, 1.0, rows, None)], weight.data, target_name(target))
        drawn.append(network(small.LATENT, small.TIMES, small.TEXT))
        assert distance(drawn[-1], plain) > 0.01
    assert distance(drawn[1], drawn[0]) < CLOSE


def test_a_reference_without_a_place_comes_behind_the_text() -> None:
    network = small.joined_network()
    given = {"ref_latents": [small.REFERENCE]}
    behind = network(small.LATENT, small.TIMES, small.TEXT, **given, image_slots=[small.TEXT.shape[1]])
    assert torch.equal(network(small.LATENT, small.TIMES, small.TEXT, **given), behind)


def test_pictures_of_a_batch_are_drawn_as_alone() -> None:
    network = small.joined_network()
    both = network(torch.cat([small.LATENT, -small.LATENT]), torch.tensor([0.7, 0.2]), small.TEXT.expand(2, -1, -1))
    for index, time in enumerate((0.7, 0.2)):
        alone = network(small.LATENT * (1 - 2 * index), torch.tensor([time]), small.TEXT)
        torch.testing.assert_close(both[index : index + 1], alone)


def test_encodes_and_decodes_what_the_diffusers_library_does(recorded: dict[str, torch.Tensor]) -> None:
    vae = small.drawn_vae()
    assert distance(vae.encode(small.PICTURE), recorded["encoded"]) < CLOSE
    assert distance(vae.decode(small.LATENT).clamp(-1, 1), recorded["decoded"]) < CLOSE
    opaque = torch.cat([small.PICTURE[:, :3], torch.ones_like(small.PICTURE[:, :1])], dim=1)
    assert torch.equal(vae.encode(small.PICTURE[:, :3]), vae.encode(opaque))


def tokenizer() -> SplicedQwenTokenizer:
    return SplicedQwenTokenizer(slot=SLOT, template=TEMPLATE, picture_template=TEMPLATE, vocabulary=qwen3)


def numbers(chunks: dict[str, list[list[Any]]]) -> list[Any]:
    return [token for token, *_ in chunks[SLOT][0]]


def test_pictures_come_before_the_prompt_each_behind_its_number() -> None:
    picture = torch.zeros(1, 64, 64, 3)
    shown = "<image1><|vision_start|><|image_pad|><|vision_end|> <image2><|vision_start|><|image_pad|><|vision_end|>"
    tokens = numbers(tokenizer().tokenize_with_weights("swap them", images=[picture, picture]))
    plain = numbers(tokenizer().tokenize_with_weights(TEMPLATE.format(f"{shown}swap them")))
    assert [PICTURE_TOKEN if isinstance(token, dict) else token for token in tokens] == plain
    assert numbers(tokenizer().tokenize_with_weights("", prevent_empty_text=True)) == numbers(
        tokenizer().tokenize_with_weights(" ")
    )


@pytest.fixture(scope="module")
def encoder() -> Any:
    torch.manual_seed(0)
    network = PictureLanguageModel(small.SMALL.text[SLOT]).requires_grad_(False)
    return QWEN.encoder_type(network, QWEN.encoding)


def test_what_is_seen_of_pictures_makes_room_for_the_pictures(encoder: Any) -> None:
    images = [torch.rand(1, 64, 96, 3), torch.rand(1, 64, 128, 3)]  # of 2 x 3 and 2 x 4 tokens
    told = {"layer_idx": None, "project_pooled": False}
    chunks = tokenizer().tokenize_with_weights("swap them", images=images)[SLOT]
    spliced = encoder.encode_token_weights(chunks, **told)
    kept = encoder.encode_token_weights(
        tokenizer().tokenize_with_weights("swap them", images=images, keep_vision=True)[SLOT], **told
    )
    tokens = [token for token, *_ in chunks[0]]
    second_turn = [place for place, token in enumerate(tokens) if token is not None and token == START_TOKEN][1]
    places = [place - second_turn for place, token in enumerate(tokens) if isinstance(token, dict)]
    assert spliced.options == {"image_slots": [places[0], places[1] - 1]}
    assert "image_slots" not in kept.options
    assert kept.cond.shape[1] == len(tokens) - second_turn + 6 + 8 - 2
    first, second = places[0], places[1] + 5
    of_pictures = {*range(first, first + 6), *range(second, second + 8)}
    rows = [row for row in range(kept.cond.shape[1]) if row not in of_pictures]
    assert torch.equal(spliced.cond, kept.cond[:, rows])
    last = encoder.transformer.model
    embeds = encoder._embed([1, 2, 3])[0][None]
    assert torch.equal(encoder._states(embeds, None, None, None, ()), last.chosen_states((36,), embeds)[:, 0])


class Vae:
    """A VAE of which only the pictures that it gets are looked at."""

    def __init__(self) -> None:
        self.given: list[torch.Tensor] = []

    def encode(self, picture: torch.Tensor) -> torch.Tensor:
        self.given.append(picture)
        return torch.zeros(1, 64, picture.shape[1] // 16, picture.shape[2] // 16)


class Clip:
    """A text encoder of which only the pictures that it gets are looked at."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []

    def tokenize(self, text: str, **options: Any) -> str:
        self.given.append({"text": text, **options})
        return text

    def encode_from_tokens_scheduled(self, tokens: str) -> list[list[Any]]:
        return [[torch.zeros(1, 2, WIDTH), {"pooled_output": None}]]


def test_the_node_gives_encoder_and_vae_the_same_pictures() -> None:
    vae, clip = Vae(), Clip()
    images = {"image_2": torch.rand(2, 50, 30, 4), "image_1": torch.rand(1, 64, 128, 3)}
    positive, negative, latent = text_encode_qwen_image21.function(
        CONTEXT, clip=clip, prompt="swap", negative_prompt="blur", vae=vae, resolution=64, images=images
    )
    assert [tuple(picture.shape) for picture in vae.given] == [(1, 32, 96, 3), (1, 96, 64, 4)]
    assert [given["text"] for given in clip.given] == ["swap", "blur"]
    assert [tuple(seen.shape) for seen in clip.given[0]["images"]] == [(1, 32, 96, 3), (1, 96, 64, 3)]
    colours, opacity = vae.given[1][..., :3], vae.given[1][..., 3:]
    assert torch.equal(clip.given[0]["images"][1], colours * opacity + (1 - opacity))
    assert not clip.given[0]["keep_vision"]
    for conditioning in (positive, negative):
        assert [tuple(item.shape) for item in conditioning[0][1]["reference_latents"]] == [(1, 64, 2, 6), (1, 64, 6, 4)]
    assert latent["samples"].shape == (1, 64, 2, 6)


def test_without_a_vae_the_pictures_stay_in_the_text() -> None:
    clip = Clip()
    positive, _, latent = text_encode_qwen_image21.function(
        CONTEXT, clip=clip, prompt="", negative_prompt="", resolution=0, images={"image_1": torch.rand(1, 70, 33, 3)}
    )
    assert clip.given[0]["keep_vision"] and "reference_latents" not in positive[0][1]
    assert latent["samples"].shape == (1, 64, 4, 2)
    empty = text_encode_qwen_image21.function(CONTEXT, clip=clip, prompt="", negative_prompt="", images={})[2]
    assert empty["samples"].shape == (1, 64, 64, 64)


def test_the_choice_of_a_cache_is_passed_on() -> None:
    class Model:
        def __init__(self) -> None:
            self.model_options: dict[str, Any] = {"transformer_options": {}}

        def clone(self) -> Model:
            return Model()

    patched = qwen_image21_cache.function(CONTEXT, model=Model(), device="cpu", dtype="int8")
    options = patched.model_options["transformer_options"]
    assert options["qwen_image21_cache"] == {"device": "cpu", "dtype": "int8"}
