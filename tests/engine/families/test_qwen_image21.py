"""Qwen-Image 2.1: its networks beside those of the diffusers library, and prompts with images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from darkroom.engine.adapters.lora import lora_patches
from darkroom.engine.adapters.lora_names import DENOISER_PREFIX, target_name
from darkroom.engine.engine import Engine
from darkroom.engine.families import registry
from darkroom.engine.families.base import TensorIndex
from darkroom.engine.families.qwen_image21.nodes import text_encode_qwen_image21
from darkroom.engine.families.qwen_image21.prefix_cache import Placement
from darkroom.engine.families.qwen_image21.prefix_states import OPTION, PrefixStates, Rounded, packed
from darkroom.engine.families.qwen_image21.text import QWEN, SLOT, TEMPLATE, WIDTH, SplicedQwenTokenizer
from darkroom.engine.families.qwen_image21.transformer import QwenImage21Transformer
from darkroom.engine.layers.vision_language_model import VisionLanguageModel
from darkroom.engine.memory.weight_patches import calculate_weight
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.runtime.request import RunRequest
from darkroom.engine.settings import EngineSettings
from darkroom.engine.text.language_tokens import qwen3
from darkroom.engine.text.qwen_tokens import IMAGE_TOKEN, START_TOKEN
from tests.engine.families import qwen_image21_networks as small

FAMILY = registry.family_named("qwen_image21")
CONTEXT: Any = None  # its nodes ask for none
CLOSE = 2e-6
CLOSE_TO_RECORDED = 4e-6  # sums of float32 in another order: 2.01e-6 on a processor other than the recording one


@pytest.fixture(scope="module")
def recorded() -> dict[str, torch.Tensor]:
    return load_file(small.FILE)


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("make", [small.separate_network, small.joined_network])
def test_draws_what_the_diffusers_library_draws(make: Any, recorded: dict[str, torch.Tensor]) -> None:
    network: QwenImage21Transformer = make()
    assert distance(network(small.LATENT, small.TIMES, small.TEXT), recorded["plain"]) < CLOSE_TO_RECORDED
    spliced = network(small.LATENT, small.TIMES, small.TEXT, ref_latents=[small.REFERENCE], image_slots=[small.SLOT])
    assert distance(spliced, recorded["spliced"]) < CLOSE_TO_RECORDED
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


def gated_lora(kind: str, key: str, rows: int, columns: int) -> dict[str, torch.Tensor]:
    """An adapter of a layer, in one of the forms that files have."""
    generator = torch.Generator().manual_seed(7)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.1

    alpha = {".alpha": torch.tensor(2.0)}
    parts = {
        "kohya": {".lora_up.weight": drawn(rows, 4), ".lora_down.weight": drawn(4, columns), **alpha},
        "peft": {".lora_B.weight": drawn(rows, 4), ".lora_A.weight": drawn(4, columns)},
        "default": {".lora_B.default.weight": drawn(rows, 4), ".lora_A.default.weight": drawn(4, columns)},
        "dora": {
            ".lora_B.weight": drawn(rows, 4), ".lora_A.weight": drawn(4, columns),
            ".dora_scale": drawn(rows, 1).abs() + 1,
        },
        "loha": {
            ".hada_w1_a": drawn(rows, 4), ".hada_w1_b": drawn(4, columns), ".hada_w2_a": drawn(rows, 4),
            ".hada_w2_b": drawn(4, columns), **alpha,
        },
        "lokr": {".lokr_w1": drawn(4, 4), ".lokr_w2": drawn(rows // 4, columns // 4)},
        "difference": {".diff": drawn(rows, columns)},
    }[kind]  # fmt: skip
    return {key + ending: tensor for ending, tensor in parts.items()}


def drawn_under(network: QwenImage21Transformer, lora: dict[str, torch.Tensor]) -> torch.Tensor:
    """The latent of a network under a LoRA."""
    names = [DENOISER_PREFIX + name for name in network.state_dict()]
    renamed = FAMILY.renamed_lora(lora, network.config)
    for target, adapter in lora_patches(renamed, FAMILY.denoiser_lora_keys(names, network.config)).items():
        weight = network.get_parameter(target_name(target).removeprefix(DENOISER_PREFIX))
        rows = None if isinstance(target, str) else target[1]
        patched = calculate_weight([(1.0, adapter, 1.0, rows, None)], weight.data.clone(), target_name(target))
        weight.data.copy_(patched)
    out: torch.Tensor = network(small.LATENT, small.TIMES, small.TEXT)
    return out


KINDS = ("kohya", "peft", "default", "dora", "loha", "lokr", "difference")
PREFIXES = ("diffusion_model.", "transformer.", "lora_unet_")


@pytest.mark.parametrize(
    ("prefix", "kind"),
    [  # the prefix changes nothing in how a kind is read: each of both once, the other pairs among the slow tests
        pytest.param(prefix, kind, marks=() if PREFIXES[0] == prefix or KINDS[0] == kind else pytest.mark.slow)
        for prefix in PREFIXES
        for kind in KINDS
    ],
)
def test_a_lora_of_joined_layers_changes_single_ones_alike(prefix: str, kind: str) -> None:
    """The latent is that of the network with joined layers under the same LoRA."""
    config = small.SMALL.denoiser
    layer = "transformer_blocks.1.img_mlp.gate_up"
    key = prefix + (layer.replace(".", "_") if prefix.endswith("_") else layer)
    lora = gated_lora(kind, key, 2 * config.inner_width, config.width)
    plain = small.joined_network()(small.LATENT, small.TIMES, small.TEXT)
    joined, single = drawn_under(small.joined_network(), lora), drawn_under(small.separate_network(), lora)
    assert distance(joined, plain) > 0.001
    assert distance(single, joined) < CLOSE


def test_an_adapter_without_two_halves_of_rows_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    lora = {f"transformer_blocks.0.img_mlp.gate_up.lokr_{part}": torch.ones(3, 3) for part in ("w1", "w2")}
    network = small.separate_network()
    assert FAMILY.renamed_lora(lora, network.config) == lora
    assert torch.equal(drawn_under(network, lora), small.separate_network()(small.LATENT, small.TIMES, small.TEXT))
    assert "lora key not loaded: transformer_blocks.0.img_mlp.gate_up.lokr_w1" in caplog.text


def test_a_reference_without_a_place_comes_behind_the_text() -> None:
    network = small.joined_network()
    given = {"ref_latents": [small.REFERENCE]}
    behind = network(small.LATENT, small.TIMES, small.TEXT, **given, image_slots=[small.TEXT.shape[1]])
    assert torch.equal(network(small.LATENT, small.TIMES, small.TEXT, **given), behind)


def test_images_of_a_batch_are_drawn_as_alone() -> None:
    network = small.joined_network()
    both = network(torch.cat([small.LATENT, -small.LATENT]), torch.tensor([0.7, 0.2]), small.TEXT.expand(2, -1, -1))
    for index, time in enumerate((0.7, 0.2)):
        alone = network(small.LATENT * (1 - 2 * index), torch.tensor([time]), small.TEXT)
        torch.testing.assert_close(both[index : index + 1], alone)


def test_encodes_and_decodes_what_the_diffusers_library_does(recorded: dict[str, torch.Tensor]) -> None:
    vae = small.drawn_vae()
    assert distance(vae.encode(small.IMAGE), recorded["encoded"]) < CLOSE_TO_RECORDED
    assert distance(vae.decode(small.LATENT).clamp(-1, 1), recorded["decoded"]) < CLOSE_TO_RECORDED
    opaque = torch.cat([small.IMAGE[:, :3], torch.ones_like(small.IMAGE[:, :1])], dim=1)
    assert torch.equal(vae.encode(small.IMAGE[:, :3]), vae.encode(opaque))


def tokenizer() -> SplicedQwenTokenizer:
    return SplicedQwenTokenizer(slot=SLOT, template=TEMPLATE, image_template=TEMPLATE, vocabulary=qwen3)


def numbers(chunks: dict[str, list[list[Any]]]) -> list[Any]:
    return [token for token, *_ in chunks[SLOT][0]]


def test_images_come_before_the_prompt_each_behind_its_number() -> None:
    image = torch.zeros(1, 64, 64, 3)
    shown = "<image1><|vision_start|><|image_pad|><|vision_end|> <image2><|vision_start|><|image_pad|><|vision_end|>"
    tokens = numbers(tokenizer().tokenize_with_weights("swap them", images=[image, image]))
    plain = numbers(tokenizer().tokenize_with_weights(TEMPLATE.format(f"{shown}swap them")))
    assert [IMAGE_TOKEN if isinstance(token, dict) else token for token in tokens] == plain
    assert numbers(tokenizer().tokenize_with_weights("", prevent_empty_text=True)) == numbers(
        tokenizer().tokenize_with_weights(" ")
    )


@pytest.fixture(scope="module")
def encoder() -> Any:
    torch.manual_seed(0)
    network = VisionLanguageModel(small.SMALL.text[SLOT]).requires_grad_(False)
    return QWEN.encoder_type(network, QWEN.encoding)


def test_what_is_seen_of_images_makes_room_for_the_images(encoder: Any) -> None:
    images = [torch.rand(1, 64, 96, 3), torch.rand(1, 64, 128, 3)]  # of 2 x 3 and 2 x 4 tokens
    told = {"layer_idx": None, "project_pooled": False}
    chunks = tokenizer().tokenize_with_weights("swap them", images=images)[SLOT]
    spliced = encoder.encode_weighted(chunks, **told)
    kept = encoder.encode_weighted(
        tokenizer().tokenize_with_weights("swap them", images=images, keep_vision=True)[SLOT], **told
    )
    tokens = [token for token, *_ in chunks[0]]
    second_turn = [place for place, token in enumerate(tokens) if token is not None and token == START_TOKEN][1]
    places = [place - second_turn for place, token in enumerate(tokens) if isinstance(token, dict)]
    assert spliced.options == {"image_slots": [places[0], places[1] - 1]}
    assert "image_slots" not in kept.options
    assert kept.cond.shape[1] == len(tokens) - second_turn + 6 + 8 - 2
    first, second = places[0], places[1] + 5
    of_images = {*range(first, first + 6), *range(second, second + 8)}
    rows = [row for row in range(kept.cond.shape[1]) if row not in of_images]
    assert torch.equal(spliced.cond, kept.cond[:, rows])
    last = encoder.transformer.model
    embeds = encoder._embed([1, 2, 3])[0][None]
    assert not encoder.ends_with_norm  # the last layer is read as the one of its number is
    assert torch.equal(encoder._states(embeds, None, 35, None, ()), last.chosen_states((36,), embeds)[:, 0])


class Vae:
    """A VAE of which only the images that it gets are looked at."""

    def __init__(self) -> None:
        self.given: list[torch.Tensor] = []

    def encode(self, image: torch.Tensor) -> torch.Tensor:
        self.given.append(image)
        return torch.zeros(1, 64, image.shape[1] // 16, image.shape[2] // 16)


class Clip:
    """A text encoder of which only the images that it gets are looked at."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []

    def tokenize(self, text: str, **options: Any) -> str:
        self.given.append({"text": text, **options})
        return text

    def encode_from_tokens_scheduled(self, tokens: str) -> list[list[Any]]:
        return [[torch.zeros(1, 2, WIDTH), {"pooled_output": None}]]


