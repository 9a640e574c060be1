"""Stable Diffusion 2: how its files are told apart, and how its text encoder reads a prompt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.diffusion.model_sampling import EpsDiscrete, VDiscrete
from darkroom.engine.diffusion.model_sampling_variants import DiscreteImageToImage
from darkroom.engine.families.base import ModelFamily, NotRecognised, TensorIndex
from darkroom.engine.families.registry import family_named, recognise
from darkroom.engine.families.sd2.denoisers import (
    UPSCALE_SCHEDULE,
    DepthDenoiser,
    LotusDenoiser,
    UnclipDenoiser,
    UpscaleDenoiser,
)
from darkroom.engine.families.sd2.family import SPREAD_OF, unet_config
from darkroom.engine.families.sd15.unet_files import PREFIX
from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.unet import UnetModel
from darkroom.engine.models.load import LoadTypes, load_checkpoint, load_text_encoder
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.text.clip_tokens import ClipTokenizer
from tests.engine.nodes.small_store import small_store


@pytest.fixture(scope="module")
def family() -> ModelFamily:
    return family_named("sd2")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, family: ModelFamily) -> Path:
    folder = tmp_path_factory.mktemp("sd2")
    write_random_checkpoint(folder / "checkpoints" / "a.safetensors", family=family)
    return folder


def unet_shapes(in_channels: int, *, label_dim: int = 0, num_labels: int = 0) -> dict[str, tuple[int, ...]]:
    config = replace(unet_config(in_channels=in_channels, label_dim=label_dim), num_labels=num_labels)
    with unfilled():
        unet = UnetModel(config)
    return {PREFIX + name: tuple(weight.shape) for name, weight in unet.state_dict().items()}


@pytest.mark.parametrize(("in_channels", "variant"), [(4, ""), (5, "depth"), (9, "inpaint")])
def test_the_form_of_its_network_is_known_by_its_channels(in_channels: int, variant: str) -> None:
    found = recognise(TensorIndex(unet_shapes(in_channels)))
    assert (found.family.name, found.match.variant) == ("sd2", variant)


class OneTensor:
    """A file of which one tensor is read."""

    def __init__(self, tensor: torch.Tensor, marks: tuple[str, ...] = ()) -> None:
        self.metadata: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = dict.fromkeys(marks, (0,))
        self._tensor = tensor

    def tensor(self, name: str) -> torch.Tensor:
        assert name == PREFIX + SPREAD_OF
        return self._tensor


@pytest.mark.parametrize(
    ("variant", "spread", "marks", "kind"),
    [
        ("", 0.2, (), VDiscrete),
        ("", 0.05, (), EpsDiscrete),
        ("inpaint", 0.2, (), EpsDiscrete),
        ("", 0.05, ("v_pred",), VDiscrete),
    ],
)
def test_v_prediction_is_recognised_by_the_spread_of_biases(
    family: ModelFamily, variant: str, spread: float, marks: tuple[str, ...], kind: type
) -> None:
    match = replace(recognise(TensorIndex(unet_shapes(4))).match, variant=variant)
    biases = torch.tensor([-spread, spread])  # of which the deviation is `spread`
    assert family.parameterise(match, OneTensor(biases, marks)).kind is kind


def test_heads_are_64_channels_wide_and_projections_linear(models: Path) -> None:
    unet = load_checkpoint(models / "checkpoints" / "a.safetensors", LoadTypes()).unet
    block = unet.input_blocks[1][1]
    assert block.use_linear and block.transformer_blocks[0].d_head == 64


def test_checkpoints_name_the_text_encoder_as_open_clip_does(models: Path) -> None:
    names = SafetensorsFile(models / "checkpoints" / "a.safetensors").shapes
    start = "cond_stage_model.model."
    width = names[f"{start}token_embedding.weight"][1]
    assert names[f"{start}transformer.resblocks.23.attn.in_proj_weight"] == (3 * width, width)
    assert f"{start}text_projection" in names and f"{start}positional_embedding" in names


def test_a_chunk_is_filled_with_zeros_and_the_layer_before_the_last_is_taken(models: Path) -> None:
    _, clip, _ = small_store(models).checkpoint("a.safetensors")
    assert clip is not None
    tokens = clip.tokenize("a fox")
    (chunk,) = tokens["h"]
    assert [token for token, _ in chunk[:4]] == [
        token for token, _ in ClipTokenizer().tokenize_with_weights("a fox")["l"][0][:4]
    ]
    assert {token for token, _ in chunk[4:]} == {0} and len(chunk) == 77
    usual = clip.encode_from_tokens(tokens)
    for layer, is_same in ((-2, True), (-1, False)):
        other = clip.clone()
        other.clip_layer(layer)
        assert torch.equal(other.encode_from_tokens(tokens), usual) == is_same


def test_its_text_encoder_loads_from_a_file_in_either_layout(models: Path, family: ModelFamily, tmp_path: Path) -> None:
    whole = load_checkpoint(models / "checkpoints" / "a.safetensors", LoadTypes()).text_encoder
    (encoder,) = family.text
    own = whole.encoders()["h"].transformer.state_dict()
    prefix = "cond_stage_model.model."
    open_clip = {name.removeprefix(prefix): tensor for name, tensor in encoder.network.saved(own).items()}
    for number, tensors in enumerate((own, open_clip)):
        path = tmp_path / f"{number}.safetensors"
        write_safetensors(path, tensors)
        loaded = load_text_encoder(path, LoadTypes()).state_dict()
        assert not [name for name, weight in whole.state_dict().items() if not torch.equal(weight, loaded[name])]


@pytest.mark.parametrize(
    ("in_channels", "label_dim", "num_labels", "variant"),
    [(4, 1536, 0, "unclip"), (4, 2048, 0, "unclip"), (4, 4, 0, "lotus"), (7, 0, 1000, "upscale")],
)
def test_networks_that_take_labels_are_known_by_them(
    in_channels: int, label_dim: int, num_labels: int, variant: str
) -> None:
    found = recognise(TensorIndex(unet_shapes(in_channels, label_dim=label_dim, num_labels=num_labels)))
    assert (found.family.name, found.match.variant) == ("sd2", variant)


@pytest.mark.parametrize(("in_channels", "label_dim", "num_labels"), [(9, 2048, 0), (4, 0, 1000), (6, 0, 0)])
def test_networks_of_unknown_inputs_are_refused(in_channels: int, label_dim: int, num_labels: int) -> None:
    with pytest.raises(NotRecognised, match="UNet|unCLIP"):
        recognise(TensorIndex(unet_shapes(in_channels, label_dim=label_dim, num_labels=num_labels)))


@pytest.mark.parametrize(
    ("label_dim", "num_labels", "head_channels"), [(0, 0, 64), (2048, 0, 64), (4, 0, 64), (0, 1000, None)]
)
def test_the_upscaler_alone_has_eight_heads_at_every_width(
    family: ModelFamily, label_dim: int, num_labels: int, head_channels: int | None
) -> None:
    shapes = unet_shapes(7 if num_labels else 4, label_dim=label_dim, num_labels=num_labels)
    config = family.denoiser.configure({name.removeprefix(PREFIX): shape for name, shape in shapes.items()})
    assert config.head_channels == head_channels


@pytest.mark.parametrize(
    ("variant", "kind", "settings"),
    [("lotus", DiscreteImageToImage, {}), ("upscale", VDiscrete, UPSCALE_SCHEDULE), ("depth", EpsDiscrete, None)],
)
def test_each_form_is_read_in_its_own_way(
    family: ModelFamily, variant: str, kind: type, settings: dict[str, float] | None
) -> None:
    match = replace(recognise(TensorIndex(unet_shapes(4))).match, variant=variant)
    found = family.parameterise(match, OneTensor(torch.tensor([-0.2, 0.2])))
    assert found.kind is kind
    assert settings is None or found.settings == settings


# --- what the networks see -------------------------------------------------------------------------------------------


class Image:
    """Result of an image encoder."""

    def __init__(self, image_embeds: torch.Tensor) -> None:
        self.image_embeds = image_embeds


def _denoiser(kind: type[Denoiser], **config: Any) -> Denoiser:
    network = torch.nn.Module()
    network.config = SimpleNamespace(**config)  # type: ignore[assignment]
    return kind(network)


def _inputs(model: Denoiser, **options: Any) -> dict[str, Any]:
    noise = torch.zeros(2, 4, 8, 8)
    return model.extra_conds(noise=noise, device=torch.device("cpu"), latent_image=noise, seed=5, **options)


def test_without_an_image_labels_are_zeros() -> None:
    labels = _inputs(_denoiser(UnclipDenoiser, label_dim=12))["y"].cond
    assert torch.equal(labels, torch.zeros(1, 12))


def test_an_image_s_labels_are_its_embedding_with_noise_by_the_level() -> None:
    image = {"clip_vision_output": Image(torch.ones(1, 6)), "strength": 1.0, "noise_augmentation": 0.0}
    model = _denoiser(UnclipDenoiser, label_dim=12)
    plain, noisy = (
        _inputs(model, unclip_conditioning=[image | {"noise_augmentation": level}])["y"].cond for level in (0.0, 0.9)
    )
    assert plain.shape == (1, 12)
    assert (plain[:, :6] - 1).abs().max() < 0.05 < (noisy[:, :6] - 1).abs().max()
    assert torch.equal(plain[0, 6:], torch.tensor([1.0, 1, 1, 0, 0, 0]))  # of level 0: cosines, then sines


def test_the_upscaler_sees_the_image_in_the_latents_size_and_its_noise_level() -> None:
    model = _denoiser(UpscaleDenoiser)
    image = torch.rand(1, 3, 4, 4) * 2 - 1
    plain = _inputs(model, concat_image=image)
    assert plain["c_concat"].cond.shape == (2, 3, 8, 8) and plain["y"].cond.tolist() == [0]
    noisy = _inputs(model, concat_image=image, noise_augmentation=1.0)
    assert noisy["y"].cond.tolist() == [350]
    assert not torch.equal(noisy["c_concat"].cond, plain["c_concat"].cond)
    assert torch.equal(
        noisy["c_concat"].cond, _inputs(model, concat_image=image, noise_augmentation=1.0)["c_concat"].cond
    )
    assert torch.equal(_inputs(model)["c_concat"].cond, torch.zeros(2, 3, 8, 8))


def test_depth_is_the_conditioning_s_further_channel_or_even() -> None:
    model = _denoiser(DepthDenoiser)
    depth = torch.rand(2, 1, 8, 8)
    assert torch.equal(_inputs(model)["c_concat"].cond, torch.zeros(2, 1, 8, 8))
    assert torch.equal(_inputs(model, noise_concat=depth)["c_concat"].cond, depth)


def test_lotus_receives_its_task_as_a_label_of_four_numbers() -> None:
    labels = _inputs(_denoiser(LotusDenoiser))["y"].cond
    assert torch.allclose(labels, torch.tensor([[0.841471, 0.0, 0.540302, 1.0]]), atol=1e-5)
