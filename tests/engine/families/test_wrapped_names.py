"""Files whose names lie behind the prefix of a wrapping module: read as without it, whatever the family."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily, TensorIndex
from darkroom.engine.families.wrapped_names import names_with, shapes_behind, wrapping_prefixes
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.formats.weight_file import Item, Joined, Part, Transposed
from darkroom.engine.models.load import LoadTypes, load_unet
from tests.parity.layout import weightless_denoiser

FAMILIES = registry.families()
PREFIXES = (
    "model.diffusion_model.", "model.model.", "net.", "model.", "diffusion_model.", "transformer.", "module.",
    "module.model.", "_orig_mod.", "net._orig_mod.", "unet.", "dit.",
)  # fmt: skip

every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def shapes_of(family: ModelFamily) -> dict[str, tuple[int, ...]]:
    """The tensors of a file of the family's small network alone."""
    return dict(_shapes_of(family.name))


@cache
def _shapes_of(name: str) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in weightless_denoiser(name, "small").state_dict().items()}


@every_family
@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_family_is_recognised_behind_every_prefix(family: ModelFamily, prefix: str) -> None:
    shapes = shapes_of(family)
    bare = registry.recognise(TensorIndex(shapes)).match
    found = registry.recognise(TensorIndex({prefix + name: shape for name, shape in shapes.items()}))
    assert found.family is family
    assert found.match.variant == bare.variant
    assert found.match.names == names_with(prefix, bare.names)


def test_what_lies_beside_the_network_is_left_out() -> None:
    family = registry.family_named("flux")
    shapes = {f"module.{name}": shape for name, shape in shapes_of(family).items()} | {"optimizer.step": (1,)}
    found = registry.recognise(TensorIndex(shapes))
    assert found.family is family and "optimizer.step" not in found.match.names.values()


@pytest.mark.parametrize("prefix", ["", "net.", "module.model."])
def test_a_file_loads_to_the_same_bits(tmp_path: Path, prefix: str) -> None:
    family = registry.family_named("flux")
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=generator) for name, shape in shapes_of(family).items()}
    path = tmp_path / "network.safetensors"
    write_safetensors(path, {prefix + name: weight for name, weight in weights.items()})
    loaded = load_unet(path, LoadTypes()).unet.state_dict()
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], weight) for name, weight in weights.items())


@every_family
def test_a_network_in_part_is_not_described_as_what_was_expected(family: ModelFamily, tmp_path: Path) -> None:
    """A few tensors of a network: whatever is said of them, not that they are the network that is expected."""
    shapes = shapes_of(family)
    path = tmp_path / "part.safetensors"
    write_safetensors(path, {name: torch.zeros(shape) for name, shape in list(shapes.items())[:3]})
    with pytest.raises(BadModelFile) as raised:
        load_unet(path, LoadTypes())
    assert raised.value.found not in (f"the network of {family.label}", f"a checkpoint of {family.label}")


def test_prefixes_are_found_by_how_many_tensors_they_have() -> None:
    shapes = {"model.net.a": (1,), "model.net.b": (1,), "model.c": (1,), "other.d": (1,), "net": (1,)}
    assert wrapping_prefixes(shapes) == ["model.", "model.net."]
    assert shapes_behind("model.net.", shapes) == {"a": (1,), "b": (1,)}


def test_composed_weights_keep_their_form_behind_a_prefix() -> None:
    names: dict[str, Item] = {"a": "x", "b": Part("x", 0, 2), "c": Transposed("y"), "d": Joined(("x", Part("y", 1, 2)))}
    assert names_with("net.", names) == {
        "a": "net.x", "b": Part("net.x", 0, 2), "c": Transposed("net.y"), "d": Joined(("net.x", Part("net.y", 1, 2))),
    }  # fmt: skip