def test_the_node_gives_encoder_and_vae_the_same_images() -> None:
    vae, clip = Vae(), Clip()
    images = {"image_2": torch.rand(2, 50, 30, 4), "image_1": torch.rand(1, 64, 128, 3)}
    positive, negative, latent = text_encode_qwen_image21.function(
        CONTEXT, clip=clip, prompt="swap", negative_prompt="blur", vae=vae, resolution=64, images=images
    )
    assert [tuple(image.shape) for image in vae.given] == [(1, 32, 96, 3), (1, 96, 64, 4)]
    assert [given["text"] for given in clip.given] == ["swap", "blur"]
    assert [tuple(seen.shape) for seen in clip.given[0]["images"]] == [(1, 32, 96, 3), (1, 96, 64, 3)]
    colours, opacity = vae.given[1][..., :3], vae.given[1][..., 3:]
    assert torch.equal(clip.given[0]["images"][1], colours * opacity + (1 - opacity))
    assert not clip.given[0]["keep_vision"]
    for conditioning in (positive, negative):
        assert [tuple(item.shape) for item in conditioning[0][1]["reference_latents"]] == [(1, 64, 2, 6), (1, 64, 6, 4)]
    assert latent["samples"].shape == (1, 64, 2, 6)


def test_without_a_vae_the_images_stay_in_the_text() -> None:
    clip = Clip()
    positive, _, latent = text_encode_qwen_image21.function(
        CONTEXT, clip=clip, prompt="", negative_prompt="", resolution=0, images={"image_1": torch.rand(1, 70, 33, 3)}
    )
    assert clip.given[0]["keep_vision"] and "reference_latents" not in positive[0][1]
    assert latent["samples"].shape == (1, 64, 4, 2)
    empty = text_encode_qwen_image21.function(CONTEXT, clip=clip, prompt="", negative_prompt="", images={})[2]
    assert empty["samples"].shape == (1, 64, 64, 64)


