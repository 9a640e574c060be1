"""Stable Diffusion 2: how its files are told apart, and how its text encoder reads a prompt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.architectures.latent_unet import UnetModel
from engine.checkpoints.load import LoadTypes, load_checkpoint, load_text_encoder
from engine.checkpoints.random_weights import random_networks, write_random_checkpoint
from engine.diffusion.model_sampling import EpsDiscrete, VDiscrete
from engine.errors import BadModelFile
from engine.families.base import ModelFamily, TensorIndex
from engine.families.parts.latent_unet import PREFIX
from engine.families.registry import family_named, recognise
from engine.families.sd2.family import SPREAD_OF, unet_config
from engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from engine.text.clip_tokens import ClipTokenizer
from tests.engine.nodes.small_store import small_store


@pytest.fixture(scope="module")
def family() -> ModelFamily:
    return family_named("sd2")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, family: ModelFamily) -> Path:
    folder = tmp_path_factory.mktemp("sd2")
    write_random_checkpoint(folder / "checkpoints" / "a.safetensors", family=family)
    return folder


def unet_shapes(in_channels: int) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        unet = UnetModel(unet_config(in_channels=in_channels))
    return {PREFIX + name: tuple(weight.shape) for name, weight in unet.state_dict().items()}


@pytest.mark.parametrize(("in_channels", "variant"), [(4, ""), (9, "inpaint")])
def test_its_inpainting_network_is_known_by_its_channels(in_channels: int, variant: str) -> None:
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
def test_v_prediction_is_told_by_the_spread_of_biases(
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


def test_networks_that_take_labels_are_refused_by_name(family: ModelFamily, tmp_path: Path) -> None:
    unet, _, _ = random_networks("small", 0, LoadTypes(), family=family)
    tensors = {PREFIX + name: weight for name, weight in unet.state_dict().items()}
    write_safetensors(tmp_path / "unclip.safetensors", tensors | {f"{PREFIX}label_emb.0.0.weight": torch.zeros(4, 4)})
    with pytest.raises(BadModelFile, match="unCLIP"):
        load_checkpoint(tmp_path / "unclip.safetensors", LoadTypes())
