"""Damaged files of networks that work on images alone: each is refused by name, or is a network that computes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from darkroom.engine.errors import BadModelFile
from darkroom.engine.models.kinds.background_removal.load_background_removal import load_background_removal
from darkroom.engine.models.kinds.frame_interpolation.load_frame_interpolation import load_frame_interpolation
from darkroom.engine.models.kinds.geometry.load_depth_anything import load_depth_anything
from darkroom.engine.models.kinds.geometry.load_moge import load_moge
from tests.parity.models import read_layouts, write_model

FEW, MANY = range(20), range(20, 60)
"""Numbers of damaged files, each with other damage."""
Tensors = dict[str, torch.Tensor]


def interpolate(network: Any) -> None:
    frames = torch.rand(2, 1, 3, 64, 64)
    features = [network.features(frame) for frame in frames]
    list(network.between((frames[0], frames[1]), (features[0], features[1]), [0.5]))


def estimate_depth(network: Any) -> None:
    network(torch.rand(1, 1, 3, 28, 42))
    if network.config.camera_size is not None:
        network(torch.rand(1, 3, 3, 28, 42))
    if network.config.head.is_dual:
        network.with_ray_cameras(torch.rand(1, 2, 3, 28, 42), "first")


LOADERS: Mapping[str, tuple[Callable[[Path], Any], Callable[[Any], object]]] = {
    "birefnet_small": (
        lambda path: load_background_removal(path, torch.float32), lambda network: network(torch.rand(1, 3, 64, 64))
    ),
    "film_small": (load_frame_interpolation, interpolate),
    "rife_small": (load_frame_interpolation, interpolate),
    "da3_small": (load_depth_anything, estimate_depth),
    "da3_mono": (load_depth_anything, estimate_depth),
    "moge_v1": (lambda path: load_moge(path, torch.float32), lambda network: network(torch.rand(1, 3, 28, 42), 12)),
    "moge_v2": (lambda path: load_moge(path, torch.float32), lambda network: network(torch.rand(1, 3, 28, 42), 12)),
}  # fmt: skip
"""Reader of a layout's file, and what its network is for, by the layout's name."""


@pytest.fixture(scope="module", params=LOADERS)
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    (layout,) = (item for item in read_layouts() if item.name == request.param)
    return request.param, write_model(layout, tmp_path_factory.mktemp("whole"))


def damaged(whole: Tensors, chance: random.Random) -> Tensors:
    """Change a file: parts left out, sizes changed in one tensor or everywhere, other ranks, other numbers in names."""
    made, names = dict(whole), sorted(whole)
    name = chance.choice(names)
    match chance.randrange(7):
        case 0:  # a tensor
            del made[name]
        case 1:  # a part of the network
            start = ".".join(name.split(".")[: chance.randrange(1, name.count(".") + 1)]) + "."
            made = {key: tensor for key, tensor in made.items() if not key.startswith(start)}
        case 2:  # layers from one on
            numbers = [part for part in name.split(".") if part.isdecimal()]
            if numbers:
                before, _, _ = name.partition(f".{numbers[0]}.")
                least = int(numbers[0])
                made = {key: tensor for key, tensor in made.items() if _number_below(key, before, least)}
        case 3:  # one dimension of one tensor
            shape = list(made[name].shape)
            shape[chance.randrange(len(shape))] = chance.choice((0, 1, 2, 5, 64))
            made[name] = torch.zeros(shape)
        case 4:  # one size wherever it is
            size, other = chance.choice(made[name].shape), chance.choice((1, 3, 6, 48, 96))
            made = {
                key: torch.zeros([other if side == size else side for side in tensor.shape])
                for key, tensor in made.items()
            }
        case 5:  # fewer or more dimensions
            made[name] = chance.choice((made[name].flatten(), made[name][None], torch.tensor(1.0)))
        case 6:  # a number that no network reaches, or no decimal
            copied = name.split(".")
            places = [index for index, part in enumerate(copied) if part.isdecimal()]
            if places:
                copied[chance.choice(places)] = chance.choice(("999999999", "9" * 5000, "²", "-1"))
                made[".".join(copied)] = made[name].clone()
    return made


def _number_below(key: str, before: str, least: int) -> bool:
    number = key.removeprefix(f"{before}.").split(".")[0]
    return not key.startswith(f"{before}.") or not number.isdecimal() or int(number) < least


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("numbers", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"])
def test_a_damaged_file_is_refused_by_name_or_computes(
    network: tuple[str, Path], tmp_path: Path, numbers: range
) -> None:
    name, path = network
    load, use = LOADERS[name]
    use(load(path))
    whole = {key: tensor.contiguous() for key, tensor in load_file(path).items()}
    num_refused = 0
    for number in numbers:
        changed = tmp_path / f"{name}-{number}.safetensors"
        save_file(damaged(whole, random.Random(f"{name} {number}")), changed)
        try:
            found = load(changed)
        except BadModelFile as refused:
            num_refused += 1
            assert refused.file_name == changed.name and len(str(refused)) < 2000
        else:
            try:
                use(found)
            except Exception as error:
                raise AssertionError(f"{changed.name}: {error!r}") from error
        changed.unlink()
    assert num_refused > len(numbers) / 3


class Planted:
    """An object whose pickle calls a function where it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_pickle_of_moge_runs_no_code(tmp_path: Path, is_zip: bool) -> None:
    planted = tmp_path / "planted"
    content = {
        "model_config": Planted(planted),
        "model": {"head.upsample_blocks.0.0.0.weight": torch.zeros(2, 2, 2, 2)},
    }
    torch.save(content, tmp_path / "moge.pt", _use_new_zipfile_serialization=is_zip)
    with pytest.raises(BadModelFile, match=r"moge\.pt: .*holds more than weights"):
        load_moge(tmp_path / "moge.pt", torch.float32)
    assert not planted.exists()