def anywhere(num_bytes: int, device: torch.device) -> torch.device | None:
    return device


def nowhere(num_bytes: int, device: torch.device) -> torch.device | None:
    return None


def steps(network: QwenImage21Transformer, states: PrefixStates | None, **options: Any) -> list[torch.Tensor]:
    """Three steps with text and a reference, each of another latent and time, then one with the text alone."""
    options |= {} if states is None else {OPTION: states}
    given = {"ref_latents": [small.REFERENCE], "image_slots": [small.SLOT], "transformer_options": options}
    latents = [(small.LATENT * (1 - 0.1 * step), torch.tensor([0.9 - 0.2 * step])) for step in range(3)]
    drawn = [network(latent, times, small.TEXT, **given) for latent, times in latents]
    return [*drawn, network(small.LATENT, small.TIMES, small.TEXT, transformer_options=options)]


def count_calls(network: QwenImage21Transformer) -> list[int]:
    """The number of tokens of each call of a block from now on."""
    calls: list[int] = []
    for block in network.transformer_blocks:
        block.register_forward_pre_hook(lambda _, args: calls.append(args[0].shape[1]))
    return calls


def test_tokens_that_are_the_same_in_each_step_are_computed_once() -> None:
    network = small.joined_network()
    plain = steps(network, None)
    anew = steps(network, PrefixStates(nowhere))
    calls = count_calls(network)
    kept = steps(network, PrefixStates(anywhere))
    num_drawn, num_text = small.LATENT.shape[-2] * small.LATENT.shape[-1], small.TEXT.shape[1]
    num_before = num_text + small.REFERENCE.shape[-2] * small.REFERENCE.shape[-1]
    num_blocks = len(network.transformer_blocks)
    first, text = [num_before, num_drawn] * num_blocks, [num_text, num_drawn] * num_blocks
    assert calls == [*first, *[num_drawn] * 2 * num_blocks, *text]
    for one, other, joint in zip(kept, anew, plain, strict=True):
        assert torch.equal(one, other)
        assert distance(one, joint) < CLOSE


