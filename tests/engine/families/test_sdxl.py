"""Stable Diffusion XL and its refiner: files of public models by names and shapes, their marks, encoders and labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.latent_format import PlaygroundLatentFormat
from darkroom.engine.diffusion.model_sampling import EdmContinuous, EdmVContinuous, EpsDiscrete, VDiscrete
from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.base import Match, ModelFamily, Shapes, TensorIndex
from darkroom.engine.families.registry import family_named, recognise
from darkroom.engine.families.sd15.unet_files import PREFIX, level_unet
from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.diffusers_names import unet_names
from darkroom.engine.layers.unet import UnetConfig, UnetModel
from darkroom.engine.layers.unet_layers import TransformerSpec, timestep_embedding
from darkroom.engine.models.load import LoadTypes, load_checkpoint
from darkroom.engine.models.patching.lora_keys import text_lora_keys
from darkroom.engine.models.random_weights import random_networks, write_random_checkpoint
from darkroom.engine.models.store import denoiser
from tests.engine.nodes.small_store import small_store


@dataclass(frozen=True)
class PublicModel:
    """A public network: depths of transformers on the way down by block and on the way up in ComfyUI's order (last
    block first to be taken), number of layers of the middle block and depth of its transformer; weights in millions, as
    its authors give them.
    """

    down: tuple[int, ...]
    up: tuple[int, ...]
    middle: tuple[int, int]  # layers, depth
    family: str = "sdxl"
    variant: str = ""
    channel_mult: tuple[int, ...] = (1, 2, 4)
    blocks_per_level: int = 2
    sizes: Mapping[str, Any] = field(
        default_factory=lambda: {"model_channels": 320, "context_dim": 2048, "label_dim": 2816}
    )
    in_channels: int = 4
    num_millions: int | None = None

    def config(self) -> UnetConfig:
        levels = tuple(self.down[index * self.blocks_per_level] for index in range(len(self.channel_mult)))
        config = level_unet(
            channel_mult=self.channel_mult, depths=levels, middle_depth=self.middle[1], in_channels=self.in_channels,
            blocks_per_level=self.blocks_per_level, uses_linear=True, head_channels=64, **self.sizes,
        )  # fmt: skip
        up = list(self.up)
        blocks = []
        for block in config.output_blocks:
            depth = up.pop()
            layers = (replace(spec, depth=depth) if isinstance(spec, TransformerSpec) else spec for spec in block)
            blocks.append(tuple(spec for spec in layers if not isinstance(spec, TransformerSpec) or depth))
        return replace(config, middle_block=config.middle_block[: self.middle[0]], output_blocks=tuple(blocks))


BASE = PublicModel((0, 0, 2, 2, 10, 10), (0, 0, 0, 2, 2, 2, 10, 10, 10), (3, 10), num_millions=2567)
MODELS = {
    "stable-diffusion-xl-base-1.0": BASE,
    "stable-diffusion-xl-refiner-1.0": PublicModel(
        (0, 0, 4, 4, 4, 4, 0, 0), (0, 0, 0, 4, 4, 4, 4, 4, 4, 0, 0, 0), (3, 4), family="sdxl_refiner",
        channel_mult=(1, 2, 4, 4), sizes={"model_channels": 384, "context_dim": 1280, "label_dim": 2560},
    ),
    "stable-diffusion-xl-1.0-inpainting-0.1": replace(BASE, in_channels=9, variant="inpaint", num_millions=None),
    "sdxl-instructpix2pix-768": replace(BASE, in_channels=8, variant="edit", num_millions=None),
    "SSD-1B": PublicModel((0, 0, 2, 2, 4, 4), (0, 0, 0, 1, 1, 2, 10, 4, 4), (1, 0), num_millions=1331),
    "Segmind-Vega": PublicModel((0, 0, 1, 1, 2, 2), (0, 0, 0, 1, 1, 1, 2, 2, 2), (1, 0), num_millions=745),
    "koala-700m": PublicModel((0, 2, 5), (0, 0, 2, 2, 5, 5), (0, 0), blocks_per_level=1, num_millions=782),
    "koala-1b": PublicModel((0, 2, 6), (0, 0, 2, 2, 6, 6), (3, 6), blocks_per_level=1, num_millions=1161),
}  # fmt: skip
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())


def unet_shapes(config: UnetConfig) -> dict[str, tuple[int, ...]]:
    with unfilled():
        return {name: tuple(weight.shape) for name, weight in UnetModel(config).state_dict().items()}


@pytest.fixture(scope="module")
def family() -> ModelFamily:
    return family_named("sdxl")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of checkpoints of either family, each called after it."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("sdxl", "sdxl_refiner"):
        write_random_checkpoint(folder / "checkpoints" / f"{name}.safetensors", family=family_named(name))
    return folder


# --- files of public models ------------------------------------------------------------------------------------------


@every_model
def test_public_models_are_recognised_in_either_librarys_layout_behind_any_prefix(model: PublicModel) -> None:
    config = model.config()
    shapes = unet_shapes(config)
    if model.num_millions is not None:
        assert sum(torch.Size(shape).numel() for shape in shapes.values()) // 10**6 == model.num_millions
    theirs = {theirs: shapes[ours] for theirs, ours in unet_names(config).items() if ours in shapes}
    add = {name: shape for name, shape in theirs.items() if not name.startswith("class_embedding")}
    prefixed = ({prefix + name: shape for name, shape in shapes.items()} for prefix in (PREFIX, "diffusion_model.", ""))
    for tensors in (*prefixed, add):
        found = recognise(TensorIndex(tensors))
        assert (found.family.name, found.match.variant, found.match.specificity) == (model.family, model.variant, 2)
        ours = {name: tensors[key] for name, key in found.match.names.items() if isinstance(key, str)}
        assert found.family.denoiser.configure(ours) == config


class MarkedFile:
    """A file of marks alone, some with a number."""

    def __init__(self, *names: str, **numbers: float) -> None:
        self.numbers = numbers
        self.shapes: dict[str, tuple[int, ...]] = dict.fromkeys([*names, *(item for item in numbers)], ())
        self.metadata: dict[str, str] = {}

    def tensor(self, name: str) -> torch.Tensor:
        return torch.tensor(self.numbers[name])


@pytest.mark.parametrize(
    ("file", "kind", "settings", "latent_format"),
    [
        (MarkedFile(), EpsDiscrete, {}, None),
        (MarkedFile("v_pred"), VDiscrete, {"zsnr": False}, None),
        (MarkedFile("v_pred", "ztsnr"), VDiscrete, {"zsnr": True}, None),
        (MarkedFile("ztsnr"), EpsDiscrete, {}, None),
        (MarkedFile(**{"edm_vpred.sigma_max": 120.0}), EdmVContinuous, {"sigma_max": 120.0}, None),
        (
            MarkedFile("v_pred", **{"edm_vpred.sigma_max": 80.0, "edm_vpred.sigma_min": 0.5}),
            EdmVContinuous, {"sigma_max": 80.0, "sigma_min": 0.5}, None,
        ),
        (
            MarkedFile("edm_mean", "edm_std", "v_pred"), EdmContinuous,
            {"sigma_data": 0.5, "sigma_min": 0.002, "sigma_max": 80.0}, PlaygroundLatentFormat,
        ),
        (MarkedFile("edm_mean"), EpsDiscrete, {}, None),
    ],
)  # fmt: skip
def test_the_parameterisation_is_recognised_by_marks(
    family: ModelFamily, file: MarkedFile, kind: type, settings: Mapping[str, float], latent_format: type | None
) -> None:
    found = family.parameterise(Match(2, {}), file)
    assert (found.kind, found.settings, found.latent_format) == (kind, settings, latent_format)


@pytest.mark.parametrize(
    ("marks", "variant"), [((), "edit"), (("edm_vpred.sigma_max",), "edit_scaled"), (("v_pred",), "edit")]
)
def test_images_to_edit_are_scaled_for_networks_of_any_noise_level(marks: tuple[str, ...], variant: str) -> None:
    shapes: Shapes = {**unet_shapes(replace(BASE, in_channels=8).config()), **dict.fromkeys(marks, ())}
    assert recognise(TensorIndex(shapes)).match.variant == variant


# --- checkpoints that lack something ---------------------------------------------------------------------------------


def without(path: Path, target: Path, *prefixes: str) -> Path:
    file = SafetensorsFile(path)
    write_safetensors(target, {name: file.tensor(name) for name in file.tensors if not name.startswith(prefixes)})
    return target


def test_a_checkpoint_of_the_network_alone_gives_no_text_encoder_and_no_vae(models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    without(models / "checkpoints" / "sdxl.safetensors", folder / "a.safetensors", "conditioner.", "first_stage_model.")
    store = small_store(tmp_path)
    first, clip, vae = store.checkpoint("a.safetensors")
    again, _, _ = store.checkpoint("a.safetensors")
    assert clip is None and vae is None and again.is_clone(first)


def test_a_checkpoint_with_one_of_two_text_encoders_is_refused(models: Path, tmp_path: Path) -> None:
    whole = models / "checkpoints" / "sdxl.safetensors"
    path = without(whole, tmp_path / "half.safetensors", "conditioner.embedders.1.")
    with pytest.raises(BadModelFile, match=r"only some of its text encoders \(l\)"):
        load_checkpoint(path, LoadTypes())


def test_checkpoints_have_the_places_of_tokens_and_one_projection(models: Path) -> None:
    file = SafetensorsFile(models / "checkpoints" / "sdxl.safetensors")
    places = file.tensor("conditioner.embedders.0.transformer.text_model.embeddings.position_ids")
    assert torch.equal(places.long(), torch.arange(77).unsqueeze(0))
    assert [name for name in file.shapes if "projection" in name] == ["conditioner.embedders.1.model.text_projection"]


# --- text ------------------------------------------------------------------------------------------------------------


def test_prompts_are_read_by_both_encoders_and_cut_to_the_shorter(models: Path) -> None:
    _, clip, _ = small_store(models).checkpoint("sdxl.safetensors")
    assert clip is not None
    tokens = clip.tokenize("a fox")
    assert tokens.keys() == {"l", "g"}
    assert {token for token, _ in tokens["l"][0][4:]} == {49407} and {token for token, _ in tokens["g"][0][4:]} == {0}
    long = clip.tokenize("a fox, " * 40)
    cond, pooled = clip.encode_from_tokens({"l": long["l"], "g": tokens["g"]}, return_pooled=True)
    assert cond.shape == (1, 77, 128) and pooled.shape == (1, 64)
    only_g, pooled_of_both = clip.encode_from_tokens(tokens, return_pooled=True)
    assert torch.equal(cond[..., 64:], only_g[..., 64:]) and torch.equal(pooled, pooled_of_both)


def test_the_layer_before_the_last_is_taken_as_it_is(models: Path) -> None:
    _, clip, _ = small_store(models).checkpoint("sdxl.safetensors")
    assert clip is not None
    usual = clip.encode("a fox")
    other = clip.clone()
    other.clip_layer(-2)
    assert torch.equal(other.encode("a fox"), usual)
    other.clip_layer(-1)
    last = other.encode("a fox")
    assert not torch.equal(last, usual)
    with clip.patcher.in_use() as text:
        encoder = text.encoders()["g"]
        tokens = torch.tensor([[token for token, _ in clip.tokenize("a fox")["g"][0]]])
        embeds = encoder.transformer.get_input_embeddings()(tokens)
        normed, plain = encoder.transformer.text_model(embeds, -1, normalises_layer=False)
        assert torch.allclose(last[..., 64:], plain) and not torch.allclose(normed, plain)
        # Of a layer that an encoder does not have, the last one is taken, after its norm.
        other.clip_layer(-33)
        assert torch.allclose(other.encode("a fox")[..., 64:], normed, atol=1e-5)


def test_lora_files_name_the_second_encoder_as_trainers_do() -> None:
    inner = "text_model.encoder.layers.0.mlp.fc1"
    flat = inner.replace(".", "_")
    for name, wanted in {
        "sdxl": {
            f"lora_te1_{flat}": "clip_l", f"lora_te_{flat}": "clip_l", f"text_encoder.{inner}": "clip_l",
            f"lora_te2_{flat}": "clip_g", f"text_encoder_2.{inner}": "clip_g", "lora_te2_text_projection": "clip_g",
            "lora_te1_text_projection": "clip_l",
        },
        "sdxl_refiner": {
            f"lora_te_{flat}": "clip_g", f"text_encoder.{inner}": "clip_g", "lora_te2_text_projection": "clip_g",
        },
    }.items():  # fmt: skip
        _, text, _ = random_networks("small", 0, LoadTypes(), family=family_named(name))
        keys = text_lora_keys(text)
        assert {key: keys[key].partition(".")[0] for key in wanted} == wanted
    assert f"lora_te2_{flat}" not in keys


# --- labels ----------------------------------------------------------------------------------------------------------


def labels_of(models: Path, name: str, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
    """The pooled part of the labels, and the numbers' sinusoids [n, 256]."""
    loaded = load_checkpoint(models / "checkpoints" / f"{name}.safetensors", LoadTypes()).denoiser
    given = {"pooled_output": torch.ones(1, 64), "width": 1024, "height": 768, "prompt_type": "positive", **options}
    labels = denoiser(loaded).encode_adm(**given)
    assert labels is not None and labels.shape[0] == 1
    return labels[0, :64], labels[0, 64:].view(-1, 256)


