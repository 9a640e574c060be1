"""ControlNets and LoRAs for the Canny and Depth tools of transformers: kinds of files, images, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from darkroom.engine.events import NodeWarned
from darkroom.engine.families.base import ControlReading
from darkroom.engine.families.flux.controlnet import FluxControlNet, FluxControlNetConfig, HintKind
from darkroom.engine.families.registry import default_family, family_named, recognise_control_network, shapes_under
from darkroom.engine.families.sd3.controlnet import Sd3ControlNetConfig, Sd35ControlNet, Sd35ControlNetConfig
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.models.kinds.load_controlnet import load_controlnet, steering_kind
from darkroom.engine.models.load import LoadTypes
from darkroom.engine.models.random_weights import write_random_checkpoint
from tests.engine.simulated_card import MIB, engine_of, latent_of, node, run
from tests.parity.models import LAYOUTS

FLUX, SD3 = family_named("flux"), family_named("sd3")
SMALL_CARD_MIB = 24


def layout(name: str) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a published file's layout, at the widths of the tests."""
    (path,) = LAYOUTS.glob(f"*/{name}.json")
    stored = json.loads(path.read_text("utf-8"))["tensors"]
    return {key: tuple(shape) for key, shape in stored.items()}


def drawn(tensors: Mapping[str, Any], scale: float = 0.05) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {name: getattr(item, "shape", item) for name, item in tensors.items()}
    weights = {name: torch.randn(tuple(shape), generator=generator) * scale for name, shape in shapes.items()}
    return {name: weight + 1 if name.endswith(".scale") else weight for name, weight in weights.items()}


class OneTensor:
    """A file of one number."""

    metadata: dict[str, str] = {}  # noqa: RUF012 - a protocol's attribute

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], number: float = 0.0) -> None:
        self.shapes = dict(shapes)
        self.number = number

    def tensor(self, name: str) -> torch.Tensor:
        return torch.tensor(self.number)


def read(name: str, number: float = 0.0) -> tuple[Any, ControlReading, Any]:
    """Return the family of a layout, the reading of its image and its configuration."""
    shapes = layout(name)
    found = recognise_control_network(shapes)
    assert found is not None
    family, kind, names = found
    config = kind.network.configure(shapes_under(names, shapes))
    return family, kind.reading(config, OneTensor(shapes, number)), config


@pytest.mark.parametrize(
    ("name", "hint", "modes", "mask", "latent"),
    [
        ("flux_control_instantx", HintKind.LATENT, 0, False, True),
        ("flux_control_union", HintKind.LATENT, 10, False, True),
        ("flux_control_inpaint", HintKind.LATENT, 0, True, True),
        ("flux_control_xlabs", HintKind.PIXELS, 0, False, False),
        ("flux_control_mistoline", HintKind.PIXELS_ACTIVATED, 0, False, False),
    ],
)
def test_a_file_for_flux_shows_its_kind(name: str, hint: HintKind, modes: int, mask: bool, latent: bool) -> None:
    family, reading, config = read(name)
    assert family is FLUX and isinstance(config, FluxControlNetConfig)
    assert (config.hint, config.num_modes) == (hint, modes)
    assert (reading.takes_mask, reading.latent_format is not None) == (mask, latent)
    assert reading.inputs == ("y", "guidance") and reading.borrowed is None