def test_states_kept_of_one_prompt_are_not_taken_for_another() -> None:
    network = small.joined_network()
    states = PrefixStates(anywhere)
    steps(network, states)
    given = {"ref_latents": [small.REFERENCE], "image_slots": [small.SLOT]}
    for context, changed in (
        (small.TEXT + 0.1, {}), (small.TEXT, {"ref_latents": [-small.REFERENCE]}), (small.TEXT, {"image_slots": [0]}),
    ):  # fmt: skip
        plain = network(small.LATENT, small.TIMES, context, **{**given, **changed})
        kept = network(small.LATENT, small.TIMES, context, **{**given, **changed}, transformer_options={OPTION: states})
        assert distance(kept, plain) < CLOSE
    wider = torch.cat([small.LATENT] * 2, dim=-1)  # its middle is elsewhere
    plain = network(wider, small.TIMES, small.TEXT, **given)
    kept = network(wider, small.TIMES, small.TEXT, **given, transformer_options={OPTION: states})
    assert distance(kept, plain) < CLOSE


@pytest.mark.parametrize(("storage", "most"), [("int8", 0.01), ("int4", 0.2)])
def test_rounded_states_draw_nearly_the_same(storage: Any, most: float) -> None:
    network = small.joined_network()
    plain = steps(network, None)
    rounded = steps(network, PrefixStates(anywhere, storage))
    assert all(0 < distance(one, other) < most for one, other in zip(rounded, plain, strict=True))
    states = torch.randn(1, 2, 3, 128)
    held = packed(states, storage, torch.device("cpu"))
    assert distance(held.unpacked(torch.device("cpu")), states) < most
    assert isinstance(held, Rounded) and held.rows.numel() == states.numel() // (2 if storage == "int4" else 1)