@pytest.mark.parametrize(
    ("name", "options", "numbers"),
    [
        ("sdxl", {}, (768, 1024, 0, 0, 768, 1024)),
        ("sdxl", {"crop_w": 3, "crop_h": 4, "target_width": 5}, (768, 1024, 4, 3, 768, 5)),
        ("sdxl_refiner", {}, (768, 1024, 0, 0, 6.0)),
        ("sdxl_refiner", {"prompt_type": "negative"}, (768, 1024, 0, 0, 2.5)),
        ("sdxl_refiner", {"prompt_type": "negative", "aesthetic_score": 9.0}, (768, 1024, 0, 0, 9.0)),
    ],
)
def test_sizes_follow_the_pooled_output(
    models: Path, name: str, options: dict[str, object], numbers: tuple[float, ...]
) -> None:
    pooled, sinusoids = labels_of(models, name, **options)
    assert torch.equal(pooled, torch.ones(64))
    assert torch.equal(sinusoids, timestep_embedding(torch.tensor(numbers), 256))


def test_a_conditioning_without_pooled_output_is_named(models: Path) -> None:
    with pytest.raises(ValueError, match="no pooled output"):
        labels_of(models, "sdxl", pooled_output=None)


def test_the_embedding_of_an_image_takes_the_place_of_the_text(models: Path) -> None:
    class Seen:
        image_embeds = torch.linspace(-1, 1, 64).unsqueeze(0)

    image = {"clip_vision_output": Seen, "strength": 0.5, "noise_augmentation": 0.0}
    pooled, _ = labels_of(models, "sdxl", unclip_conditioning=[image], seed=3)
    assert (pooled - 0.5 * Seen.image_embeds[0]).abs().max() < 0.1  # the least noise there is
    noisy, _ = labels_of(models, "sdxl", unclip_conditioning=[{**image, "noise_augmentation": 1.0}], seed=3)
    assert (noisy - 0.5 * Seen.image_embeds[0]).abs().max() > 0.5
    again, _ = labels_of(models, "sdxl", unclip_conditioning=[{**image, "noise_augmentation": 1.0}], seed=3)
    assert torch.equal(noisy, again)
