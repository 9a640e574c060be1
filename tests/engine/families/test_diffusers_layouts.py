"""Transformers whose files are in the layout of the diffusers library: the same networks as in their own layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from darkroom.engine.adapters.lora_names import LoraTarget
from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.base import ModelFamily
from darkroom.engine.families.flux.transformer import FluxConfig
from darkroom.engine.families.registry import family_named
from darkroom.engine.families.sd3.transformer import Sd3Config
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.models.files.families import FileFamilies
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.models.files.header_answers import HeaderAnswers
from darkroom.engine.models.load import LoadTypes, load_unet

FAMILIES = (family_named("flux"), family_named("sd3"))
PLACES = {"pos_embed": "pos_embed.pos_embed"}

every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def weights(family: ModelFamily) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    with unfilled():
        network = family.denoiser.build(family.scales["small"].denoiser)
    return {name: torch.randn(item.shape, generator=generator) for name, item in network.state_dict().items()}


def as_diffusers(family: ModelFamily, own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Take the network apart by the names that LoRA files use for its layers, weights and biases alike."""
    config: FluxConfig | Sd3Config = family.scales["small"].denoiser
    keys = family.denoiser_lora_keys([], config)
    theirs = {key.removeprefix("transformer."): to for key, to in keys.items() if key.startswith("transformer.")}
    found = {PLACES[name]: own[name] for name in PLACES if name in own}
    for layer, target in theirs.items():
        for kind in ("weight", "bias"):
            for name, tensor in _of(own, target, kind):
                assert tensor is not None, name
                found[f"{layer}.{kind}"] = tensor.contiguous()
    return found


def _of(own: dict[str, torch.Tensor], target: LoraTarget, kind: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensor that a target is, or is a part of, where the network has it."""
    whole = (target if isinstance(target, str) else target[0]).removeprefix("diffusion_model.")
    name = whole if whole.endswith(".scale") else f"{whole.removesuffix('.weight')}.{kind}"
    if name not in own or (whole.endswith(".scale") and kind == "bias"):
        return
    tensor = own[name]
    if not isinstance(target, str):
        rows, reorder = target[1], target[2] if len(target) > 2 else None
        if rows is not None:
            tensor = tensor.narrow(*rows)
        if callable(reorder):
            tensor = reorder(tensor)
    yield name, tensor


@every_family
@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_every_weight_is_where_it_belongs(family: ModelFamily, prefix: str, tmp_path: Path) -> None:
    own = weights(family)
    file = {prefix + name: tensor for name, tensor in as_diffusers(family, own).items()}
    write_safetensors(tmp_path / "d.safetensors", file)
    loaded = load_unet(tmp_path / "d.safetensors", LoadTypes())
    assert loaded.family is family
    found = loaded.unet.state_dict()
    assert found.keys() == own.keys()
    assert all(torch.equal(tensor, own[name]) for name, tensor in found.items())


@every_family
def test_a_file_is_listed_with_its_scale(family: ModelFamily, tmp_path: Path) -> None:
    folder = tmp_path / "diffusion_models"
    write_safetensors(folder / "d.safetensors", as_diffusers(family, weights(family)))
    (described,) = FileFamilies(ModelFolders(tmp_path), HeaderAnswers()).describe("diffusion_models")
    assert (described.family, described.scale) == (family.name, "small")


Change = Callable[[dict[str, torch.Tensor]], None]


def _without_a_part(file: dict[str, torch.Tensor]) -> None:
    del file["transformer_blocks.1.attn.to_k.weight"]


def _of_another_width(file: dict[str, torch.Tensor]) -> None:
    file["transformer_blocks.1.attn.to_k.weight"] = torch.zeros(64, 128)


@every_family
@pytest.mark.parametrize(
    ("change", "expected"),
    [(_without_a_part, "is missing"), (_of_another_width, r"of shape \[320, 128\]")],
    ids=["missing", "shape"],
)
def test_what_does_not_fit_is_refused_by_the_weight(
    family: ModelFamily, change: Change, expected: str, tmp_path: Path
) -> None:
    file = as_diffusers(family, weights(family))
    change(file)
    write_safetensors(tmp_path / "d.safetensors", file)
    with pytest.raises(BadModelFile, match=expected):
        load_unet(tmp_path / "d.safetensors", LoadTypes())