def test_functions_of_custom_nodes_are_given_all_tokens() -> None:
    network = small.joined_network()
    seen: list[int] = []

    def patch(args: dict[str, Any]) -> dict[str, Any]:
        seen.append(args["img"].shape[1])
        return args

    steps(network, PrefixStates(anywhere), patches={"single_block": [patch]})
    assert len(set(seen[:-2])) == 1 and seen[0] > small.LATENT.shape[-2] * small.LATENT.shape[-1] + small.TEXT.shape[1]


@pytest.mark.parametrize(
    ("place", "device_bytes", "ram_bytes", "expected"),
    [
        ("auto", 401, 0, "meta"), ("auto", 400, 201, "cpu"), ("auto", 400, 200, None), ("gpu", 201, 0, "meta"),
        ("gpu", 200, 1000, None), ("cpu", 1000, 201, "cpu"), ("cpu", 1000, 200, None),
    ],
)  # fmt: skip
def test_states_are_kept_where_there_is_room(
    place: Any, device_bytes: int, ram_bytes: int, expected: str | None
) -> None:
    found = Placement(place, lambda: device_bytes, lambda: ram_bytes)(100, torch.device("meta"))
    assert found == (None if expected is None else torch.device(expected))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    base = tmp_path_factory.mktemp("base")
    write_random_checkpoint(base / "models" / "checkpoints" / "m.safetensors", family=FAMILY)
    (base / "input").mkdir()
    Image.effect_noise((64, 64), 80).convert("RGB").save(base / "input" / "a.png")
    with Engine(EngineSettings(base_directory=base, cpu=True)) as running:
        yield running


def drawn_latent(engine: Engine, name: str, cache: dict[str, str] | None) -> torch.Tensor:
    """The latent of a prompt with a reference image, both sides of the guidance among its evaluations."""
    sampled = {"seed": 1, "steps": 3, "cfg": 2.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}
    prompt: dict[str, Any] = {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "m.safetensors"}},
        "2": {"class_type": "LoadImage", "inputs": {"image": "a.png"}},
        "3": {
            "class_type": "TextEncodeQwenImage21",
            "inputs": {
                "clip": ["1", 1], "vae": ["1", 2], "prompt": "a", "negative_prompt": "b c", "resolution": 64,
                "images.image_1": ["2", 0],
            },
        },
        "5": {
            "class_type": "KSampler",
            "inputs": {
                **sampled, "model": ["1" if cache is None else "4", 0], "positive": ["3", 0], "negative": ["3", 1],
                "latent_image": ["3", 2],
            },
        },
        "6": {"class_type": "SaveLatent", "inputs": {"samples": ["5", 0], "filename_prefix": name}},
    }  # fmt: skip
    if cache is not None:
        prompt["4"] = {"class_type": "QwenImage21Cache", "inputs": {"model": ["1", 0], **cache}}
    result = engine.submit(RunRequest(name, prompt, engine.check(prompt).outputs, {}), lambda event: None).result()
    assert result.status == "success"
    (file,) = (engine.settings.base_path / "output").glob(f"{name}_*.latent")
    return load_file(file)["latent_tensor"]


def test_the_node_draws_the_image_that_is_drawn_without_it(engine: Engine) -> None:
    plain = drawn_latent(engine, "plain", None)
    places = [drawn_latent(engine, place, {"device": place, "dtype": "default"}) for place in ("auto", "gpu", "cpu")]
    assert all(torch.equal(latent, places[0]) for latent in places)
    assert distance(places[0], plain) < 1e-4  # sums may be in another order
    assert torch.equal(drawn_latent(engine, "off", {"device": "off", "dtype": "default"}), plain)
    assert 0 < distance(drawn_latent(engine, "rounded", {"device": "auto", "dtype": "int8"}), places[0]) < 0.05