@pytest.mark.parametrize(("name", "mask"), [("sd3_control", False), ("sd3_control_inpaint", True)])
def test_a_shorter_copy_of_stable_diffusion_3_reads_unshifted_latents(name: str, mask: bool) -> None:
    family, reading, config = read(name)
    assert family is SD3 and isinstance(config, Sd3ControlNetConfig)
    assert reading.takes_mask == mask and reading.latent_format is not None
    assert torch.equal(reading.latent_format.process_in(torch.zeros(1)), torch.zeros(1))
    assert SD3.latent_format().process_in(torch.zeros(1)) != 0


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(0, lambda a: a), (1, lambda a: a * 255 * 0.5 + 0.5), (2, lambda a: 1.0 - a)],
    ids=["blur", "canny", "depth"],
)
def test_a_number_in_the_file_shows_the_range_of_its_image(
    kind: int, expected: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    _, reading, _ = read("sd35_control_depth", number=kind)
    image = torch.rand(1, 3, 4, 4)
    assert torch.equal(reading.prepare(image), expected(image))


def test_what_a_network_borrows_depends_on_its_labels() -> None:
    assert [read(name)[1].borrowed for name in ("sd35_control_blur", "sd35_control_follow")] == [
        "y_embedder.", "x_embedder.",
    ]  # fmt: skip


def control_network(hint: HintKind, num_double: int = 1, num_single: int = 1, modes: int = 0) -> FluxControlNet:
    trunk = replace(FLUX.scales["small"].denoiser, num_double=num_double, num_single=num_single)
    network = FluxControlNet(FluxControlNetConfig(trunk, hint, num_modes=modes))
    network.load_state_dict(drawn(network.state_dict()))
    return network.requires_grad_(False)


def additions(network: FluxControlNet, **more: Any) -> dict[str, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    channels, scale = (16, 1) if network.control_config.hint is HintKind.LATENT else (3, 8)
    found: dict[str, list[torch.Tensor]] = network(
        torch.randn(1, 16, 4, 6, generator=generator), torch.rand(1, channels, 4 * scale, 6 * scale),
        torch.tensor([0.5]), torch.randn(1, 5, 128, generator=generator), torch.zeros(1, 64), torch.tensor([3.5]),
        **more,
    )  # fmt: skip
    return found


def test_additions_of_latents_stay_for_a_stretch_of_blocks_and_those_of_pixels_take_turns() -> None:
    for hint, pattern in ((HintKind.LATENT, (0, 0, 1)), (HintKind.PIXELS, (0, 1, 1))):
        found = additions(control_network(hint, num_double=2, num_single=0))
        assert found["output"] == [] and len(found["input"]) == 19
        first, second, eleventh = found["input"][0], found["input"][1], found["input"][10]
        assert first.shape == (1, 6, 128)
        assert torch.equal(first, second) == (pattern[1] == 0)
        assert not torch.equal(first, eleventh) if hint is HintKind.LATENT else torch.equal(first, eleventh)
    assert len(additions(control_network(HintKind.LATENT))["output"]) == 38


def test_a_mode_is_a_token_of_the_text_and_one_too_many_is_refused() -> None:
    network = control_network(HintKind.LATENT, modes=3)
    plain, typed = additions(network)["input"][0], additions(network, control_type=[2])["input"][0]
    assert not torch.equal(plain, typed)
    with pytest.raises(ValueError, match="got number 7, expected less than 3"):
        additions(network, control_type=[7])


# --- images --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small checkpoints, a ControlNet for each, and a LoRA that widens Flux's first layer."""
    models = tmp_path_factory.mktemp("steered") / "models"
    for family in (FLUX, SD3):
        write_random_checkpoint(models / "checkpoints" / f"{family.name}.safetensors", family=family)
    write_control(models / "controlnet" / "flux.safetensors", control_network(HintKind.LATENT))
    config = Sd35ControlNetConfig(num_blocks=1, width=128, embeds_twice=True)
    write_control(models / "controlnet" / "sd3.safetensors", Sd35ControlNet(config))
    lora = {"img_in.lora_A.weight": (2, 128), "img_in.lora_B.weight": (128, 2), "img_in.lora_B.bias": (128,)}
    norm = {"single_blocks.0.norm.key_norm.scale": (128,)}
    write_safetensors(models / "loras" / "tool.safetensors", drawn({**lora, **norm}, scale=0.3))
    return models.parent


def write_control(path: Path, network: nn.Module) -> None:
    write_safetensors(path, drawn(network.state_dict()))


def workflow(family: str, *, control: str | None = None, tool: bool = False) -> dict[str, Any]:
    """A latent of two steps with a ControlNet, or with a LoRA and the image that it reads."""
    model, positive, negative = ["1", 0], ["3", 0], ["4", 0]
    nodes = {
        "1": node("CheckpointLoaderSimple", ckpt_name=f"{family}.safetensors"),
        "2": node("EmptyImage", width=64, height=64, batch_size=1, color=0x3366AA),
        "3": node("CLIPTextEncode", clip=["1", 1], text="a fox"),
        "4": node("CLIPTextEncode", clip=["1", 1], text=""),
        "5": node("EmptySD3LatentImage", width=64, height=64, batch_size=1),
    }
    if control is not None:
        nodes["6"] = node("ControlNetLoader", control_net_name=f"{control}.safetensors")
        nodes["7"] = node(
            "ControlNetApplyAdvanced", positive=positive, negative=negative, control_net=["6", 0], image=["2", 0],
            strength=1.0, start_percent=0.0, end_percent=1.0, vae=["1", 2],
        )  # fmt: skip
        positive, negative = ["7", 0], ["7", 1]
    if tool:
        nodes["6"] = node("LoraLoaderModelOnly", model=model, lora_name="tool.safetensors", strength_model=1.0)
        nodes["7"] = node(
            "InstructPixToPixConditioning", positive=positive, negative=negative, vae=["1", 2], pixels=["2", 0]
        )
        model, positive, negative = ["6", 0], ["7", 0], ["7", 1]
    nodes["9"] = node(
        "KSampler", model=model, positive=positive, negative=negative, latent_image=["5", 0], seed=5, steps=2, cfg=2.0,
        sampler_name="euler", scheduler="simple", denoise=1.0,
    )  # fmt: skip
    nodes["20"] = node("SaveLatent", samples=["9", 0], filename_prefix="latent")
    return nodes


@pytest.mark.parametrize(
    ("family", "options"),
    [("flux", {"control": "flux"}), ("sd3", {"control": "sd3"}), ("flux", {"tool": True})],
    ids=["flux", "sd3", "tool"],
)
def test_a_steered_image_is_another_one_and_the_same_offloaded(
    base: Path, family: str, options: dict[str, Any]
) -> None:
    latents = []
    card_bytes = int(SMALL_CARD_MIB * max(1.0, family_named(family).memory_usage_factor)) * MIB
    for card in (None, card_bytes):
        with engine_of(base, card_bytes=card) as engine:
            latents.append(latent_of(engine, run(engine, workflow(family, **options))[0]))
            if card is None:
                plain = latent_of(engine, run(engine, workflow(family))[0])
    assert torch.equal(*latents)
    assert not torch.equal(latents[0], plain)


@pytest.mark.parametrize(
    ("family", "control", "label"), [("flux", "sd3", "Stable Diffusion 3"), ("sd3", "flux", "Flux.1")]
)
def test_a_controlnet_of_another_family_is_refused_by_name(base: Path, family: str, control: str, label: str) -> None:
    with engine_of(base) as engine, pytest.raises(AssertionError, match=f"does not fit the model.*expected {label}"):
        run(engine, workflow(family, control=control))


def test_a_controlnet_of_another_width_is_refused(base: Path) -> None:
    kind = steering_kind(load_controlnet(base / "models" / "controlnet" / "flux.safetensors", LoadTypes()))
    assert kind is not None and kind.family is FLUX
    small = FLUX.scales["small"].denoiser
    assert kind.steers(small) and not kind.steers(replace(small, width=256)) and not kind.steers(object())


# --- what does not fit -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed(base: Path) -> Path:
    """The models above, with a checkpoint, a LoRA and an image's VAE of another family."""
    models = base / "models"
    write_random_checkpoint(models / "checkpoints" / "other.safetensors", family=default_family())
    key = "lora_unet_input_blocks_1_1_transformer_blocks_0_attn2_to_k"
    write_safetensors(
        models / "loras" / "other.safetensors",
        drawn({f"{key}.lora_up.weight": (64, 2), f"{key}.lora_down.weight": (2, 64)}),
    )
    return base


def refusal(base: Path, nodes: dict[str, Any]) -> str:
    """Return the message with which a run fails."""
    with engine_of(base) as engine, pytest.raises(AssertionError) as failed:
        run(engine, nodes)
    return str(failed.value)


@pytest.mark.parametrize(("family", "width"), [("flux", 128), ("sd3", 128)])
def test_a_text_encoder_of_another_family_is_refused(mixed: Path, family: str, width: int) -> None:
    nodes = workflow(family)
    nodes["10"] = node("CheckpointLoaderSimple", ckpt_name="other.safetensors")
    for name in ("3", "4"):
        nodes[name]["inputs"]["clip"] = ["10", 1]
    message = refusal(mixed, nodes)
    assert "its text encoder does not fit the model; got text of width 64" in message
    assert f"expected {width}" in message and family_named(family).label in message


@pytest.mark.parametrize("family", ["flux", "sd3"])
def test_a_lora_of_another_family_is_left_out_with_a_warning(mixed: Path, family: str) -> None:
    nodes = workflow(family)
    nodes["6"] = node("LoraLoaderModelOnly", model=["1", 0], lora_name="other.safetensors", strength_model=1.0)
    nodes["9"]["inputs"]["model"] = ["6", 0]
    with engine_of(mixed) as engine:
        _, events = run(engine, nodes)
    (warned,) = [item for item in events if isinstance(item, NodeWarned) and item.type == "lora_without_effect"]
    assert (warned.node_id, warned.class_type) == ("6", "LoraLoaderModelOnly")
    assert f"expected a LoRA for a model of {family_named(family).label}" in warned.message


@pytest.mark.parametrize("family", ["flux", "sd3"])
def test_a_vae_of_another_family_is_refused(mixed: Path, family: str) -> None:
    nodes = workflow(family)
    nodes["10"] = node("CheckpointLoaderSimple", ckpt_name="other.safetensors")
    nodes["11"] = node("VAEDecode", samples=["9", 0], vae=["10", 2])
    nodes["12"] = node("SaveImage", images=["11", 0], filename_prefix="p")
    with engine_of(mixed) as engine:
        (problem,) = engine.check(nodes).node_problems["11"].problems
    assert "got a VAE of 4 channels, expected one of 16" in problem.message + problem.details
    nodes = workflow(family)
    nodes["10"] = node("CheckpointLoaderSimple", ckpt_name="other.safetensors")
    nodes["11"] = node("VAEEncode", pixels=["2", 0], vae=["10", 2])
    nodes["9"]["inputs"]["latent_image"] = ["11", 0]
    expected = "latent_image: a latent of another VAE than the model's; got 4 channels, expected 16"
    assert expected in refusal(mixed, nodes)
